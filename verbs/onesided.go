package verbs

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/verbs/ibv"
)

// opDepth is how many one-sided operations can be unfinished on an instance.
const opDepth = 32

// Kinds of operation.
const (
	opPut = iota
	opGet
	opAtomic
)

var (
	opNames = [...]string{"put", "get", "atomic"}
	opPaths = [...]string{"rdma-write", "rdma-read", "rdma-atomic"}
)

// opSlot is an operation on its way.
type opSlot struct {
	op     *driver.Op
	kind   uint8
	region *regcache.Region[*ibv.MR] // for this operation
	result *uint64                   // of an atomic, written by the device
}

// oneSided is what an instance has for operations.
type oneSided struct {
	slots   [opDepth]opSlot
	ops     int
	fence   bool
	results []byte // opDepth words of registered memory
	lkey    uint32
}

// PutPost implements driver.OneSided.
func (n *conn) PutPost(op *driver.Op) error { return n.postOp(op, opPut) }

// GetPost implements driver.OneSided.
func (n *conn) GetPost(op *driver.Op) error { return n.postOp(op, opGet) }

// AtomicPost implements driver.OneSided.
func (n *conn) AtomicPost(op *driver.Op) error { return n.postOp(op, opAtomic) }

func (n *conn) postOp(op *driver.Op, kind uint8) error {
	if !n.enter() {
		return n.failure(opNames[kind])
	}
	defer n.leave()
	if n.state.Load() != stateUp {
		return n.failure(opNames[kind])
	}
	r, err := n.checkOp(op, kind)
	if err != nil {
		return n.fault(opNames[kind], err)
	}
	if n.ops == opDepth || n.sq.room() <= controlReserve {
		n.api.settle()
		if n.ops == opDepth || n.sq.room() <= controlReserve {
			n.tally.busy.Add(1)
			return driver.ErrBusy
		}
	}
	if err := n.startOp(op, kind, r); err != nil {
		return n.fault(opNames[kind], err)
	}
	return nil
}

func (n *conn) checkOp(op *driver.Op, kind uint8) (*remoteRegion, error) {
	r, ok := op.Remote.(*remoteRegion)
	if !ok || r.conn != n {
		return nil, fmt.Errorf("%w: the region was not imported on this instance", driver.ErrRemoteKey)
	}
	if op.Driver.Phase != driver.Idle {
		return nil, fmt.Errorf("%w: the operation is posted already, or its outcome was not polled", driver.ErrInvalid)
	}
	o := n.ctx.props.Capabilities.OneSided
	size, need := len(op.Local), driver.RemoteWrite
	switch kind {
	case opPut, opGet:
		if kind == opGet {
			need = driver.RemoteRead
		}
		if size > o.MaxPut {
			return nil, fmt.Errorf("%w: %d bytes, limit is %d", driver.ErrTooLong, size, o.MaxPut)
		}
	default:
		size, need = op.Size, driver.RemoteAtomic
		if size != 8 || !o.Atomics64.Has(op.Atomic) {
			return nil, fmt.Errorf("%w: atomic %v of %d bytes", driver.ErrUnsupported, op.Atomic, size)
		}
	}
	if r.key.access&need == 0 {
		return nil, driver.ErrAccess
	}
	if op.Offset < 0 || op.Offset > r.Len() || size > r.Len()-op.Offset {
		return nil, fmt.Errorf("%w: %d bytes at %d of %d", driver.ErrBounds, size, op.Offset, r.Len())
	}
	if kind == opAtomic && (r.key.addr+uint64(op.Offset))%8 != 0 {
		return nil, fmt.Errorf("%w: atomic of 8 bytes at offset %d", driver.ErrAlignment, op.Offset)
	}
	return r, nil
}

// startOp posts a work request for op.
func (n *conn) startOp(op *driver.Op, kind uint8, r *remoteRegion) error {
	k := 0
	for n.oneSided.slots[k].op != nil {
		k++
	}
	s := &n.oneSided.slots[k]
	inline := kind == opPut && len(op.Local) <= n.ctx.inline
	var lkey uint32
	if !inline && kind != opAtomic && len(op.Local) > 0 {
		var err error
		if lkey, err = n.localKey(s, op, kind); err != nil {
			return err
		}
	}
	wr, req := n.sq.add(requestOp, true)
	req.op = k
	if n.fence {
		wr.Flags |= ibv.SendFence
		n.fence = false
	}
	at, rkey := r.key.addr+uint64(op.Offset), r.key.rkey
	switch {
	case kind == opAtomic:
		s.result = (*uint64)(unsafe.Pointer(&n.results[8*k]))
		if op.Atomic == driver.CompareSwap {
			wr.CompareSwap(at, rkey, op.Compare, op.Operand)
		} else {
			wr.FetchAdd(at, rkey, op.Operand)
		}
		wr.AddSGE(address(n.results[8*k:]), 8, n.lkey)
	case kind == opGet:
		wr.Read(at, rkey)
		if len(op.Local) > 0 {
			wr.AddSGE(address(op.Local), uint32(len(op.Local)), lkey)
		}
	default:
		wr.Write(at, rkey)
		if inline {
			wr.Inline(op.Local)
		} else {
			wr.AddSGE(address(op.Local), uint32(len(op.Local)), lkey)
		}
	}
	s.op, s.kind = op, kind
	n.ops++
	op.Driver = driver.OpState{Phase: driver.Posted, Ticket: uint64(kind)}
	n.opPath = opPaths[kind]
	if err := n.sq.post(); err != nil {
		n.broke(err)
	}
	return nil
}

