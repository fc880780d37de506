//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"bytes"
	"errors"
	"testing"

	"github.com/bywash/bywash/afxdp/internal/link"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// nothingSleeps is the device of a NIC without queues, on which no goroutine sleeps.
type nothingSleeps struct{ kit.Watched }

func (nothingSleeps) Wake() {}

// aLarge is an established instance that is connected to itself, of a NIC without queues.
func aLarge(t *testing.T) *large {
	t.Helper()
	n := &nic{pool: new(link.Pool), next: never}
	c := &share{nic: n}
	c.Init(c, func(i *conn) *kit.Conn { return &i.Conn }, c, driver.Properties{Driver: Name, Track: driver.Large},
		urlVersion, driver.Attributes{})
	n.waits.Device = nothingSleeps{}
	c.Anyone.Watch = &n.waits
	i, err := c.newConn(0, "")
	if err != nil {
		t.Fatal(err)
	}
	l := i.api.(*large)
	l.theirs, l.toSelf = l.token, true
	l.Resolve(kit.StateUp, nil)
	if err := l.ConnectWait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// A waiter is woken when the engine has given up a receive that was cancelled.
func TestCancelledReceiveWakesWaiter(t *testing.T) {
	l := aLarge(t)
	p := driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	if err := l.RecvPost(&p); err != nil {
		t.Fatal(err)
	}
	l.ctx.nic.mustLock() // another goroutine is the engine
	if err := l.RecvCancel(&p); err != nil {
		t.Fatal(err)
	}
	woken := l.Sleep()
	defer l.Awake()
	l.ctx.nic.unlock()
	select {
	case <-woken:
	default:
		t.Error("the waiter sleeps on")
	}
	if done, err := l.RecvPoll(&p); !done || !errors.Is(err, driver.ErrCanceled) {
		t.Errorf("done %v, %v; want true, %v", done, err, driver.ErrCanceled)
	}
}

// The post of a long message to oneself copies its first part, and each later round another one, with the lock free in
// between: while a goroutine waits for the lock, nothing is copied.
func TestLongMessageToOneselfIsCopiedInRounds(t *testing.T) {
	l := aLarge(t)
	n := l.ctx.nic
	const size = 3*selfStep + 1
	in, out := driver.Packet{IOV: [][]byte{make([]byte, size)}}, driver.Packet{IOV: [][]byte{make([]byte, size)}}
	for k := range out.IOV[0] {
		out.IOV[0][k] = byte(k >> 12)
	}
	if err := l.RecvPost(&in); err != nil {
		t.Fatal(err)
	}
	out.RdvData = in.RdvData
	if err := l.SendPost(&out); err != nil {
		t.Fatal(err)
	}
	for k := range uint64(3) {
		if want := (k + 1) * selfStep; l.copied != want {
			t.Fatalf("%d bytes are copied after %d further rounds, want %d", l.copied, k, want)
		}
		if n.due.Load() != 0 {
			t.Fatal("the next round is not due at once")
		}
		n.wanted.Add(1)
		n.run()
		n.wanted.Add(-1)
		if want := (k + 1) * selfStep; l.copied != want {
			t.Fatalf("%d bytes are copied while a goroutine waits for the lock, want %d", l.copied, want)
		}
		n.run()
	}
	if done, err := l.RecvPoll(&in); !done || err != nil || !bytes.Equal(in.IOV[0], out.IOV[0]) {
		t.Errorf("done %v, %v, equal %v", done, err, bytes.Equal(in.IOV[0], out.IOV[0]))
	}
	if done, err := l.SendPoll(&out); !done || err != nil {
		t.Errorf("done %v, %v", done, err)
	}
	if len(n.copies) > 0 || n.due.Load() == 0 {
		t.Errorf("%d messages are to be copied, the next round is due at %d", len(n.copies), n.due.Load())
	}
}

// The owner takes posted memory back when the engine has ended the connection, and leaves it to the engine, which may
// copy, while this side closes.
func TestClosingLeavesMemoryToTheEngine(t *testing.T) {
	for name, end := range map[string]func(*large){
		"closing":     func(l *large) { l.Life.Close() },
		"peer closed": func(l *large) { l.Finish(kit.StatePeerClosed, nil) },
		"broken":      func(l *large) { l.Finish(kit.StateBroken, driver.ErrBroken) },
	} {
		t.Run(name, func(t *testing.T) {
			l := aLarge(t)
			l.ctx.nic.mustLock() // another goroutine is the engine
			in, out := driver.Packet{IOV: [][]byte{make([]byte, 8)}}, driver.Packet{IOV: [][]byte{make([]byte, 8)}}
			if err := l.RecvPost(&in); err != nil {
				t.Fatal(err)
			}
			out.RdvData = in.RdvData
			if err := l.SendPost(&out); err != nil {
				t.Fatal(err)
			}
			end(l)
			l.Progress(&in, false)
			l.Progress(&out, true)
			for _, p := range []*driver.Packet{&in, &out} {
				if done := p.Driver.Phase == driver.Done; done != (name != "closing") {
					t.Errorf("the memory is the user's: %v", done)
				}
			}
		})
	}
}
