package connect

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "replay this seed of the simulations alone")
	seedsFlag = flag.Uint64("seeds", 400, "seeds to simulate")
	simFlag   = flag.Duration("simtime", 1500*time.Millisecond, "time for the seeds of one simulation")
)

// seeds runs f with each seed, as far as it gets in its time: it may run under
// emulation.
func seeds(t *testing.T, f func(seed uint64)) {
	t.Helper()
	if *seedFlag != 0 {
		f(*seedFlag)
		return
	}
	n := *seedsFlag
	if testing.Short() {
		n = min(n, 50)
	}
	begin := time.Now()
	for seed := uint64(1); seed <= n; seed++ {
		if time.Since(begin) > *simFlag {
			t.Logf("%d of %d seeds in %v", seed-1, n, *simFlag)
			return
		}
		f(seed)
	}
}

var (
	calm  = simConfig{delay: 5 * time.Millisecond, work: 20 * time.Millisecond}
	rough = simConfig{delay: 300 * time.Millisecond, work: 1200 * time.Millisecond, loss: 0.1, dup: 0.2}
	torn  = simConfig{delay: 50 * time.Millisecond, work: 200 * time.Millisecond, loss: 0.05, dup: 0.1, cut: 0.05}
)

// networks runs f over each kind of network.
func networks(t *testing.T, f func(t *testing.T, cfg simConfig)) {
	for name, cfg := range map[string]simConfig{"calm": calm, "rough": rough, "torn": torn} {
		t.Run(name, func(t *testing.T) { f(t, cfg) })
	}
}

// However messages are lost, doubled, delayed and links cut, the nth end of one
// side stands with the nth of the other, in whatever order they start.
func TestNthMeetsNth(t *testing.T) {
	networks(t, func(t *testing.T, cfg simConfig) {
		seeds(t, func(seed uint64) {
			s := newSim(t, seed, cfg)
			n := 1 + s.rng.IntN(4)
			for k := range s.side {
				slack := s.upTo(2 * time.Second)
				for j := range n {
					s.at(slack+time.Duration(j)*s.upTo(100*time.Millisecond), func() {
						e := s.endOf(k, false)
						s.start(k, e)
					})
				}
			}
			s.run(20 * time.Second)
			for k := range s.side {
				s.mustAll(k, Ready)
				for j, e := range s.side[k].ends {
					if p := s.partner(k, e); p.offer.user[1] != byte(j) {
						s.fail("end %d of side %d met %d", j, k, p.offer.user[1])
					}
				}
			}
			s.cfg.loss, s.cfg.cut = 0, 0
			s.quiet()
		})
	})
}

// In a calm network nothing is said twice, and two round trips do.
func TestTwoRoundTrips(t *testing.T) {
	seeds(t, func(seed uint64) {
		s := newSim(t, seed, simConfig{delay: time.Millisecond})
		for k := range s.side {
			s.endOf(k, false)
		}
		s.start(0, s.side[0].ends[0])
		s.start(1, s.side[1].ends[0])
		for !s.up {
			s.step()
		}
		s.run(5 * time.Millisecond)
		s.mustAll(0, Ready)
		s.mustAll(1, Ready)
		if n := s.side[0].m.repeated + s.side[1].m.repeated; n != 0 {
			s.fail("%d messages were repeated", n)
		}
	})
}

// What fails for want of a link is what wanted that one.
func TestTroubleIsOfOneTarget(t *testing.T) {
	s := newSim(t, 1, calm)
	s.cutOff = true
	a, b := s.endOf(0, false), s.endOf(0, false)
	b.target = "elsewhere"
	s.start(0, a)
	s.start(0, b)
	s.side[0].m.noLink("there", driver.ErrAuth, true)
	s.carryOut(0)
	if a.state != Failed || !errors.Is(a.err, driver.ErrAuth) || b.state != Connecting {
		t.Errorf("%v (%v) and %v, want failed and connecting", a.state, a.err, b.state)
	}
	s.side[0].m.linkUp(s.now)
	s.side[0].m.noLink("elsewhere", driver.ErrAuth, true)
	s.carryOut(0)
	if b.state != Connecting {
		t.Errorf("%v for want of a link that is not needed", b.state)
	}
}

