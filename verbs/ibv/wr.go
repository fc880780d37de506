package ibv

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"unsafe"
)

// opcode is what a send work request asks for. The methods of [SendWR] set it.
type opcode uint32

// The operations of a reliable connected queue pair.
const (
	opWrite       opcode = 0
	opWriteImm    opcode = 1
	opSend        opcode = 2
	opSendImm     opcode = 3
	opRead        opcode = 4
	opCompareSwap opcode = 5
	opFetchAdd    opcode = 6
	opLocalInv    opcode = 7
	opBindMW      opcode = 8
	opSendInv     opcode = 9
)

// SendFlags modify a send work request.
type SendFlags uint32

// Flags of a send work request.
const (
	SendFence     SendFlags = 1 << 0 // wait for earlier reads and atomics
	SendSignaled  SendFlags = 1 << 1 // complete it visibly; without it only an error is
	SendSolicited SendFlags = 1 << 2 // wake a peer that armed its CQ for solicited completions
	SendInline    SendFlags = 1 << 3 // the data is copied while it is posted; keys are not looked at
)

// sge is struct ibv_sge.
type sge struct {
	addr   uint64
	length uint32
	lkey   uint32
}

// SendWR is one send work request, in the library's own layout. It belongs to
// its [SendChain], which hands it out; it can be changed until the chain is posted.
// Set ID and Flags, call one of the methods that select the operation, and add the
// local memory.
type SendWR struct {
	ID      uint64 // comes back in WC.ID
	next    uint64
	sges    uint64
	numSGE  int32
	opcode  opcode
	Flags   SendFlags
	imm     uint32
	remote  uint64
	compare uint64 // also the key of reads and writes, in its first half
	swap    uint64
	atomKey uint32
	maxSGE  uint32 // padding to the library
	_       uint32
	maxIn   uint32 // padding to the library
	mw      uint64
	mwKey   uint32
	_       uint32
	mr      uint64
	mwAddr  uint64
	mwLen   uint64
	mwAcc   Access
	_       uint32
}

// RecvWR is one receive work request, in the library's own layout. It belongs
// to its [RecvChain].
type RecvWR struct {
	ID     uint64 // comes back in WC.ID
	next   uint64
	sges   uint64
	numSGE int32
	maxSGE uint32 // padding to the library
}

// Value of numSGE after more was added than the chain has room for; the post then fails.
const (
	tooManySGEs   = -1
	tooMuchInline = -2
)

// Send makes it a send, which consumes a receive of the peer.
func (w *SendWR) Send() { w.opcode = opSend }

// SendImm makes it a send with 32 bits of immediate data, found by the peer in [WC.Imm].
func (w *SendWR) SendImm(imm uint32) { w.opcode, w.imm = opSendImm, beImm(imm) }

// SendInv makes it a send that invalidates one of the peer's keys (of a bound type 2 window).
func (w *SendWR) SendInv(rkey uint32) { w.opcode, w.imm = opSendInv, rkey }

// Write makes it a write to the peer's memory.
func (w *SendWR) Write(addr uint64, rkey uint32) {
	w.opcode, w.remote = opWrite, addr
	w.setKey(rkey)
}

// WriteImm makes it a write that also consumes a receive of the peer and carries 32 bits of immediate data.
func (w *SendWR) WriteImm(addr uint64, rkey uint32, imm uint32) {
	w.opcode, w.remote, w.imm = opWriteImm, addr, beImm(imm)
	w.setKey(rkey)
}

// Read makes it a read of the peer's memory into local memory, which needs AccessLocalWrite.
func (w *SendWR) Read(addr uint64, rkey uint32) {
	w.opcode, w.remote = opRead, addr
	w.setKey(rkey)
}

// CompareSwap makes it an atomic on 8 aligned bytes of the peer: if they equal
// compare, they become swap. The old value lands in the one SGE, 8 bytes of
// local memory, in host byte order.
func (w *SendWR) CompareSwap(addr uint64, rkey uint32, compare, swap uint64) {
	w.opcode, w.remote, w.atomKey, w.compare, w.swap = opCompareSwap, addr, rkey, compare, swap
}

// FetchAdd makes it an atomic addition to 8 aligned bytes of the peer. The old
// value lands in the one SGE, 8 bytes of local memory, in host byte order.
func (w *SendWR) FetchAdd(addr uint64, rkey uint32, add uint64) {
	w.opcode, w.remote, w.atomKey, w.compare = opFetchAdd, addr, rkey, add
}

// LocalInv makes it an invalidation of a local key (of a bound type 2 window).
func (w *SendWR) LocalInv(rkey uint32) { w.opcode, w.imm = opLocalInv, rkey }

