//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

const (
	// opDepth is the number of one-sided operations that can be unfinished.
	opDepth = 64

	// maxTransfer limits messages of the large track, puts and gets.
	maxTransfer = 1 << 38

	// opStep is the number of bytes that one call copies: posts and polls stay short.
	opStep = 256 << 10
)

// opQueue holds operations that are not finished, in order. Short ones never
// enter it: this side's CPU carries them out when they are posted.
type opQueue struct {
	first, last *driver.Op
	n           int
	moved       int // bytes of first
}

func (n *conn) PutPost(op *driver.Op) error { return n.postOp(op, kit.OpPut) }

func (n *conn) GetPost(op *driver.Op) error { return n.postOp(op, kit.OpGet) }

func (n *conn) AtomicPost(op *driver.Op) error { return n.postOp(op, kit.OpAtomic) }

// By kind of operation, which Op.Driver.Ticket has.
var (
	mappedPaths   = [...]string{"arena-put", "arena-get", "arena-atomic"}
	attachedPaths = [...]string{"cma-put", "cma-get"}
)

func (n *conn) opError(kind kit.OpKind, err error) error { return n.Fault(kind.String(), err) }

func (n *conn) postOp(op *driver.Op, kind kit.OpKind) error {
	if !n.Enter() {
		return n.Failure(kind.String())
	}
	defer n.Leave()
	if n.State() != kit.StateUp {
		return n.Failure(kind.String())
	}
	if err := n.checkOp(op, kind); err != nil {
		return n.opError(kind, err)
	}
	q := &n.oneSided
	if q.n == opDepth {
		n.progressOps()
		if q.n == opDepth {
			return n.Busy()
		}
	}
	op.Driver = driver.OpState{Phase: driver.Posted, Ticket: uint64(kind)}
	if q.first == nil {
		q.first = op
	} else {
		q.last.Driver.Next = op
	}
	q.last = op
	q.n++
	if q.first == op {
		n.progressOps()
	}
	return nil
}

func (n *conn) checkOp(op *driver.Op, kind kit.OpKind) error {
	r, ok := op.Remote.(*remoteRegion)
	if !ok || r.conn != n {
		return fmt.Errorf("%w: the region was not imported on this instance", driver.ErrRemoteKey)
	}
	_, err := kit.CheckOp(op, kind, n.ctx.Props.Capabilities.OneSided, r.entry.offset)
	return err
}

// progressOps carries out what is queued, up to opStep bytes.
func (n *conn) progressOps() {
	q := &n.oneSided
	for budget := opStep; q.first != nil && budget > 0; {
		op := q.first
		k, done, err := n.step(op, min(budget, opStep))
		q.moved += k
		if !done && err == nil {
			if k == 0 {
				return // the peer's arena has not arrived yet
			}
			budget -= k
			continue
		}
		budget -= max(k, 64)
		q.first, q.moved = op.Driver.Next, 0
		if q.n--; q.n == 0 {
			q.last = nil
		}
		if errors.Is(err, driver.ErrBroken) { // seen before the monitor did
			n.breakWith(err)
		}
		if err != nil {
			err = n.opError(kit.OpKind(op.Driver.Ticket), err)
		}
		op.Driver = driver.OpState{Phase: driver.Done, Err: err}
	}
}

// step does a piece of the first operation under the protection of the hazard
// word.
func (n *conn) step(op *driver.Op, budget int) (k int, done bool, err error) {
	r, kind := op.Remote.(*remoteRegion), kit.OpKind(op.Driver.Ticket)
	atomic.StoreUint64(&n.mine.hazard, uint64(r.index)+1)
	defer atomic.StoreUint64(&n.mine.hazard, 0)
	if st := n.State(); st == kit.StateBroken || st == kit.StatePeerClosed {
		return 0, true, errors.Unwrap(n.Failure(kind.String())) // the caller names the operation
	}
	if c := atomic.LoadUint32(&n.theirs.closed); c != closedNot {
		return 0, true, refused(c)
	}
	if atomic.LoadUint64(&n.remote[r.index].generation) != r.entry.generation {
		return 0, true, n.expired()
	}
	mem, known, mapped := n.reach(r)
	if !known && (kind == kit.OpAtomic || !n.attaches) {
		if time.Now().Before(r.until) {
			return 0, false, nil
		}
		return 0, true, fmt.Errorf("%w: remote key names an arena that the peer has not shared", driver.ErrRemoteKey)
	}
	if kind == kit.OpAtomic {
		if !mapped {
			return 0, true, fmt.Errorf("%w: the peer's arena could not be mapped", driver.ErrUnsupported)
		}
		n.opPath = mappedPaths[kind]
		// This side's CPU is as good as the peer's: the memory is one and the same.
		old := op.Atomic.Apply(unsafe.Add(mem, op.Offset), op.Size, op.Operand, op.Compare)
		if op.Result = 0; op.Fetch {
			op.Result = old
		}
		n.Tally.CountOp(kind)
		return 8, true, nil
	}
	moved := n.oneSided.moved
	b := op.Local[moved:min(len(op.Local), moved+budget)]
	if len(b) > 0 {
		if err := n.access(op, b, mem, mapped, op.Offset+moved); err != nil {
			return 0, true, err
		}
	}
	if done = moved+len(b) == len(op.Local); done {
		n.Tally.CountOp(kind)
	}
	return len(b), done, nil
}

