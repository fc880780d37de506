package session

import (
	"context"
	"runtime"
	"time"
)

// Of all callers that wait for a request, one leads: it polls for all. The others follow: they sleep, until their
// request is done or they are to lead. If all of them polled in turn, a message would wait for its caller's turn: 100
// callers share a CPU, and each keeps it for a batch of polls.
//
// When the leader's request is done, it promotes a follower. When for spinTime no request has completed and no
// message has arrived, all of them sleep and leave progress to the background (progress.go).

// callers are the callers that wait.
type callers struct {
	leader    *Request   // request whose caller polls for all
	listens   bool       // it waits for a message, and not only for room in the driver
	followers []*Request // requests whose callers sleep meanwhile
	awaiters  []*awaiter // those that wait for a condition of the session
	woken     uint32     // number of callers that were woken
	batch     int        // polls in a row of the leader, by how long the last ones took
	finished  uint32     // number of times that a request was done, or was given back
}

// sleep is how the caller of a request sleeps. The session's lock guards it.
type sleep struct {
	on       bool // until wake
	wake     chan struct{}
	place    int  // in callers.followers, from 1; 0: not there
	rests    bool // counts in progress.sleepers
	promoted bool // woken to lead
}

// A waiter polls for spinTime before it sleeps, in batches of some microseconds during which it holds the lock. A poll
// is a few loads with one driver and a system call with another, so the batches are timed, from the second one on.
//
// The caller of a long send polls for answerTime: a receiver that sleeps is woken before it answers, which takes 50 to 200
// µs. A sender that slept by then would have to be woken itself.
const (
	spinTime   = 100 * time.Microsecond
	answerTime = 500 * time.Microsecond
	batchTime  = 5 * time.Microsecond
	minBatch   = 16 // polls
	maxBatch   = 512
)