func (w *SendWR) setKey(rkey uint32) { *(*uint32)(unsafe.Pointer(&w.compare)) = rkey }

// beImm keeps immediate data in network byte order in memory.
func beImm(imm uint32) (be uint32) {
	binary.BigEndian.PutUint32((*[4]byte)(unsafe.Pointer(&be))[:], imm)
	return be
}

// AddSGE adds length bytes of registered memory at addr. More entries than the
// chain has room for make the post fail.
func (w *SendWR) AddSGE(addr uint64, length, lkey uint32) {
	w.numSGE = addSGE(w.sges, w.numSGE, w.maxSGE, addr, length, lkey)
}

// AddSGE adds length bytes of registered memory at addr, as [SendWR.AddSGE] does.
func (w *RecvWR) AddSGE(addr uint64, length, lkey uint32) {
	w.numSGE = addSGE(w.sges, w.numSGE, w.maxSGE, addr, length, lkey)
}

func addSGE(list uint64, n int32, room uint32, addr uint64, length, lkey uint32) int32 {
	if n < 0 || uint32(n) >= room {
		return min(n, tooManySGEs)
	}
	*sgeAt(list, n) = sge{addr, length, lkey}
	return n + 1
}

// sgeAt is entry i of a chain's list, which lies outside the Go heap.
func sgeAt(list uint64, i int32) *sge {
	return (*sge)(pointer(list + uint64(i)*uint64(unsafe.Sizeof(sge{}))))
}

