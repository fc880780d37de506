//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// opDepth is how many one-sided operations can be posted and unfinished on an instance.
const opDepth = 32

// opBounce is the most bytes of an operation in unregistered memory that are copied to or from registered memory: to
// register memory takes longer.
const opBounce = 4096

// Paths of messages of the small and the large track, and of operations.
const (
	pathSend  = "rdma-send"
	pathWrite = "rdma-write"
)

var opPaths = [...]string{pathWrite, "rdma-read", "rdma-atomic"}

// opSlot is a posted operation.
type opSlot struct {
	op     *driver.Op
	kind   kit.OpKind
	fence  bool // its first request waits for all earlier ones
	lkey   uint32
	posted int                       // bytes for which requests were posted
	region *regcache.Region[*ibv.MR] // of the local memory
	arena  *driver.Arena             // that the local memory lies in
	result *uint64                   // of an atomic, written by the device
	copied []byte                    // registered memory that is used instead of Local
}

// oneSided is the state of an instance's one-sided operations.
type oneSided struct {
	slots    [opDepth]opSlot
	ops      int
	fence    bool
	results  []byte // opDepth words of registered memory
	lkey     uint32
	unposted [opDepth]uint8 // a ring of the slots whose requests are not all posted
	first    uint8          // index in unposted
	waiting  uint8          // entries of unposted
	bounce   *slab          // opDepth buffers of opBounce bytes; allocated at the first short operation that needs one
}

// close frees the memory of operations, also of those that were never polled to their end. The queue pairs that used it
// are gone.
func (o *oneSided) close() {
	for k := range o.slots {
		o.slots[k].release()
	}
	o.bounce.close()
}

func (n *conn) PutPost(op *driver.Op) error { return n.postOp(op, kit.OpPut) }

func (n *conn) GetPost(op *driver.Op) error { return n.postOp(op, kit.OpGet) }

func (n *conn) AtomicPost(op *driver.Op) error { return n.postOp(op, kit.OpAtomic) }

func (n *conn) postOp(op *driver.Op, kind kit.OpKind) error {
	if !n.Enter() {
		return n.Failure(kind.String())
	}
	defer n.Leave()
	if n.State() != kit.StateUp {
		return n.Failure(kind.String())
	}
	r, err := n.checkOp(op, kind)
	if err != nil {
		return n.Fault(kind.String(), err)
	}
	if n.ops == opDepth {
		n.api.Settle()
		if n.ops == opDepth {
			return n.Busy()
		}
	}
	if err := n.startOp(op, kind, r); err != nil {
		return n.Fault(kind.String(), err)
	}
	n.pushOps()
	return nil
}

func (n *conn) checkOp(op *driver.Op, kind kit.OpKind) (*remoteRegion, error) {
	r, ok := op.Remote.(*remoteRegion)
	if !ok || r.conn != n {
		return nil, fmt.Errorf("%w: the region was not imported on this instance", driver.ErrRemoteKey)
	}
	_, err := kit.CheckOp(op, kind, n.ctx.Props.Capabilities.OneSided, r.key.addr)
	return r, err
}

// startOp puts op into a slot, to be posted by pushOps.
func (n *conn) startOp(op *driver.Op, kind kit.OpKind, r *remoteRegion) error {
	k := 0
	for n.oneSided.slots[k].op != nil {
		k++
	}
	s := &n.oneSided.slots[k]
	if kind == kit.OpAtomic {
		s.result, s.lkey = (*uint64)(unsafe.Pointer(&n.results[8*k])), n.lkey
	} else if len(op.Local) > 0 && !n.inlines(op, kind) {
		var err error
		if s.lkey, err = n.localKey(k, op, kind); err != nil {
			return err
		}
	}
	s.op, s.kind, s.posted = op, kind, 0
	s.fence, n.fence = n.fence, false
	n.ops++
	n.unposted[(n.first+n.waiting)%opDepth] = uint8(k)
	n.waiting++
	op.Driver = driver.OpState{Phase: driver.Posted, Ticket: uint64(kind)}
	n.path = opPaths[kind]
	return nil
}

