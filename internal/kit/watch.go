package kit

import (
	"context"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// Watched is the device whose events end a driver's waits; see [Watch].
type Watched interface {
	// Arm is called before a waiter's last look. An event from here on ends Sleep, or another goroutine sees it and wakes
	// the waiter. Seen is for Sleep.
	Arm() (seen uint64)
	// Sleep blocks in the kernel until there is more than seen, Wake is called, or a time of its own is over, and
	// takes what has come. Again: it is not the first sleep of a wait.
	Sleep(seen uint64, again bool)
	// Wake ends a Sleep, from any goroutine.
	Wake()
	// Call asks the driver's own goroutine to watch the device: goroutines sleep, and none of them watches it.
	Call()
}

// Watch has the goroutines in waits of a driver sleep, so that no event is slept through.
//
// A waiter 1. counts itself as a sleeper, 2. arms the device, 3. polls once more, 4. sleeps: the first waiter in the
// kernel, where it watches the device, the others on their wake-ups. The watcher takes completions and wakes the
// goroutines that they concern; if no waiter watches, a goroutine of the driver does. If another goroutine takes a
// completion meanwhile, the poll of step 3 sees it, or that goroutine wakes the waiter, which is counted since step 1.
// Nothing allocates, except for a context that can end under sleeps that are Long.
type Watch struct {
	Device Watched
	Spins  int  // how many polls a wait makes before it sleeps: about as long as sleeping and waking take
	Never  bool // no waiter watches
	Long   bool // sleeps after the first are so long that the end of the waiter's context is to end them

	sleepers atomic.Int32
	watching atomic.Bool
	relied   atomic.Bool
}

// Sleepers returns the number of goroutines that are in a wait, or about to be.
func (w *Watch) Sleepers() int { return int(w.sleepers.Load()) }

// Watching reports whether one of them watches the device.
func (w *Watch) Watching() bool { return w.watching.Load() }

// Rely sets whether the driver's own goroutine is called when a waiter ends its watch, even if no other goroutine
// sleeps.
func (w *Watch) Rely(on bool) { w.relied.Store(on) }

// wait is one wait under way.
type wait struct {
	w        *Watch
	ctx      context.Context
	inKernel *atomic.Bool // to wake it takes waking the device's sleep
	watching bool
	seen     uint64
	slept    int
	stop     func() bool
}

func (x *wait) begin() {
	w := x.w
	if x.watching = !w.Never && !w.watching.Load() && w.watching.CompareAndSwap(false, true); x.watching {
		x.inKernel.Store(true)
	}
	x.seen = w.Device.Arm()
}

func (x *wait) sleep(wakeup <-chan struct{}) {
	w := x.w
	if !x.watching {
		if w.Never {
			w.Device.Call()
		}
		select {
		case <-wakeup:
		case <-x.ctx.Done():
		}
		return
	}
	if x.slept++; x.slept == 2 && w.Long && x.stop == nil && x.ctx.Done() != nil {
		x.stop = context.AfterFunc(x.ctx, w.Device.Wake)
	}
	w.Device.Sleep(x.seen, x.slept > 1)
}

func (x *wait) end() {
	if !x.watching {
		return
	}
	x.inKernel.Store(false)
	x.w.watching.Store(false)
	if x.w.sleepers.Load() > 1 || x.w.relied.Load() {
		x.w.Device.Call()
	}
}

func (x *wait) leave() {
	x.w.sleepers.Add(-1)
	if x.stop != nil {
		x.stop()
	}
}

// pollFor polls for p.
func pollFor(i driver.Instance, p *driver.Packet, sending bool) (bool, error) {
	if sending {
		return i.SendPoll(p)
	}
	return i.RecvPoll(p)
}

// Block polls for p on an instance whose life is l until it is done or ctx ends, and sleeps in between: SendWait
// of [driver.SendWaiter], or RecvWait of [driver.RecvWaiter].
func (w *Watch) Block(ctx context.Context, l *Life, i driver.Instance, p *driver.Packet, sending bool) error {
	for range w.Spins {
		if done, err := pollFor(i, p, sending); done {
			return err
		}
	}
	x := wait{w: w, ctx: ctx, inKernel: &l.inKernel}
	w.sleepers.Add(1)
	defer x.leave()
	wakeup := l.Sleep()
	defer l.Awake()
	for {
		x.begin()
		done, err := pollFor(i, p, sending)
		if !done {
			l.Tally.Slept.Add(1)
			x.sleep(wakeup)
		}
		x.end()
		if done {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// Wake wakes the goroutine that sleeps in Block on the instance whose life is l.
func (w *Watch) Wake(l *Life) {
	if l.sleeping.Load() > 0 {
		w.wake(l)
	}
}

func (w *Watch) wake(l *Life) {
	l.Wake()
	if l.inKernel.Load() {
		w.Device.Wake()
	}
}

// AnyWaits are the waits of a context for any of its instances.
type AnyWaits struct {
	Watch *Watch // may be that of several contexts

	waiters  waiters
	n        atomic.Int32
	inKernel atomic.Bool
	slept    atomic.Uint64
}

// Slept counts the sleeps.
func (a *AnyWaits) Slept() uint64 { return a.slept.Load() }

// A Looker is a context whose RecvProbeAny may overlook an instance. RecvLookAny overlooks none; it is a waiter's last
// look before it sleeps.
type Looker interface {
	RecvLookAny() (driver.Instance, error)
}

// probes is a context that can be probed.
type probes interface {
	RecvProbeAny() (driver.Instance, error)
}

func lookAny(c probes) (driver.Instance, error) {
	if l, ok := c.(Looker); ok {
		return l.RecvLookAny()
	}
	return c.RecvProbeAny()
}

// Wait is RecvWaitAny of [driver.Prober].
func (a *AnyWaits) Wait(ctx context.Context, c probes) (driver.Instance, error) {
	w := a.Watch
	for range w.Spins {
		if i, err := c.RecvProbeAny(); err != driver.ErrAgain {
			return i, err
		}
	}
	x := wait{w: w, ctx: ctx, inKernel: &a.inKernel}
	w.sleepers.Add(1)
	defer x.leave()
	a.n.Add(1)
	defer a.n.Add(-1)
	me := a.waiters.enter()
	defer a.waiters.leave(me)
	for {
		x.begin()
		i, err := lookAny(c)
		if err == driver.ErrAgain && !a.waiters.canceled(me) {
			a.slept.Add(1)
			x.sleep(me.wakeup)
		}
		x.end()
		switch {
		case err != driver.ErrAgain:
			return i, err
		case a.waiters.canceled(me):
			return nil, driver.ErrCanceled
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
}

// Notify wakes the goroutines in Wait: an instance is ready.
func (a *AnyWaits) Notify() {
	if a.n.Load() > 0 {
		a.Wake(false)
	}
}

// Wake wakes the goroutines in Wait; with cancel they return driver.ErrCanceled.
func (a *AnyWaits) Wake(cancel bool) {
	a.waiters.wake(cancel)
	if a.inKernel.Load() {
		a.Watch.Device.Wake()
	}
}
