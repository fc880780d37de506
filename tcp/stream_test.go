//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// aContext is an open context.
func aContext(tb testing.TB, track driver.Track, options map[string]string) *share {
	tb.Helper()
	o := map[string]string{"address": "127.0.0.1"}
	for k, v := range options {
		o[k] = v
	}
	q, err := tcpDriver{}.Query(driver.Hints{Track: track, Options: o})
	if err != nil {
		tb.Fatal(err)
	}
	c, err := q.Open(driver.Attributes{Secret: []byte("the secret of the test")})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	if s, ok := c.(smallContext); ok {
		return s.share
	}
	return c.(*share)
}

// fed makes a connection whose peer is the test: it writes to the socket that is returned.
func (c *share) fed(tb testing.TB) (*conn, int) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		tb.Fatal(err)
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	num, err := c.Conns.Free()
	if err != nil {
		tb.Fatal(err)
	}
	i := c.newConn()
	c.Add(i, num, "tcp:1:0000000000000001:1,127.0.0.1", i.api, i.api)
	if err := i.attach(&wire{in: fds[0], out: fds[0]}, 1); err != nil {
		tb.Fatal(err)
	}
	c.Conns.Open(i)
	i.Resolve(kit.StateUp, nil)
	if err := i.ConnectWait(context.Background()); err != nil {
		tb.Fatal(err)
	}
	return i, fds[1]
}

// feed has the peer send b and close, and takes everything until the connection has ended.
func feed(t *testing.T, c *share, b []byte, take func(driver.Instance)) error {
	i, fd := c.fed(t)
	for until := time.Now().Add(10 * time.Second); ; {
		if len(b) > 0 {
			if n, err := unix.Write(fd, b); err == nil {
				b = b[n:]
			} else if err != unix.EAGAIN {
				b = nil
			}
			if len(b) == 0 {
				_ = unix.Shutdown(fd, unix.SHUT_WR)
			}
		} else {
			_ = unix.Shutdown(fd, unix.SHUT_WR)
		}
		i.receive()
		take(i.Self)
		if s := i.State(); s != kit.StateUp && !i.HasMessage() {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("the connection has not ended, state %d, %d bytes left", i.State(), len(b))
		}
	}
	err := i.Err()
	if e := i.Disconnect(); e != nil {
		t.Error(e)
	}
	_ = unix.Close(fd)
	return err
}

// FuzzFrames: whatever a peer sends on the small track, messages are within bounds, and the connection ends with one of
// the two errors of the contract.
func FuzzFrames(f *testing.F) {
	g := golden()
	f.Add(bytes.Join([][]byte{g["message"], g["ping"], g["message"], g["bye"]}, nil))
	f.Add(g["grant"])
	f.Add([]byte{0xff, 0xff, 0xff, 1})
	f.Add(g["message"][:7])
	c := aContext(f, driver.Small, nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		err := feed(t, c, b, func(i driver.Instance) {
			var p driver.Packet
			if done, err := i.RecvPoll(&p); done && err == nil {
				if p.N > maxSmall || len(p.Buf) != p.N {
					t.Errorf("a message of %d bytes in %d", p.N, len(p.Buf))
				}
				if err := i.(driver.BufferReceiver).RecvBufRelease(&p); err != nil {
					t.Error(err)
				}
			}
		})
		if !errors.Is(err, driver.ErrBroken) && !errors.Is(err, driver.ErrClosed) {
			t.Errorf("% x: %v", b, err)
		}
	})
}

// FuzzTransfers: the same on the large track, where nothing but a posted receive is written.
func FuzzTransfers(f *testing.F) {
	g := golden()
	f.Add(append(bytes.Clone(g["transfer"]), "hello"...))
	f.Add(bytes.Repeat([]byte{0xff}, transferHead))
	f.Add(make([]byte, transferHead))
	c := aContext(f, driver.Large, nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		const n = 5
		memory := bytes.Repeat([]byte{0xa5}, n+8)
		p := driver.Packet{IOV: [][]byte{memory[:n]}}
		posted, over := false, false
		err := feed(t, c, b, func(i driver.Instance) {
			if !posted {
				posted = true
				over = i.RecvPost(&p) != nil
			}
			if !over {
				over, _ = i.RecvPoll(&p)
			}
		})
		if !bytes.Equal(memory[n:], bytes.Repeat([]byte{0xa5}, 8)) {
			t.Errorf("% x: memory behind the receive was written", b)
		}
		if !errors.Is(err, driver.ErrBroken) && !errors.Is(err, driver.ErrClosed) {
			t.Errorf("% x: %v", b, err)
		}
	})
}
