//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// Ends that cannot work together fail on both sides, for the reason.
func TestMismatchedEnds(t *testing.T) {
	onHost(t)
	for _, tt := range []struct {
		name   string
		port   func(*Port)
		queues int
		want   rejectCode
	}{
		{"link layer", func(p *Port) { p.LinkLayer, p.GIDType = InfiniBand, GIDInfiniBand }, 1, rejectLinkLayer},
		{"RoCE version", func(p *Port) { p.GIDType = GIDRoCEv1 }, 1, rejectGIDType},
		{"address family", func(p *Port) { p.GID[0] = 0x20 }, 1, rejectGIDType},
		{"partition", func(p *Port) { p.PKey = 0x8001 }, 1, rejectPKey},
		{"queue pairs", func(*Port) {}, 2, rejectQPs},
	} {
		for odd := range 2 { // the end that differs asks, and answers
			var hosts [2]*host
			for k := range hosts {
				hosts[k] = aHost(t, func(_ *Config, p *Port) {
					if k == odd {
						tt.port(p)
					}
				})
			}
			for k, h := range hosts {
				e := h.endpoint(hosts[1-k], func(c *EndpointConfig) {
					for n := 1; k == odd && n < tt.queues; n++ {
						c.QPs = append(c.QPs, &fakeQP{num: lastQP.Add(1)})
					}
				})
				defer func() {
					e.mustFail(t, Failed, driver.ErrInvalid)
					if did, _ := e.qps[0].did(); did != "" || !strings.Contains(e.Err().Error(), tt.want.String()) {
						t.Errorf("%s: %v after %q, want an error that says %q", tt.name, e.Err(), did, tt.want)
					}
				}()
			}
		}
	}
}

// InfiniBand ports of two subnets, and two limited members of a partition, do not fit. fits is symmetric.
func TestFits(t *testing.T) {
	ib := func(prefix byte, pkey uint16) offer {
		return offer{linkLayer: InfiniBand, mtu: 5, n: 1, pkey: pkey, gid: [16]byte{0: 0xfe, 1: prefix, 15: prefix}}
	}
	v6 := func(first byte) offer {
		return offer{linkLayer: Ethernet, gidType: GIDRoCEv2, mtu: 3, n: 1, pkey: 0xffff, gid: [16]byte{0: first, 1: 0x80, 15: 1}}
	}
	for _, tt := range []struct {
		name string
		a, b offer
		want rejectCode
	}{
		{"same subnet", ib(1, 0xffff), ib(1, 0xffff), 0},
		{"other subnet", ib(1, 0xffff), ib(2, 0xffff), rejectSubnet},
		{"full and limited member", ib(1, 0x8001), ib(1, 0x0001), 0},
		{"limited members", ib(1, 0x0001), ib(1, 0x0001), rejectPKey},
		{"global IPv6", v6(0x20), v6(0x20), 0},
		{"global and link-local IPv6", v6(0x20), v6(0xfe), rejectSubnet},
		{"link-local IPv6", v6(0xfe), v6(0xfe), 0},
	} {
		if x, y := tt.a.fits(&tt.b), tt.b.fits(&tt.a); x != tt.want || y != tt.want {
			t.Errorf("%s: got %d and %d, want %d", tt.name, x, y, tt.want)
		}
	}
}

// shortTime gives a host a time-out that tests can wait for.
func shortTime(c *Config, _ *Port) { c.Timeout = 300 * time.Millisecond }

// A peer whose process lives, but which makes no endpoint, is waited for beyond the time-out.
func TestLivingPeerIsWaitedFor(t *testing.T) {
	onHost(t)
	a, b := aHost(t, shortTime), aHost(t, shortTime)
	for _, pair := range [][2]*host{{a, b}, {b, a}} {
		x := pair[0].endpoint(pair[1], nil)
		select {
		case <-x.woken:
			t.Fatalf("endpoint is %v: %v", x.State(), x.Err())
		case <-time.After(time.Second):
		}
		y := pair[1].endpoint(pair[0], nil)
		x.mustConnect(t)
		y.mustConnect(t)
	}
}

// A step that does not end fails both ends in time.
func TestStepThatHangs(t *testing.T) {
	onHost(t)
	for _, step := range []string{"INIT", "RTR", "RTS"} {
		for odd := range 2 {
			hosts := [2]*host{aHost(t, shortTime), aHost(t, shortTime)}
			block := make(chan struct{})
			hangs := func(c *EndpointConfig) {
				c.QPs[0].(*fakeQP).block, c.QPs[0].(*fakeQP).stops = block, step
			}
			x, y := hosts[odd].endpoint(hosts[1-odd], hangs), hosts[1-odd].endpoint(hosts[odd], nil)
			x.mustFail(t, Failed, driver.ErrBroken)
			if y.await(t, Failed); !errors.Is(y.Err(), driver.ErrBroken) {
				t.Errorf("%s hangs: the peer is %v: %v, want %v", step, y.State(), y.Err(), driver.ErrBroken)
			}
			close(block)
			x.finalize(t)
		}
	}
}