// block makes progress until the request is done. It is called with the lock, and returns with it, unless there is an
// error: then the request is gone.
func (r *Request) block(ctx context.Context) error {
	s := r.s
	for !r.done {
		if s.callers.leader == nil {
			s.lead(ctx, r)
		}
		if r.done {
			break
		}
		if err := r.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// lead polls until the request is done, ctx ends, another caller leads, or for spinTime or answerTime no request was
// completed and no message arrived. It is called with the lock, and returns with it.
func (s *Session) lead(ctx context.Context, r *Request) {
	c := &s.callers
	most, limit := s.longestBatch(), spinTime
	if r.out != nil {
		limit = answerTime
	}
	c.leader = r
	s.expect(r)
	s.progress.pollers.Add(1)
	var spent time.Duration
	for timed := false; !r.done && spent < limit && c.leader == r && ctx.Err() == nil; timed = true {
		if c.listens = r.listens(); c.listens {
			s.progress.epoch++
		}
		var start time.Time
		if timed {
			start = time.Now()
		}
		woken, received, polls, batch := c.woken, s.stats.Received, 0, min(c.batch, most)
		for polls < batch {
			s.progress.polling = true
			s.poll()
			s.progress.polling = false
			polls++
			if c.leader != r { // a handler has run
				if c.leader != nil {
					break
				}
				c.leader = r
			}
			if r.done || c.woken != woken || len(s.calls) > 0 || s.mu.wanted.Load() > 0 {
				break
			}
		}
		switch {
		case c.woken != woken || s.stats.Received != received: // a handler may have taken long
			spent = 0
		case timed:
			d := time.Since(start)
			spent += s.cost(d)
			c.pace(polls, d)
		}
		if !r.done {
			s.step()
			s.yield()
			s.mu.lock()
			if c.leader == nil {
				c.leader = r
			}
		}
	}
	s.progress.pollers.Add(-1)
	if c.leader == r {
		c.leader = nil
	}
	if !r.done || c.leader != nil || !s.promote() {
		s.handOver()
	}
}

// spin polls until ok holds, ctx ends, or for spinTime no request was completed and no message arrived. It reports
// whether ok holds. It polls beside the leader, and does not count as a poller. It is called with the lock, and returns with it.
func (s *Session) spin(ctx context.Context, ok func() bool) bool {
	c := &s.callers
	done, most := ok(), s.longestBatch()
	var spent time.Duration
	for timed := false; !done && spent < spinTime && ctx.Err() == nil; timed = true {
		s.progress.epoch++
		var start time.Time
		if timed {
			start = time.Now()
		}
		finished, received, polls, batch := c.finished, s.stats.Received, 0, min(c.batch, most)
		for polls < batch {
			s.poll()
			polls++
			if done = ok(); done || len(s.calls) > 0 || s.mu.wanted.Load() > 0 {
				break
			}
		}
		switch {
		case c.finished != finished || s.stats.Received != received:
			spent = 0
		case timed:
			d := time.Since(start)
			spent += s.cost(d)
			c.pace(polls, d)
		}
		if !done {
			s.leave()
			s.yield()
			s.mu.lock()
			done = ok()
		}
	}
	return done
}

// longestBatch is how many polls a waiter makes at most while it holds the lock.
func (s *Session) longestBatch() int {
	if s.host.oversubscribed && s.host.skip.Load() == 0 {
		return oversubscribedBatch
	}
	return maxBatch
}

// cost returns how much of spinTime a batch of polls has used that took d. Where processes share CPUs another one may have
// run meanwhile, also because a driver gave the CPU to its NIC: that time does not count.
func (s *Session) cost(d time.Duration) time.Duration {
	if s.host.oversubscribed {
		return min(d, batchTime/2)
	}
	return d
}

// yield lets other goroutines run, and where ranks share CPUs other processes, too. Elsewhere the kernel finds another
// CPU for a process when it wakes it, which yielding prevents.
func (s *Session) yield() {
	if runtime.Gosched(); s.host.oversubscribed {
		s.host.yield()
	}
}

// pace sets the length of the next batch, after one of some polls that took d.
func (c *callers) pace(polls int, d time.Duration) {
	if polls >= minBatch || d > batchTime { // else the clock took a part of it
		c.batch = min(max(int(time.Duration(polls)*batchTime/max(d, 1)), minBatch), 2*c.batch, maxBatch)
	}
}

// step gives up the lock between two batches of polls. A pending callback may take long, so the caller does not lead
// while it runs.
func (s *Session) step() {
	if len(s.calls) == 0 {
		s.leave()
		return
	}
	s.callers.leader = nil
	s.progress.pollers.Add(-1)
	if !s.promote() {
		s.handOver()
	}
	s.leave()
	s.progress.pollers.Add(1)
}

// listens reports whether the request waits for a message of the peer's, and not only for room in the driver.
func (r *Request) listens() bool {
	return r.g == nil || r.out != nil || r.sync != 0 || r.remote || r.g.waitsForCredit()
}

// promote wakes a caller that follows, to lead. It returns false if there is none.
func (s *Session) promote() bool {
	n := len(s.callers.followers)
	if n == 0 {
		return false
	}
	f := s.callers.followers[n-1]
	f.sleep.promoted = true
	f.wakeUp()
	return true
}

// wakeUp wakes the caller that sleeps.
func (r *Request) wakeUp() {
	s, z := r.s, &r.sleep
	if z.place > 0 { // the last follower takes its place
		last := len(s.callers.followers) - 1
		s.callers.followers[z.place-1] = s.callers.followers[last]
		s.callers.followers[z.place-1].sleep.place = z.place
		s.callers.followers[last], s.callers.followers = nil, s.callers.followers[:last]
		z.place = 0
	}
	z.on = false
	s.callers.woken++
	select {
	case z.wake <- struct{}{}:
	default:
	}
}

// await sleeps until the request is done or its caller is to lead. It is called with the lock, and returns with it,
// unless there is an error: then the request is gone.
func (r *Request) await(ctx context.Context) error {
	s, z := r.s, &r.sleep
	if z.wake == nil {
		z.wake = make(chan struct{}, 1)
	}
	select {
	case <-z.wake: // of an earlier wait
	default:
	}
	z.on = true
	if s.callers.leader != nil {
		s.callers.followers = append(s.callers.followers, r)
		z.place = len(s.callers.followers)
	} else {
		s.sleepAll(r)
	}
	s.leave()
	ended := false
	select {
	case <-z.wake:
	case <-ctx.Done():
		ended = true
	}
	s.mu.lock()
	if z.on {
		r.wakeUp()
	}
	if z.rests {
		z.rests = false
		s.awake()
	}
	if z.promoted && (r.done || ended) && s.callers.leader == nil && !s.promote() {
		s.handOver() // this one was to lead, and there is no other
	}
	z.promoted = false
	switch {
	case r.done || !ended:
		return nil
	case !s.cancel(r): // it is too late
		return r.block(context.Background())
	}
	op, g := r.op, r.g
	r.unfetch()
	r.waited = false
	s.free(r)
	s.leave()
	return g.fault(op, ctx.Err())
}

// sleepAll leaves progress to the background: the caller goes to sleep, and so do all followers.
func (s *Session) sleepAll(r *Request) {
	r.sleep.rests = true
	s.progress.sleepers.Add(int32(1 + len(s.callers.followers)))
	for _, f := range s.callers.followers {
		f.sleep.rests, f.sleep.place = true, 0
	}
	clear(s.callers.followers)
	s.callers.followers = s.callers.followers[:0]
	s.kick()
}