// inlines reports whether the request itself carries a put's bytes.
func (n *conn) inlines(op *driver.Op, kind kit.OpKind) bool {
	return kind == kit.OpPut && n.sq.inlines(len(op.Local))
}

// pushOps posts requests of operations, in order, as far as the send queue has room.
func (n *conn) pushOps() {
	for n.waiting > 0 && n.sq.room() > controlReserve {
		k := n.unposted[n.first]
		if n.addPart(int(k)) {
			n.first = (n.first + 1) % opDepth
			n.waiting--
		}
	}
	if n.sq.chain.Len() > 0 {
		if err := n.sq.post(); err != nil {
			n.broke(err)
		}
	}
}

// addPart adds the next request of an operation and reports whether it is the last. Only the last request causes a
// completion, unless an earlier one fails.
func (n *conn) addPart(k int) (last bool) {
	s := &n.oneSided.slots[k]
	if s.op == nil {
		return true // an earlier part has failed
	}
	op, r := s.op, s.op.Remote.(*remoteRegion)
	part := op.Local
	if s.copied != nil {
		part = s.copied
	}
	if s.kind != kit.OpAtomic {
		part = part[s.posted:min(len(part), s.posted+n.ctx.maxWrite)]
		last = s.posted+len(part) == len(op.Local) // which is as long as its copy
	}
	kind := requestPart
	if last = last || s.kind == kit.OpAtomic; last {
		kind = requestOp
	}
	wr, req := n.sq.add(kind, last)
	req.op = k
	if s.fence {
		wr.Flags |= ibv.SendFence
		s.fence = false
	}
	at, rkey := r.key.addr+uint64(op.Offset+s.posted), r.key.rkey
	s.posted += len(part)
	switch {
	case s.kind == kit.OpAtomic:
		if op.Atomic == driver.CompareSwap {
			wr.CompareSwap(at, rkey, op.Compare, op.Operand)
		} else {
			wr.FetchAdd(at, rkey, op.Operand)
		}
		wr.AddSGE(address(n.results[8*k:]), 8, s.lkey)
		return last
	case s.kind == kit.OpGet:
		wr.Read(at, rkey)
	default:
		wr.Write(at, rkey)
	}
	switch {
	case n.inlines(op, s.kind):
		wr.Inline(part)
	case len(part) > 0:
		wr.AddSGE(address(part), uint32(len(part)), s.lkey)
	}
	return last
}

// localKey returns the key of an operation's local memory, which it copies or registers if necessary. The operation is
// to use slot k.
func (n *conn) localKey(k int, op *driver.Op, kind kit.OpKind) (uint32, error) {
	s := &n.oneSided.slots[k]
	if op.LocalRegion != nil {
		r, ok := op.LocalRegion.(*region)
		if !ok || r.ctx != n.ctx {
			return 0, fmt.Errorf("%w: the local region is of another context", driver.ErrInvalid)
		}
		a, b := address(op.Local), address(r.mem)
		if a < b || a+uint64(len(op.Local)) > b+uint64(len(r.mem)) {
			return 0, fmt.Errorf("%w: the local memory is outside of its region", driver.ErrInvalid)
		}
		if r.fixed && kind == kit.OpGet {
			return 0, fmt.Errorf("%w: the local region is of memory that is mapped for reading only", driver.ErrInvalid)
		}
		return r.mr.LKey(), nil
	}
	if len(op.Local) <= opBounce && !regcache.Cachable(op.Local) {
		return n.copyLocal(k, op, kind)
	}
	var access regcache.Access
	if kind == kit.OpGet {
		access = regcache.Access(ibv.AccessLocalWrite)
	}
	reg, err := n.ctx.cache.Acquire(op.Local, access)
	if err != nil {
		return 0, err
	}
	s.region = reg
	if a := reg.Arena(); a != nil {
		if !a.Hold() {
			s.release()
			return 0, fmt.Errorf("%w: the arena is closed", driver.ErrInvalid)
		}
		s.arena = a
	}
	return reg.Handle().LKey(), nil
}

