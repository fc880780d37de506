package rdma

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// deadTime is the option. Emulated processors, which others use as well, may take
// several times as long to notice.
const (
	deadTime = 3 * time.Second
	slowness = 4
)

// A death is what one side does when the other goes dark. It ends with the error
// of the connection.
type death struct {
	name  string
	track driver.Track
	live  func(i driver.Instance, reg driver.RemoteRegion) error
}

var deaths = []death{
	{"a receive that is polled", driver.Small, func(i driver.Instance, _ driver.RemoteRegion) error {
		p := &driver.Packet{IOV: [][]byte{make([]byte, 64)}}
		return errors.Join(i.RecvPost(p), until("receive", func() (bool, error) { return i.RecvPoll(p) }))
	}},
	{"a receive that sleeps", driver.Small, func(i driver.Instance, _ driver.RemoteRegion) error {
		p := &driver.Packet{IOV: [][]byte{make([]byte, 64)}}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		return errors.Join(i.RecvPost(p), i.(driver.RecvWaiter).RecvWait(ctx, p))
	}},
	{"sends", driver.Small, func(i driver.Instance, _ driver.RemoteRegion) error {
		p := &driver.Packet{IOV: [][]byte{make([]byte, 1000)}}
		return forever("send", func() error { return i.SendPost(p) }, func() (bool, error) { return i.SendPoll(p) })
	}},
	{"puts", driver.Small, func(i driver.Instance, reg driver.RemoteRegion) error {
		one, op := i.(driver.OneSided), &driver.Op{Local: make([]byte, regionSize), Remote: reg}
		return forever("put", func() error { return one.PutPost(op) }, func() (bool, error) { return one.OpPoll(op) })
	}},
	{"a receive on the large track", driver.Large, func(i driver.Instance, _ driver.RemoteRegion) error {
		p := &driver.Packet{IOV: [][]byte{make([]byte, 1<<20)}}
		return errors.Join(i.RecvPost(p), until("receive", func() (bool, error) { return i.RecvPoll(p) }))
	}},
	{"gets on the large track", driver.Large, func(i driver.Instance, reg driver.RemoteRegion) error {
		one, op := i.(driver.OneSided), &driver.Op{Local: make([]byte, regionSize), Remote: reg}
		return forever("get", func() error { return one.GetPost(op) }, func() (bool, error) { return one.OpPoll(op) })
	}},
}