// access copies b to or from the region.
func (n *conn) access(op *driver.Op, b []byte, mem unsafe.Pointer, mapped bool, off int) error {
	r := op.Remote.(*remoteRegion)
	put := kit.OpKind(op.Driver.Ticket) == kit.OpPut
	if mapped {
		n.opPath = mappedPaths[op.Driver.Ticket]
		remote := unsafe.Slice((*byte)(unsafe.Add(mem, off)), len(b))
		if put {
			movePiece(remote, b, len(op.Local))
		} else {
			movePiece(b, remote, len(op.Local))
		}
		return nil
	}
	if !n.attaches && n.peerGone() {
		return errGone
	}
	if !n.attaches && r.entry.arena != 0 {
		return fmt.Errorf("%w: the region's arena is not mapped here, and the process cannot be attached to: a process maps at most %d arenas of another one, as far as its address space suffices", driver.ErrUnsupported, maxArenas)
	}
	if !n.attaches {
		return fmt.Errorf("%w: the region is private memory of a process that cannot be attached to (see bywash doctor); register memory in an arena", driver.ErrUnsupported)
	}
	n.opPath = attachedPaths[op.Driver.Ticket]
	local := [1]unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	err := n.crossCopy(put, local[:], r.entry.addr+uint64(off), len(b))
	if c := atomic.LoadUint32(&n.theirs.closed); err == errGone && c != closedNot {
		return refused(c)
	}
	return err
}

// reach finds the memory of a region in this process.
func (n *conn) reach(r *remoteRegion) (mem unsafe.Pointer, known, mapped bool) {
	e := &r.entry
	switch {
	case n.toSelf:
		return unsafe.Pointer(&r.self.mem[0]), true, true
	case e.arena == 0:
		return nil, true, false
	}
	mem, from, known := n.imports.find(e.arena, e.offset, e.length)
	return mem, known, from != nil
}

func (n *conn) OpPoll(op *driver.Op) (bool, error) {
	if op.Driver.Phase == driver.Posted {
		if !n.Enter() {
			kind := kit.OpKind(op.Driver.Ticket)
			op.Driver = driver.OpState{}
			return true, n.Failure(kind.String())
		}
		n.progressOps()
		n.Leave()
	}
	switch op.Driver.Phase {
	case driver.Done:
		op.Driver.Phase = driver.Idle
		return true, op.Driver.Err
	case driver.Posted:
		return false, nil
	}
	return true, n.opError(kit.OpPut, fmt.Errorf("%w: the operation is not posted", driver.ErrInvalid))
}

func (n *conn) Flush(ctx context.Context) error {
	for {
		if !n.Enter() {
			return n.Failure("flush")
		}
		before, moved := n.oneSided.first, n.oneSided.moved
		n.progressOps()
		first, stuck := n.oneSided.first, n.oneSided.first == before && n.oneSided.moved == moved
		n.Leave()
		if first == nil {
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if stuck {
			pause() // for the peer's arena to arrive, once
		}
	}
	if s := n.State(); s != kit.StateUp {
		return n.Failure("flush")
	}
	return nil
}

// Fence implements driver.OneSided. Operations are carried out in the order in
// which they were posted, each between two sequentially consistent accesses to
// the hazard word, so that there is nothing to do.
func (n *conn) Fence() error {
	if s := n.State(); s != kit.StateUp {
		return n.Failure("fence")
	}
	return nil
}
