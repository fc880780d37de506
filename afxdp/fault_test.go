//go:build linux && !(386 || arm || mips || mipsle)

package afxdp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/afxdp"
	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
)

// Peers reach each other on one segment and behind a router, over each carrier.
func TestSegments(t *testing.T) {
	for _, x := range []struct {
		carrier string
		router  bool
	}{{"udp4", false}, {"udp6", false}, {"ether", false}, {"udp4", true}, {"udp6", true}} {
		for _, track := range []driver.Track{driver.Small, driver.Large} {
			name := x.carrier + " " + track.String()
			if x.router {
				name += " routed"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				e := connected(t, veth.Config{Router: x.router}, track, map[string]string{"carrier": x.carrier})
				e.swaps(3)
			})
		}
	}
}

// A path that loses one frame in a hundred, or also repeats, delays and reorders them, loses nothing of
// what is sent.
func TestLossLosesNothing(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		for name, box := range map[string]veth.Box{
			"loss": {Loss: 0.01},
			"all":  {Loss: 0.02, Duplicate: 0.02, Delay: 300 * time.Microsecond, Reorder: 0.25},
		} {
			t.Run(track.String()+" "+name, func(t *testing.T) {
				t.Parallel()
				e := connected(t, veth.Config{Box: &box}, track, nil)
				e.swaps(30)
				if track == driver.Large {
					for k := range 3 {
						if err := e.sends(k%2, 1<<20, byte(k)); err != nil {
							t.Fatal(err)
						}
					}
				}
				var c driver.Counters
				e.ctx[0].Counters(&c)
				e.ctx[1].Counters(&c)
				if c.Retransmits == 0 {
					t.Error("nothing was sent again, so nothing can have been lost")
				}
			})
		}
	}
}

// A process that does not run between two of its steps does not take the path for shorter than it is.
func TestRoundTripIsNotUnderestimated(t *testing.T) {
	const delay = 10 * time.Millisecond
	e := connected(t, veth.Config{Box: &veth.Box{Delay: delay}}, driver.Small, nil)
	p := driver.Packet{IOV: [][]byte{make([]byte, 64)}}
	if err := e.i[0].SendPost(&p); err != nil {
		t.Fatal(err)
	}
	if got := afxdp.PausedRoundTrip(e.i[0], delay); got < 2*delay {
		t.Fatalf("a packet and its acknowledgement seem to have taken %v over a path of %v", got, 2*delay)
	}
}

// A link that is down for less than the dead time loses nothing; the
// connection goes on when it is up again.
func TestLinkDownAndUp(t *testing.T) {
	t.Parallel()
	e := connected(t, veth.Config{}, driver.Small, nil)
	e.swaps(2)
	for k := range 2 {
		if err := e.pair.Ends[k].SetUp(false); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(300*time.Millisecond, func() {
			if err := e.pair.Ends[k].SetUp(true); err != nil {
				t.Error(err)
			}
		})
		e.swaps(2) // it waits for the link
	}
}

// A device that is deleted breaks the connections of both ends, and everything can be closed.
func TestDeviceDeleted(t *testing.T) {
	t.Parallel()
	e := connected(t, veth.Config{}, driver.Small, nil)
	e.swaps(1)
	if err := e.pair.Ends[0].Delete(); err != nil {
		t.Fatal(err)
	}
	for k, i := range e.i {
		p := driver.Packet{IOV: [][]byte{make([]byte, 8)}}
		err := i.RecvPost(&p)
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), maxWait)
			err = i.(driver.RecvWaiter).RecvWait(ctx, &p)
			cancel()
		}
		if !errors.Is(err, driver.ErrBroken) {
			t.Errorf("end %d: %v, want %v", k, err, driver.ErrBroken)
		}
	}
	for _, c := range e.ctx {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Frames that cannot be sent while the link is down cause no rounds: the timers of connections have them sent later.
func TestFramesOfALinkThatIsDownCauseNoRounds(t *testing.T) {
	t.Parallel()
	e := connected(t, veth.Config{}, driver.Small, map[string]string{"carrier": "ether"})
	e.swaps(1)
	if !afxdp.Held(e.ctx[0]) {
		t.Error("a frame without room waits while the link is up")
	}
	if err := e.pair.Ends[0].SetUp(false); err != nil {
		t.Fatal(err)
	}
	p := driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	if err := e.i[0].SendPost(&p); err != nil {
		t.Fatal(err)
	}
	if afxdp.Held(e.ctx[0]) {
		t.Error("a frame causes rounds while the link is down")
	}
	if err := e.pair.Ends[0].SetUp(true); err != nil {
		t.Fatal(err)
	}
	if err := e.sends(1, 8, 0); err != nil {
		t.Error(err)
	}
}

// A device that was deleted and made again can be opened, while contexts of the old one are still open and when they
// are closed.
func TestDeviceMadeAgain(t *testing.T) {
	t.Parallel()
	ether := map[string]string{"carrier": "ether"}
	e := connected(t, veth.Config{}, driver.Small, ether)
	ends := &e.pair.Ends
	if err := ends[0].Delete(); err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = ends[0].Device
	err := ends[0].Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: ends[1].Device, PeerNamespace: netlink.NsFd(ends[1].Namespace),
		})
	})
	if err := errors.Join(err, ends[0].SetUp(true), ends[1].SetUp(true)); err != nil {
		t.Fatal(err)
	}
	old := e.ctx
	for k := range e.ctx {
		if e.ctx[k], err = openAt(e.pair, k, driver.Small, ether); err != nil {
			t.Fatal(err)
		}
		defer e.ctx[k].Close()
	}
	e.connect()
	e.swaps(1)
	for k := range old {
		if err := old[k].Close(); err != nil {
			t.Error(err)
		}
		c, err := openAt(e.pair, k, driver.Small, ether)
		if err != nil {
			t.Fatalf("another context of the device: %v", err)
		}
		defer c.Close()
	}
	e.swaps(1)
}

