//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// Two hosts connect, whichever starts first, with one to four queue pairs; both learn the same, and what
// they agree on is what both can do.
func TestConnects(t *testing.T) { eachManager(t, connects) }

func connects(t *testing.T) {
	for n := 1; n <= maxQPs; n++ {
		for order := range 2 {
			t.Run(fmt.Sprintf("%d queue pairs, order %d", n, order), func(t *testing.T) {
				a := aHost(t, func(_ *Config, p *Port) { p.MTU, p.MaxInitiator, p.Quality.TrafficClass = 4096, 4, 32 })
				b := aHost(t, func(_ *Config, p *Port) { p.MTU, p.MaxResponder, p.LID = 1024, 8, 7 })
				with := func(c *EndpointConfig) {
					for range n - 1 {
						c.QPs = append(c.QPs, &fakeQP{num: lastQP.Add(1)})
					}
				}
				var x, y *testEnd
				if order == 0 {
					x, y = a.endpoint(b, with), b.endpoint(a, with)
				} else {
					y, x = b.endpoint(a, with), a.endpoint(b, with)
				}
				x.mustConnect(t)
				y.mustConnect(t)
				checkAgreement(t, x, y, n)
				if want := fmt.Sprintf("from %d to %d", b.inc, a.inc); string(x.user) != want {
					t.Errorf("user data %q, want %q", x.user, want)
				}
				x.finalize(t)
				y.mustFail(t, Lost, driver.ErrClosed)
				y.finalize(t)
			})
		}
	}
}

func checkAgreement(t *testing.T, x, y *testEnd, n int) {
	t.Helper()
	for k := range n {
		did, p := x.qps[k].did()
		also, q := y.qps[k].did()
		if did != allSteps || also != allSteps {
			t.Fatalf("steps %q and %q, want %q", did, also, allSteps)
		}
		if p.PeerQP != y.qps[k].num || q.PeerQP != x.qps[k].num || p.PSN != q.PeerPSN || q.PSN != p.PeerPSN || p.PSN == q.PSN {
			t.Errorf("queue pair %d: paths do not belong together: %+v and %+v", k, p, q)
		}
		if p.MTU != 1024 || q.MTU != 1024 || p.Initiator != 4 || q.Responder != 4 || p.Responder != 16 || q.Initiator != 16 {
			t.Errorf("queue pair %d: agreed on %+v and %+v", k, p, q)
		}
		if p.PeerLID != 7 || p.TrafficClass != 32 || q.TrafficClass != 0 || p.RetryCount != 6 || p.GIDIndex != aPort("").GIDIndex {
			t.Errorf("queue pair %d: %+v", k, p)
		}
	}
}

// Several endpoints to several peers, made at random moments by several goroutines, are all established, the nth with
// the nth.
func TestManyEndpoints(t *testing.T) { eachManager(t, manyEndpoints) }

