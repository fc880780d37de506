package session

import (
	"context"
	"fmt"
	"runtime"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/match"
)

// Request is an operation under way. Wait, or a Test that reports done, gives the request back to the session; it must
// not be used afterwards, as the session reuses it. The memory of the operation belongs to the session until then. A nil
// request is an operation that is done: its methods may be called, and report success with an empty Status.
type Request struct {
	s       *Session
	g       *Gate // sends
	op      string
	recv    match.Receive
	buf     []byte
	layout  driver.Layout
	head    []byte
	status  Status
	err     error
	done    bool // guarded by the lock, as all of it
	waiting bool // a goroutine sleeps on wake; guarded by the lock
	wake    chan struct{}
	sync    uint64 // id of a synchronous send
	away    bool   // and a driver has taken its message
	held    bool   // and has not given it back
	acked   bool   // and the receiver has matched it
	out     *outgoing
	in      *incoming
	then    func(Status, error)
	active  *kept // of a long active message that arrives
	parked  bool  // its message waits for the next connection
	probed  bool  // it receives one message, and no other
	next    *Request

	generation uint64 // how often it was given back
}

// Status describes a received or probed message.
type Status struct {
	From   *Gate
	Tag    uint64
	Len    int    // bytes of the message in the buffer; of a probe: of the message, at most Config.MaxMessage
	Header int    // bytes of the user's header in the header buffer
	Value  uint64 // atomics: the value before
}

func (s *Session) request(op string) *Request {
	r := s.requests
	if r == nil {
		r = &Request{s: s}
		r.recv.User = r
	} else {
		s.requests = r.next
		r.next = nil
	}
	r.op = op
	r.done = false
	return r
}

// free gives a request back. The caller holds the lock.
func (s *Session) free(r *Request) {
	r.g, r.buf, r.layout, r.head, r.err, r.out, r.in, r.then = nil, nil, nil, nil, nil, nil, nil, nil
	if r.sync != 0 {
		r.away, r.held, r.acked = false, false, false
	}
	r.status, r.sync, r.waiting, r.active, r.parked, r.probed = Status{}, 0, false, nil, false, false
	r.generation++
	r.next = s.requests
	s.requests = r
}