// Polls that follow each other closely read the clock now and then, those of a slow program always: it would be late with
// acknowledgements by many polls, and the peer would repeat what has arrived.
func TestSlowPollsLookAtTimers(t *testing.T) {
	t.Parallel()
	e := connected(t, veth.Config{}, driver.Small, nil)
	e.swaps(1)
	afxdp.LatePolls(e.ctx[0], 1000, 0)
	if late := afxdp.LatePolls(e.ctx[0], 100, 100*time.Microsecond); late > 32 {
		t.Errorf("%d of 100 polls, one in 100 µs, have not looked at timers", late)
	}
}

// A device that was renamed is the same device, and another one that gets its name is another.
func TestDeviceRenamed(t *testing.T) {
	t.Parallel()
	ether := map[string]string{"carrier": "ether"}
	e := connected(t, veth.Config{}, driver.Small, ether)
	end := &e.pair.Ends[0]
	old := end.Device
	err := end.Do(func() error {
		l, err := netlink.LinkByName(old)
		if err != nil {
			return err
		}
		attrs, far := netlink.NewLinkAttrs(), netlink.NewLinkAttrs()
		attrs.Name, far.Name = old, "far"
		v := &netlink.Veth{LinkAttrs: attrs, PeerName: far.Name}
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, "renamed"), netlink.LinkSetUp(l),
			netlink.LinkAdd(v), netlink.LinkSetUp(v), netlink.LinkSetUp(&netlink.Dummy{LinkAttrs: far}))
	})
	if err != nil {
		t.Fatal(err)
	}
	other, err := openAt(e.pair, 0, driver.Small, ether)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	end.Device = "renamed"
	same, err := openAt(e.pair, 0, driver.Small, ether)
	if err != nil {
		t.Fatalf("another context of the renamed device: %v", err)
	}
	defer same.Close()
	mac := func(c driver.Context) string { return strings.Split(c.URL(), ",")[1] }
	if mac(same) != mac(e.ctx[0]) || mac(other) == mac(same) {
		t.Errorf("contexts of the device %s, renamed %s, of another one with its old name %s", e.ctx[0].URL(), same.URL(), other.URL())
	}
	e.swaps(1)
}

// A smaller MTU is followed, whether each end knows of it or the receiver's device alone, which drops longer frames
// without a word. What is under way goes on in parts.
func TestMTUChange(t *testing.T) {
	for _, c := range []struct {
		track    driver.Track
		from, to int
		silent   bool
	}{
		{driver.Small, 3000, 1400, false},
		{driver.Large, 3000, 1400, false},
		{driver.Large, 65535, 9000, false},
		{driver.Large, 9000, 1400, false},
		{driver.Small, 3000, 1400, true},
		{driver.Large, 3000, 1400, true},
		{driver.Large, 65535, 9000, true},
	} {
		t.Run(fmt.Sprintf("%v %d to %d, silent %v", c.track, c.from, c.to, c.silent), func(t *testing.T) {
			t.Parallel()
			e := connected(t, veth.Config{MTU: c.from}, c.track, nil)
			e.swaps(2)
			for k := range e.pair.Ends {
				if c.silent && k == 0 {
					continue
				}
				end := &e.pair.Ends[k]
				if err := end.Do(func() error {
					l, err := netlink.LinkByName(end.Device)
					if err != nil {
						return err
					}
					return netlink.LinkSetMTU(l, c.to)
				}); err != nil {
					t.Fatal(err)
				}
			}
			for k := range 10 {
				if err := errors.Join(e.sends(0, 8192, byte(2*k)), e.sends(1, 8192, byte(2*k+1))); err != nil {
					t.Fatal(err)
				}
			}
			e.swaps(3)
		})
	}
}

