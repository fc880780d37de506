//go:build linux && !(386 || arm || mips || mipsle)

package nic

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/qnix/internal/abi"
)

func TestDoorbellsAreChecked(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{})
	post := func() {
		atomic.StoreUint64(&p.receives.doorbells[0], abi.DBFree)
		if err := p.ReceiveShort(0, Name{}, 0, 100); err != nil {
			t.Fatal(err)
		}
		clear(f.commands())
	}
	for _, x := range []struct {
		d     abi.Doorbell
		state State
		n     int
	}{
		{abi.Doorbell{State: abi.DBFree, Len: 9}, Free, 0},
		{abi.Doorbell{State: abi.DBPending, Len: 9}, Pending, 0},
		{abi.Doorbell{State: abi.DBDone, Len: 100}, Done, 100},
		{abi.Doorbell{State: abi.DBDone, Len: 0}, Done, 0},
		{abi.Doorbell{State: abi.DBDone, Len: 101}, Garbled, 0},
		{abi.Doorbell{State: abi.DBTruncated, Len: 5000}, Truncated, 5000},
		{abi.Doorbell{State: abi.DBTruncated, Len: 1 << 31}, Garbled, 0},
		{abi.Doorbell{State: abi.DBNoMemory}, NoMemory, 0},
		{abi.Doorbell{State: abi.DBNoMemory + 1}, Garbled, 0},
		{abi.Doorbell{State: 0x80000000 | abi.DBDone}, Garbled, 0},
	} {
		post()
		f.ring(true, 0, x.d)
		if s, n := p.ReceiveDoorbell(0); s != x.state || n != x.n {
			t.Errorf("%+v: %v, %d, want %v, %d", x.d, s, n, x.state, x.n)
		}
	}
}

func TestRungReturnsEachInOrderAndSkipsInvalid(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{Sends: 4, Receives: 4})
	var seen uint32
	for i := range 100 { // over the ring's end
		f.ring(i%2 == 0, i%4, abi.Doorbell{State: abi.DBDone})
		f.entry(4)                    // no such Send Context
		f.entry(abi.RingReceive | 60) // nor Receive Context
		want := Ring{Receive: i%2 == 0, Index: i % 4}
		if r, ok := p.Rung(&seen); !ok || r != want {
			t.Fatalf("%+v %v, want %+v", r, ok, want)
		}
		if i%3 == 0 {
			if r, ok := p.Rung(&seen); ok {
				t.Fatalf("nonsense gave %+v", r)
			}
		}
	}
	for range p.RingTail() { // more than the ring holds
		f.entry(1)
	}
	if _, ok := p.Rung(&seen); !ok {
		t.Fatal("an overrun was not reported")
	}
	if r, ok := p.Rung(&seen); ok || seen != p.RingTail() {
		t.Fatalf("after an overrun: %+v", r)
	}
	f.entry(2)
	if r, ok := p.Rung(&seen); !ok || r != (Ring{Index: 2}) {
		t.Fatalf("after an overrun: %+v %v", r, ok)
	}
	// A tail that jumps to anywhere ends, too.
	atomic.StoreUint32(&f.status().RingTail, seen-1)
	if r, ok := p.Rung(&seen); !ok || !r.Overrun {
		t.Fatalf("a tail that went back: %+v %v", r, ok)
	}
}

func TestWaitEndsWhenRung(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{})
	var rings sync.WaitGroup
	for i := range 200 {
		seen := p.RingTail()
		rings.Go(func() { f.ring(false, i%64, abi.Doorbell{State: abi.DBDone}) })
		for p.RingTail() == seen {
			if err := p.Wait(seen, -1); err != nil {
				t.Fatal(err)
			}
		}
		rings.Wait() // it polls its memory after it has rung
	}
	if n := atomic.LoadUint32(&f.status().Sleepers); n != 0 {
		t.Errorf("%d sleepers are left", n)
	}
}

func TestWaitTimesOut(t *testing.T) {
	p := register(t, newFake(t), Config{})
	for _, d := range []time.Duration{0, time.Microsecond, 20 * time.Millisecond} {
		start := time.Now()
		if err := p.Wait(p.RingTail(), d); err != nil || time.Since(start) < d {
			t.Errorf("after %v of %v: %v", time.Since(start), d, err)
		}
	}
}

// until polls without a pause, where no event reports the change.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// waiting waits until n goroutines are past the polls of their Waits.
func waiting(t *testing.T, p *Process, n int32) {
	t.Helper()
	until(t, "goroutines wait", func() bool { return p.waiters.Load() == n })
}

// Wake reaches every wait, at whatever point it is.
func TestWakeIsNotLost(t *testing.T) {
	for _, old := range []bool{false, true} {
		if was := noWaitv.Swap(old); was && !old {
			noWaitv.Store(true)
			t.Skip("needs futex_waitv, Linux 5.16")
		}
		p := register(t, newFake(t), Config{})
		for range 300 {
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					if err := p.Wait(p.RingTail(), -1); err != nil {
						t.Error(err)
					}
				})
			}
			waiting(t, p, 2) // asleep, or on the way to it
			p.Wake()
			wg.Wait()
		}
	}
	noWaitv.Store(false)
}

