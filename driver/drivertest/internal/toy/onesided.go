package toy

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// A key: incarnation of the context, region, length, access, checksum.
const keySize = 32

// region is registered memory. A reference keeps it; it does not move.
type region struct {
	c      *nicContext
	id     uint64
	b      []byte
	access driver.Access
}

// Register implements driver.Registrar.
func (c *nicContext) Register(b []byte, access driver.Access) (driver.Region, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, wrap("register", "", driver.ErrClosed)
	}
	if len(b) == 0 || access > driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic {
		return nil, wrap("register", "", driver.ErrInvalid)
	}
	c.regionN++
	r := &region{c: c, id: c.regionN, b: b, access: access}
	c.regions[r.id] = r
	return r, nil
}

// Bytes implements driver.Region.
func (r *region) Bytes() []byte { return r.b }

// Key implements driver.Region.
func (r *region) Key() []byte {
	k := binary.LittleEndian.AppendUint64(nil, r.c.inc)
	k = binary.LittleEndian.AppendUint64(k, r.id)
	k = binary.LittleEndian.AppendUint64(k, uint64(len(r.b)))
	k = binary.LittleEndian.AppendUint32(k, uint32(r.access))
	return binary.LittleEndian.AppendUint32(k, crc32.ChecksumIEEE(k))
}

// Deregister implements driver.Region.
func (r *region) Deregister() error {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if r.c.regions[r.id] != r {
		return wrap("deregister", "", driver.ErrClosed)
	}
	switch r.c.fault {
	case "stale-key-works":
		return nil
	case "late-write":
		b := r.b
		time.AfterFunc(10*time.Millisecond, func() { b[0] ^= 0xff })
	}
	if b := r.b; r.c.fault == "left-forgotten" && len(r.c.insts) == 0 {
		time.AfterFunc(10*time.Millisecond, func() { b[0] ^= 0xff })
	}
	delete(r.c.regions, r.id)
	return nil
}

// remote is a peer's region.
type remote struct {
	id     uint64
	n      int
	access driver.Access
}

func (r *remote) Len() int              { return r.n }
func (r *remote) Access() driver.Access { return r.access }

// Import implements driver.OneSided.
func (i *instance) Import(k []byte) (driver.RemoteRegion, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state != up {
		return nil, wrap("import", i.peer, i.err)
	}
	ok := len(k) == keySize && crc32.ChecksumIEEE(k[:28]) == binary.LittleEndian.Uint32(k[28:])
	if i.c.fault != "key-trusted" && !ok || len(k) < keySize {
		return nil, wrap("import", i.peer, driver.ErrRemoteKey)
	}
	if binary.LittleEndian.Uint64(k) != i.peerInc && i.c.fault != "stale-region" && i.c.fault != "key-trusted" {
		return nil, wrap("import", i.peer, driver.ErrRemoteKey)
	}
	return &remote{
		id: binary.LittleEndian.Uint64(k[8:]), n: int(binary.LittleEndian.Uint64(k[16:])),
		access: driver.Access(binary.LittleEndian.Uint32(k[24:])),
	}, nil
}

// within is the check of bounds; the fault computes it so that it overflows.
func (c *nicContext) within(off, n, size int) bool {
	if c.fault == "bounds-overflow" {
		return off+n <= size
	}
	return off >= 0 && n >= 0 && off <= size && n <= size-off
}