// The answerer is asked for as many ends as want it, no more.
func TestCallsAreAnsweredOneByOne(t *testing.T) {
	s := newSim(t, 1, calm)
	for range 3 {
		s.endOf(0, false)
	}
	m := s.side[0].m
	for _, tt := range []struct{ calls, want int }{{1, 1}, {1, 1}, {2, 2}, {9, 3}} {
		_ = m.receive(&message{kind: msgCall, from: 1 << 20, count: uint32(tt.calls)}, 0)
		if got := m.count(stRequest); got != tt.want {
			t.Errorf("%d requests when %d ends call, want %d", got, tt.calls, tt.want)
		}
	}
}

// One side that starts is enough, whichever it is.
func TestEitherSideStarts(t *testing.T) {
	networks(t, func(t *testing.T, cfg simConfig) {
		seeds(t, func(seed uint64) {
			s := newSim(t, seed, cfg)
			n := 1 + s.rng.IntN(3)
			starter := s.rng.IntN(2)
			for range n {
				a, _ := s.endOf(starter, false), s.endOf(1-starter, false)
				s.start(starter, a)
			}
			s.run(20 * time.Second)
			s.mustAll(0, Ready)
			s.mustAll(1, Ready)
		})
	})
}

// With CTS no side is ready before the other has posted its receives, however late
// that is. (The simulation checks that at each change.)
func TestReadyMeansReceivesArePosted(t *testing.T) {
	networks(t, func(t *testing.T, cfg simConfig) {
		seeds(t, func(seed uint64) {
			s := newSim(t, seed, cfg)
			for k := range s.side {
				late := s.rng.IntN(2) == 0
				e := s.endOf(k, late)
				s.start(k, e)
				if late {
					s.at(s.upTo(20*time.Second), func() { s.clear(k, e) })
				}
			}
			s.run(50 * time.Second)
			s.mustAll(0, Ready)
			s.mustAll(1, Ready)
			s.cfg.loss, s.cfg.cut = 0, 0
			s.quiet()
		})
	})
}

// A peer that lives and makes no end is waited for, and the link stays.
func TestLivingPeerIsWaitedFor(t *testing.T) {
	for k := range 2 {
		s := newSim(t, 1, calm)
		e := s.endOf(k, false)
		s.start(k, e)
		s.run(10 * time.Minute)
		s.mustAll(k, Connecting)
		s.start(1-k, s.endOf(1-k, false))
		s.run(time.Second)
		s.mustAll(k, Ready)
		s.mustAll(1-k, Ready)
	}
}

// beginning makes two ends that start at nearly the same time.
func beginning(t *testing.T, seed uint64, cfg simConfig) *sim {
	s := newSim(t, seed, cfg)
	for k := range s.side {
		cts := seed%3 == 0
		s.at(s.upTo(20*time.Millisecond), func() {
			e := s.endOf(k, cts)
			s.start(k, e)
			if cts {
				s.at(s.upTo(100*time.Millisecond), func() { s.clear(k, e) })
			}
		})
	}
	return s
}

// After each single event of making a connection, either side dies: the other
// one learns, at once where it had a link, in any case in time.
func TestDeathInEveryState(t *testing.T) {
	states := make(map[endState]bool)
	seeds(t, func(seed uint64) {
		for _, cfg := range []simConfig{calm, rough} {
			for k := range 2 {
				for events := 1; events < 60; events++ {
					s := beginning(t, seed, cfg)
					for range events {
						s.step()
					}
					for _, e := range s.side[k].ends {
						states[e.end.state] = true
					}
					s.kill(k)
					s.run(4 * s.cfg.timeout)
					s.mustAll(1-k, Failed, Lost)
					for _, e := range s.side[1-k].ends {
						if !errors.Is(e.err, driver.ErrBroken) {
							s.fail("end %d: %v, want %v", e.id, e.err, driver.ErrBroken)
						}
					}
				}
			}
		}
	})
	for s := stIdle + 1; s <= stReady; s++ {
		if !testing.Short() && !states[s] && *seedFlag == 0 {
			t.Errorf("no peer died in state %q", s)
		}
	}
}

