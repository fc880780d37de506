//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// controlReceives is how many receives are posted beyond the limit that the peer knows: for two updates of the limit
// and a close message.
const controlReceives = 4

// slab holds a connection's buffers in one registered area outside the Go heap.
type slab struct {
	mem   []byte
	mr    *ibv.MR
	lkey  uint32
	size  int // bytes of a buffer
	recvs int // receive buffers, which come first
	slots int // send buffers
}

func newSlab(pd *ibv.PD, size, recvs, slots, extra int, access ibv.Access) (*slab, error) {
	mem, err := unix.Mmap(-1, 0, size*(recvs+slots)+extra, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	mr, err := pd.RegMR(mem, access)
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	return &slab{mem: mem, mr: mr, lkey: mr.LKey(), size: size, recvs: recvs, slots: slots}, nil
}

// close frees the buffers. The queue pairs that used them are gone.
func (s *slab) close() {
	if s != nil && s.mr.Close() == nil {
		_ = unix.Munmap(s.mem)
	}
}

func (s *slab) at(k int) []byte          { return s.mem[k*s.size : (k+1)*s.size : (k+1)*s.size] }
func (s *slab) extra() []byte            { return s.mem[s.size*(s.recvs+s.slots):] }
func (s *slab) recv(k uint32) []byte     { return s.at(int(k)) }
func (s *slab) send(k int) []byte        { return s.at(s.recvs + k) }
func (s *slab) sendAddr(k int) uint64    { return address(s.send(k)) }
func (s *slab) recvAddr(k uint32) uint64 { return address(s.recv(k)) }

// address returns the address of b, which lies outside the Go heap or is pinned.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// pool posts a connection's receive buffers.
type pool struct {
	qp        *ibv.QP
	chain     *ibv.RecvChain
	mem       *slab
	shared    *shared // owner of the receives in shared mode, or nil
	back      int32   // lent receives in the chain
	control   int     // control receives in the chain
	window    int     // the most messages that a peer may send ahead
	work      ibv.Work
	crossings kit.Tally // calls into C that post receives alone
}

// buffer returns the memory of receive id.
func (p *pool) buffer(id uint32) []byte {
	if p.shared != nil {
		b, _ := p.shared.buffer(id)
		return b
	}
	return p.mem.recv(id)
}

// first returns how many messages the peer may send at first.
func (p *pool) first() uint32 {
	if p.shared != nil {
		return min(sharedBase, uint32(p.window))
	}
	return uint32(p.window)
}

// more returns by how many messages the peer's limit grows after one was received. The peer may send out messages
// already.
func (p *pool) more(out int) uint32 {
	if p.shared == nil {
		return 1
	}
	if out >= sharedBase {
		p.back++
	}
	return p.shared.more(out, p.window)
}

// put adds a receive with the buffer to the chain for the next flush.
func (p *pool) put(buffer uint32) {
	if p.shared != nil {
		p.shared.put(p.chain, buffer)
		return
	}
	wr := p.chain.Next()
	wr.ID = requestID(eventRecv, buffer)
	wr.AddSGE(p.mem.recvAddr(buffer), uint32(p.mem.size), p.mem.lkey)
}

// fill posts all buffers. It is called before the peer can send.
func (p *pool) fill() error {
	if p.shared != nil {
		return nil
	}
	for k := range p.mem.recvs {
		p.put(uint32(k))
	}
	_, err := p.qp.PostRecv(p.chain)
	return err
}

// post posts the chain of receives, and then sends, in one call into C. The order makes sure that a limit in a message
// is never ahead of the posted receives. sends may be nil.
func (p *pool) post(q *completionQueue, sends *sendQueue) (err error) {
	switch {
	case p.chain.Len() == 0:
		if sends == nil {
			return nil
		}
		return sends.post()
	case sends == nil || sends.chain.Len() == 0:
		p.crossings.Add(1)
		if p.shared != nil {
			_, err = p.shared.srq.PostRecv(p.chain)
		} else {
			_, err = p.qp.PostRecv(p.chain)
		}
	default:
		sends.crossings.Add(1)
		p.work = ibv.Work{SendQP: sends.qp, Sends: sends.chain, RecvQP: p.qp, Recvs: p.chain}
		if p.shared != nil {
			p.work.SRQ = p.shared.srq
		}
		_, err = q.cq.Progress(&p.work, nil)
	}
	p.control = 0
	if p.back > 0 {
		p.shared.spare.Add(p.back)
		p.back = 0
	}
	return err
}