// localKey finds the key of an operation's local memory, or registers it for
// the operation.
func (n *conn) localKey(s *opSlot, op *driver.Op, kind uint8) (uint32, error) {
	if op.LocalRegion != nil {
		r, ok := op.LocalRegion.(*region)
		if !ok || r.ctx != n.ctx {
			return 0, fmt.Errorf("%w: the local region is of another context", driver.ErrInvalid)
		}
		a, b := address(op.Local), address(r.mem)
		if a < b || a+uint64(len(op.Local)) > b+uint64(len(r.mem)) {
			return 0, fmt.Errorf("%w: the local memory is outside of its region", driver.ErrInvalid)
		}
		return r.mr.LKey(), nil
	}
	var access regcache.Access
	if kind == opGet {
		access = regcache.Access(ibv.AccessLocalWrite)
	}
	reg, err := n.ctx.cache.Acquire(op.Local, access)
	if err != nil {
		return 0, err
	}
	s.region = reg
	return reg.Handle().LKey(), nil
}

// finishOp ends an operation whose work request is complete.
func (n *conn) finishOp(k int, status ibv.WCStatus) {
	s := &n.oneSided.slots[k]
	op := s.op
	if op == nil {
		return
	}
	var err error
	switch status {
	case ibv.WCSuccess:
		switch s.kind {
		case opPut:
			n.tally.puts.Add(1)
		case opGet:
			n.tally.gets.Add(1)
		default:
			n.tally.atomics.Add(1)
			if op.Result = 0; op.Fetch {
				op.Result = *s.result
			}
		}
	case ibv.WCRemoteAccess, ibv.WCRemoteInvalid:
		// Or the peer is dying: its kernel takes its regions away first.
		err = n.fault(opNames[s.kind], fmt.Errorf("%w: %w: %s: %v", driver.ErrBroken, driver.ErrRemoteKey, n.ctx.props.Device, status))
	default:
		if err = n.failure(opNames[s.kind]); err == nil {
			err = n.fault(opNames[s.kind], driver.ErrClosed)
		}
	}
	n.endOp(s, err)
}

func (n *conn) endOp(s *opSlot, err error) {
	if s.region != nil {
		s.region.Release()
	}
	s.op.Driver.Phase, s.op.Driver.Err = driver.Done, err
	*s = opSlot{}
	n.ops--
}

// failOps ends all operations. The device has let go of them.
func (n *conn) failOps(err error) {
	for k := range n.oneSided.slots {
		if s := &n.oneSided.slots[k]; s.op != nil {
			n.endOp(s, err)
		}
	}
}

// OpPoll implements driver.OneSided.
func (n *conn) OpPoll(op *driver.Op) (bool, error) {
	if op.Driver.Phase == driver.Posted {
		if !n.enter() {
			kind := op.Driver.Ticket
			op.Driver = driver.OpState{}
			return true, n.failure(opNames[kind%3])
		}
		n.api.settle()
		n.leave()
	}
	switch op.Driver.Phase {
	case driver.Done:
		err := op.Driver.Err
		op.Driver = driver.OpState{}
		return true, err
	case driver.Posted:
		return false, nil
	}
	return true, n.fault("poll operation", fmt.Errorf("%w: the operation is not posted", driver.ErrInvalid))
}

// Flush implements driver.OneSided.
func (n *conn) Flush(ctx context.Context) error {
	for k := 0; ; k++ {
		if !n.enter() {
			return n.failure("flush")
		}
		n.api.settle()
		left := n.ops
		n.leave()
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
	return n.failure("flush")
}

// Fence implements driver.OneSided. The device carries out writes, reads and
// atomics in the order of their posts; only what follows a read or an atomic
// has to be told to wait for it (InfiniBand Architecture Specification, volume 1, 10.8.3.3).
func (n *conn) Fence() error {
	if n.state.Load() != stateUp {
		return n.failure("fence")
	}
	n.fence = true
	return nil
}