// The same with a peer that falls silent without a word from its kernel.
func TestSilenceInEveryState(t *testing.T) {
	seeds(t, func(seed uint64) {
		for k := range 2 {
			for events := 1; events < 40; events++ {
				s := beginning(t, seed, calm)
				for range events {
					s.step()
				}
				s.side[k].dead = true // the link stays up, as with a stopped process
				s.run(5 * s.cfg.timeout)
				s.mustAll(1-k, Failed, Lost, Ready) // ready ends do not ask
			}
		}
	})
}

// After each single event either side finalizes: the other one learns that it was in order.
func TestFinalizeInEveryState(t *testing.T) {
	seeds(t, func(seed uint64) {
		for _, cfg := range []simConfig{calm, rough, torn} {
			for k := range 2 {
				for events := 1; events < 60; events += 1 + int(seed%3) {
					s := beginning(t, seed, cfg)
					for range events {
						s.step()
					}
					if len(s.side[k].ends) == 0 {
						continue
					}
					known := s.side[k].ends[0].peerID != 0
					s.finalize(k, s.side[k].ends[0])
					s.run(20 * time.Second)
					p := s.side[1-k].ends[0]
					switch p.state {
					case Connecting: // never met: waits for the next one
						if known && p.peerID != 0 {
							s.fail("end %d still waits for end %d", p.id, p.peerID)
						}
						s.start(k, s.endOf(k, false))
						s.run(20 * time.Second)
						if p.deferred {
							s.clear(1-k, p)
							s.run(20 * time.Second)
						}
						s.mustAll(k, Ready)
						s.mustAll(1-k, Ready)
					case Failed, Lost:
						if !errors.Is(p.err, driver.ErrClosed) {
							s.fail("end %d: %v, want %v", p.id, p.err, driver.ErrClosed)
						}
					default:
						s.fail("end %d is %v after the peer's was finalized", p.id, p.state)
					}
				}
			}
		}
	})
}

// An end that was made after the peer's end had been given up meets the next
// one, even if the request for the first is still on its way.
func TestGivenUpEndUsesUpNoOther(t *testing.T) {
	networks(t, func(t *testing.T, cfg simConfig) {
		seeds(t, func(seed uint64) {
			s := newSim(t, seed, cfg)
			k := s.rng.IntN(2)
			first := s.endOf(k, false)
			s.start(k, first)
			s.run(s.upTo(400 * time.Millisecond))
			s.finalize(k, first)
			steady := s.endOf(1-k, false)
			s.start(1-k, steady)
			s.run(s.upTo(400 * time.Millisecond))
			second := s.endOf(k, false)
			s.start(k, second)
			s.run(20 * time.Second)
			if steady.state != Ready || second.state != Ready || steady.peerID != second.id {
				s.fail("%v (%v) and %v (%v), want both ready", steady.state, steady.err, second.state, second.err)
			}
		})
	})
}

// Users who make, start, give up and make again at random leave nothing half
// done: at last, equally many new ends all meet.
func TestChurn(t *testing.T) {
	networks(t, func(t *testing.T, cfg simConfig) {
		cfg.stepFails = 0.1
		seeds(t, func(seed uint64) {
			s := newSim(t, seed, cfg)
			for range 40 {
				s.at(s.upTo(30*time.Second), func() {
					k := s.rng.IntN(2)
					ends := s.side[k].ends
					if len(ends) == 0 || s.rng.IntN(3) == 0 {
						e := s.endOf(k, s.rng.IntN(4) == 0)
						s.start(k, e)
						if e.deferred {
							s.at(s.upTo(time.Second), func() { s.clear(k, e) })
						}
						return
					}
					s.finalize(k, ends[s.rng.IntN(len(ends))])
				})
			}
			s.run(60 * time.Second)
			for k := range s.side {
				for _, e := range s.side[k].ends {
					s.finalize(k, e)
				}
			}
			s.run(40 * time.Second)
			s.cfg.stepFails = 0
			fresh := [2][]*simEnd{}
			for range 3 {
				for k := range s.side {
					e := s.endOf(k, false)
					fresh[k] = append(fresh[k], e)
					s.start(k, e)
				}
			}
			s.run(20 * time.Second)
			for k := range fresh {
				for j, e := range fresh[k] {
					if e.state != Ready || s.partner(k, e) != fresh[1-k][j] {
						s.fail("side %d: new end %d is %v with %d (%v)", k, e.id, e.state, e.peerID, e.err)
					}
				}
			}
			for k := range s.side {
				s.mustAll(k, Ready)
			}
			s.cfg.loss, s.cfg.cut = 0, 0
			s.quiet()
		})
	})
}

