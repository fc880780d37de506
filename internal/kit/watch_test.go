package kit_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// device is a Watched whose Sleep has no time limit: a missed event hangs the test.
type device struct {
	mu     sync.Mutex
	more   sync.Cond
	events uint64
	woken  bool
	asleep atomic.Int32
	calls  atomic.Int32
}

func newDevice() *device {
	d := &device{}
	d.more.L = &d.mu
	return d
}

func (d *device) Arm() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.events
}

func (d *device) Sleep(seen uint64, _ bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asleep.Add(1)
	for d.events == seen && !d.woken {
		d.more.Wait()
	}
	d.asleep.Add(-1)
	d.woken = false
}

func (d *device) Wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.woken = true
	d.more.Broadcast()
}

func (d *device) Call() { d.calls.Add(1) }

func (d *device) event() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events++
	d.more.Broadcast()
}

// receiver is an instance whose receives are done as often as there are tokens.
type receiver struct {
	driver.Instance
	life   *kit.Life
	tokens atomic.Int32
	polls  atomic.Int32
}

func newReceiver(t *testing.T) *receiver { return &receiver{life: established(t)} }

func (r *receiver) RecvPoll(*driver.Packet) (bool, error) {
	r.polls.Add(1)
	if r.tokens.Load() > 0 {
		r.tokens.Add(-1)
		return true, nil
	}
	return false, nil
}

func (r *receiver) SendPoll(*driver.Packet) (bool, error) { return true, errLost }

// prober is a context whose probes name what is put into it.
type prober struct {
	ready atomic.Pointer[receiver]
}

func (p *prober) RecvProbeAny() (driver.Instance, error) {
	if r := p.ready.Swap(nil); r != nil {
		return r, nil
	}
	return nil, driver.ErrAgain
}

const maxWait = 20 * time.Second

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(maxWait); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func finished(t *testing.T, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(maxWait):
		t.Fatal("a wait does not end")
		return nil
	}
}

func block(ctx context.Context, w *kit.Watch, r *receiver) <-chan error {
	c := make(chan error, 1)
	go func() { c <- w.Block(ctx, r.life, r, &driver.Packet{}, false) }()
	return c
}

func TestOneWaiterWatchesAndAllAreWoken(t *testing.T) {
	for _, never := range []bool{false, true} {
		d := newDevice()
		w := &kit.Watch{Device: d, Spins: 3, Never: never}
		var all []*receiver
		var waits []<-chan error
		for range 3 {
			r := newReceiver(t)
			all = append(all, r)
			waits = append(waits, block(context.Background(), w, r))
			until(t, "it sleeps", func() bool { return r.life.Tally.Slept.Load() > 0 })
		}
		if w.Watching() == never || w.Sleepers() != 3 {
			t.Errorf("never %v: watching %v, %d sleepers", never, w.Watching(), w.Sleepers())
		}
		if never {
			until(t, "the driver is called", func() bool { return d.calls.Load() == 3 })
		} else {
			until(t, "one sleeps in the kernel", func() bool { return d.asleep.Load() == 1 })
		}
		for k, r := range all {
			r.tokens.Add(1)
			w.Wake(r.life)
			if err := finished(t, waits[k]); err != nil {
				t.Errorf("never %v: %v", never, err)
			}
		}
		if w.Watching() || w.Sleepers() != 0 {
			t.Errorf("never %v: watching %v, %d sleepers are left", never, w.Watching(), w.Sleepers())
		}
		if d.calls.Load() == 0 {
			t.Error("the one who watched has gone, and the driver was not called to watch for the others")
		}
	}
}

func TestRelyCallsTheDriverWhenAWatchEnds(t *testing.T) {
	for _, relied := range []bool{false, true} {
		d := newDevice()
		w := &kit.Watch{Device: d}
		w.Rely(relied)
		r := newReceiver(t)
		wait := block(context.Background(), w, r)
		until(t, "it sleeps in the kernel", func() bool { return d.asleep.Load() == 1 })
		r.tokens.Add(1)
		w.Wake(r.life)
		if err := finished(t, wait); err != nil {
			t.Error(err)
		}
		if called := d.calls.Load() > 0; called != relied {
			t.Errorf("relied %v, called %v", relied, called)
		}
	}
}

