//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

const insideSize = 2 << 20

// stoppedRank puts to the region of rank 0 until a put fails.
func stoppedRank(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := session.Join(ctx, session.Config{Job: &folder{dir, 1, 2}, Rails: []session.Rail{{Driver: "shm"}}})
	if err != nil {
		return err
	}
	g := s.Gate(0)
	key := make([]byte, 4096)
	n, err := g.Recv(ctx, 2, key)
	if err != nil {
		return err
	}
	r, err := g.Import(key[:n])
	if err != nil {
		return err
	}
	b := make([]byte, r.Len())
	if err := g.Send(ctx, 3, nil); err != nil {
		return err
	}
	for err == nil {
		err = g.Put(ctx, r, 0, b)
	}
	return s.Close(ctx)
}

// A peer is stopped in the middle of a put, the gate or the session is closed here, and the memory is used for
// something else as soon as Deregister allows it.
func TestMemoryOfAStoppedPeerStaysBusy(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 1))
	for _, end := range []string{"disconnect", "close"} {
		t.Run(end, func(t *testing.T) {
			busy := 0
			const trials = 5
			for range trials {
				if stopDuringAccess(t, end, rnd) {
					busy++
				}
			}
			t.Logf("Deregister was busy in %d of %d trials", busy, trials)
		})
	}
}

func stopDuringAccess(t *testing.T, end string, rnd *rand.Rand) (busy bool) {
	t.Helper()
	ctx := deadline(t)
	dir := t.TempDir()
	before := heldResources()
	c, log := startRank(t, dir, nil, envRole+"=stopped")
	s, err := session.Join(ctx, session.Config{Job: &folder{dir, 0, 2}, Rails: []session.Rail{{Driver: "shm"}}})
	if err != nil {
		t.Fatal(err)
	}
	arena, err := driver.NewArena(insideSize)
	if err != nil {
		t.Fatal(err)
	}
	mem := arena.Bytes()
	region, err := s.Register(mem, driver.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	g := s.Gate(1)
	if err := g.Send(ctx, 2, region.Key()); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Recv(ctx, 3, nil); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	for until := time.Now().Add(time.Duration(rnd.IntN(1_000_000))); time.Now().Before(until); {
	}
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var info unix.Siginfo
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Waitid(unix.P_PID, c.Process.Pid, &info, unix.WSTOPPED, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(ctx) // the peer does not answer
	cancel()
	switch end {
	case "disconnect":
		g.Disconnect()
	case "close":
		if err := s.Close(over); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	free := func() bool {
		err := region.Deregister()
		if err != nil && !errors.Is(err, session.ErrBusy) {
			t.Fatal(err)
		}
		return err == nil
	}
	resume := func() { _ = c.Process.Signal(syscall.SIGCONT) }
	if busy = !free(); busy {
		resume()
		for !free() {
			if ctx.Err() != nil {
				t.Fatal("the region is busy though the peer goes on")
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	canary := bytes.Repeat([]byte{0xc5}, insideSize)
	copy(mem, canary)
	if !busy {
		resume()
	}
	if err := c.Wait(); err != nil {
		t.Errorf("the peer: %v\n%s", err, log)
	}
	if !bytes.Equal(mem, canary) {
		t.Error("the memory was written after Deregister had returned nil")
	}
	_ = s.Close(over)
	if err := arena.Close(); err != nil {
		t.Error(err)
	}
	if err := nothingLeft(before); err != nil {
		b := make([]byte, 1<<16)
		t.Fatalf("after the peer has ended: %v\n%s", err, b[:runtime.Stack(b, true)])
	}
	return busy
}