// pointer is the address of memory outside the Go heap.
func pointer(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// Inline copies data into the chain and sends it from there, so that data may
// be any Go memory and can be reused at once. It may be called again to append,
// and not be mixed with AddSGE. More bytes than the chain has room for make the post fail.
func (w *SendWR) Inline(data []byte) {
	w.Flags |= SendInline
	if w.numSGE == 0 {
		// A chain's inline bytes lie behind its entries.
		*sgeAt(w.sges, 0) = sge{addr: w.sges + uint64(w.maxSGE)*uint64(unsafe.Sizeof(sge{}))}
		w.numSGE = 1
	}
	e := sgeAt(w.sges, 0)
	if w.numSGE != 1 || uint64(e.length)+uint64(len(data)) > uint64(w.maxIn) {
		w.numSGE = tooMuchInline
		return
	}
	copy(unsafe.Slice((*byte)(pointer(e.addr+uint64(e.length))), len(data)), data)
	e.length += uint32(len(data))
}

// SendChain is an array of send work requests outside the Go heap that is
// filled in place and posted as a whole, again and again. It serves one
// goroutine at a time and any queue pair. Its memory is freed when nothing
// refers to it any more; work requests taken from it do not keep it.
type SendChain struct {
	wrs  []SendWR
	head int // posted up to here
	tail int // filled up to here
	bind []binding
}

// RecvChain is to receives what [SendChain] is to sends.
type RecvChain struct {
	wrs        []RecvWR
	head, tail int
}

// The most a chain can have; far beyond what devices take in one post.
const (
	maxChainWRs    = 1 << 16
	maxChainSGEs   = 1 << 10
	maxChainInline = 1 << 16
)

// NewSendChain makes a chain of at most n work requests with at most sges
// entries and inline bytes each. Errors: EINVAL for sizes that are negative,
// zero requests, or beyond 65536 requests, 1024 entries, 65536 inline bytes; ENOMEM.
func NewSendChain(n, sges, inline int) (*SendChain, error) {
	if n < 1 || n > maxChainWRs || sges < 0 || sges > maxChainSGEs || inline < 0 || inline > maxChainInline {
		return nil, invalid("new_send_chain", "", "%d requests, %d entries, %d inline bytes", n, sges, inline)
	}
	stride := max(sges, 1)*int(unsafe.Sizeof(sge{})) + (inline+15)&^15
	c := &SendChain{}
	base, err := chainMemory(c, n, int(unsafe.Sizeof(SendWR{})), stride)
	if err != nil {
		return nil, err
	}
	c.wrs = unsafe.Slice((*SendWR)(base), n)
	for i := range c.wrs {
		w := &c.wrs[i]
		w.sges = chainList(base, n, int(unsafe.Sizeof(SendWR{})), stride, i)
		w.maxSGE, w.maxIn = uint32(max(sges, 1)), uint32(inline)
		if i+1 < n {
			w.next = uint64(uintptr(unsafe.Pointer(&c.wrs[i+1])))
		}
	}
	return c, nil
}

// NewRecvChain makes a chain of at most n receives with at most sges entries
// each. Errors as of [NewSendChain].
func NewRecvChain(n, sges int) (*RecvChain, error) {
	if n < 1 || n > maxChainWRs || sges < 0 || sges > maxChainSGEs {
		return nil, invalid("new_recv_chain", "", "%d requests, %d entries", n, sges)
	}
	stride := max(sges, 1) * int(unsafe.Sizeof(sge{}))
	c := &RecvChain{}
	base, err := chainMemory(c, n, int(unsafe.Sizeof(RecvWR{})), stride)
	if err != nil {
		return nil, err
	}
	c.wrs = unsafe.Slice((*RecvWR)(base), n)
	for i := range c.wrs {
		w := &c.wrs[i]
		w.sges = chainList(base, n, int(unsafe.Sizeof(RecvWR{})), stride, i)
		w.maxSGE = uint32(max(sges, 1))
		if i+1 < n {
			w.next = uint64(uintptr(unsafe.Pointer(&c.wrs[i+1])))
		}
	}
	return c, nil
}

// chainMemory maps the requests and behind them, stride bytes each, their entries and inline bytes, for as long as
// owner lives. It is not Go memory, since the requests hold addresses that the library follows.
func chainMemory[T any](owner *T, n, size, stride int) (unsafe.Pointer, error) {
	mem, err := mapMemory(n * (size + stride))
	if err != nil {
		return nil, &Error{Verb: "new_chain", Errno: err.(syscall.Errno),
			Detail: fmt.Sprintf("map %d bytes", n*(size+stride))}
	}
	runtime.AddCleanup(owner, func(mem []byte) { _ = unmapMemory(mem) }, mem)
	return unsafe.Pointer(unsafe.SliceData(mem)), nil
}

func chainList(base unsafe.Pointer, n, size, stride, i int) uint64 {
	return uint64(uintptr(base)) + uint64(n*size+i*stride)
}

// Next adds a work request and returns it, empty: a send of nothing. nil when the chain is full.
func (c *SendChain) Next() *SendWR {
	if c.tail == len(c.wrs) {
		return nil
	}
	w := &c.wrs[c.tail]
	c.tail++
	w.ID, w.numSGE, w.opcode, w.Flags, w.imm = 0, 0, opSend, 0, 0
	*sgeAt(w.sges, 0) = sge{} // irdma reads the first entry of a list without entries, too (providers/irdma/uk.c)
	return w
}

// Next adds a receive and returns it, empty. nil when the chain is full.
func (c *RecvChain) Next() *RecvWR {
	if c.tail == len(c.wrs) {
		return nil
	}
	w := &c.wrs[c.tail]
	c.tail++
	w.ID, w.numSGE = 0, 0
	*sgeAt(w.sges, 0) = sge{} // as for sends
	return w
}

// Len is how many work requests wait to be posted.
func (c *SendChain) Len() int { return c.tail - c.head }

// Len is how many receives wait to be posted.
func (c *RecvChain) Len() int { return c.tail - c.head }

// Reset forgets what was not posted.
func (c *SendChain) Reset() {
	c.head, c.tail = 0, 0
	if len(c.bind) > 0 {
		clear(c.bind)
		c.bind = c.bind[:0]
	}
}

// Reset forgets what was not posted.
func (c *RecvChain) Reset() { c.head, c.tail = 0, 0 }

// seal ends the linked list at the chain's last request, for the time of a post.
func (c *SendChain) seal() *SendWR {
	w := &c.wrs[c.tail-1]
	w.next = 0
	return w
}

// unseal takes the n requests that were posted out of the chain, which starts over when it is empty.
func (c *SendChain) unseal(last *SendWR, n int) {
	if c.tail < len(c.wrs) {
		last.next = uint64(uintptr(unsafe.Pointer(&c.wrs[c.tail])))
	}
	if c.head += n; c.head == c.tail {
		c.Reset()
	} else if len(c.bind) > 0 {
		c.bind = slices.DeleteFunc(c.bind, func(b binding) bool { return b.at < c.head })
	}
	runtime.KeepAlive(c)
}

func (c *RecvChain) seal() *RecvWR {
	w := &c.wrs[c.tail-1]
	w.next = 0
	return w
}

func (c *RecvChain) unseal(last *RecvWR, n int) {
	if c.tail < len(c.wrs) {
		last.next = uint64(uintptr(unsafe.Pointer(&c.wrs[c.tail])))
	}
	if c.head += n; c.head == c.tail {
		c.Reset()
	}
	runtime.KeepAlive(c)
}
