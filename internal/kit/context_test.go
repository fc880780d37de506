package kit_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

func TestConnectChecksTheURL(t *testing.T) {
	l := openLoop()
	defer l.Close()
	for url, want := range map[string]error{
		"nonsense": driver.ErrInvalid,
		strings.Replace(l.URL(), "loop:1", "loop:2", 1): driver.ErrVersion,
		strings.Replace(l.URL(), "loop", "shm", 1):      driver.ErrInvalid,
		"loop:1:0000000000000001:here":                  driver.ErrUnsupported,
	} {
		_, err := l.Connect(url)
		if e, ok := errors.AsType[*driver.Error](err); !ok || e.Driver != "loop" || e.Op != "connect" ||
			!errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", url, err, want)
		}
	}
	var c driver.Counters
	l.Counters(&c)
	if c.Connects != 0 || l.Conns.Len() != 0 {
		t.Errorf("%+v, %d are open", c, l.Conns.Len())
	}
}

func TestClosedContext(t *testing.T) {
	l, n := looped(t)
	wait := make(chan error, 1)
	probed := l.Self().(driver.Prober)
	go func() { _, err := probed.RecvWaitAny(context.Background()); wait <- err }()
	until(t, "it sleeps", func() bool { return l.Anyone.Slept() > 0 })
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	errs := []error{
		finished(t, wait), l.Close(), n.Disconnect(), n.SendPost(textPacket("x")), n.RecvPost(room(1)), n.Err(),
		probed.RecvCancelAny(),
	}
	_, err := l.Connect(l.URL())
	errs = append(errs, err)
	_, err = probed.RecvProbeAny()
	errs = append(errs, err)
	for k, err := range errs {
		if !errors.Is(err, driver.ErrClosed) {
			t.Errorf("call %d: %v, want closed", k, err)
		}
	}
	if l.released != 1 || l.Conns.Len() != 0 || slices.Contains(driver.Contexts(), l.Self()) {
		t.Errorf("released %d times, %d are open", l.released, l.Conns.Len())
	}
	var c driver.Counters
	if l.Counters(&c); c.Connects != 1 || c.Disconnects != 1 {
		t.Errorf("%+v", c)
	}
}

// slowClose has hooks whose OnClose waits.
type slowClose struct {
	kit.ConnHooks
	begun, goOn chan struct{}
}

func (h slowClose) OnClose(before kit.State) {
	close(h.begun)
	<-h.goOn
	h.ConnHooks.OnClose(before)
}

// While one goroutine closes a connection, polls give no packet back, and another one that closes it waits.
func TestPacketsComeBackAfterTheClose(t *testing.T) {
	_, n := looped(t)
	h := slowClose{n, make(chan struct{}), make(chan struct{})}
	n.SetHooks(h)
	in := room(8)
	if err := n.RecvPost(in); err != nil {
		t.Fatal(err)
	}
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { n.Shut(); first <- nil }()
	<-h.begun
	if done, err := n.RecvPoll(in); done {
		t.Errorf("the receive comes back before the connection is closed: %v", err)
	}
	go func() { n.Shut(); second <- nil }()
	select {
	case <-second:
		t.Error("the second call did not wait for the first one")
	case <-time.After(10 * time.Millisecond):
	}
	close(h.goOn)
	_, _ = finished(t, first), finished(t, second)
	if done, err := n.RecvPoll(in); !done || !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after the close: done %v, %v", done, err)
	}
}

// A message may be faster than the last step of connecting, and so may the close message.
func TestMessagesBeforeEstablished(t *testing.T) {
	for _, end := range []bool{false, true} {
		l := openLoop()
		l.late = true
		i, err := l.Connect(l.URL())
		if err != nil {
			t.Fatal(err)
		}
		n := i.(*loopback)
		n.publish(3)
		probed := l.Self().(driver.Prober)
		if _, err := probed.RecvProbeAny(); err != driver.ErrAgain {
			t.Errorf("before it is established: %v", err)
		}
		if end {
			n.Finish(kit.StatePeerClosed, nil)
		}
		n.Resolve(kit.StateUp, nil)
		if got, err := probed.RecvProbeAny(); err != nil || got != i {
			t.Errorf("close message %v: a probe names %v, %v", end, got, err)
		}
		if err := i.ConnectWait(t.Context()); err != nil {
			t.Fatal(err)
		}
		in := &driver.Packet{}
		polled(t, i.RecvPoll, in)
		if err := n.RecvBufRelease(in); err != nil {
			t.Fatal(err)
		}
		if got, err := probed.RecvProbeAny(); (err == nil && got == i) != end {
			t.Errorf("close message %v: then it names %v, %v", end, got, err)
		}
		_ = l.Close()
	}
}

func TestViolationsBreakTheConnection(t *testing.T) {
	_, n := looped(t)
	n.Misbehaved("it sings")
	err := n.Err()
	if !errors.Is(err, driver.ErrBroken) || !strings.Contains(err.Error(), "it sings") ||
		n.Tally.Bad.Load() != 1 || n.Tally.Broken.Load() != 1 {
		t.Errorf("%v, counted %d and %d", err, n.Tally.Bad.Load(), n.Tally.Broken.Load())
	}
	n.Fail(errors.New("later"))
	if again := n.Err(); again.Error() != err.Error() {
		t.Errorf("the first reason stays: got %v, want %v", again, err)
	}
}