// copyLocal uses a registered buffer of this side instead of an operation's local memory.
func (n *conn) copyLocal(k int, op *driver.Op, kind kit.OpKind) (lkey uint32, err error) {
	o := &n.oneSided
	if o.bounce == nil {
		if o.bounce, err = newSlab(n.ctx.pd, opBounce, opDepth, 0, 0, ibv.AccessLocalWrite); err != nil {
			return 0, err
		}
	}
	b := o.bounce.at(k)[:len(op.Local)]
	if kind == kit.OpPut {
		copy(b, op.Local)
	}
	o.slots[k].copied = b
	return o.bounce.lkey, nil
}

// finishPart handles the completion of a request of an operation.
func (n *conn) finishPart(r *request, status ibv.WCStatus) {
	if r.kind == requestOp || status != ibv.WCSuccess {
		n.finishOp(r.op, status)
	}
}

// finishOp completes an operation when its last work request is complete or one of them has failed.
func (n *conn) finishOp(k int, status ibv.WCStatus) {
	s := &n.oneSided.slots[k]
	op := s.op
	if op == nil {
		return
	}
	var err error
	switch status {
	case ibv.WCSuccess:
		n.Tally.CountOp(s.kind)
		if s.kind == kit.OpGet && s.copied != nil {
			copy(op.Local, s.copied)
		}
		if s.kind == kit.OpAtomic {
			if op.Result = 0; op.Fetch {
				op.Result = *s.result
			}
		}
	case ibv.WCRemoteAccess, ibv.WCRemoteInvalid:
		// A dying peer causes this status, too: its kernel deregisters its regions first.
		err = n.Fault(s.kind.String(), fmt.Errorf("%w: %w: %s: %v", driver.ErrBroken, driver.ErrRemoteKey, n.ctx.Props.Device, status))
	default:
		if err = n.Failure(s.kind.String()); err == nil { // the connection's failure is not recorded yet
			err = n.Fault(s.kind.String(), fmt.Errorf("%w: %s: %v", driver.ErrBroken, n.ctx.Props.Device, status))
		}
	}
	n.endOp(s, err)
}

func (n *conn) endOp(s *opSlot, err error) {
	s.release()
	s.op.Driver.Phase, s.op.Driver.Err = driver.Done, err
	*s = opSlot{}
	n.ops--
}

// release gives up the registration of an operation's local memory.
func (s *opSlot) release() {
	if s.region != nil {
		s.region.Release()
	}
	if s.arena != nil {
		s.arena.Release()
	}
	s.region, s.arena = nil, nil
}

// failOps ends all operations with err. The device does not use their memory any more.
func (n *conn) failOps(err error) {
	for k := range n.oneSided.slots {
		if s := &n.oneSided.slots[k]; s.op != nil {
			n.endOp(s, err)
		}
	}
	n.waiting = 0
}

func (n *conn) OpPoll(op *driver.Op) (bool, error) {
	if n.Enter() { // the keep-alive goroutine may end op until then
		defer n.Leave()
		if op.Driver.Phase == driver.Posted {
			n.api.Settle()
		}
	} else if op.Driver.Phase == driver.Posted {
		if n.State() == kit.StateClosed && !n.gone.Load() {
			return false, nil // the device may still access the memory
		}
		kind := op.Driver.Ticket
		op.Driver = driver.OpState{}
		return true, n.Failure(kit.OpKind(kind).String())
	}
	switch op.Driver.Phase {
	case driver.Done:
		err := op.Driver.Err
		op.Driver = driver.OpState{}
		return true, err
	case driver.Posted:
		return false, nil
	}
	return true, n.Fault("poll operation", fmt.Errorf("%w: the operation is not posted", driver.ErrInvalid))
}

func (n *conn) Flush(ctx context.Context) error {
	for k := 0; ; k++ {
		if !n.Enter() {
			return n.Failure("flush")
		}
		n.api.Settle()
		left := n.ops
		n.Leave()
		if left == 0 {
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if k > spins {
			time.Sleep(50 * time.Microsecond)
		}
	}
	return n.Failure("flush")
}

// Fence implements driver.OneSided. The device executes writes, reads and atomics in the order of their posts; only
// requests after a read or an atomic must have a fence to wait for it (InfiniBand Architecture Specification, volume 1,
// 10.8.3.3).
func (n *conn) Fence() error {
	if n.State() != kit.StateUp {
		return n.Failure("fence")
	}
	n.fence = true
	return nil
}