// Events and wakes come at every point of a wait.
func TestNoEventIsSleptThrough(t *testing.T) {
	d := newDevice()
	w := &kit.Watch{Device: d, Spins: 1}
	a := &kit.AnyWaits{Watch: w}
	p := &prober{}
	r, x := newReceiver(t), newReceiver(t)
	const rounds = 3000
	one, other, anyone := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		for range rounds {
			if err := w.Block(context.Background(), r.life, r, &driver.Packet{}, false); err != nil {
				one <- err
				return
			}
		}
		one <- nil
	}()
	go func() {
		for range rounds {
			if i, err := a.Wait(context.Background(), p); err != nil || i != driver.Instance(x) {
				anyone <- errors.Join(err, errors.New("another instance"))
				return
			}
		}
		anyone <- nil
	}()
	go func() {
		for k := range rounds {
			r.tokens.Add(1)
			if k%2 == 0 {
				d.event()
			}
			w.Wake(r.life)
			for !p.ready.CompareAndSwap(nil, x) {
				a.Notify()
			}
			a.Notify()
		}
		other <- nil
	}()
	for _, c := range []<-chan error{other, one, anyone} {
		if err := finished(t, c); err != nil {
			t.Error(err)
		}
	}
}

func TestWaitsEndWithTheirContext(t *testing.T) {
	d := newDevice()
	w := &kit.Watch{Device: d, Spins: 1, Long: true}
	a := &kit.AnyWaits{Watch: w}
	ctx, cancel := context.WithCancel(context.Background())
	r, s := newReceiver(t), newReceiver(t)
	waits := []<-chan error{block(ctx, w, r)}
	until(t, "the first sleeps in the kernel", func() bool { return d.asleep.Load() == 1 })
	waits = append(waits, block(ctx, w, s))
	anyone := make(chan error, 1)
	go func() { _, err := a.Wait(ctx, &prober{}); anyone <- err }()
	until(t, "all sleep", func() bool { return s.life.Tally.Slept.Load() > 0 && a.Slept() > 0 })
	d.event() // the context ends sleeps in the kernel from the second on
	until(t, "it sleeps again", func() bool { return r.life.Tally.Slept.Load() == 2 && d.asleep.Load() == 1 })
	cancel()
	for _, c := range append(waits, anyone) {
		if err := finished(t, c); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want canceled", err)
		}
	}
}

func TestCancelEndsWaitsForAnyInstance(t *testing.T) {
	for _, never := range []bool{false, true} {
		w := &kit.Watch{Device: newDevice(), Spins: 1, Never: never}
		a := &kit.AnyWaits{Watch: w}
		a.Wake(true) // no waiter: it does nothing
		waits := make(chan error, 3)
		for range cap(waits) {
			go func() { _, err := a.Wait(context.Background(), &prober{}); waits <- err }()
		}
		until(t, "all sleep", func() bool { return a.Slept() == 3 })
		a.Wake(true)
		for range cap(waits) {
			if err := finished(t, waits); err != driver.ErrCanceled {
				t.Errorf("%v, want canceled", err)
			}
		}
	}
}

func TestWaitSpinsFirst(t *testing.T) {
	w := &kit.Watch{Device: newDevice(), Spins: 5}
	r := newReceiver(t)
	if err := w.Block(context.Background(), r.life, r, &driver.Packet{}, true); err != errLost {
		t.Errorf("%v, want the poll's error", err)
	}
	r.tokens.Add(1)
	if n := testing.AllocsPerRun(100, func() {
		r.tokens.Store(1)
		_ = w.Block(context.Background(), r.life, r, nil, false)
	}); n != 0 || r.life.Tally.Slept.Load() != 0 {
		t.Errorf("%v allocations, slept %d times", n, r.life.Tally.Slept.Load())
	}
}