// The answerer may be ready, send and leave before the asker's last step is done. The asker, which may have received
// something, is ready before it is lost.
func TestPeerLeavesBeforeTheLastStep(t *testing.T) {
	onHost(t)
	a, b := aHost(t, nil), aHost(t, nil)
	block := make(chan struct{})
	states := make(chan State, 9)
	var x *testEnd
	x = a.endpoint(b, func(c *EndpointConfig) {
		c.QPs[0].(*fakeQP).block, c.QPs[0].(*fakeQP).stops = block, "RTS"
		wake := c.Wake
		c.Wake = func() { states <- x.State(); wake() }
	})
	y := b.endpoint(a, nil)
	y.mustConnect(t)
	y.finalize(t)
	close(block)
	x.mustFail(t, Lost, driver.ErrClosed)
	if s := <-states; s != Ready && s != Lost {
		t.Errorf("first state %v, want ready", s)
	}
}

// Wherever the link is cut, or stops to carry anything, while a connection is made, the asker is connected or fails in
// time, so does the answerer that it has met, and the next endpoints connect.
func TestLinkThatEndsAnywhere(t *testing.T) {
	onHost(t)
	for _, stall := range []bool{false, true} {
		for after := 0; after < 1200; after += 40 {
			t.Run(fmt.Sprintf("stall=%v after %d bytes", stall, after), func(t *testing.T) {
				t.Parallel() // it mostly waits
				a, b := aHost(t, shortTime), aHost(t, shortTime)
				r := newRelay(t, b.address(), 1, 0, after, stall)
				x, y := a.endpointTo(b.inc, cardAt(r.l.Addr()), nil), b.endpoint(a, nil)
				x.await(t, Ready)
				if x.State() == Ready { // else the answerer may wait for the next request
					y.await(t, Ready)
				}
				for _, e := range []*testEnd{x, y} {
					if err := e.Err(); err != nil && !errors.Is(err, driver.ErrBroken) {
						t.Errorf("endpoint is %v: %v, want %v", e.State(), err, driver.ErrBroken)
					}
				}
				x.finalize(t)
				y.finalize(t)
				x, y = a.endpoint(b, nil), b.endpoint(a, nil)
				x.mustConnect(t)
				y.mustConnect(t)
			})
		}
	}
}

// A connection whose link is cut goes on as long as the peer's process lives. It is lost at once when the peer closes or
// ends.
func TestConnectionOutlivesItsLink(t *testing.T) {
	onHost(t)
	for odd := range 2 {
		a, b := aHost(t, nil), aHost(t, nil)
		ra, rb := newRelay(t, a.address(), 1, 0, -1, false), newRelay(t, b.address(), 2, 0, -1, false)
		x, y := a.endpointTo(b.inc, cardAt(rb.l.Addr()), nil), b.endpointTo(a.inc, cardAt(ra.l.Addr()), nil)
		x.mustConnect(t)
		y.mustConnect(t)
		for range 3 {
			ra.cut()
			rb.cut()
			for _, h := range []*host{a, b} {
				waitUntil(t, "each side watches the other", func() bool {
					h.hub().mu.Lock()
					defer h.hub().mu.Unlock()
					for _, p := range h.hub().peers {
						return len(p.unlinked) == 1 && p.watcher != nil
					}
					return false
				})
			}
		}
		v, w := a.endpoint(b, nil), b.endpoint(a, nil)
		v.mustConnect(t)
		w.mustConnect(t)
		if x.State() != Ready || y.State() != Ready {
			t.Errorf("endpoints are %v and %v after their links were cut: %v, %v", x.State(), y.State(), x.Err(), y.Err())
		}
		ends, hosts := []*testEnd{x, y}, []*host{a, b}
		if err := hosts[odd].m.Close(); err != nil {
			t.Fatal(err)
		}
		ends[1-odd].mustFail(t, Lost, driver.ErrClosed)
	}
}

