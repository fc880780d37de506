package kit

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// State is the stage of a connection's life. It only grows.
type State uint32

// The states of a connection.
const (
	StateConnecting State = iota
	StateUp
	StatePeerClosed // the peer sent its close message: messages from before it can be received
	StateBroken     // the peer is gone, or misbehaved, or the device failed
	StateClosed     // this side disconnected, or gave up connecting
)

// Life is the state of a connection, for drivers whose instances are driven by their owner and by other goroutines at
// the same time: by one that drains a shared queue, by the keep-alive goroutine, by one that closes the context. Init
// begins it.
//
// Its owner is one goroutine at a time, between Enter and Leave, or Exclude. Fields that other
// goroutines set are atomic.
type Life struct {
	driver, peer string
	state        atomic.Uint32
	inCall       atomic.Uint32
	way          way           // how the owner enters; accessed only by the owner
	after        after         // what Leave does besides; accessed only by the owner
	settled      chan struct{} // closed once state has left StateConnecting
	shut         chan struct{} // closed once no other goroutine is at packets any more: after Close
	gate         Gate          // nil: the common one

	mu     sync.Mutex // changes of state
	reason error      // why broken; set before state is
	early  State      // how it ended before it was established; StateConnecting: it has not

	num    uint32
	ready  *ReadySet
	anyone *AnyWaits
	_      [64]byte

	arrived atomic.Uint32 // messages that came
	ended   atomic.Bool   // there will be no more
	_       [64]byte

	taken    atomic.Uint32 // messages that were received
	named    atomic.Bool   // a prober has named the instance
	endNamed atomic.Bool
	sleeping atomic.Int32
	inKernel atomic.Bool // the sleeper watches the device; see Watch
	wakeup   chan struct{}

	Tally Tallies
}

// A Gate is a driver's own way into a connection, instead of the common one, a compare-and-swap. It is for connections
// that only their owner enters: there is no TryEnter. The driver may have Enter and Leave in its own code on its fast
// paths, if [Life.Waited]; the kit uses the gate everywhere else.
type Gate interface {
	// Enter begins a call of the owner, unless the state is StateClosed.
	Enter() bool

	// Leave ends it.
	Leave()

	// Exclude waits until the owner is in no call. The state is StateClosed.
	Exclude()

	// HasMessage reports whether a message can be received; messages are not counted by Arrived and Taken.
	HasMessage() bool
}

// way is the means by which the owner enters a connection.
type way uint8

const (
	notWaited way = iota // ConnectWait has not returned nil yet
	bySwap
	byGate
)

// after has the further duties of Leave.
type after uint8

const (
	popped after = 1 << iota // something was received in this call
	gated                    // the gate leaves
)

// UseGate makes the owner enter by a gate. It is called before ConnectWait.
func (l *Life) UseGate(g Gate) { l.gate, l.after = g, gated }

// Init begins a connection of a driver to a peer's url, with a number among those of ready. Anyone has those that sleep
// until any connection has a message.
func (l *Life) Init(driver, peer string, num uint32, ready *ReadySet, anyone *AnyWaits) {
	l.driver, l.peer, l.num, l.ready, l.anyone = driver, peer, num, ready, anyone
	l.settled, l.shut, l.wakeup = make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
}

// State is an atomic load.
func (l *Life) State() State { return State(l.state.Load()) }

// Waited reports to the owner whether ConnectWait has returned nil.
func (l *Life) Waited() bool { return l.way != notWaited }

// Peer is the peer's url.
func (l *Life) Peer() string { return l.peer }

// ConnectWait implements ConnectWait of [driver.Instance]. Pending returns the error text for the case that ctx ends
// first.
func (l *Life) ConnectWait(ctx context.Context, pending func() string) error {
	select {
	case <-l.settled:
	case <-ctx.Done():
		select {
		case <-l.settled:
		default:
			return l.Fault("connect", fmt.Errorf("%s: %w", pending(), ctx.Err()))
		}
	}
	if s := l.State(); s == StateUp || s == StatePeerClosed {
		if l.way = bySwap; l.gate != nil {
			l.way = byGate
		}
		return nil
	}
	return l.Failure("connect")
}

// Fault is the error of an operation.
func (l *Life) Fault(op string, err error) error {
	return &driver.Error{Driver: l.driver, Peer: l.peer, Op: op, Err: err}
}

// Failure is the error of an operation on a connection that is not up; nil if it is.
func (l *Life) Failure(op string) error {
	err := driver.ErrClosed
	switch s := l.State(); {
	case s == StateConnecting, s == StateUp && !l.Waited():
		err = fmt.Errorf("%w: not connected yet, ConnectWait first", driver.ErrInvalid)
	case s == StateUp:
		return nil
	case s == StateBroken:
		l.mu.Lock()
		err = l.reason
		l.mu.Unlock()
	}
	return l.Fault(op, err)
}