func manyEndpoints(t *testing.T) {
	const hosts, each = 5, 6
	var hs []*host
	for range hosts {
		hs = append(hs, aHost(t, nil))
	}
	ends := make(map[[2]int][]*testEnd)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range hosts {
		for k := range hosts {
			if i == k {
				continue
			}
			wg.Go(func() {
				for n := range each {
					e := hs[i].endpoint(hs[k], func(c *EndpointConfig) { c.UserData = []byte{byte(i), byte(k), byte(n)} })
					mu.Lock()
					ends[[2]int{i, k}] = append(ends[[2]int{i, k}], e)
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	for pair, list := range ends {
		for n, e := range list {
			e.mustConnect(t)
			if want := []byte{byte(pair[1]), byte(pair[0]), byte(n)}; !bytes.Equal(e.user, want) {
				t.Errorf("endpoint %d of %v met % x, want % x", n, pair, e.user, want)
			}
		}
	}
	for _, h := range hs {
		if s := h.m.Stats(); s.BadMessages+s.Refused != 0 {
			t.Errorf("counters %+v", s)
		}
	}
	for _, list := range ends {
		for _, e := range list {
			e.finalize(t)
		}
	}
	for _, h := range hs {
		h.mustForgetPeers()
	}
}

// mustForgetPeers waits until a host keeps nothing about peers that it does not need.
func (h *host) mustForgetPeers() {
	h.t.Helper()
	hub := h.hub()
	waitUntil(h.t, "peers that are not needed are forgotten", func() bool {
		hub.mu.Lock()
		defer hub.mu.Unlock()
		return len(hub.peers)+len(hub.ends) == 0
	})
}

func waitUntil(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 1500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("after 15 s still not: %s", what)
}

// An endpoint towards the own context connects its queue pairs to themselves.
func TestConnectsToSelf(t *testing.T) { eachManager(t, connectsToSelf) }

func connectsToSelf(t *testing.T) {
	h := aHost(t, nil)
	e := h.endpoint(h, nil)
	e.mustConnect(t)
	if _, p := e.qps[0].did(); p.PeerQP != e.qps[0].num || p.PSN != p.PeerPSN {
		t.Errorf("path %+v of queue pair %d", p, e.qps[0].num)
	}
	e.finalize(t)
}

// A context with another secret, or none, does not connect, and both sides learn why.
func TestOtherSecretIsRefused(t *testing.T) { eachManager(t, otherSecretIsRefused) }

func otherSecretIsRefused(t *testing.T) {
	for _, secrets := range [][2]string{{"one, long enough", "two, long enough"}, {"one, long enough", ""}, {"", "two, long enough"}} {
		for range 2 {
			with := func(s string) *host {
				return aHost(t, func(c *Config, _ *Port) { c.Secret = []byte(s) })
			}
			a, b := with(secrets[0]), with(secrets[1])
			x, y := a.endpoint(b, nil), b.endpoint(a, nil)
			x.mustFail(t, Failed, driver.ErrAuth)
			y.mustFail(t, Failed, driver.ErrAuth)
			if did, _ := x.qps[0].did(); did != "" {
				t.Errorf("queue pair was moved for an unauthenticated dialer: %s", did)
			}
			waitUntil(t, "refusal is counted", func() bool { return a.m.Stats().Refused > 0 })
			if s := a.m.Stats(); s.links != 0 {
				t.Errorf("counters %+v", s)
			}
		}
	}
	a := aHost(t, func(c *Config, _ *Port) { c.Secret = nil })
	b := aHost(t, func(c *Config, _ *Port) { c.Secret = nil })
	x, y := a.endpoint(b, nil), b.endpoint(a, nil)
	x.mustConnect(t)
	y.mustConnect(t)
}

// A context that closes is gone in order for endpoints that are connected or
// wait, and simply gone for those that come later.
func TestPeerThatCloses(t *testing.T) { eachManager(t, peerThatCloses) }

func peerThatCloses(t *testing.T) {
	for range 2 { // either side asks
		a, b := aHost(t, nil), aHost(t, nil)
		if t.Failed() {
			return
		}
		for _, pair := range [][2]*host{{a, b}, {b, a}} {
			stays, goes := pair[0], aHost(t, nil)
			if pair[1] == a {
				stays = b
			}
			x, y := stays.endpoint(goes, nil), goes.endpoint(stays, nil)
			x.mustConnect(t)
			y.mustConnect(t)
			waits := stays.endpoint(goes, nil)
			inc, card := goes.inc, goes.m.Card()
			if err := goes.m.Close(); err != nil {
				t.Fatal(err)
			}
			x.mustFail(t, Lost, driver.ErrClosed)
			waits.mustFail(t, Failed, driver.ErrClosed)
			if y.State() != Finalized {
				t.Errorf("endpoint of a closed context is %v", y.State())
			}
			late := stays.endpointTo(inc, card, nil)
			begin := time.Now()
			late.mustFail(t, Failed, driver.ErrBroken)
			if d := time.Since(begin); d > scaled(time.Second) {
				t.Errorf("noticed after %v, want at once", d)
			}
			if _, err := goes.m.NewEndpoint(&EndpointConfig{PeerIncarnation: stays.inc, PeerCard: stays.m.Card(), QPs: []QP{&fakeQP{}}}); !errors.Is(err, driver.ErrClosed) {
				t.Errorf("endpoint of a closed context: %v, want %v", err, driver.ErrClosed)
			}
		}
	}
}

// Another incarnation at the address means that the peer is gone.
func TestOtherIncarnationIsGone(t *testing.T) { eachManager(t, otherIncarnationIsGone) }

func otherIncarnationIsGone(t *testing.T) {
	a, b := aHost(t, nil), aHost(t, nil)
	x := a.endpointTo(b.inc+1000, b.m.Card(), nil)
	x.mustFail(t, Failed, driver.ErrBroken)
	if !strings.Contains(x.Err().Error(), "restarted") {
		t.Errorf("error %v does not name the cause", x.Err())
	}
}

// Finalize waits, by Done, for a step that is under way, begins no further one, and
// the peer, if it has committed itself to this end, is notified at once; if not, it is matched with the next one.
func TestFinalizeWhileModifying(t *testing.T) { eachManager(t, finalizeWhileModifying) }

func finalizeWhileModifying(t *testing.T) {
	a, b := aHost(t, nil), aHost(t, nil)
	for _, pair := range [][2]*host{{a, b}, {b, a}} {
		block := make(chan struct{})
		unblock := sync.OnceFunc(func() { close(block) })
		t.Cleanup(unblock) // before the hosts close
		x := pair[0].endpoint(pair[1], func(c *EndpointConfig) { c.QPs[0].(*fakeQP).block = block })
		y := pair[1].endpoint(pair[0], nil)
		waitUntil(t, "RTR under way", func() bool { did, _ := x.qps[0].did(); return did == "INIT RTR" })
		x.Finalize()
		x.Finalize()
		if asks := pair[0].inc < pair[1].inc; !asks {
			y.mustFail(t, Failed, driver.ErrClosed)
			y = pair[1].endpoint(pair[0], nil)
		}
		select {
		case <-x.Done():
			t.Error("done while a step is under way")
		case <-time.After(50 * time.Millisecond):
		}
		unblock()
		<-x.Done()
		if did, _ := x.qps[0].did(); did != "INIT RTR" {
			t.Errorf("steps %q after Finalize", did)
		}
		x = pair[0].endpoint(pair[1], nil)
		x.mustConnect(t)
		y.mustConnect(t)
		x.finalize(t)
		y.finalize(t)
	}
}

// A step, or Prepare, that fails, fails both ends; the errors name device, peer, step and cause.
func TestStepThatFails(t *testing.T) { eachManager(t, stepThatFails) }

func stepThatFails(t *testing.T) {
	for _, step := range []string{"INIT", "RTR", "RTS", "prepare"} {
		for side := range 2 {
			a, b := aHost(t, nil), aHost(t, nil)
			change := func(c *EndpointConfig) {
				c.PeerName = "verbs:1:the-peer"
				if step == "prepare" {
					c.Prepare = func([]byte) error { return errTimedOut }
				} else {
					c.QPs[0].(*fakeQP).fail = step
				}
			}
			fails, other := a, b
			if side == 1 {
				fails, other = b, a
			}
			x, y := fails.endpoint(other, change), other.endpoint(fails, nil)
			x.mustFail(t, Failed, errTimedOut)
			if msg := x.Err().Error(); !strings.Contains(msg, step) || !strings.Contains(msg, "verbs:1:the-peer") || !strings.Contains(msg, fails.m.port) ||
				!strings.Contains(msg, "(modifying ") {
				t.Errorf("error %q does not name step, peer, device and state", msg)
			}
			y.await(t, Failed)
			if !errors.Is(y.Err(), driver.ErrBroken) {
				t.Errorf("%s fails: the peer is %v: %v, want %v", step, y.State(), y.Err(), driver.ErrBroken)
			}
		}
	}
}

// State is free of allocations.
func TestStateAllocatesNothing(t *testing.T) {
	h := aHost(t, nil)
	e := h.endpoint(h, nil)
	if n := testing.AllocsPerRun(1000, func() { _ = e.State() }); n != 0 {
		t.Errorf("State allocates %v times", n)
	}
}
