//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"errors"
	"flag"
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
	faultless = simConfig{delay: 5 * time.Millisecond, work: 20 * time.Millisecond}
	rough     = simConfig{delay: 300 * time.Millisecond, work: 1200 * time.Millisecond}
	torn      = simConfig{delay: 50 * time.Millisecond, work: 200 * time.Millisecond, cut: 0.1}
)

// networks runs f over each kind of network.
func networks(t *testing.T, f func(t *testing.T, cfg simConfig)) {
	t.Helper()
	onHost(t)
	for name, cfg := range map[string]simConfig{"faultless": faultless, "rough": rough, "torn": torn} {
		t.Run(name, func(t *testing.T) { f(t, cfg) })
	}
}

// However messages are delayed and links cut, the nth end of one side is connected to the nth of the other, in whatever
// order they start.
func TestNthIsMatchedWithNth(t *testing.T) {
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
			s.cfg.cut = 0
			s.quiet()
		})
	})
}

// In a network without faults nothing is sent twice, and two round trips do: request, reply and a confirm of each side,
// and how many ends of the answerer want to be asked, at most twice.
func TestTwoRoundTrips(t *testing.T) {
	seeds(t, func(seed uint64) {
		s := newSim(t, seed, simConfig{delay: time.Millisecond})
		for k := range s.side {
			s.endOf(k, false)
		}
		s.start(0, s.side[0].ends[0])
		s.start(1, s.side[1].ends[0])
		for s.side[0].link == 0 || s.side[1].link == 0 {
			s.step()
		}
		s.run(5 * time.Millisecond)
		s.mustAll(0, Ready)
		s.mustAll(1, Ready)
		if s.sent > 6 {
			s.fail("%d messages, want at most 6", s.sent)
		}
	})
}

// Only ends that needed the missing link fail.
func TestTroubleIsOfOneTarget(t *testing.T) {
	s := newSim(t, 1, faultless)
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
	s := newSim(t, 1, faultless)
	for range 3 {
		s.endOf(0, false)
	}
	m := s.side[0].m
	m.linkUp(0)
	for _, tt := range []struct{ calls, want int }{{1, 1}, {1, 1}, {2, 2}, {9, 3}} {
		_ = m.receive(&message{kind: msgCall, count: uint32(tt.calls)}, 0)
		m.take(0)
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
			s.cfg.cut = 0
			s.quiet()
		})
	})
}

// A peer that lives and makes no end is waited for, and the link stays.
func TestLivingPeerIsWaitedFor(t *testing.T) {
	for k := range 2 {
		s := newSim(t, 1, faultless)
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
		for _, cfg := range []simConfig{faultless, rough} {
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
				s := beginning(t, seed, faultless)
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
		for _, cfg := range []simConfig{faultless, rough, torn} {
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

// An end that was made after the peer's end had been given up is matched with the next
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

// Users that make, start, give up and make again at random leave nothing half
// done: at last, equally many new ends are all matched.
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
			s.cfg.cut = 0
			s.quiet()
		})
	})
}

// A host that cannot be reached any more loses its endpoints after the timeout, for
// that reason; one that can again in time keeps them.
func TestHostThatVanishes(t *testing.T) {
	seeds(t, func(seed uint64) {
		s := beginning(t, seed, faultless)
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
		s := beginning(t, seed, faultless)
		s.hang = true
		s.run((stretch + 2) * s.cfg.timeout)
		asker := s.side[0].ends[0]
		if asker.state != Failed || !errors.Is(asker.err, driver.ErrBroken) {
			s.fail("end is %v: %v", asker.state, asker.err)
		}
		s.mustAll(1, Connecting) // has changed nothing, and is matched with the next one
	})
}