// complete ends a request.
func (s *Session) complete(r *Request, err error) {
	r.err = err
	if k := r.active; k != nil {
		s.free(r)
		s.activeEnded(k, err)
		return
	}
	if f := r.then; f != nil {
		st := r.status
		s.free(r)
		s.calls = append(s.calls, func() { f(st, err) })
		return
	}
	r.done = true
	if r.waiting {
		r.waiting = false
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// take gives a completed request back, and the lock, and returns its outcome.
func (r *Request) take() (Status, error) {
	s := r.s
	st, err := r.status, r.err
	s.free(r)
	s.leave()
	return st, err
}

// Test makes progress and reports whether the request is done. If so, it gives the request back and returns the
// operation's outcome. It never blocks.
func (r *Request) Test() (done bool, st Status, err error) {
	if r == nil {
		return true, Status{}, nil
	}
	s := r.s
	s.mu.lock()
	if !r.done {
		s.epoch++
		s.poll()
	}
	if !r.done {
		s.leave()
		return false, Status{}, nil
	}
	st, err = r.take()
	return true, st, err
}

// Polls that a waiter makes before it sleeps, and how many in a row while it
// holds the lock: some tens of microseconds in all.
const (
	spinPolls = 8192
	spinBatch = 512
)

// Wait blocks until the request is done, and gives it back. It polls for a short time, then sleeps. When ctx ends, Wait
// cancels the request and returns the error of ctx. If it is too late to cancel (the message or operation has begun to
// leave or to arrive), Wait blocks until the request is done and returns its own outcome.
func (r *Request) Wait(ctx context.Context) (Status, error) {
	if r == nil {
		return Status{}, nil
	}
	r.s.mu.lock()
	return r.wait(ctx)
}

// wait is Wait with the lock, which it gives up.
func (r *Request) wait(ctx context.Context) (Status, error) {
	if err := r.block(ctx); err != nil {
		return Status{}, err
	}
	return r.take()
}

// block makes progress until the request is done. It is called with the lock, and
// returns with it, unless there is an error: then the request is gone.
func (r *Request) block(ctx context.Context) error {
	s := r.s
	spins, batch := spinPolls, spinBatch
	if s.crowded {
		spins, batch = crowdedSpins, crowdedBatch
	}
	if r.done {
		return nil
	}
	s.expect(r)
	s.pollers.Add(1)
	for polls := 0; !r.done && polls < spins; {
		s.epoch++
		for end := polls + batch; polls < end; polls++ {
			s.polling = true
			s.poll()
			s.polling = false
			if r.done || len(s.calls) > 0 || s.mu.wanted.Load() > 0 {
				polls++
				break
			}
		}
		if !r.done {
			s.step()
			if runtime.Gosched(); s.crowded {
				yieldCPU()
			}
			s.mu.lock()
		}
	}
	s.pollers.Add(-1)
	s.handOver()
	if !r.done {
		return s.sleep(ctx, r)
	}
	return nil
}

// step gives up the lock between two batches of polls. A callback that waits may take long: meanwhile the caller is no
// poller.
func (s *Session) step() {
	if len(s.calls) == 0 {
		s.leave()
		return
	}
	s.pollers.Add(-1)
	s.handOver()
	s.leave()
	s.pollers.Add(1)
}

// sleep waits until others have made the request's progress. It is called with the
// lock, and returns with it, unless there is an error: then the request is gone.
func (s *Session) sleep(ctx context.Context, r *Request) error {
	if r.wake == nil {
		r.wake = make(chan struct{}, 1)
	}
	select {
	case <-r.wake: // of an earlier wait
	default:
	}
	r.waiting = true
	s.sleepers.Add(1)
	s.kick()
	s.leave()
	defer s.rested()
	select {
	case <-r.wake:
		s.mu.lock()
		return nil
	case <-ctx.Done():
	}
	s.mu.lock()
	if !r.done && s.cancel(r) {
		op, g := r.op, r.g
		s.free(r)
		s.leave()
		if g != nil {
			return g.fault(op, ctx.Err())
		}
		return &Error{Peer: -1, Op: op, Err: ctx.Err()}
	}
	for !r.done {
		s.leave()
		<-r.wake
		s.mu.lock()
	}
	return nil
}

// Cancel tries to cancel the request and reports whether it was in time: the request is then done, with ErrCanceled. It
// is too late once the message has begun to leave or to arrive. In both cases the request must still be given back with
// Wait or Test.
func (r *Request) Cancel() bool {
	if r == nil {
		return false
	}
	s := r.s
	s.mu.lock()
	defer s.leave()
	if r.done || !s.cancel(r) {
		return false
	}
	err := error(&Error{Peer: -1, Op: r.op, Err: ErrCanceled})
	if r.g != nil {
		err = r.g.fault(r.op, ErrCanceled)
	}
	s.complete(r, err)
	return true
}

// cancel takes a request back without completing it. False: it is too late.
func (s *Session) cancel(r *Request) bool {
	if s.table.Cancel(&r.recv) {
		return true
	}
	g := r.g
	if g == nil {
		return false
	}
	if r.out != nil {
		return s.withdraw(r.out)
	}
	for _, q := range []*parcelQueue{&g.backlog, &g.later, &g.actives} {
		if pc := q.remove(func(pc *parcel) bool { return pc.req == r || pc.sync != 0 && pc.sync == r.sync }); pc != nil {
			if pc.sync != 0 {
				s.dropSync(pc.sync, r)
				if q == &g.backlog { // for those behind the connection nobody waits yet
					g.ended()
				}
			}
			s.recycle(pc)
			return true
		}
	}
	for _, o := range s.liveOps {
		if o.req == r {
			return o.undo(s)
		}
	}
	return false
}

// undo takes an operation back of which nothing has left; one that a driver has begun may have.
func (o *Op) undo(s *Session) bool {
	if o.sent > 0 || o.d.Remote != nil {
		return false
	}
	g := o.g
	if o.id != 0 {
		for _, q := range []*parcelQueue{&g.backlog, &g.later} {
			own := func(pc *parcel) bool { return pc.id == o.id && pc.out == nil }
			for pc := q.remove(own); pc != nil; pc = q.remove(own) {
				s.recycle(pc)
			}
		}
		s.ops.remove(o.id)
	}
	s.removeOp(o)
	g.ops--
	g.asked -= o.flying
	s.freeOp(o)
	g.ended()
	return true
}

// String describes the request for dumps.
func (r *Request) String() string {
	if r == nil {
		return "done"
	}
	return fmt.Sprintf("%s tag %#x mask %#x", r.op, r.recv.Tag, r.recv.Mask)
}
