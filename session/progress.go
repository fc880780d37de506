package session

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
)

// Direction chooses what ProgressDir looks at first.
type Direction uint8

const (
	InFirst  Direction = iota // messages that arrive
	OutFirst                  // messages that wait to leave
)

// progress is what those that make progress know of one another. The session's lock guards it, but for the counts.
type progress struct {
	sleepers    atomic.Int32 // callers that sleep
	pollers     atomic.Int32 // callers that poll until something is done; see mover
	move        *sleeper     // of the mover
	moverParked bool         // the mover waits until it is woken
	preferred   *link        // link that is polled first: usually the one of the last message
	tick        uint32       // polls
	epoch       uint32       // grows while callers make progress: the background keeps out of their way
	polled      int          // messages that callers took while a watch waited, since one has slept
	polling     bool         // the goroutine that holds the lock is counted in pollers
	waiting     int          // rails whose watch is in the driver's wait, or about to be, and was not called off
}

// takeBatch is how many messages of one peer are taken in a row.
const takeBatch = 16

// Progress makes progress, with arriving messages first, and reports whether anything happened. It never blocks.
// Programs with background progress need not call it.
func (s *Session) Progress() bool { return s.ProgressDir(InFirst) }

// ProgressDir is Progress with a choice of direction.
func (s *Session) ProgressDir(d Direction) bool {
	if !s.mu.tryLock() {
		runtime.Gosched()
		return false // another goroutine makes progress
	}
	defer s.leave()
	s.progress.epoch++
	if d == OutFirst {
		out := s.pushAll()
		return s.pollIn() || out
	}
	in := s.pollIn()
	return s.pushAll() || in
}

// probeEvery is how many polls look at the preferred link alone between two that look at everything.
const probeEvery = 64

// poll is one step of a caller that waits. The caller holds the lock. However much comes from the preferred link,
// every probeEvery-th poll also moves on what waits to leave, and looks at the other links.
func (s *Session) poll() {
	s.progress.tick++
	due := s.progress.tick%probeEvery == 0
	if l := s.progress.preferred; l != nil && l.take() {
		s.callOff()
		if !due {
			return
		}
	}
	if s.outstanding() {
		s.pushAll()
	}
	if (s.progress.preferred == nil || due) && s.probe() {
		s.callOff()
	}
}

// expect makes the link to the peer that a request waits for the preferred one, if its gate has only one link.
func (s *Session) expect(r *Request) {
	g := r.g
	if from := int(r.recv.From); g == nil && from < len(s.gates) {
		g = s.gates[from]
	}
	if g != nil && g.lead != nil && len(g.links) == 1 {
		s.progress.preferred = g.lead
	}
}

// pollIn takes what has arrived.
func (s *Session) pollIn() bool {
	any := false
	for range takeBatch {
		if l := s.progress.preferred; l == nil || !l.take() {
			break
		}
		any = true
	}
	for range takeBatch {
		if !s.probe() {
			break
		}
		any = true
	}
	return any
}

// probe asks every rail for a link on which a message has arrived, and takes messages from it.
func (s *Session) probe() bool {
	any := false
	for _, n := range s.nics {
		if n.prober == nil {
			any = n.pollAll() || any
			continue
		}
		if i, err := n.prober.RecvProbeAny(); err == nil {
			s.named(i)
			any = true
		}
	}
	return any
}

// named takes messages from an instance that a probe has reported.
func (s *Session) named(i driver.Instance) {
	l := s.progress.preferred
	if l == nil || driver.Instance(l.small) != i {
		if l = s.links[i]; l == nil {
			return
		}
	}
	for range takeBatch {
		if !l.take() {
			return
		}
	}
}

// pollAll polls every link of a rail whose driver cannot probe.
func (n *nic) pollAll() bool {
	any := false
	for _, l := range n.s.links {
		if l.nic == n && l.take() {
			any = true
		}
	}
	return any
}