// A host that cannot be reached any more loses its endpoints after the timeout, for
// that reason; one that can again in time keeps them.
func TestHostThatVanishes(t *testing.T) {
	seeds(t, func(seed uint64) {
		s := beginning(t, seed, calm)
		s.run(2 * time.Second)
		s.mustAll(0, Ready)
		for _, back := range []bool{true, false} {
			s.cutOff = true
			s.cutLink()
			s.run(s.cfg.timeout - time.Second)
			s.cutOff = !back
			s.run(10 * time.Second)
			for k := range s.side {
				if back {
					s.mustAll(k, Ready)
					continue
				}
				s.mustAll(k, Lost)
				if err := s.side[k].ends[0].err; !errors.Is(err, driver.ErrBroken) || !errors.Is(err, errTimedOut) {
					s.fail("lost for %v, want %v because of %v", err, driver.ErrBroken, errTimedOut)
				}
			}
		}
	})
}

// A step that does not come to an end fails both ends in time.
func TestWorkThatHangs(t *testing.T) {
	seeds(t, func(seed uint64) {
		s := beginning(t, seed, calm)
		s.hang = true
		s.run((stretch + 2) * s.cfg.timeout)
		asker := s.side[0].ends[0]
		if asker.state != Failed || !errors.Is(asker.err, driver.ErrBroken) {
			s.fail("end is %v: %v", asker.state, asker.err)
		}
		s.mustAll(1, Connecting) // has touched nothing, and meets the next one
	})
}

// Ends that cannot work together fail on both sides, for the reason.
func TestEndsThatDoNotFit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*offer)
		want   rejectCode
	}{
		{"link layer", func(o *offer) { o.linkLayer, o.gidType = InfiniBand, GIDInfiniBand }, rejectLinkLayer},
		{"RoCE version", func(o *offer) { o.gidType = GIDRoCEv1 }, rejectGIDType},
		{"address family", func(o *offer) { o.gid[0] = 0x20 }, rejectGIDType},
		{"link-local", func(o *offer) { o.gid = [16]byte{0: 0xfe, 1: 0x80} }, rejectGIDType},
		{"partition", func(o *offer) { o.pkey = 0x8001 }, rejectPKey},
		{"queue pairs", func(o *offer) { o.n = 2 }, rejectQPs},
	} {
		for k := range 2 {
			t.Run(fmt.Sprint(tt.name, k), func(t *testing.T) {
				networks(t, func(t *testing.T, cfg simConfig) {
					seeds(t, func(seed uint64) {
						if seed > 20 {
							return
						}
						s := newSim(t, seed, cfg)
						a, b := s.endOf(k, false), s.endOf(1-k, false)
						tt.change(&a.offer)
						s.start(k, a)
						s.start(1-k, b)
						s.run(10 * time.Second)
						for _, e := range []*simEnd{a, b} {
							want := (&message{code: tt.want}).rejectError()
							if e.state != Failed || e.err == nil || e.err.Error() != want.Error() || !errors.Is(e.err, driver.ErrInvalid) {
								s.fail("end is %v with %v, want %v", e.state, e.err, want)
							}
						}
						s.cfg.loss, s.cfg.cut = 0, 0
						s.quiet()
					})
				})
			})
		}
	}
}

// InfiniBand ports of two subnets, and two limited members of a partition, do not fit; what fits, fits both
// ways.
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

