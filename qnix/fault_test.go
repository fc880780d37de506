//go:build linux && !(386 || arm || mips || mipsle)

package qnix_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix"
	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

// limit is how long anything may take.
const limit = 20 * time.Second

func open(t *testing.T, device string, h driver.Hints, a driver.Attributes) driver.Context {
	t.Helper()
	d, err := driver.Lookup("qnix")
	if err != nil {
		t.Fatal(err)
	}
	h.Device = device
	n, err := d.Query(h)
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func connect(t *testing.T, a, b driver.Context) (x, y driver.Instance) {
	t.Helper()
	x, err := a.Connect(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	if y, err = b.Connect(a.URL()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for _, i := range []driver.Instance{x, y} {
		if err := i.ConnectWait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return x, y
}

// await polls until f reports that it is done.
func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !f(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

func softNIC(t *testing.T) (path string, s *softnic.Server) {
	t.Helper()
	qnix.NeedNIC(t)
	path = filepath.Join(t.TempDir(), "nic.sock")
	s, err := softnic.Start(softnic.Config{Sockets: []string{path}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return path, s
}

// A NIC that ends breaks its connections, with the reason, and ends what waits for it.
func TestNICThatEndsBreaksConnections(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			path, s := softNIC(t)
			h := driver.Hints{Track: track}
			a, b := open(t, path, h, driver.Attributes{}), open(t, path, h, driver.Attributes{})
			x, _ := connect(t, a, b)
			waiting, err := a.Connect(b.URL()) // which b does not answer
			if err != nil {
				t.Fatal(err)
			}
			p := &driver.Packet{IOV: [][]byte{make([]byte, 100_000)}}
			if err := x.RecvPost(p); err != nil {
				t.Fatal(err)
			}
			connectErr := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				defer cancel()
				connectErr <- waiting.ConnectWait(ctx)
			}()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			err = x.(driver.RecvWaiter).RecvWait(ctx, p)
			for _, err := range []error{err, <-connectErr, x.SendPost(&driver.Packet{})} {
				if !errors.Is(err, driver.ErrBroken) {
					t.Errorf("on a NIC that has ended: got %v, want %v", err, driver.ErrBroken)
				}
			}
			await(t, "connect returns the reason", func() bool {
				i, err := a.Connect(b.URL())
				if err == nil {
					_ = i.Disconnect()
				}
				return errors.Is(err, driver.ErrBroken) && strings.Contains(err.Error(), "the NIC has ended")
			})
			for _, c := range []driver.Context{a, b} {
				if err := c.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		})
	}
}

func TestManyConnectionsShareTheContexts(t *testing.T) {
	path, _ := softNIC(t)
	options := map[string]string{"contexts": "256"}
	a, b := open(t, path, driver.Hints{Options: options}, driver.Attributes{}), open(t, path, driver.Hints{Options: options}, driver.Attributes{})
	var all [][2]driver.Instance
	for {
		x, err := a.Connect(b.URL())
		if errors.Is(err, driver.ErrBusy) && len(all) >= 32 {
			if !strings.Contains(err.Error(), "option contexts") {
				t.Errorf("the error names no remedy: %v", err)
			}
			break
		}
		if err != nil {
			t.Fatalf("connection %d: %v", len(all), err)
		}
		y, err := b.Connect(a.URL())
		if err != nil {
			t.Fatalf("connection %d: %v", len(all), err)
		}
		all = append(all, [2]driver.Instance{x, y})
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for k, c := range all {
		for _, i := range c {
			if err := i.ConnectWait(ctx); err != nil {
				t.Fatalf("connection %d of %d: %v", k, len(all), err)
			}
		}
	}
	talkOnEach(t, ctx, all)
	// Memory that was given back can be used again.
	for _, c := range all {
		for _, i := range c {
			await(t, "disconnect", func() bool { return i.Disconnect() == nil })
		}
	}
	for range 40 {
		var x driver.Instance
		await(t, "contexts are free again", func() (ok bool) {
			var err error
			x, err = a.Connect(b.URL())
			return err == nil
		})
		var y driver.Instance
		await(t, "contexts are free again", func() (ok bool) {
			var err error
			y, err = b.Connect(a.URL())
			return err == nil
		})
		for _, i := range []driver.Instance{x, y} {
			if err := i.ConnectWait(ctx); err != nil {
				t.Fatal(err)
			}
			await(t, "disconnect", func() bool { return i.Disconnect() == nil })
		}
	}
}

// talkOnEach sends messages on connections, each with its own.
func talkOnEach(t *testing.T, ctx context.Context, all [][2]driver.Instance) {
	t.Helper()
	for k, c := range all {
		text := []byte(fmt.Sprint("message on ", k))
		for range 5 {
			out, in := &driver.Packet{IOV: [][]byte{text}}, &driver.Packet{IOV: [][]byte{make([]byte, 100)}}
			if err := c[0].SendPost(out); err != nil {
				t.Fatal(err)
			}
			if err := c[1].RecvPost(in); err != nil {
				t.Fatal(err)
			}
			if err := c[1].(driver.RecvWaiter).RecvWait(ctx, in); err != nil || string(in.IOV[0][:in.N]) != string(text) {
				t.Fatalf("connection %d: received %q, error %v", k, in.IOV[0][:in.N], err)
			}
			if err := c[0].(driver.SendWaiter).SendWait(ctx, out); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Leave ends a Join that waits for other processes, which the caller can tell from a signal.
func TestLeaveEndsJoin(t *testing.T) {
	qnix.NeedNIC(t)
	n, err := nic.Open(lab.nic)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	p, err := n.Register(t.Context(), nic.Config{Name: "joins"})
	if err != nil {
		t.Fatal(err)
	}
	group, err := nic.MakeName("incomplete")
	if err != nil {
		t.Fatal(err)
	}
	joined := make(chan error, 1)
	go func() { joined <- p.Join(t.Context(), group, 2) }()
	await(t, "leave finds the member", func() bool {
		err := p.Leave(group)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			t.Fatal(err)
		}
		return err == nil
	})
	select {
	case err := <-joined:
		if !errors.Is(err, unix.ECANCELED) {
			t.Errorf("join: got %v, want %v", err, unix.ECANCELED)
		}
	case <-time.After(limit):
		t.Errorf("join has not ended after %v", limit)
	}
}

// postWhenThereIsRoom posts a receive. A cancelled one keeps its place until the sender is notified.
func postWhenThereIsRoom(t *testing.T, i driver.Instance, p *driver.Packet) {
	t.Helper()
	await(t, "a receive is posted", func() bool {
		err := i.RecvPost(p)
		if err != nil && err != driver.ErrBusy {
			t.Fatal(err)
		}
		return err == nil
	})
}

// Packets in private memory are copied only as long as the copies of a context are less than 64 MiB; those behind are
// translated, and arrive, too.
func TestCopiesAreBounded(t *testing.T) {
	path, _ := softNIC(t)
	h := driver.Hints{Track: driver.Large}
	x, y := connect(t, open(t, path, h, driver.Attributes{}), open(t, path, h, driver.Attributes{}))
	const size, copied = 16 << 20, 4
	for k := range copied + 2 {
		in := &driver.Packet{IOV: [][]byte{make([]byte, size)}}
		postWhenThereIsRoom(t, y, in)
		want := "staged"
		if k >= copied {
			want = "translated"
		}
		if got := y.Path(); got != want {
			t.Errorf("receive %d of %d bytes is %s, want %s", k, size, got, want)
		}
		if k < copied+1 {
			continue // it stays posted
		}
		out := &driver.Packet{IOV: [][]byte{bytes.Repeat([]byte{7}, size)}, RdvData: in.RdvData}
		if err := x.SendPost(out); err != nil {
			t.Fatal(err)
		}
		var err error
		await(t, "a message", func() (done bool) { done, err = y.RecvPoll(in); return done })
		if err != nil || !bytes.Equal(in.IOV[0], out.IOV[0]) {
			t.Errorf("INTEGRITY: the translated message was changed, or: %v", err)
		}
		await(t, "its send", func() (done bool) { done, err = x.SendPoll(out); return done })
	}
}

// TestLateSendsOfCancelledReceivesGoNowhere sends to receives that were cancelled, before and after the sender is
// notified: it must harm no later receive, whose tag may be the same.
func TestLateSendsOfCancelledReceivesGoNowhere(t *testing.T) {
	path, _ := softNIC(t)
	h := driver.Hints{Track: driver.Large}
	a, b := open(t, path, h, driver.Attributes{}), open(t, path, h, driver.Attributes{})
	x, y := connect(t, a, b)
	for _, size := range []int{100, 100_000} {
		for round := range 300 {
			gone := &driver.Packet{IOV: [][]byte{make([]byte, size)}}
			postWhenThereIsRoom(t, y, gone)
			rdv := string(gone.RdvData)
			if err := y.RecvCancel(gone); err != nil {
				t.Fatal(err)
			}
			var err error
			await(t, "a cancelled receive", func() (done bool) { done, err = y.RecvPoll(gone); return done })
			if !errors.Is(err, driver.ErrCanceled) {
				t.Fatalf("cancelled receive: %v", err)
			}
			late := &driver.Packet{IOV: [][]byte{make([]byte, size)}, RdvData: []byte(rdv)}
			late.IOV[0][0] = 'x'
			err = x.SendPost(late)
			if err == nil {
				await(t, "a late send", func() (done bool) { done, err = x.SendPoll(late); return done })
			}
			if err != nil && !errors.Is(err, driver.ErrCanceled) {
				t.Fatalf("late send: %v", err)
			}
			in := &driver.Packet{IOV: [][]byte{make([]byte, size)}}
			postWhenThereIsRoom(t, y, in)
			out := &driver.Packet{IOV: [][]byte{make([]byte, size)}, RdvData: in.RdvData}
			out.IOV[0][0] = 'y'
			if err := x.SendPost(out); err != nil {
				t.Fatal(err)
			}
			await(t, "a message", func() (done bool) { done, err = y.RecvPoll(in); return done })
			if err != nil || in.IOV[0][0] != 'y' {
				t.Fatalf("round %d: a receive after a cancelled one got %q, error %v", round, in.IOV[0][0], err)
			}
			await(t, "a send", func() (done bool) { done, err = x.SendPoll(out); return done })
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