func TestHangUpEndsEverythingAtOnce(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{})
	waits := make(chan error)
	for range 3 {
		go func() {
			for {
				if err := p.Wait(p.RingTail(), -1); err != nil {
					waits <- err
					return
				}
			}
		}()
	}
	waiting(t, p, 3)
	f.hangUp()
	for range 3 {
		if err := <-waits; !errors.Is(err, ErrGone) {
			t.Errorf("wait: %v, want ErrGone", err)
		}
	}
	if !p.Gone() {
		t.Error("not gone")
	}
	if err := p.SendShort(0, Name{}, 0, 0); !errors.Is(err, ErrGone) {
		t.Errorf("post: %v, want ErrGone", err)
	}
	if _, err := p.Translate(make([]byte, 1), Read); !errors.Is(err, ErrGone) {
		t.Errorf("translate: %v, want ErrGone", err)
	}
	if _, err := p.Statistics(); !errors.Is(err, ErrGone) {
		t.Errorf("statistics: %v, want ErrGone", err)
	}
	if err := p.Deregister(); err != nil {
		t.Errorf("deregister: %v", err)
	}
}

func TestStatusGoneEndsWaits(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{})
	atomic.StoreUint32(&f.status().Gone, 1)
	if err := p.Wait(p.RingTail(), -1); !errors.Is(err, ErrGone) {
		t.Errorf("%v, want ErrGone", err)
	}
}

// Calls that come too late, or at the same time, neither fault nor hang.
func TestDeregisterUnderWay(t *testing.T) {
	f := newFake(t)
	for round := range int32(20) {
		p := register(t, f, Config{Sends: 2, Receives: 2})
		var wg sync.WaitGroup
		var calls atomic.Int32
		for i := range 2 {
			wg.Go(func() {
				var seen uint32
				for {
					err := p.SendShort(i, Name{}, 0, 1)
					_ = p.Kick()
					p.Rung(&seen)
					p.SendDoorbell(i)
					p.SendRegion(i)[0] = 1
					calls.Add(1)
					if errors.Is(err, ErrClosed) {
						return
					}
				}
			})
			wg.Go(func() {
				for p.Wait(p.RingTail(), -1) == nil {
				}
			})
		}
		waiting(t, p, 2)
		until(t, "calls are under way", func() bool { return calls.Load() > 10*round })
		if err := p.Deregister(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if err := p.Deregister(); !errors.Is(err, ErrClosed) {
			t.Errorf("second Deregister: %v, want ErrClosed", err)
		}
		p.nic.Close()
	}
}

func TestMemoryCallsCheckTheirArguments(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{PoolEntries: 4})
	b := make([]byte, 64)
	for what, call := range map[string]func() (Handle, error){
		"empty":          func() (Handle, error) { return p.Translate(nil, Read) },
		"no access":      func() (Handle, error) { return p.Translate(b, 0) },
		"other access":   func() (Handle, error) { return p.Translate(b, 8) },
		"no file":        func() (Handle, error) { return p.TranslateFile(b, -1, 0, Read) },
		"negative place": func() (Handle, error) { return p.TranslateFile(b, 0, -1, Read) },
		"beyond pool":    func() (Handle, error) { return p.TranslatePool(b, Read, 3, 32) },
		"no stride":      func() (Handle, error) { return p.TranslatePool(b, Read, 0, 0) },
	} {
		if _, err := call(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	if h, err := p.TranslatePool(b, Read|Write, 2, 32); err != nil || h != 17 {
		t.Errorf("handle %d, %v", h, err)
	}
	if err := p.SetPool(4, Descriptor{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("pool entry 4: %v, want ErrInvalid", err)
	}
	if err := p.SetPool(3, Descriptor{Handle: 17, Len: 5}); err != nil {
		t.Error(err)
	}
}

// FuzzAnswer has a NIC send anything.
func FuzzAnswer(f *testing.F) {
	good := goodInfo()
	f.Add(append(append([]byte(nil), abi.Bytes(&abi.Answer{ID: 1})...), abi.Bytes(&good)...))
	f.Add(abi.Bytes(&abi.Answer{ID: 1, Errno: 98}))
	f.Add(abi.Bytes(&abi.Answer{ID: 1, Errno: -1}))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &socket{calls: map[uint32]*call{}}
		var i abi.Info
		c := &call{body: abi.Bytes(&i), done: make(chan struct{})}
		s.calls[1] = c
		err := s.answered(b, nil)
		if (err != nil) != (len(b) < abi.HeaderSize || int8(b[3]) < 0) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
		select {
		case <-c.done:
			if c.err == nil && len(b) != abi.HeaderSize+len(c.body) {
				t.Error("an answer of another size was taken")
			}
			if c.err == nil && checkInfo(&i) == nil {
				x := makeInfo(&i)
				if x.MaxContexts > abi.MaxContexts || x.MaxMessage < 0 || x.MaxRegion > abi.MaxRegion {
					t.Errorf("limits beyond those of the interface: %+v", x)
				}
			}
		default:
		}
	})
}

// A wake-up that comes between a caller's last look and its wait is not lost.
func TestWakeBeforeTheWait(t *testing.T) {
	p := register(t, newFake(t), Config{})
	seen, wakes := p.RingTail(), p.Wakes()
	p.Wake()
	start := time.Now()
	if err := p.WaitSince(seen, wakes, time.Minute); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("it waited for %v", d)
	}
}
