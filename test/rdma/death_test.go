//go:build linux && !(386 || arm || mips || mipsle)

package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/machines"
)

// deadTime is the option. Emulated processors, which others use as well, may take
// several times as long to notice.
const (
	deadTime = 3 * time.Second
	slowness = 4
)

// A death is what one side does when the other goes dark. It calls begun when that is
// under way, and ends with the error of the connection.
type death struct {
	name  string
	track driver.Track
	live  func(i driver.Instance, reg driver.RemoteRegion, begun func()) error
}

var deaths = []death{
	{"a receive that is polled", driver.Small, func(i driver.Instance, _ driver.RemoteRegion, begun func()) error {
		return receive(i, 64, begun)
	}},
	{"a receive that sleeps", driver.Small, func(i driver.Instance, _ driver.RemoteRegion, begun func()) error {
		p := &driver.Packet{IOV: [][]byte{make([]byte, 64)}}
		if err := i.RecvPost(p); err != nil {
			return err
		}
		begun()
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		return i.(driver.RecvWaiter).RecvWait(ctx, p)
	}},
	{"sends", driver.Small, func(i driver.Instance, _ driver.RemoteRegion, begun func()) error {
		p := &driver.Packet{IOV: [][]byte{make([]byte, 1000)}}
		return forever("send", func() error { return i.SendPost(p) }, func() (bool, error) { return i.SendPoll(p) }, begun)
	}},
	{"puts", driver.Small, func(i driver.Instance, reg driver.RemoteRegion, begun func()) error {
		one, op := i.(driver.OneSided), &driver.Op{Local: make([]byte, regionSize), Remote: reg}
		return forever("put", func() error { return one.PutPost(op) }, func() (bool, error) { return one.OpPoll(op) }, begun)
	}},
	{"a receive on the large track", driver.Large, func(i driver.Instance, _ driver.RemoteRegion, begun func()) error {
		return receive(i, 1<<20, begun)
	}},
	{"gets on the large track", driver.Large, func(i driver.Instance, reg driver.RemoteRegion, begun func()) error {
		one, op := i.(driver.OneSided), &driver.Op{Local: make([]byte, regionSize), Remote: reg}
		return forever("get", func() error { return one.GetPost(op) }, func() (bool, error) { return one.OpPoll(op) }, begun)
	}},
}

// receive posts a receive and polls it until its end.
func receive(i driver.Instance, size int, begun func()) error {
	p := &driver.Packet{IOV: [][]byte{make([]byte, size)}}
	if err := i.RecvPost(p); err != nil {
		return err
	}
	begun()
	return until("receive", func() (bool, error) { return i.RecvPoll(p) })
}

// forever posts again and again, until that or its outcome is an error.
func forever(what string, post func() error, poll func() (bool, error), begun func()) error {
	for start := time.Now(); time.Since(start) < limit; {
		err := until("post "+what, func() (bool, error) { return posted(post()) })
		if err == nil {
			begun()
			err = until(what, poll)
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: no error within %v", what, limit)
}

const regionSize = 64 << 10

// breakable is one context of each track, with connections that are about to break.
type breakable struct {
	ctx     [2]driver.Context
	region  [2]driver.Region
	conns   []driver.Instance
	remotes []driver.RemoteRegion
}

func stand(t *testing.T, w *wire) *breakable {
	t.Helper()
	m := &breakable{}
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

// die plays all deaths at once, calls at when they are under way, and checks how
// each shows after the time that it returns.
func (m *breakable) die(t *testing.T, at func() time.Time) {
	t.Helper()
	type end struct {
		err  error
		when time.Time
	}
	ends := make([]end, len(deaths))
	var all, begun sync.WaitGroup
	begun.Add(len(deaths))
	for k, d := range deaths {
		all.Go(func() {
			once := sync.OnceFunc(begun.Done)
			err := d.live(m.conns[k], m.remotes[k], once)
			once()
			ends[k] = end{err, time.Now()}
		})
	}
	begun.Wait()
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
func (m *breakable) recover(t *testing.T, w *wire) {
	t.Helper()
	i := join(t, w, m.ctx[driver.Small])
	in, out := &driver.Packet{IOV: [][]byte{make([]byte, 500)}}, &driver.Packet{IOV: [][]byte{make([]byte, 500)}}
	fill(out.IOV[0], uint64(machines.Rank()))
	noErr(t, "post receive", i.RecvPost(in))
	noErr(t, "post send", i.SendPost(out))
	noErr(t, "receive", until("receive", func() (bool, error) { return i.RecvPoll(in) }))
	noErr(t, "send", until("send", func() (bool, error) { return i.SendPoll(out) }))
	noErr(t, "message after a death", verify(in.IOV[0][:in.N], uint64(1-machines.Rank())))
	w.sync(t, "all is well")
	m.close(t)
}

// close closes the contexts, which must not take long.
func (m *breakable) close(t *testing.T) {
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
		w.sync(t, "all is under way")
		w.sync(t, "dark")
		return time.Now()
	}
	m := stand(t, w)
	m.die(t, dark)
	m.absent(t)
	noErr(t, "say that it was noticed", os.WriteFile(noticed(), nil, 0o600))
	w = meet(t)
	m.recover(t, w)

	m = stand(t, w)
	m.die(t, dark)
	m.close(t)
}

// noticed is the file by which machine 0 says so while there is no link.
func noticed() string { return filepath.Join(os.Getenv("VM_OUT"), "noticed") }

// absent checks that a connection to a machine that is dark gives up when it is
// asked to.
func (m *breakable) absent(t *testing.T) {
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

// goDark is machine 1. Its own connections break as well, because nobody answers.
func goDark(t *testing.T) {
	w := meet(t)
	m := stand(t, w)
	dark := func(how ...string) func() time.Time {
		return func() time.Time {
			w.sync(t, "all is under way")
			w.sync(t, "dark")
			start := time.Now()
			run(t, how...)
			return start
		}
	}
	m.die(t, dark("ip", "link", "set", "eth0", "down"))
	noErr(t, "wait", until("machine 0 notices", func() (bool, error) {
		_, err := os.Stat(noticed())
		return err == nil, nil
	}))
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
