//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/integrity"
)

// middle is a host on the path: it carries bytes from one socket to another one, each way by carry.
type middle struct {
	listener *net.TCPListener
	carry    func(to, from *net.TCPConn)
	mu       sync.Mutex
	open     []net.Conn
}

// newMiddle forwards a port of this host to the context.
func newMiddle(t *testing.T, port int, carry func(to, from *net.TCPConn)) *middle {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	m := &middle{listener: l, carry: carry}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			a, err := l.AcceptTCP()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err != nil {
				_ = a.Close()
				continue
			}
			m.mu.Lock()
			m.open = append(m.open, a, b)
			m.mu.Unlock()
			tasks.Go(func() { m.carry(b.(*net.TCPConn), a) })
			tasks.Go(func() { m.carry(a, b.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		m.mu.Lock()
		for _, c := range m.open {
			_ = c.Close()
		}
		m.mu.Unlock()
		tasks.Wait()
	})
	return m
}

// before is the url of a context, with the middle in place of its port.
func (m *middle) before(c *share) string {
	u, _ := driver.ParseURL(c.URL(), driver.MaxURL)
	port := uint16(m.listener.Addr().(*net.TCPAddr).Port)
	u.Rest = address{port: port, network: networkID(), addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}.String()
	return u.String()
}

// joined are two contexts in this process whose connection leads through middles.
func joined(
	t *testing.T, track driver.Track, options map[string]string, carry func(to, from *net.TCPConn),
) (i [2]driver.Instance) {
	t.Helper()
	a, b := aContext(t, track, options), aContext(t, track, options)
	ma, mb := newMiddle(t, int(a.at.port), carry), newMiddle(t, int(b.at.port), carry)
	var err error
	if i[0], err = a.Connect(mb.before(b)); err == nil {
		i[1], err = b.Connect(ma.before(a))
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, x := range i {
		if err := x.ConnectWait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return i
}

// byteByByte carries so that reads and writes are cut everywhere, and windows are tiny.
func byteByByte(to, from *net.TCPConn) {
	_ = from.SetReadBuffer(1)
	_ = to.SetNoDelay(true)
	b := make([]byte, 7)
	for k := 0; ; k++ {
		n, err := from.Read(b[:1+k%len(b)])
		if err != nil {
			_ = to.CloseWrite()
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// send and receive a message of n bytes from a to b.
func moves(t *testing.T, a, b driver.Instance, track driver.Track, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	in := driver.Packet{IOV: [][]byte{make([]byte, n/2), nil, make([]byte, n-n/2)}}
	text := make([]byte, n)
	for k := range text {
		text[k] = byte(k * 7)
	}
	out := driver.Packet{IOV: [][]byte{text[:n/3], text[n/3:]}}
	if err := b.RecvPost(&in); err != nil {
		t.Fatal(err)
	}
	if track == driver.Large {
		out.RdvData = in.RdvData
	}
	if err := a.SendPost(&out); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- a.(driver.SendWaiter).SendWait(ctx, &out) }()
	if err := b.(driver.RecvWaiter).RecvWait(ctx, &in); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if got := append(bytes.Clone(in.IOV[0]), in.IOV[2]...); !bytes.Equal(got, text) {
		t.Fatal(integrity.Errorf("a message of %d bytes arrives changed", n))
	}
}

// Messages arrive whole over a path that carries a few bytes at a time.
func TestPartialReadsAndWrites(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		for _, encrypt := range []string{"off", "on"} {
			t.Run(track.String()+" encrypt="+encrypt, func(t *testing.T) {
				i := joined(t, track, map[string]string{"encrypt": encrypt}, byteByByte)
				for _, n := range []int{0, 1, 5, 1000, maxSmall} {
					moves(t, i[0], i[1], track, n)
					moves(t, i[1], i[0], track, n)
				}
			})
		}
	}
}

// whole returns once the path is not cut.
func whole(cut *sync.RWMutex) {
	cut.RLock()
	defer cut.RUnlock()
}

// A peer that is silent without an end of the connection, as a host that lost its power, is broken in the dead time.
func TestSilentPeerBreaks(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			var cut sync.RWMutex
			i := joined(t, track, map[string]string{"dead-time": "500ms"}, func(to, from *net.TCPConn) {
				b := make([]byte, 4096)
				for {
					n, err := from.Read(b)
					whole(&cut)
					if err != nil {
						return
					}
					_, _ = to.Write(b[:n])
				}
			})
			moves(t, i[0], i[1], track, 100)
			time.Sleep(time.Second) // signs of life keep an idle connection
			moves(t, i[0], i[1], track, 100)
			cut.Lock()
			defer cut.Unlock()
			start := time.Now()
			for k := range i {
				p := driver.Packet{IOV: [][]byte{make([]byte, 1)}}
				if err := i[k].RecvPost(&p); err != nil && !errors.Is(err, driver.ErrBroken) {
					t.Fatal(err)
				} else if err == nil {
					err = i[k].(driver.RecvWaiter).RecvWait(t.Context(), &p)
					if !errors.Is(err, driver.ErrBroken) {
						t.Errorf("receive from a silent peer: %v, want %v", err, driver.ErrBroken)
					}
				}
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("noticed after %v, the dead time is 500ms", took)
			}
		})
	}
}

// An end whose owner is inside all the time, as one that receives long messages nearly is, still sends signs of life.
func TestBusyOwnerIsNotSilent(t *testing.T) {
	i := joined(t, driver.Large, map[string]string{"dead-time": "1s"}, passing(func([]byte) {}))
	busy := i[1].(*large)
	for !busy.TryEnter() {
		runtime.Gosched()
	}
	time.Sleep(2 * time.Second)
	busy.Leave()
	if err := i[0].(driver.Ender).Err(); err != nil {
		t.Errorf("the peer of a busy end: %v", err)
	}
	moves(t, i[0], i[1], driver.Large, 100)
}

// passing is a path that shows f all bytes, which it may change, before it passes them on.
func passing(f func([]byte)) func(to, from *net.TCPConn) {
	return func(to, from *net.TCPConn) {
		b := make([]byte, 1<<16)
		for {
			n, err := from.Read(b)
			if err != nil {
				_ = to.CloseWrite()
				return
			}
			f(b[:n])
			_, _ = to.Write(b[:n])
		}
	}
}

// A record that was changed on its way is never taken for one of the peer.
func TestChangedRecordBreaks(t *testing.T) {
	var mu sync.Mutex
	change := false
	i := joined(t, driver.Small, map[string]string{"encrypt": "on"}, passing(func(b []byte) {
		mu.Lock()
		defer mu.Unlock()
		if change {
			b[len(b)-1] ^= 1
		}
	}))
	moves(t, i[0], i[1], driver.Small, 100)
	mu.Lock()
	change = true
	mu.Unlock()
	out, in := driver.Packet{IOV: [][]byte{[]byte("changed")}}, driver.Packet{IOV: [][]byte{make([]byte, 7)}}
	if err := i[1].RecvPost(&in); err != nil {
		t.Fatal(err)
	}
	if err := i[0].SendPost(&out); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := i[1].(driver.RecvWaiter).RecvWait(ctx, &in); !errors.Is(err, driver.ErrBroken) {
		t.Errorf("receive of a changed record: %v, want %v", err, driver.ErrBroken)
	}
	var counted driver.Counters
	if i[1].(*small).ctx.Counters(&counted); counted.BadFrames != 1 {
		t.Errorf("%d frames are counted as bad, want 1", counted.BadFrames)
	}
}

// Messages of encrypt=on do not show on the path, and those without it do.
func TestEncryptionHidesMessages(t *testing.T) {
	secret := strings.Repeat("nobody may read this ", 20)
	for _, encrypt := range []string{"off", "on"} {
		var mu sync.Mutex
		var seen bytes.Buffer
		i := joined(t, driver.Small, map[string]string{"encrypt": encrypt}, passing(func(b []byte) {
			mu.Lock()
			defer mu.Unlock()
			seen.Write(b)
		}))
		out, in := driver.Packet{IOV: [][]byte{[]byte(secret)}}, driver.Packet{IOV: [][]byte{make([]byte, len(secret))}}
		if err := errors.Join(i[1].RecvPost(&in), i[0].SendPost(&out)); err != nil {
			t.Fatal(err)
		}
		if err := i[1].(driver.RecvWaiter).RecvWait(t.Context(), &in); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if shows := strings.Contains(seen.String(), secret); shows != (encrypt == "off") {
			t.Errorf("encrypt=%s: the message shows on the path: %v", encrypt, shows)
		}
		mu.Unlock()
	}
}

// A candidate that accepts and sends nothing, and one that is another program, do not keep the peer from being found.
func TestCandidatesAreRaced(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	port := mute.Addr().(*net.TCPAddr).Port
	options := map[string]string{"port": strconv.Itoa(port), "address": "127.0.0.1"}
	a, b := aContext(t, driver.Small, options), aContext(t, driver.Small, nil)
	u, _ := driver.ParseURL(a.URL(), driver.MaxURL)
	u.Rest = fmt.Sprintf("%d,%016x,127.0.0.2,127.0.0.3,127.0.0.1", port, networkID())
	x, err := b.Connect(u.String())
	if err != nil {
		t.Fatal(err)
	}
	// This side is not dialed: the other url leads nowhere.
	v, _ := driver.ParseURL(b.URL(), driver.MaxURL)
	v.Rest = fmt.Sprintf("%d,%016x,127.0.0.2", port, networkID())
	y, err := a.Connect(v.String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := errors.Join(x.ConnectWait(ctx), y.ConnectWait(ctx)); err != nil {
		t.Fatal(err)
	}
	moves(t, x, y, driver.Small, 100)
}

// Unauthenticated dialers that send nothing are bounded, and keep no peer out. Beyond the limit the oldest is dropped.
func TestUnauthenticatedAreBounded(t *testing.T) {
	defer func(d time.Duration) { proofTime = d }(proofTime)
	proofTime = time.Second
	t.Run("in time", unauthenticatedAreBounded) // its contexts end before the time is restored
}

func unauthenticatedAreBounded(t *testing.T) {
	a, b := aContext(t, driver.Small, nil), aContext(t, driver.Small, nil)
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for k := range maxUnauthenticated + 100 {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(a.at.port))))
		if k >= maxUnauthenticated && errors.Is(err, unix.ECONNRESET) {
			continue // refused before the dialer has read
		}
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	x, err := b.Connect(a.URL())
	if err != nil {
		t.Fatal(err)
	}
	y, err := a.Connect(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := errors.Join(x.ConnectWait(ctx), y.ConnectWait(ctx)); err != nil {
		t.Error(err)
	}
	a.unauthenticated.mu.Lock()
	if n := len(a.unauthenticated.list); n > maxUnauthenticated {
		t.Errorf("%d unauthenticated sockets are kept, the limit is %d", n, maxUnauthenticated)
	}
	a.unauthenticated.mu.Unlock()
	// The oldest was turned away, and the others are after their time.
	for k, c := range []net.Conn{open[0], open[len(open)-1]} {
		_ = c.SetReadDeadline(time.Now().Add(proofTime + 2*time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.ErrNoProgress) || isTimeout(err) {
			t.Errorf("unauthenticated dialer %d is still connected: %v", k, err)
		}
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// A connection that one side has given up before the other side's Connect does not count: the next one is met. The
// other side may still hold a link that was meant for the first.
func TestGivenUpConnectionsAreNotMatched(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			a, b := aContext(t, track, nil), aContext(t, track, nil)
			for k := range 100 {
				gone, err := a.Connect(b.URL())
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Millisecond))))
				if err := gone.Disconnect(); err != nil {
					t.Fatal(err)
				}
				var both [2]driver.Instance
				for i, c := range []driver.Context{b, a} {
					if both[i], err = c.Connect([]driver.Context{a, b}[i].URL()); err != nil {
						t.Fatal(err)
					}
				}
				ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
				for i, n := range both {
					if err := n.ConnectWait(ctx); err != nil {
						t.Fatalf("round %d, side %d: %v", k, i, err)
					}
				}
				stop()
				for _, n := range both {
					_ = n.Disconnect()
				}
				a, b = b, a // either may lead
			}
		})
	}
}