func (i *instance) postOp(op *driver.Op, k kind, need driver.Access, n int) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.usable(nil); err != nil {
		return wrap("one-sided", i.peer, err)
	}
	if i.state == gone {
		return wrap("one-sided", i.peer, i.err)
	}
	r, ok := op.Remote.(*remote)
	if !ok || op.Driver.Phase != driver.Idle || n > maxPut {
		return wrap("one-sided", i.peer, driver.ErrInvalid)
	}
	switch {
	case r.access&need == 0 && i.c.fault != "ignore-access":
		return wrap("one-sided", i.peer, driver.ErrAccess)
	case !i.c.within(op.Offset, n, r.n):
		return wrap("one-sided", i.peer, driver.ErrBounds)
	}
	slot := -1
	for s, o := range i.ops {
		if o == nil {
			slot = s
		}
	}
	op.Driver = driver.OpState{Phase: driver.Posted}
	if slot < 0 {
		if i.c.fault == "op-lost" {
			return nil
		}
		op.Driver.Phase = driver.Idle
		i.c.n.busy.Add(1)
		return driver.ErrBusy
	}
	i.opGen++
	op.Driver.Ticket = i.opGen*opDepth + uint64(slot)
	i.ops[slot] = op
	i.opsBusy++
	h := header{kind: k, id: op.Driver.Ticket, a: r.id, b: uint64(op.Offset), size: uint8(op.Size), op: uint8(op.Atomic)}
	switch k {
	case putFrame:
		h.len = uint32(n)
		i.c.n.puts.Add(1)
	case getFrame:
		h.c = uint64(n)
		i.c.n.gets.Add(1)
	case atomicFrame:
		h.len, h.c = 8, op.Operand
		i.c.n.atomics.Add(1)
	}
	i.ctrl = append(i.ctrl, frame{h: h, op: op})
	i.work.Signal()
	return nil
}

// PutPost implements driver.OneSided.
func (i *instance) PutPost(op *driver.Op) error {
	return i.postOp(op, putFrame, driver.RemoteWrite, len(op.Local))
}

// GetPost implements driver.OneSided.
func (i *instance) GetPost(op *driver.Op) error {
	return i.postOp(op, getFrame, driver.RemoteRead, len(op.Local))
}

// AtomicPost implements driver.OneSided.
func (i *instance) AtomicPost(op *driver.Op) error {
	switch {
	case op.Size != 4 && op.Size != 8:
		return wrap("atomic", i.peer, fmt.Errorf("%w: size %d", driver.ErrInvalid, op.Size))
	case op.Atomic > driver.CompareSwap:
		return wrap("atomic", i.peer, driver.ErrUnsupported)
	case op.Offset%op.Size != 0 && i.c.fault != "any-alignment":
		return wrap("atomic", i.peer, driver.ErrAlignment)
	}
	return i.postOp(op, atomicFrame, driver.RemoteAtomic, op.Size)
}

// OpPoll implements driver.OneSided.
func (i *instance) OpPoll(op *driver.Op) (bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch op.Driver.Phase {
	case driver.Posted:
		return false, nil
	case driver.Done:
		op.Driver.Phase = driver.Idle
		return true, wrap("one-sided", i.peer, op.Driver.Err)
	}
	if i.state == closed {
		return true, wrap("one-sided", i.peer, driver.ErrClosed)
	}
	return true, wrap("one-sided", i.peer, driver.ErrInvalid)
}

// Flush implements driver.OneSided.
func (i *instance) Flush(ctx context.Context) error {
	for {
		i.mu.Lock()
		busy, err := i.opsBusy, error(nil)
		if i.state != up {
			err = i.err
		}
		i.mu.Unlock()
		if err != nil || busy == 0 || i.c.fault == "flush-returns-early" {
			return wrap("flush", i.peer, err)
		}
		if err := i.wait(ctx); err != nil {
			return err
		}
	}
}

// Fence implements driver.OneSided. The stream keeps the order.
func (i *instance) Fence() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state != up {
		return wrap("fence", i.peer, i.err)
	}
	return nil
}

var statuses = [...]error{nil, driver.ErrRemoteKey, driver.ErrAccess, driver.ErrBounds, driver.ErrAlignment, driver.ErrUnsupported}

func status(err error) uint8 {
	for k, e := range statuses {
		if e == err {
			return uint8(k)
		}
	}
	return 1
}

// serve does at the target what a peer asks for.
func (i *instance) serve(h *header, data []byte) {
	c := i.c
	reply := frame{h: header{kind: replyFrame, id: h.id}}
	c.mu.Lock()
	result, out, err := i.apply(h, data)
	c.mu.Unlock()
	reply.h.a, reply.h.status = result, status(err)
	reply.data, reply.h.len = out, uint32(len(out))
	i.mu.Lock()
	i.ctrl = append(i.ctrl, reply)
	i.work.Signal()
	i.mu.Unlock()
}