// forever posts again and again, until that or its outcome is an error.
func forever(what string, post func() error, poll func() (bool, error)) error {
	for start := time.Now(); time.Since(start) < limit; {
		err := until("post "+what, func() (bool, error) { return posted(post()) })
		if err == nil {
			err = until(what, poll)
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: no error within %v", what, limit)
}

const regionSize = 64 << 10

// mortals is one context of each track, with connections that are about to break.
type mortals struct {
	ctx     [2]driver.Context
	region  [2]driver.Region
	conns   []driver.Instance
	remotes []driver.RemoteRegion
}

func stand(t *testing.T, w *wire) *mortals {
	t.Helper()
	m := &mortals{}
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		c := open(t, driver.Hints{Track: track, Options: map[string]string{"dead-time": deadTime.String()}})
		r, err := c.(driver.Registrar).Register(make([]byte, regionSize), driver.RemoteRead|driver.RemoteWrite)
		noErr(t, "register", err)
		m.ctx[track], m.region[track] = c, r
	}
	for _, d := range deaths {
		i := join(t, w, m.ctx[d.track])
		reg, err := i.(driver.OneSided).Import(swap(t, w, m.region[d.track].Key()))
		noErr(t, "import", err)
		m.conns, m.remotes = append(m.conns, i), append(m.remotes, reg)
	}
	return m
}

// die plays all deaths at once and checks how each shows after at.
func (m *mortals) die(t *testing.T, at func() time.Time) {
	t.Helper()
	type end struct {
		err  error
		when time.Time
	}
	ends := make([]end, len(deaths))
	var all sync.WaitGroup
	for k, d := range deaths {
		all.Go(func() {
			err := d.live(m.conns[k], m.remotes[k])
			ends[k] = end{err, time.Now()}
		})
	}
	dark := at()
	all.Wait()
	for k, e := range ends {
		took := e.when.Sub(dark)
		t.Logf("%s: %v after: %v", deaths[k].name, took.Round(time.Millisecond), e.err)
		if !errors.Is(e.err, driver.ErrBroken) {
			t.Errorf("%s: got %v, want %v", deaths[k].name, e.err, driver.ErrBroken)
		}
		if took < 0 || took > slowness*deadTime {
			t.Errorf("%s: noticed %v after, want within %v, %d times the dead time", deaths[k].name, took, slowness*deadTime, slowness)
		}
		unclear(t, e.err)
		if err := m.conns[k].RecvPost(&driver.Packet{IOV: [][]byte{make([]byte, 8)}}); !errors.Is(err, driver.ErrBroken) {
			t.Errorf("%s: post afterwards: got %v, want %v", deaths[k].name, err, driver.ErrBroken)
		}
		noErr(t, "disconnect after a death", m.conns[k].Disconnect())
	}
}

// recover connects again, on the same contexts, and closes them.
func (m *mortals) recover(t *testing.T, w *wire) {
	t.Helper()
	i := join(t, w, m.ctx[driver.Small])
	in, out := &driver.Packet{IOV: [][]byte{make([]byte, 500)}}, &driver.Packet{IOV: [][]byte{make([]byte, 500)}}
	fill(out.IOV[0], uint64(rank()))
	noErr(t, "post receive", i.RecvPost(in))
	noErr(t, "post send", i.SendPost(out))
	noErr(t, "receive", until("receive", func() (bool, error) { return i.RecvPoll(in) }))
	noErr(t, "send", until("send", func() (bool, error) { return i.SendPoll(out) }))
	noErr(t, "message after a death", verify(in.IOV[0][:in.N], uint64(1-rank())))
	w.sync(t, "all is well")
	m.close(t)
}

// close closes the contexts, which must not take long.
func (m *mortals) close(t *testing.T) {
	t.Helper()
	for _, c := range m.ctx {
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		select {
		case err := <-closed:
			noErr(t, "close", err)
		case <-time.After(slowness * deadTime):
			t.Fatalf("Close has not returned within %v", slowness*deadTime)
		}
	}
}

// noticeDeath is machine 0, whose peer goes dark twice. The first time its link is
// down, which also holds up the frames that are sent to it, and it comes back.
// The second time it falls silent, until after everything here is closed.
func noticeDeath(t *testing.T) {
	w := meet(t)
	dark := func() time.Time {
		var word string
		if err := w.hear(&word); err != nil {
			t.Errorf("hear that the other machine goes dark: %v", err)
		}
		return time.Now()
	}
	m := stand(t, w)
	m.die(t, dark)
	m.absent(t)
	w = meet(t)
	m.recover(t, w)

	m = stand(t, w)
	m.die(t, dark)
	m.close(t)
}

// absent checks that a connection to a machine that is dark gives up when it is
// asked to.
func (m *mortals) absent(t *testing.T) {
	t.Helper()
	i, err := m.ctx[driver.Small].Connect(m.conns[0].Peer())
	noErr(t, "connect to a dark machine", err)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := i.ConnectWait(ctx); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, driver.ErrBroken) {
		t.Errorf("connect to a dark machine: got %v, want its context's error or %v", err, driver.ErrBroken)
	} else {
		unclear(t, err)
	}
	noErr(t, "disconnect", i.Disconnect())
}

// goDark is machine 1. What it has breaks as well, as nobody answers it.
func goDark(t *testing.T) {
	w := meet(t)
	m := stand(t, w)
	dark := func(how ...string) func() time.Time {
		return func() time.Time {
			time.Sleep(200 * time.Millisecond) // everything is under way by then
			noErr(t, "tell", w.tell("dark"))
			time.Sleep(100 * time.Millisecond) // the word is there by then
			start := time.Now()
			run(t, how...)
			return start
		}
	}
	m.die(t, dark("ip", "link", "set", "eth0", "down"))
	time.Sleep(slowness * deadTime) // machine 0 has noticed by then
	run(t, "ip", "link", "set", "eth0", "up")
	w = meet(t)
	m.recover(t, w)

	m = stand(t, w)
	m.die(t, dark("tc", "qdisc", "change", "dev", "eth0", "root", "netem", "loss", "100%"))
	m.close(t)
}

func run(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
}