// misuse is the error of an operation on a packet in the wrong phase.
func (l *Life) misuse(op string, p *driver.Packet) error {
	what := "it is posted already, or its outcome was not polled"
	if p.Driver.Phase == driver.Idle {
		what = "it is not posted"
	}
	return l.Fault(op, fmt.Errorf("%w: packet: %s", driver.ErrInvalid, what))
}

// isClosing reports whether this side is being closed by a goroutine that may still be at packets, or has to wait for
// another one that is.
func (l *Life) isClosing() bool {
	if l.State() != StateClosed {
		return false
	}
	select {
	case <-l.shut:
		return false
	default:
		return true
	}
}

// Over is the result of polling a packet that could not be looked at from inside. Once this side is closed, the packet is
// the caller's again.
func (l *Life) Over(p *driver.Packet, op string) (bool, error) {
	if l.isClosing() {
		return false, nil
	}
	if l.State() != StateConnecting {
		p.Buf = nil
		p.Driver = driver.PacketState{}
	}
	return true, l.Failure(op)
}

// Enter begins a call. It fails once the connection is closed on this side, or
// before ConnectWait has returned nil.
func (l *Life) Enter() bool {
	if l.way != bySwap {
		return l.way == byGate && l.gate.Enter()
	}
	for {
		if s := l.State(); s == StateClosed || s == StateConnecting {
			return false
		}
		if l.inCall.CompareAndSwap(0, 1) {
			if l.State() == StateClosed {
				l.inCall.Store(0)
				return false
			}
			return true
		}
		runtime.Gosched() // another goroutine is inside, for the time of a post
	}
}

// TryEnter begins work that another goroutine does while the owner is in no call; Leave ends it.
func (l *Life) TryEnter() bool {
	return l.State() == StateUp && l.inCall.CompareAndSwap(0, 1)
}

// enterWith enters for an operation on a packet, if the connection is up and the packet is the caller's to use.
func (l *Life) enterWith(op string, p *driver.Packet) error {
	if !l.Enter() {
		return l.Failure(op)
	}
	switch {
	case l.State() != StateUp:
		l.Leave()
		return l.Failure(op)
	case p.Driver.Phase != driver.Idle:
		l.Leave()
		return l.misuse(op, p)
	}
	return nil
}

// Admit reports to the owner, inside, whether p can be posted, and returns the length of its message, which has at most
// limit bytes. The packet may be prefetched.
func (l *Life) Admit(op string, p *driver.Packet, limit int) (n int, err error) {
	if l.State() != StateUp {
		return 0, l.Failure(op)
	}
	if p.Driver.Phase != driver.Idle && p.Driver.Phase != driver.Prefetched {
		return 0, l.misuse(op, p)
	}
	if n = p.Len(); n > limit {
		return 0, l.TooLong(op, n, limit)
	}
	return n, nil
}

// TooLong is the error of an operation with n bytes.
func (l *Life) TooLong(op string, n, limit int) error {
	return l.Fault(op, fmt.Errorf("%w: %d bytes, limit is %d", driver.ErrTooLong, n, limit))
}

// Busy counts what it returns.
func (l *Life) Busy() error {
	l.Tally.Busy.Add(1)
	return driver.ErrBusy
}

// Polled returns the result of polling a posted packet, after a look at it.
func (l *Life) Polled(op string, p *driver.Packet) (bool, error) {
	switch p.Driver.Phase {
	case driver.Done:
		return p.Driver.Outcome()
	case driver.Posted, driver.Canceling:
		return false, nil
	}
	return true, l.misuse(op+" poll", p)
}

// EnterCancel begins RecvCancel of [driver.Instance]: it enters if p is posted. Else there is nothing to do, or an
// error. It looks at p from inside: the keep-alive goroutine may finish p until then.
func (l *Life) EnterCancel(p *driver.Packet) (posted bool, err error) {
	entered := l.Enter()
	if !entered && l.isClosing() {
		return false, l.Failure("cancel")
	}
	switch p.Driver.Phase {
	case driver.Done, driver.Canceling:
	case driver.Posted:
		if entered {
			return true, nil
		}
		err = l.Failure("cancel")
	default:
		if l.State() == StateClosed {
			err = l.Failure("cancel")
		} else {
			err = l.Fault("cancel", fmt.Errorf("%w: the packet is not posted", driver.ErrInvalid))
		}
	}
	if entered {
		l.Leave()
	}
	return false, err
}

// Exclude waits until no goroutine is inside a call, and lets none in any more: after Close.
func (l *Life) Exclude() {
	if l.gate != nil {
		l.gate.Exclude()
		return
	}
	for !l.inCall.CompareAndSwap(0, 1) { // the goroutine inside leaves soon
		runtime.Gosched()
	}
}