// apply is serve under the context's lock, which Deregister takes as well.
func (i *instance) apply(h *header, data []byte) (result uint64, out []byte, err error) {
	r := i.c.regions[h.a]
	if r == nil {
		return 0, nil, driver.ErrRemoteKey
	}
	n, need := len(data), driver.RemoteWrite
	switch h.kind {
	case getFrame:
		n, need = int(h.c), driver.RemoteRead
	case atomicFrame:
		n, need = int(h.size), driver.RemoteAtomic
	}
	off := int(h.b)
	switch {
	case r.access&need == 0 && i.c.fault != "ignore-access":
		return 0, nil, driver.ErrAccess
	case i.c.fault == "bounds-overflow" && !(off >= 0 && off <= len(r.b)-n):
		return 0, nil, nil
	case off < 0 || n < 0 || off > len(r.b) || n > len(r.b)-off || n > maxPut:
		return 0, nil, driver.ErrBounds
	}
	switch h.kind {
	case putFrame:
		if i.c.fault == "put-short" && n > 0 {
			data = data[:n-1]
		}
		copy(r.b[off:], data)
	case getFrame:
		out = i.alloc(n)
		copy(out, r.b[off:off+n])
		if i.c.fault == "get-short" && n > 0 {
			out[n-1] ^= 1
		}
	case atomicFrame:
		p := unsafe.Pointer(&r.b[off])
		if uintptr(p)%uintptr(h.size) != 0 && i.c.fault != "any-alignment" {
			return 0, nil, driver.ErrAlignment
		}
		f := newValue(driver.AtomicOp(h.op), h.c, binary.LittleEndian.Uint64(data))
		result = i.c.modify(p, h.size, f)
	}
	return result, out, nil
}

// newValue is the function that an atomic applies.
func newValue(op driver.AtomicOp, x, compare uint64) func(uint64) uint64 {
	return func(old uint64) uint64 {
		switch op {
		case driver.Add:
			return old + x
		case driver.And:
			return old & x
		case driver.Or:
			return old | x
		case driver.Xor:
			return old ^ x
		case driver.CompareSwap:
			if old != compare {
				return old
			}
		}
		return x
	}
}

// modify applies f atomically and returns the old value.
func (c *nicContext) modify(p unsafe.Pointer, size uint8, f func(uint64) uint64) uint64 {
	for {
		var old, val uint64
		var done bool
		if size == 4 {
			o := atomic.LoadUint32((*uint32)(p))
			old, val = uint64(o), uint64(uint32(f(uint64(o))))
			if c.fault == "atomic-torn" {
				runtime.Gosched()
				atomic.StoreUint32((*uint32)(p), uint32(val))
				return old
			}
			done = atomic.CompareAndSwapUint32((*uint32)(p), o, uint32(val))
		} else {
			old = atomic.LoadUint64((*uint64)(p))
			val = f(old)
			if c.fault == "atomic-torn" {
				runtime.Gosched()
				atomic.StoreUint64((*uint64)(p), val)
				return old
			}
			done = atomic.CompareAndSwapUint64((*uint64)(p), old, val)
		}
		if !done {
			continue
		}
		if c.fault == "atomic-wrong-result" {
			return val
		}
		return old
	}
}

// complete ends an operation of ours.
func (i *instance) complete(h *header, data []byte) {
	i.mu.Lock()
	op := i.ops[h.id%opDepth]
	if op == nil || op.Driver.Ticket != h.id || int(h.status) >= len(statuses) {
		i.c.n.badFrames.Add(1)
		i.mu.Unlock()
		return
	}
	i.ops[h.id%opDepth] = nil
	i.opsBusy--
	if len(data) > 0 {
		copy(op.Local, data)
	}
	op.Result = h.a
	op.Driver.Phase, op.Driver.Err = driver.Done, statuses[h.status]
	i.mu.Unlock()
	i.ring()
}
