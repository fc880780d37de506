package kit_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

func newLife() (*kit.Life, *kit.ReadySet) {
	ready := &kit.ReadySet{}
	l := &kit.Life{}
	l.Init("test", "test://peer", 3, ready, new(kit.AnyWaits))
	return l, ready
}

func establish(t *testing.T, l *kit.Life) {
	t.Helper()
	if did, over := l.Resolve(kit.StateUp, nil); !did || over {
		t.Fatalf("Resolve(up) = %v, %v", did, over)
	}
	if err := l.ConnectWait(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
}

var errLost = fmt.Errorf("%w: lost", driver.ErrBroken)

func TestWhatEachStateAnswers(t *testing.T) {
	for _, c := range []struct {
		name  string
		live  func(*testing.T, *kit.Life)
		want  error
		enter bool
	}{
		{"connecting", func(*testing.T, *kit.Life) {}, driver.ErrInvalid, false},
		{"up, not waited for", func(_ *testing.T, l *kit.Life) { l.Resolve(kit.StateUp, nil) }, driver.ErrInvalid, false},
		{"up", establish, nil, true},
		{"peer closed", func(t *testing.T, l *kit.Life) {
			establish(t, l)
			l.Finish(kit.StatePeerClosed, nil)
		}, driver.ErrClosed, true},
		{"broken", func(t *testing.T, l *kit.Life) {
			establish(t, l)
			l.Finish(kit.StateBroken, errLost)
		}, driver.ErrBroken, true},
		{"broken, then closed by the peer", func(t *testing.T, l *kit.Life) {
			establish(t, l)
			l.Finish(kit.StateBroken, errLost)
			l.Finish(kit.StatePeerClosed, nil)
		}, driver.ErrBroken, true},
		{"closed", func(t *testing.T, l *kit.Life) {
			establish(t, l)
			l.Close()
		}, driver.ErrClosed, false},
		{"closed while connecting", func(_ *testing.T, l *kit.Life) { l.Close() }, driver.ErrClosed, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, _ := newLife()
			c.live(t, l)
			err := l.Failure("send")
			if !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
				t.Errorf("Failure = %v, want %v", err, c.want)
			}
			if err != nil && !strings.Contains(err.Error(), "test://peer") {
				t.Errorf("Failure = %q does not name the peer", err)
			}
			if got := l.Enter(); got != c.enter {
				t.Errorf("Enter = %v, want %v", got, c.enter)
			} else if got {
				l.Leave()
			}
		})
	}
}

func TestConnectWait(t *testing.T) {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	l, _ := newLife()
	err := l.ConnectWait(done, func() string { return "no answer yet" })
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "no answer yet") {
		t.Errorf("while connecting: %v", err)
	}
	l.Resolve(kit.StateBroken, errLost)
	if err := l.ConnectWait(done, nil); !errors.Is(err, driver.ErrBroken) {
		t.Errorf("once it has failed: %v", err)
	}
	l, _ = newLife()
	time.AfterFunc(time.Millisecond, func() { l.Close() })
	if err := l.ConnectWait(context.Background(), nil); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("closed meanwhile: %v", err)
	}
}

// A peer that is faster than the last step here may have sent and left before the connection is established.
func TestEndBeforeEstablishedIsKept(t *testing.T) {
	for _, end := range []kit.State{kit.StatePeerClosed, kit.StateBroken} {
		l, _ := newLife()
		if l.Finish(end, errLost) {
			t.Errorf("%v: Finish of a connection that is not established is true", end)
		}
		l.Finish(kit.StateBroken, errors.New("later"))
		if l.State() != kit.StateConnecting {
			t.Errorf("%v: state %v before the connection is established", end, l.State())
		}
		l.Arrived()
		if did, over := l.Resolve(kit.StateUp, nil); !did || !over {
			t.Errorf("%v: Resolve = %v, %v; want both", end, did, over)
		}
		if l.State() != end || !l.HasMessage() {
			t.Errorf("%v: state %v, message %v", end, l.State(), l.HasMessage())
		}
		if err := l.ConnectWait(context.Background(), nil); end == kit.StatePeerClosed && err != nil {
			t.Errorf("ConnectWait: %v", err)
		}
		if did, _ := l.Resolve(kit.StateUp, nil); did {
			t.Errorf("%v: resolved twice", end)
		}
	}
}

func TestOneProberIsNamedAnInstanceUntilItWasReceivedFrom(t *testing.T) {
	l, _ := newLife()
	establish(t, l)
	if l.Claim() {
		t.Error("claimed with no message")
	}
	l.Arrived()
	l.Arrived()
	if !l.Claim() {
		t.Error("a message came and the claim failed")
	}
	if l.Claim() {
		t.Error("claimed twice")
	}
	for _, want := range []bool{true, false} {
		l.Enter()
		l.Taken(1)
		l.Leave()
		if got := l.Claim(); got != want {
			t.Errorf("claim = %v after a message was taken, want %v", got, want)
		}
	}
	l.Finish(kit.StatePeerClosed, nil)
	l.Ended()
	if !l.Claim() {
		t.Error("no prober is notified of the end of the connection")
	}
	if l.Claim() {
		t.Error("probers are notified twice of the end of the connection")
	}
}