// Leave ends a call. Probes may name the instance again after something was
// received; another goroutine may then be given it at once.
func (l *Life) Leave() {
	if l.after != 0 {
		if l.after == gated {
			l.gate.Leave()
			return
		}
		l.after = 0
		l.inCall.Store(0)
		l.unname()
		return
	}
	l.inCall.Store(0)
}

// Resolve moves a connection out of StateConnecting, to StateUp or StateBroken. It reports whether this call
// did, and whether the connection has ended already: then the caller does what he does after Finish.
func (l *Life) Resolve(s State, reason error) (did, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.State() != StateConnecting {
		return false, false
	}
	early, why := l.early, l.reason
	l.reason = reason
	if s == StateUp {
		l.Tally.Connects.Store(1)
	} else {
		l.Tally.Broken.Store(1)
	}
	l.state.Store(uint32(s))
	if over = s == StateUp && early != StateConnecting; over {
		l.end(early, why)
	}
	close(l.settled)
	return true, over
}

// Finish ends a connection that is up, as StatePeerClosed or StateBroken, and reports whether it did. One that is not
// established yet, because the peer was faster than the last step here, ends right after it is established.
func (l *Life) Finish(s State, reason error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.State() {
	case StateConnecting:
		if l.early == StateConnecting {
			l.early, l.reason = s, reason
		}
	case StateUp:
		l.end(s, reason)
		return true
	}
	return false
}

// end is called with mu held.
func (l *Life) end(s State, reason error) {
	l.reason = reason
	if s == StateBroken {
		l.Tally.Broken.Store(1)
	} else {
		l.Tally.disconnects.Store(1)
	}
	l.state.Store(uint32(s))
}

// Close moves a connection to StateClosed, and returns the state before; did is false if it was that.
func (l *Life) Close() (before State, did bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.State()
	if before == StateClosed {
		return before, false
	}
	l.state.Store(uint32(StateClosed))
	if before == StateConnecting {
		close(l.settled)
	}
	return before, true
}

// Arrived counts a message that came. It reports whether probers must be notified: otherwise one has the
// instance already.
func (l *Life) Arrived() bool {
	l.arrived.Add(1)
	return l.notice()
}

// Ended notes that no more messages come.
func (l *Life) Ended() { l.ended.Store(true); l.notice() }

// notice makes the instance ready to be named by a prober, unless one has it.
func (l *Life) notice() bool {
	if l.named.Load() && !l.ended.Load() {
		return false
	}
	l.ready.Add(l.num)
	return true
}

// HasMessage reports whether a message can be received, which is possible after the
// connection has ended, too.
func (l *Life) HasMessage() bool { return l.arrived.Load() != l.taken.Load() }

// hasLate is HasMessage off the fast path, where a gate may know better.
func (l *Life) hasLate() bool {
	if l.gate != nil {
		return l.gate.HasMessage()
	}
	return l.HasMessage()
}

// Taken counts a message of n bytes that was received.
func (l *Life) Taken(n int) {
	l.taken.Add(1)
	l.after = popped
	l.Tally.Received.Add(1)
	l.Tally.BytesReceived.Add(uint64(n))
}

// Dropped counts a message that is not received, because the peer must not have sent it.
func (l *Life) Dropped() { l.taken.Add(1) }

// Sent counts a message of n bytes.
func (l *Life) Sent(n int) {
	l.Tally.Sent.Add(1)
	l.Tally.BytesSent.Add(uint64(n))
}

// unname lets probers name the instance again. A message that came while one had it notified no prober, so unname wakes
// those that sleep.
func (l *Life) unname() {
	wasNamed := l.named.Swap(false)
	if l.HasMessage() || l.ended.Load() {
		l.ready.Add(l.num)
		if wasNamed {
			l.anyone.Notify()
		}
	}
}

// Claim names the connection to one prober, if there still is something.
func (l *Life) Claim() bool {
	ended := l.ended.Load() // before the look for messages, of which none comes afterwards
	switch st := l.State(); {
	case st == StateConnecting || st == StateClosed:
		return false
	case l.HasMessage():
		if !l.named.CompareAndSwap(false, true) {
			return false
		}
		if l.HasMessage() {
			return true
		}
		// The owner polled without a notification and was faster. The name
		// would stay, because nothing is left to be received.
		l.unname()
		return false
	case ended:
		return l.endNamed.CompareAndSwap(false, true)
	}
	return false
}

// Sleep begins a wait: from here on Wake sends on the channel. The waiter looks once more before it sleeps.
func (l *Life) Sleep() <-chan struct{} {
	l.sleeping.Add(1)
	return l.wakeup
}

// Awake ends a wait.
func (l *Life) Awake() { l.sleeping.Add(-1) }

// Wake wakes the goroutine that sleeps on the instance.
func (l *Life) Wake() {
	if l.sleeping.Load() > 0 {
		select {
		case l.wakeup <- struct{}{}:
		default: // it is about to look anyway
		}
	}
}
