package session

import (
	"context"
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/match"
)

// Request is an operation under way. Wait, or a Test that reports done, gives the request back to the session; it must
// not be used afterwards, as the session reuses it. The memory of the operation belongs to the session until then. A
// nil request is an operation that is done: its methods may be called, and report success with an empty Status.
type Request struct {
	s        *Session
	g        *Gate // of a send or an operation
	op       string
	recv     match.Receive
	buf      []byte
	layout   driver.Layout
	head     []byte
	status   Status
	err      error
	done     bool // guarded by the session's lock, like all fields
	sleep    sleep
	remote   bool   // a one-sided operation
	sync     uint64 // id of a synchronous send
	taken    bool   // a driver has taken the message of the synchronous send
	inDriver bool   // the driver has not given that message back
	acked    bool   // the receiver has matched that message
	out      *outgoing
	in       *incoming
	early    *piece // prefetched for a receive
	then     func(Status, error)
	active   *unexpected // of a long active message that arrives
	parked   bool        // its message waits for the next connection
	probed   bool        // it receives one message, and no other
	next     *Request

	waited     bool   // a caller is in Wait
	generation uint64 // how often the request was given back
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
	r := s.spare.requests
	if r == nil {
		r = &Request{s: s}
		r.recv.User = r
	} else {
		s.spare.requests = r.next
		r.next = nil
	}
	r.op = op
	r.done = false
	return r
}

// free returns a request to the pool. The caller holds the lock.
func (s *Session) free(r *Request) {
	r.g, r.buf, r.layout, r.head, r.err, r.out, r.in, r.then = nil, nil, nil, nil, nil, nil, nil, nil
	if r.sync != 0 {
		r.taken, r.inDriver, r.acked = false, false, false
	}
	r.status, r.sync, r.active, r.parked, r.probed, r.remote = Status{}, 0, nil, false, false, false
	r.generation++
	s.callers.finished++
	if r.waited { // by another goroutine: it would take the request for the next operation's
		return
	}
	r.next = s.spare.requests
	s.spare.requests = r
}

// complete ends a request.
func (s *Session) complete(r *Request, err error) {
	r.err = err
	if r.early != nil {
		r.early.l.g.in.prefetchMissed = true
		r.unfetch()
	}
	if u := r.active; u != nil {
		s.free(r)
		s.activeEnded(u, err)
		return
	}
	if f := r.then; f != nil {
		st := r.status
		s.free(r)
		s.calls = append(s.calls, func() { f(st, err) })
		return
	}
	r.done = true
	s.callers.finished++
	if r.sleep.on {
		r.wakeUp()
	}
}

// take frees a completed request, gives up the lock, and returns the outcome.
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
		s.progress.epoch++
		s.poll()
	}
	if !r.done {
		s.leave()
		return false, Status{}, nil
	}
	st, err = r.take()
	return true, st, err
}

// Wait blocks until the request is done, and gives it back. It polls for a short time, then sleeps. When ctx ends, Wait
// cancels the request and returns the error of ctx. If it is too late to cancel (the message or operation has begun to
// leave or to arrive), Wait blocks until the request is done and returns its own outcome. It fails with ErrInvalid if
// another goroutine is in Wait for the request, which then stays as it is, or gives the request back meanwhile.
func (r *Request) Wait(ctx context.Context) (Status, error) {
	if r == nil {
		return Status{}, nil
	}
	r.s.mu.lock()
	return r.wait(ctx)
}

// wait is Wait with the lock, which it gives up.
func (r *Request) wait(ctx context.Context) (Status, error) {
	s, generation := r.s, r.generation
	if r.waited {
		s.leave()
		return Status{}, &Error{Peer: -1, Op: "wait", Err: fmt.Errorf("%w: another goroutine waits for the request", ErrInvalid)}
	}
	r.waited = true
	if err := r.block(ctx); err != nil {
		return Status{}, err
	}
	if r.waited = false; r.generation != generation {
		s.leave()
		return Status{}, stale(0)
	}
	return r.take()
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
	s.complete(r, r.g.fault(r.op, ErrCanceled))
	return true
}

// cancel takes a request back without completing it. False: it is too late.
func (s *Session) cancel(r *Request) bool {
	if s.table.Cancel(&r.recv) {
		return true
	}
	g := r.g
	if g == nil {
		return r.returnPostponed()
	}
	if r.out != nil {
		return s.withdraw(r.out)
	}
	for _, q := range []*outQueue{&g.queues.backlog, &g.queues.later, &g.active.queue} {
		if msg := q.remove(func(msg *outMsg) bool { return msg.req == r || msg.sync != 0 && msg.sync == r.sync }); msg != nil {
			if msg.sync != 0 {
				s.dropSync(r)
				g.ended()
			}
			s.recycle(msg)
			g.unblock() // the next one may need no credit
			return true
		}
	}
	for o := range s.oneSided.all() {
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
		for _, q := range []*outQueue{&g.queues.backlog, &g.queues.later} {
			own := func(msg *outMsg) bool { return msg.id == o.id && msg.out == nil }
			for msg := q.remove(own); msg != nil; msg = q.remove(own) {
				s.recycle(msg)
			}
		}
		s.oneSided.ops.remove(o.id)
		g.unblock()
	}
	s.removeOp(o)
	g.ops.live--
	g.ops.unanswered -= o.flying
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