// A queue pair that cannot be moved fails both ends, with step and errno.
func TestStepFailureReachesBothSides(t *testing.T) {
	for k := range 2 {
		cfg := calm
		s := newSim(t, uint64(k+1), cfg)
		a, b := s.endOf(0, false), s.endOf(1, false)
		s.start(0, a)
		s.start(1, b)
		for s.side[k].ends[0].end.state != stModify {
			s.step()
		}
		// The work of side k, which has begun, is told to have failed.
		s.side[k].m.done(s.side[k].ends[0].end, &stepError{step: stepRTR, err: fmt.Errorf("modify: %w", errTimedOut)}, s.now)
		s.carryOut(k)
		s.run(time.Second)
		mine, theirs := s.side[k].ends[0], s.side[1-k].ends[0]
		for _, e := range []*simEnd{mine, theirs} {
			if e.state != Failed || !errors.Is(e.err, driver.ErrBroken) || !bytes.Contains([]byte(e.err.Error()), []byte("RTR")) {
				t.Errorf("side %d: %v (%v), want Failed with ErrBroken that names RTR", k, e.state, e.err)
			}
		}
		if !errors.Is(mine.err, errTimedOut) {
			t.Errorf("own error %v does not wrap the cause", mine.err)
		}
	}
}

// Queue pairs whose peer has the same incarnation are connected to themselves.
func TestSelf(t *testing.T) {
	m := &machine{self: 7, peer: 7, timeout: time.Second, nextID: func() uint64 { return 1 }}
	e := &end{offer: anOffer(), timeout: time.Second}
	m.add(e, 0)
	m.start(e, 0)
	a := m.take()
	if len(a) != 2 || a[0].kind != actState || a[1].kind != actWork || a[1].first != stepInit || a[1].last != stepRTS {
		t.Fatalf("got %+v, want a change of state and all steps", a)
	}
	m.done(e, nil, 0)
	if a = m.take(); len(a) != 1 || e.state != stReady || e.remote.qps != e.offer.qps {
		t.Fatalf("state %v, remote %+v, actions %+v", e.state, e.remote, a)
	}
	if _, ok := m.next(); ok || len(m.targets()) != 0 {
		t.Fatal("an end that stands with itself wants a timer or a link")
	}
	late := &end{offer: anOffer(), timeout: time.Second, cts: true}
	m.add(late, 0)
	m.start(late, 0)
	m.done(late, nil, 0)
	if late.state != stClear {
		t.Fatalf("state %v before receives are posted", late.state)
	}
	if at, ok := m.next(); ok {
		t.Fatalf("waits for itself until %v", at)
	}
	m.clearToSend(late, 0)
	if late.state != stReady {
		t.Fatalf("state %v after receives are posted", late.state)
	}
	soon := &end{offer: anOffer(), timeout: time.Second, cts: true, clear: true}
	m.add(soon, 0)
	m.start(soon, 0)
	m.done(soon, nil, 0)
	if soon.state != stReady {
		t.Fatalf("state %v with receives that are posted", soon.state)
	}
	m.take()
	m.finalize(e, 0)
	if a = m.take(); len(a) != 1 || a[0].kind != actState {
		t.Fatalf("finalize: %+v", a)
	}
}

// Messages that no machine would send, about ids that nobody has, are answered or refused; they
// change nothing.
func TestUnknownIDs(t *testing.T) {
	for k := range 2 {
		s := newSim(t, 1, calm)
		a, b := s.endOf(0, false), s.endOf(1, false)
		s.start(0, a)
		s.start(1, b)
		s.run(time.Second)
		m := s.side[k].m
		for kind := messageKind(1); kind <= msgCheck; kind++ {
			for _, msg := range []message{
				{kind: kind, from: 1 << 40, to: 1 << 41, offer: anOffer()},
				{kind: kind, from: 1 << 40, to: s.side[k].ends[0].id, offer: anOffer()},
				{kind: kind, from: 1 << 40, offer: anOffer()},
			} {
				if msg.checkIDs() != nil || kind == msgClosed {
					continue
				}
				_ = m.receive(&msg, s.now)
				for _, act := range m.take() {
					if act.kind != actSend {
						t.Errorf("side %d, message %+v: action %+v", k, msg, act)
					}
				}
			}
		}
		s.mustAll(0, Ready)
		s.mustAll(1, Ready)
	}
}