// pushAll moves on everything that waits to leave. It reports whether anything
// moved.
func (s *Session) pushAll() bool {
	moved := s.movePieces()
	moved = s.moveOps() || moved
	if len(s.unreleased) > 0 {
		moved = s.pollUnreleased() || moved
	}
	for i := 0; i < len(s.busy); i++ {
		g := s.busy[i]
		m, more := g.push()
		moved = moved || m
		if g.closing() {
			before := g.state
			g.tryClose()
			more = more || g.closing()
			moved = moved || g.state != before
		}
		if !more {
			if len(s.busy) == 1 && s.spare.msgBytes > maxBigBytes { // nothing else waits
				s.trim()
			}
			g.queues.listed = false
			last := len(s.busy) - 1
			s.busy[i] = s.busy[last]
			s.busy = s.busy[:last]
			i--
		}
	}
	if len(s.active.resumed) > 0 { // last, as ProgressDir may be asked to send first
		moved = s.takeResumed() || moved
	}
	return moved
}

// outstanding reports whether something is pending that makes progress only when it is polled.
func (s *Session) outstanding() bool {
	return len(s.busy) > 0 || len(s.transfers.pieces) > 0 || len(s.oneSided.live) > 0 ||
		len(s.active.resumed) > 0 || len(s.unreleased) > 0
}

// start starts the goroutines of the session.
func (s *Session) start() {
	s.progress.move = newSleeper()
	for _, n := range s.nics {
		n.idle, n.pause = newSleeper(), backoff
	}
	for _, n := range s.nics {
		s.tasks.Go(n.watch)
		if k, ok := n.small.(driver.ConnectRequestReceiver); ok {
			k.OnConnectRequest(s.kickAnswerer)
		}
	}
	if s.requestSockets != nil {
		for _, c := range s.requestSockets.conns {
			s.tasks.Go(func() { s.receiveRequests(c) })
		}
	}
	if w, ok := s.launcher.job.(launcherWatcher); ok {
		s.tasks.Go(func() { s.watchLauncher(w) })
	}
	s.watchEnds()
	s.tasks.Go(s.mover)
	s.tasks.Go(s.answerer)
}

// kick lets the background take over: a caller goes to sleep. The caller holds the lock, and has counted as a sleeper.
func (s *Session) kick() {
	s.progress.polled = 0
	for _, n := range s.nics {
		n.idle.notify()
	}
	if s.outstanding() {
		s.wakeMover()
	}
}

// kickMover is called with the lock when there is new work for the mover. Pollers do it themselves, and hand over what
// is left; a mover that waits for a timer looks by itself.
func (s *Session) kickMover() {
	if s.progress.moverParked && s.onDuty() && s.progress.pollers.Load() == 0 {
		s.wakeMover()
	}
}

// handOver is called with the lock by a poller that polls no more.
func (s *Session) handOver() {
	if s.outstanding() {
		s.kickMover()
	}
}

func (s *Session) wakeMover() { s.progress.move.notify() }

// awake counts a caller that rests no more.
func (s *Session) awake() {
	if s.progress.sleepers.Add(-1) == 0 && s.cfg.Progress == Explicit {
		for _, n := range s.nics {
			if n.prober != nil {
				_ = n.prober.RecvCancelAny()
			}
		}
	}
}

// onDuty reports whether the background is to make progress.
func (s *Session) onDuty() bool {
	return s.cfg.Progress == Background || s.progress.sleepers.Load() > 0
}

// How long the background leaves progress to callers before it checks whether they still make it: a fifth of the time
// since it has last served a message itself. A caller that polls now and then, and otherwise waits for something that is
// not the session's, is served soon; callers that poll all the time are disturbed once in a millisecond.
const (
	firstBackoff = 50 * time.Microsecond
	backoff      = time.Millisecond
)

