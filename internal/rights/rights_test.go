//go:build linux

package rights_test

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/internal/rights/rightstest"
)

// connect returns both ends of a connection: the second was accepted.
func connect(t *testing.T) (dialed, accepted *net.UnixConn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := rights.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if dialed, err = rights.Dial(path); err != nil {
		t.Fatal(err)
	}
	if accepted, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close(); rights.Close(accepted) })
	return dialed, accepted
}

func within(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// A socket takes descriptors only after Admit: before, the kernel refuses them (Linux 6.16), or they are closed in
// flight.
func TestDescriptorsComeOnlyWhenAdmitted(t *testing.T) {
	rightstest.EachKernel(t, func(t *testing.T) {
		a, b := connect(t)
		p := make([]int, 2)
		if err := unix.Pipe2(p, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(p[0])
		defer unix.Close(p[1])
		buf := make([]byte, 8)
		for _, c := range [][2]*net.UnixConn{{a, b}, {b, a}} {
			from, to := c[0], c[1]
			err := rights.Send(from, []byte("x"), false, p[0])
			if rights.Supported() {
				if !errors.Is(err, unix.EPERM) {
					t.Errorf("before they are admitted: %v, want EPERM", err)
				}
			} else if _, fds, err := rights.Receive(to, buf, 0); err != rights.ErrTruncated || len(fds) > 0 {
				t.Errorf("got %d descriptors, %v, want none and ErrTruncated", len(fds), err)
			}
			if err := rights.Admit(to); err != nil {
				t.Fatal(err)
			}
			if err := rights.Send(from, []byte("y"), false, p[0]); err != nil {
				t.Fatal(err)
			}
			n, fds, err := rights.Receive(to, buf, 1)
			if n != 1 || len(fds) != 1 || err != nil || buf[0] != 'y' {
				t.Errorf("got %q with %d descriptors, %v", buf[:n], len(fds), err)
			}
			rights.Discard(rights.User(to), fds...)
		}
		rights.HangUp(a)
		if _, _, err := rights.Receive(b, buf, 1); err != io.EOF {
			t.Errorf("at the end: %v, want EOF", err)
		}
	})
}

// A read takes the expected number of descriptors and does not block, for any number and kind of descriptors that
// arrive.
func TestMoreThanExpectedIsClosed(t *testing.T) {
	for _, tt := range []struct {
		name       string
		sent, most int
	}{{"none expected", 1, 0}, {"one expected", 5, 1}, {"three expected", 16, 3}} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := connect(t)
			if err := rights.Admit(b); err != nil {
				t.Fatal(err)
			}
			var fds []int
			for range tt.sent {
				fds = append(fds, rightstest.Nested(t))
			}
			if err := rights.Send(a, []byte("x"), false, fds...); err != nil {
				t.Fatal(err)
			}
			rights.Discard(rights.Nobody, fds...)
			_ = b.SetReadDeadline(time.Now().Add(10 * time.Second))
			_, got, err := rights.Receive(b, make([]byte, 8), tt.most)
			if err != rights.ErrTruncated || len(got) > tt.most+1 { // the kernel fills padding
				t.Errorf("got %d descriptors and %v, want at most %d and ErrTruncated", len(got), err, tt.most)
			}
			rights.Discard(rights.User(b), got...)
			within(t, "all are closed", func() bool {
				return rights.Held(rights.User(b))+rights.Held(rights.Nobody) == 0
			})
		})
	}
}

// Closing a listener closes the descriptors in the queues of connections that were not accepted.
func TestCloseOfAListenerDoesNotBlock(t *testing.T) {
	t.Run("Close", func(t *testing.T) { closesListener(t, func(l net.Listener) { rights.Close(l) }) })
	t.Run("Interrupt", func(t *testing.T) {
		closesListener(t, func(l net.Listener) { rights.Interrupt(lastUser{l.(*net.UnixListener)}) })
	})
}

// lastUser is a listener that is closed while its SetDeadline uses the file, which is closed there.
type lastUser struct{ l *net.UnixListener }

func (u lastUser) SetDeadline(time.Time) error {
	raw, err := u.l.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(uintptr) {
		go rights.Close(u.l)
		for u.l.SetDeadline(time.Time{}) == nil {
			runtime.Gosched()
		}
	})
}

func closesListener(t *testing.T, end func(net.Listener)) {
	t.Helper()
	rightstest.EachKernel(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		var l net.Listener
		var err error
		if rights.Supported() { // as with descriptors that were admitted
			l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
		} else {
			l, err = rights.Listen(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			c, err := rights.Dial(path)
			if err != nil {
				t.Fatal(err)
			}
			fd := rightstest.Lingering(t)
			if err := rights.Send(c, []byte("x"), false, fd); err != nil {
				t.Fatal(err)
			}
			unix.Close(fd)
			defer c.Close()
		}
		closed := make(chan struct{})
		go func() { end(l); close(closed) }()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Fatal("close blocks")
		}
	})
}

// Files whose close blocks for ever are held up to a limit, and then their user is refused; other users go on.
func TestDescriptorsThatNeverCloseAreBounded(t *testing.T) {
	f := rightstest.MountFuse(t)
	const bad, good = 4001, 4002
	for k := range rights.MaxHeld {
		if err := rights.Stuck(bad); err != nil {
			t.Fatalf("stuck with %d descriptors: %v", k, err)
		}
		start := time.Now()
		rights.Discard(bad, f.Open())
		if d := time.Since(start); d > 5*time.Second {
			t.Fatalf("Discard took %v", d)
		}
	}
	err := rights.Stuck(bad)
	if err == nil || !strings.Contains(err.Error(), "user 4001") || !strings.Contains(err.Error(), "limit 64") {
		t.Errorf("got %v, want an error with user and limit", err)
	}
	rights.Discard(good, rightstest.Lingering(t), rightstest.Nested(t))
	within(t, "another user's are closed", func() bool { return rights.Held(good) == 0 })
	if err := rights.Stuck(good); err != nil {
		t.Error(err)
	}
	f.Release()
	within(t, "all are closed", func() bool { return rights.Held(bad) == 0 })
	if err := rights.Stuck(bad); err != nil {
		t.Error(err)
	}
}