// An asker whose peer accepts what does not fit refuses, and does nothing else.
func TestAskerChecksTheReply(t *testing.T) {
	s := newSim(t, 1, calm)
	a := s.endOf(0, false)
	s.start(0, a)
	bad := anOffer()
	bad.n = 2
	_ = s.side[0].m.receive(&message{kind: msgReply, from: 9, to: a.id, offer: bad}, 0)
	if out := s.side[0].m.take(); a.end.state != stFailed || len(out) != 2 || out[0].msg.kind != msgReject || out[0].msg.code != rejectQPs || out[1].kind != actState {
		t.Errorf("%v, actions %+v; want failed with a reject", a.end.state, out)
	}
}

// A reject without an endpoint of the peer fails the request and is not answered; a close is repeated until it was heard.
func TestLastWords(t *testing.T) {
	s := newSim(t, 1, calm)
	a, b := s.endOf(0, false), s.endOf(0, false)
	m := s.side[0].m
	s.start(0, a)
	s.start(0, b)
	_ = m.receive(&message{kind: msgReject, to: a.id, code: rejectBusy}, 0)
	if out := m.take(); a.end.state != stFailed || len(out) != 1 || out[0].kind != actState {
		t.Errorf("%v, actions %+v", a.end.state, out)
	}
	m.finalize(b.end, 0)
	m.take()
	sent := func(now time.Duration) (n int) {
		m.tick(now)
		for _, act := range m.take() {
			if act.kind == actSend && act.msg.kind == msgClose && act.msg.from == b.id {
				n++
			}
		}
		return n
	}
	if n := sent(time.Second); n != 1 {
		t.Errorf("%d closes after a second without an answer, want 1", n)
	}
	_ = m.receive(&message{kind: msgClosed, to: b.id}, time.Second)
	if n := sent(2*time.Second) + sent(3*time.Second); n != 0 {
		t.Errorf("%d closes after the answer", n)
	}
}

// A request that comes again long after its end was finalized is none.
func TestLateRequestIsNoNewOne(t *testing.T) {
	m := &machine{self: 2, peer: 1, timeout: time.Second, nextID: func() uint64 { return 9 }}
	m.linkUp(0)
	e := &end{offer: anOffer(), timeout: time.Second}
	m.add(e, 0)
	request := message{kind: msgRequest, from: 5, offer: anOffer()}
	_ = m.receive(&request, 0)
	m.finalize(e, 0)
	m.tick(time.Hour)
	if m.take(); len(m.graves) != 0 {
		t.Fatalf("%d graves after an hour", len(m.graves))
	}
	_ = m.receive(&request, time.Hour)
	if out := m.take(); len(m.queue) != 0 || len(out) != 1 || out[0].msg.kind != msgClosed || out[0].msg.to != 5 {
		t.Errorf("%d requests wait, answers %+v; want closed", len(m.queue), out)
	}
}

// The queue of requests that nobody meets is bounded, and the peer is told.
func TestRequestsAreBounded(t *testing.T) {
	m := &machine{self: 2, peer: 1, timeout: time.Second, nextID: func() uint64 { return 1 }}
	m.linkUp(0)
	var last message
	for k := range maxQueue + 1 {
		_ = m.receive(&message{kind: msgRequest, from: uint64(k + 1), offer: anOffer()}, 0)
		for _, a := range m.take() {
			last = a.msg
		}
	}
	if len(m.queue) != maxQueue || last.kind != msgReject || last.code != rejectBusy {
		t.Errorf("%d queued, last answer %+v", len(m.queue), last)
	}
	m.linkDown(0)
	if at, ok := m.next(); !ok || at != time.Second {
		t.Errorf("requests without a link are kept until %v (%v)", at, ok)
	}
	m.tick(time.Second)
	if !m.idle() {
		t.Error("requests of a peer that left are kept")
	}
}