// watch sleeps in the wait of a rail's driver and takes messages that arrive, unless callers do. While the handler of a
// long active message runs, which is the mover's, it takes messages of other peers.
func (n *nic) watch() {
	s := n.s
	defer n.idle.close()
	var seen uint32
	var seenSent uint64
	for {
		if s.ctx.Err() != nil {
			return
		}
		if !s.onDuty() {
			n.idle.wait(s.ctx)
			continue
		}
		s.mu.lock()
		now, led, sent := s.progress.epoch, s.callers.leader != nil && s.callers.listens, s.stats.Sent
		sends := sent != seenSent && oneP() // callers send, and poll only when they have to wait
		seenSent = sent
		away := s.progress.sleepers.Load() == 0 && (led || now != seen || sends) || n.prober == nil
		if n.waiting { // and has returned
			s.progress.waiting--
		}
		if n.waiting = !away; n.waiting {
			s.progress.waiting++
		}
		if away {
			n.pause = min(max(n.pause+n.pause/4, firstBackoff), backoff)
		}
		pause := n.pause
		s.leaveHandlers()
		if away {
			seen = now
			n.idle.sleep(pause)
			if s.ctx.Err() != nil {
				return
			}
			if n.prober == nil {
				s.mu.lock()
				n.pollAll()
				s.leaveHandlers()
			} else if sends {
				s.mu.lock()
				if s.progress.epoch == seen {
					s.pollIn()
				}
				s.leaveHandlers()
			}
			continue
		}
		i, err := n.prober.RecvWaitAny(s.ctx)
		switch {
		case err == nil:
			n.serve(i)
			runtime.Gosched() // the goroutine that was waiting for the message goes first: see oneP
		case s.ctx.Err() != nil || err != driver.ErrCanceled && isGone(err):
			return
		case err != driver.ErrCanceled: // a driver's fault that may pass
			n.idle.sleep(backoff)
		}
	}
}

// serve takes the messages of an instance that a rail's wait has reported. If no caller polls, it also moves on the
// chunks of long messages for as long as that goes quickly: the mover would have to be woken first.
func (n *nic) serve(i driver.Instance) {
	s := n.s
	p := &s.progress
	s.mu.lock()
	n.pause = 0
	epoch := p.epoch
	alone := s.callers.leader == nil && p.pollers.Load() == 0
	if alone {
		p.pollers.Add(1)
	}
	p.polling = alone
	s.named(i)
	if len(s.busy) > 0 { // the message may have made room
		s.pushAll()
	}
	p.polling = false
	if !alone {
		s.leaveHandlers()
		return
	}
	for last := time.Now(); len(s.transfers.pieces) > 0 && len(s.calls) == 0 && p.epoch == epoch && s.onDuty() && time.Since(last) < lively; {
		s.leave()
		runtime.Gosched()
		s.mu.lock()
		p.polling = true
		moved := s.pushAll()
		if s.pollIn() || moved {
			last = time.Now()
		}
		p.polling = false
	}
	p.pollers.Add(-1)
	s.handOver()
	s.leaveHandlers()
}

// leaveHandlers is leave, but leaves handlers of long active messages to the mover.
func (s *Session) leaveHandlers() {
	if s.active.called {
		s.wakeMover()
		s.unlock()
		return
	}
	s.leave()
}

// lively is how long the background polls without a pause after a chunk of a long message moved.
const lively = 300 * time.Microsecond

// oneP reports whether goroutines of this process run one at a time. A goroutine in a driver's wait then keeps the others
// from running for as long as the runtime takes to notice a blocking system call, up to 10 ms: as long as callers are
// active, none is to begin such a wait.
func oneP() bool { return runtime.GOMAXPROCS(0) == 1 }

// callOffAfter is how many messages callers take in a row, without sleeping, before they call the watches off.
const callOffAfter = 8

// callOff ends the waits of watch when callers take the messages: each would wake a watch that waits, for nothing. A
// watch that is about to wait overlooks it, until a message wakes it.
func (s *Session) callOff() {
	if s.progress.waiting == 0 || s.progress.sleepers.Load() > 0 {
		return
	}
	if s.progress.polled++; s.progress.polled < callOffAfter && !oneP() {
		return
	}
	for _, n := range s.nics {
		if n.waiting {
			n.waiting = false
			_ = n.prober.RecvCancelAny()
		}
	}
	s.progress.waiting = 0
}