// A message that was cut into packets before the path took shorter ones only breaks the connection with an error that
// names the cause.
func TestPathShrinksWhileAMessageIsPosted(t *testing.T) {
	e := connected(t, veth.Config{}, driver.Small, nil)
	e.swaps(1)
	afxdp.Stopped(e.ctx[0], func() {
		if err := e.i[0].SendPost(&driver.Packet{IOV: [][]byte{make([]byte, 4000)}}); err != nil {
			t.Error(err)
		}
		if err := afxdp.Shrink(e.i[0], 1000); err != nil {
			t.Error(err)
		}
	})
	var err error
	for end := time.Now().Add(maxWait); err == nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
		err = e.i[0].(driver.Ender).Err()
	}
	if !errors.Is(err, driver.ErrBroken) || !strings.Contains(err.Error(), "connect again") {
		t.Errorf("the connection ended with %v, want broken, with the remedy", err)
	}
}

// A MAC address that changes is learned.
func TestAddressChange(t *testing.T) {
	t.Parallel()
	e := connected(t, veth.Config{}, driver.Small, nil)
	e.swaps(1)
	end := &e.pair.Ends[1]
	if err := end.Do(func() error {
		l, err := netlink.LinkByName(end.Device)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 1, 2, 3, 4, 5})
	}); err != nil {
		t.Fatal(err)
	}
	// The kernel of the other end learns it from the packets of the first.
	if err := end.Do(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(e.pair.Ends[0].IPv4.Addr(), 9).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("here I am"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	e.swaps(2)
}

// Foreign frames pass: TCP runs through the same device meanwhile. The XDP program leaves them to the kernel.
func TestOtherTrafficPasses(t *testing.T) {
	e := connected(t, veth.Config{}, driver.Small, nil)
	var l net.Listener
	if err := e.pair.Ends[1].Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(e.pair.Ends[1].IPv4.Addr(), 0).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const total = 4 << 20
	got := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- -1
			return
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c)
		got <- n
	}()
	var c net.Conn
	if err := e.pair.Ends[0].Do(func() (err error) {
		c, err = net.Dial("tcp", l.Addr().String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	go func() {
		b := make([]byte, 1<<16)
		for n := 0; n < total; n += len(b) {
			if _, err := c.Write(b); err != nil {
				break
			}
		}
		c.Close()
	}()
	for running := true; running; {
		e.swaps(1)
		select {
		case n := <-got:
			if n != total {
				t.Errorf("TCP carried %d bytes, want %d", n, total)
			}
			running = false
		default:
		}
	}
}

// A flood of garbage to the port does not stop a transfer, and is counted.
func TestFloodDoesNotStopTheOthers(t *testing.T) {
	e := connected(t, veth.Config{}, driver.Small, nil)
	var c net.Conn
	if err := e.pair.Ends[1].Do(func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(e.pair.Ends[0].IPv4.Addr(), afxdp.DefaultPort).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 600)
	for n := range 20_000 {
		for k := range b {
			b[k] = byte(n*k) ^ byte(n>>8)
		}
		if n%2 == 0 { // looks like ours at first
			copy(b, []byte{0xb7, 1, 0, 0, byte(n/2) % 13, 0, 168, 0})
		}
		if _, err := c.Write(b[:1+n%600]); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatal(err)
		}
		if n%200 == 0 {
			e.swaps(1)
		}
	}
	var k driver.Counters
	e.ctx[0].Counters(&k)
	if k.BadFrames == 0 {
		t.Error("no bad frame was counted")
	}
}

// A program of another process on the device is refused, and left alone.
func TestAnotherProgram(t *testing.T) {
	p := newPair(t, veth.Config{})
	var other *xsk.Program
	if err := p.Ends[0].Do(func() (err error) {
		other, err = xsk.Attach(xsk.ProgramConfig{Device: p.Ends[0].Device, Match: xsk.Match{UDPPort: 7}, Attach: xsk.AttachGeneric})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c, err := openAt(p, 0, driver.Small, nil)
	if err == nil {
		_ = c.Close()
	}
	if !errors.Is(err, xsk.ErrProgramAttached) {
		t.Fatalf("open: %v, want %v", err, xsk.ErrProgramAttached)
	}
	if _, err := other.Attached(); err != nil {
		t.Errorf("the other program: %v", err)
	}
}

// Contexts of one process share a device, and the options that are about it.
func TestContextsShareADevice(t *testing.T) {
	p := newPair(t, veth.Config{})
	a, err := openAt(p, 0, driver.Small, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := openAt(p, 0, driver.Large, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if a.URL() == b.URL() {
		t.Error("both have one url")
	}
	for name, value := range map[string]string{"port": "7777", "checksum": "on", "busy-poll": "50us", "huge-pages": "on"} {
		if c, err := openAt(p, 0, driver.Small, map[string]string{name: value}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s=%s: %v, want %v", name, value, err, driver.ErrInvalid)
			if err == nil {
				_ = c.Close()
			}
		}
	}
}

// A context that is not used, and one on which a goroutine waits for what does not come, take next to no
// processor time.
func TestIdleContextsSleep(t *testing.T) {
	p := newPair(t, veth.Config{Queues: 2})
	var ctxs [2]driver.Context
	for k := range ctxs {
		var err error
		if ctxs[k], err = openAt(p, k, driver.Small, nil); err != nil {
			t.Fatal(err)
		}
		defer ctxs[k].Close()
	}
	used := func() time.Duration {
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			t.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	before, start := used(), time.Now()
	if _, err := ctxs[1].(driver.Prober).RecvWaitAny(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if took, of := used()-before, time.Since(start); took > of/4 {
		t.Errorf("%v of processor time in %v", took, of)
	}
}

// The route to a peer that does not answer the close message is given up in the end, without another call of the
// driver: a route has a goroutine and asks the kernel for the way.
func TestRouteOfAConnectionThatIsOverIsGivenUp(t *testing.T) {
	e := connected(t, veth.Config{}, driver.Small, map[string]string{"dead-time": "300ms"})
	e.swaps(1)
	left := func() (done bool) {
		afxdp.Stopped(e.ctx[1], func() {
			err := e.i[0].Disconnect()
			if errors.Is(err, driver.ErrBusy) {
				return // the last message is not acknowledged yet
			}
			done = true
			if err != nil {
				t.Error(err)
			}
			if n := afxdp.Routes(e.ctx[0]); n != 1 {
				t.Errorf("%d routes while the peer may not have received the close message, want 1", n)
			}
			for end := time.Now().Add(maxWait); afxdp.Routes(e.ctx[0]) > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Error("the route is still there")
					return
				}
			}
		})
		return done
	}
	for end := time.Now().Add(maxWait); !left(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what was sent is never acknowledged")
		}
	}
}

// With several queues, frames are taken from whichever they arrive on.
func TestSeveralQueues(t *testing.T) {
	for _, mode := range []string{"skb", "native"} {
		for _, track := range []driver.Track{driver.Small, driver.Large} {
			t.Run(mode+" "+track.String(), func(t *testing.T) {
				t.Parallel()
				e := connected(t, veth.Config{Queues: 3}, track, map[string]string{"mode": mode})
				e.swaps(3)
			})
		}
	}
}

// Every frame that peers send within their credit finds a chunk, in both directions at once.
func TestCreditsLeaveNoFillRingEmpty(t *testing.T) {
	for _, c := range []struct {
		track driver.Track
		mtu   int
	}{{driver.Small, 300}, {driver.Small, 1500}, {driver.Large, 1500}, {driver.Large, 9000}, {driver.Large, 65535}} {
		t.Run(fmt.Sprintf("%v %d", c.track, c.mtu), func(t *testing.T) {
			e := connected(t, veth.Config{MTU: c.mtu, NoIPv6: c.mtu < 1280}, c.track, nil)
			size, n := 8192, 2000
			if c.track == driver.Large {
				size, n = 1<<20, 60
			}
			if testing.Short() {
				n /= 10
			}
			done := make(chan error, 2)
			rdv := [2]chan []byte{make(chan []byte, n), make(chan []byte, n)}
			for end := range 2 {
				go func() { done <- e.exchange(end, size, n, rdv[end], rdv[1-end]) }()
			}
			for range 2 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			for k, i := range e.i {
				if got := afxdp.FillRingEmpty(i); got != 0 {
					t.Errorf("end %d: %d frames found none", k, got)
				}
			}
		})
	}
}