func TestExcludeWaitsForTheCallInside(t *testing.T) {
	l, _ := newLife()
	establish(t, l)
	if !l.Enter() {
		t.Fatal("Enter")
	}
	if l.TryEnter() {
		t.Fatal("two are inside")
	}
	var order []string
	var mu sync.Mutex
	note := func(s string) { mu.Lock(); order = append(order, s); mu.Unlock() }
	closed, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		l.Close()
		close(closed)
		l.Exclude()
		note("excluded")
	}()
	<-closed
	note("leaves")
	l.Leave()
	<-done
	if fmt.Sprint(order) != "[leaves excluded]" {
		t.Errorf("order %v", order)
	}
	if l.Enter() || l.TryEnter() {
		t.Error("a goroutine got in after Exclude")
	}
}

func TestWakeIsNotLostBetweenLookAndSleep(t *testing.T) {
	l, _ := newLife()
	establish(t, l)
	l.Wake() // no goroutine sleeps
	wakeup := l.Sleep()
	l.Wake()
	l.Wake()
	select {
	case <-wakeup:
	case <-time.After(5 * time.Second):
		t.Fatal("no wake-up came")
	}
	l.Awake()
	select {
	case <-wakeup:
		t.Error("it rang twice")
	default:
	}
}

// TestCancelOfAPacketThatIsFinishedMeanwhile has the keep-alive goroutine inside when RecvCancel comes.
func TestCancelOfAPacketThatIsFinishedMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name      string
		keepAlive func(p *driver.Packet)
		entered   bool
	}{
		{"the keep-alive goroutine finishes it", func(p *driver.Packet) { p.Driver.Finish(nil) }, false},
		{"the keep-alive goroutine leaves it alone", func(*driver.Packet) {}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, _ := newLife()
			establish(t, l)
			p := &driver.Packet{Driver: driver.PacketState{Phase: driver.Posted}}
			if !l.TryEnter() {
				t.Fatal("the keep-alive goroutine is not let in")
			}
			type answer struct {
				posted bool
				err    error
			}
			begun, result := make(chan struct{}), make(chan answer)
			go func() {
				close(begun)
				posted, err := l.EnterCancel(p)
				result <- answer{posted, err}
			}()
			<-begun
			for range 1000 {
				runtime.Gosched() // the call has waited for the keep-alive goroutine to leave
			}
			c.keepAlive(p)
			l.Leave()
			if got := <-result; got != (answer{c.entered, nil}) {
				t.Errorf("EnterCancel = %v, %v, want %v, nil", got.posted, got.err, c.entered)
			}
		})
	}
}

// gate counts what it is asked.
type gate struct{ enters, leaves, excludes int }

func (g *gate) Enter() bool      { g.enters++; return true }
func (g *gate) Leave()           { g.leaves++ }
func (g *gate) Exclude()         { g.excludes++ }
func (g *gate) HasMessage() bool { return false }

// TestGate has the owner of a connection enter by the driver's own gate, once ConnectWait has returned nil.
func TestGate(t *testing.T) {
	var l kit.Life
	l.Init("test", "peer", 0, new(kit.ReadySet), new(kit.AnyWaits))
	g := &gate{}
	l.UseGate(g)
	if l.Enter() || *g != (gate{}) {
		t.Errorf("entered before ConnectWait, gate %+v", *g)
	}
	l.Resolve(kit.StateUp, nil)
	if err := l.ConnectWait(t.Context(), func() string { return "" }); err != nil {
		t.Fatal(err)
	}
	if !l.Enter() {
		t.Error("the gate was not asked")
	}
	l.Leave()
	l.Close()
	l.Exclude()
	if want := (gate{1, 1, 1}); *g != want {
		t.Errorf("gate %+v, want %+v", *g, want)
	}
}

// The end of a connection is named after its last message, also where both come during a prober's look.
func TestEndIsNamedAfterTheLastMessage(t *testing.T) {
	const most, least = 20_000, 500 // rounds: both goroutines spin, and a round takes a time slice where one CPU is left
	var lives [most]*kit.Life
	for k := range lives {
		lives[k], _ = newLife()
		establish(t, lives[k])
	}
	var begun, ended atomic.Int32
	go func() {
		for k, l := range lives {
			for int(begun.Load()) <= k {
			}
			if begun.Load() > most {
				return
			}
			l.Arrived()
			l.Finish(kit.StatePeerClosed, nil)
			l.Ended()
			ended.Store(int32(k + 1))
		}
	}()
	defer begun.Store(most + 1)
	from := time.Now()
	for k, l := range lives {
		if k > least && time.Since(from) > 2*time.Second {
			break
		}
		begun.Store(int32(k + 1))
		for !l.Claim() {
		}
		for int(ended.Load()) <= k {
			runtime.Gosched()
		}
		l.Enter()
		l.Taken(0)
		l.Leave()
		if !l.Claim() {
			t.Fatalf("round %d: the end was named before the message", k)
		}
	}
}