// mover polls, while no caller does, for operations that make progress only when they are polled. Its pauses grow as
// long as nothing moves. While there is work it wakes by an alarm; without work it waits until it is woken
// (moverParked). So a message beside bulk transfers wakes no thread.
//
// Callers that poll are recognised in two ways: those that wait for a request count as pollers; the others, which call
// Test or Progress again and again, let the epoch grow.
func (s *Session) mover() {
	const (
		shortest = 5 * time.Microsecond
		longest  = time.Millisecond
	)
	pause := shortest
	defer s.progress.move.close()
	var seen uint32
	var last time.Time // something moved
	woken := false     // and does not know yet whether callers poll
	for idle := 0; ; {
		s.mu.lock()
		s.progress.moverParked = false
		work := s.outstanding() && s.onDuty()
		moved := false
		busy := s.progress.epoch != seen && !woken || s.progress.pollers.Load() > 0
		if seen = s.progress.epoch; work && !busy {
			moved = s.pushAll()
			if len(s.transfers.pieces) > 0 {
				moved = s.pollIn() || moved
			}
		}
		chunks := len(s.transfers.pieces) > 0
		s.progress.moverParked = !work
		if len(s.calls) > 0 {
			s.callPending()
		} else {
			s.leave()
		}
		if s.ctx.Err() != nil {
			return
		}
		woken = false
		switch {
		case !work:
			idle, pause, last = 0, shortest, time.Time{}
			woken = s.progress.move.wait(s.ctx)
			continue
		case moved:
			idle, pause, last = 0, shortest, time.Time{}
			continue
		}
		if idle++; idle < 100 && !busy {
			runtime.Gosched()
			continue
		}
		if chunks && !busy {
			if last.IsZero() {
				last = time.Now()
			}
			if time.Since(last) < lively {
				runtime.Gosched()
				continue
			}
		}
		woken = s.progress.move.sleep(pause)
		pause = min(2*pause, longest)
	}
}

// awaiter is a caller that waits for a condition of the session instead of a request.
type awaiter struct {
	ok   func() bool
	done bool
	wake chan struct{}
}

// awaitPeriod is how long an awaiter sleeps at most before it looks by itself: the event that it waits for may not be
// reported.
const awaitPeriod = 100 * time.Millisecond

// await makes progress until ok holds or ctx ends. Each goroutine that gives up the lock calls ok before it does.
func (s *Session) await(ctx context.Context, ok func() bool) error {
	s.mu.lock()
	done := s.spin(ctx, ok)
	s.leave()
	if done {
		return nil
	}
	return s.sleepUntil(ctx, ok)
}

// sleepUntil sleeps until ok holds or ctx ends.
func (s *Session) sleepUntil(ctx context.Context, ok func() bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &awaiter{ok: ok, wake: make(chan struct{}, 1)}
	s.mu.lock()
	s.callers.awaiters = append(s.callers.awaiters, w)
	s.progress.sleepers.Add(1)
	s.kick()
	s.leave()
	defer s.awake()
	timer := time.NewTimer(awaitPeriod)
	defer timer.Stop()
	for {
		select {
		case <-w.wake:
			return nil
		case <-timer.C:
			s.mu.lock()
			s.leave()
			timer.Reset(awaitPeriod)
		case <-ctx.Done():
			s.mu.lock()
			if w.done = w.done || ok(); !w.done {
				s.callers.awaiters = slices.DeleteFunc(s.callers.awaiters, func(x *awaiter) bool { return x == w })
			}
			done := w.done
			s.leave()
			if done {
				return nil
			}
			return ctx.Err()
		}
	}
}

// wakeAwaiters wakes the awaiters whose condition holds. The caller is about to give up the lock.
func (s *Session) wakeAwaiters() {
	s.callers.awaiters = slices.DeleteFunc(s.callers.awaiters, func(w *awaiter) bool {
		if !w.done {
			w.done = w.ok()
		}
		if w.done {
			w.wake <- struct{}{} // once
		}
		return w.done
	})
}