// Users that make and give up endpoints at random leave nothing behind, and the next endpoints connect.
func TestChurn(t *testing.T) {
	onHost(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	hosts := []*host{aHost(t, nil), aHost(t, nil)}
	var ends [2][]*testEnd
	for range 300 {
		k := rng.IntN(2)
		if n := len(ends[k]); n > 0 && rng.IntN(3) == 0 {
			at := rng.IntN(n)
			ends[k][at].finalize(t)
			ends[k] = append(ends[k][:at], ends[k][at+1:]...)
		} else {
			ends[k] = append(ends[k], hosts[k].endpoint(hosts[1-k], nil))
		}
	}
	for _, list := range ends {
		for _, e := range list {
			e.finalize(t)
		}
	}
	for _, h := range hosts {
		h.mustForgetPeers()
	}
	mustStillConnect(t, hosts[0])
	mustStillConnect(t, hosts[1])
}

// Each side uses the GID whose subnet the other one shares, or else that of its port.
func TestGIDOfASharedSubnet(t *testing.T) {
	onHost(t)
	subnet := func(index uint8, prefix string) Subnet {
		return Subnet{GID: netip.MustParsePrefix(prefix), GIDIndex: index}
	}
	with := func(list ...Subnet) func(*Config, *Port) {
		return func(_ *Config, p *Port) {
			p.Addrs, p.Subnets = nil, list
			for _, s := range list {
				p.Addrs = append(p.Addrs, s.GID.Addr())
			}
			p.GID, p.GIDIndex = netip.MustParseAddr("203.0.113.1").As16(), 9
		}
	}
	withA := with(subnet(1, "127.1.0.1/16"), subnet(2, "127.2.0.1/16"))
	for _, tt := range []struct {
		what  string
		withB func(*Config, *Port)
		a     uint8  // index of a's GID
		b     string // b's GID
	}{
		{"the second and the first", with(subnet(5, "127.2.0.5/16"), subnet(6, "127.3.0.5/16")), 2, "127.2.0.5"},
		{"the second and the second", with(subnet(6, "127.3.0.5/16"), subnet(5, "127.2.0.6/16")), 2, "127.2.0.6"},
		{"none", with(subnet(5, "127.4.0.5/16")), 9, "203.0.113.1"},
	} {
		for asks := range 2 {
			var a, b *host
			if asks == 0 { // the host that is made first
				a, b = aHost(t, withA), aHost(t, tt.withB)
			} else {
				b, a = aHost(t, tt.withB), aHost(t, withA)
			}
			x, y := a.endpoint(b, nil), b.endpoint(a, nil)
			x.mustConnect(t)
			y.mustConnect(t)
			_, p := x.qps[0].did()
			if got := netip.AddrFrom16(p.PeerGID).Unmap().String(); p.GIDIndex != tt.a || got != tt.b {
				t.Errorf("%s: GID %d to %s, want %d to %s", tt.what, p.GIDIndex, got, tt.a, tt.b)
			}
		}
	}
}

// An address that leads nowhere ends the endpoints that would dial there, and no others of that incarnation.
func TestWrongAddressHarmsNoOther(t *testing.T) {
	onHost(t)
	a, b := aHost(t, nil), aHost(t, nil)
	gone := aHost(t, nil)
	card := gone.m.Card()
	gone.close()
	for _, pair := range [][2]*host{{a, b}, {b, a}} {
		lost := pair[0].endpointTo(pair[1].inc, card, nil)
		x := pair[0].endpoint(pair[1], nil)
		lost.mustFail(t, Failed, driver.ErrBroken)
		y := pair[1].endpoint(pair[0], nil)
		x.mustConnect(t)
		y.mustConnect(t)
	}
}

// An endpoint whose steps have not begun, because too many others take long, is done as soon as it is finalized.
func TestFinalizeBehindSlowSteps(t *testing.T) {
	onHost(t)
	a, b := aHost(t, nil), aHost(t, nil)
	block := make(chan struct{})
	slow := func(c *EndpointConfig) { c.QPs[0].(*fakeQP).block, c.QPs[0].(*fakeQP).stops = block, "INIT" }
	var all []*testEnd
	for range maxWorkers {
		x := a.endpoint(b, slow)
		b.endpoint(a, nil)
		waitUntil(t, "a step is under way", func() bool { did, _ := x.qps[0].did(); return did == "INIT" })
		all = append(all, x)
	}
	last := a.endpoint(b, nil)
	b.endpoint(a, nil)
	waitUntil(t, "the last endpoint is paired", func() bool {
		a.hub().mu.Lock()
		defer a.hub().mu.Unlock()
		return last.running
	})
	last.finalize(t)
	close(block)
	for _, x := range all {
		x.mustConnect(t)
	}
}

// The user of an endpoint that waits is woken when its context closes.
func TestCloseWakes(t *testing.T) {
	onHost(t)
	a, b := aHost(t, nil), aHost(t, nil)
	for _, pair := range [][2]*host{{a, b}, {b, a}} {
		x := pair[0].endpoint(pair[1], nil)
		pair[0].close()
		if x.await(t, Finalized); x.State() != Finalized {
			t.Errorf("endpoint is %v", x.State())
		}
	}
}
