package link

import (
	"container/heap"
	"errors"
	"slices"
	"testing"
	"time"
)

// faultless is a network without faults.
func faultless() netConfig {
	return netConfig{delay: 20_000, jitter: 1000, mtu: 1000, window: 128, frames: 2000, idle: 2000, keyPackets: 1 << 20}
}

// pair makes two hosts with an established connection.
func pair(t *testing.T, seed uint64, w netConfig) (s *sim, x, y *simConn) {
	s = newSim(t, seed, w)
	s.addHost(Config{DeadTime: time.Second})
	s.addHost(Config{DeadTime: time.Second})
	x, y = s.connect(0, 1)
	s.run(s.now+5e9, func() bool { return x.up && y.up })
	return s, x, y
}

// pass lets time pass.
func (s *sim) pass(d Time) {
	at := s.now + d
	s.push(&simEvent{at: at, to: s.hosts[0]})
	s.run(at+1e9, func() bool { return s.now >= at })
}

func (x *simConn) wantErr(want error) {
	x.h.s.t.Helper()
	if !errors.Is(x.err, want) {
		x.h.s.fail("conn %d: got error %v, want %v", x.name, x.err, want)
	}
}

// close closes a side.
func (x *simConn) close(abort bool) {
	x.c.Close(x.h.s.now, abort)
	x.closed = true
	x.h.poll(x.h.s.now)
}

func TestPeerThatIsCutOffForLongerThanTheDeadTimeIsBroken(t *testing.T) {
	seedsOf(t, 40, func(t *testing.T, seed uint64) {
		s, x, y := pair(t, seed, faultless())
		x.load(200, 4, 20_000)
		y.load(200, 4, 20_000)
		s.pass(Time(s.rnd.Int64N(2e6)))
		s.w.cutFrom, s.w.cutTo = s.now, never
		cut := s.now
		s.run(s.now+3e9, func() bool { return x.err != nil && y.err != nil })
		x.wantErr(errBroken)
		y.wantErr(errBroken)
		if s.now > cut+12e8 {
			s.fail("broken after %v, the dead time is 1s", time.Duration(s.now-cut))
		}
		s.clean()
	})
}

// An idle connection notices, too: only keepalives show that the peer is gone.
func TestIdlePeerThatDiedIsBroken(t *testing.T) {
	s, x, y := pair(t, 1, faultless())
	s.pass(10e9)
	s.w.cutFrom, s.w.cutTo = s.now, never
	s.run(s.now+2e9, func() bool { return x.err != nil && y.err != nil })
	x.wantErr(errBroken)
	y.wantErr(errBroken)
	s.clean()
}

func TestHostStoppedForLessThanTheDeadTimeLosesNothing(t *testing.T) {
	seedsOf(t, 40, func(t *testing.T, seed uint64) {
		s, x, y := pair(t, seed, faultless())
		x.load(200, 4, 20_000)
		y.load(200, 4, 20_000)
		s.w.stallAt, s.w.stallFor = s.now+Time(s.rnd.Int64N(2e6)), 7e8
		s.run(s.now+20e9, func() bool { return x.done() && y.done() })
		if x.err != nil || y.err != nil {
			s.fail("%v, %v", x.err, y.err)
		}
		s.finish()
	})
}

// An idle peer that stops or is cut off is not taken for dead too early, whenever the last ping was.
func TestIdlePeerHasMostOfTheDeadTime(t *testing.T) {
	const dead, phases = Time(time.Second), 32
	for phase := range Time(phases) {
		for what, fault := range map[string]func(s *sim){
			"stopped for 9/10": func(s *sim) { s.w.stallAt, s.w.stallFor = s.now, dead*9/10 },
			"cut off for 6/7":  func(s *sim) { s.w.cutFrom, s.w.cutTo = s.now, s.now+dead*6/7 },
		} {
			s, x, y := pair(t, 1, faultless())
			s.pass(dead + phase*dead/4/phases)
			fault(s)
			s.pass(2 * dead)
			if err := errors.Join(x.err, y.err); err != nil {
				s.fail("%s of the dead time, %v later: %v", what, time.Duration(phase*dead/4/phases), err)
			}
			s.finish()
		}
	}
}

// The one that slept longer is notified by its peer, when it wakes, that there is no connection any more.
func TestHostStoppedForLongerIsBrokenAndLearnsIt(t *testing.T) {
	seedsOf(t, 40, func(t *testing.T, seed uint64) {
		s, x, y := pair(t, seed, faultless())
		x.load(200, 0, 20_000)
		s.w.stallAt, s.w.stallFor = s.now+Time(s.rnd.Int64N(1e6)), 3e9
		s.run(s.now+10e9, func() bool { return x.err != nil && (y.err != nil || y.c.state == stateDown) })
		x.wantErr(errBroken)
		if !errors.Is(y.err, errReset) && !errors.Is(y.err, errBroken) {
			s.fail("got %v, want a reset", y.err)
		}
		s.clean()
	})
}

func TestCloseInOrderAndAbort(t *testing.T) {
	for _, c := range []struct {
		name        string
		abort, both bool
		loaded      bool
		want        error
	}{
		{"in order", false, false, false, ErrClosed},
		{"abort", true, false, false, errAborted},
		{"with data in flight", false, false, true, errAborted},
		{"both at once", false, true, false, nil},
		{"both at once with data in flight", false, true, true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			seedsOf(t, 20, func(t *testing.T, seed uint64) {
				w := faultless()
				w.loss, w.reorder, w.late, w.dup = 0.2, 0.2, 100_000, 0.1
				s, x, y := pair(t, seed, w)
				if c.loaded {
					x.load(100, 3, 20_000)
					y.load(100, 3, 20_000)
					s.pass(300_000)
					// The packets that give the first credit can be lost, all of them.
					s.run(s.now+100e6, func() bool { return x.c.Unacknowledged() > 0 })
					if x.c.Unacknowledged() == 0 {
						s.fail("nothing in flight")
					}
				}
				x.close(c.abort)
				if c.both {
					y.close(c.abort)
				} else {
					s.run(s.now+3e9, func() bool { return y.err != nil })
					y.wantErr(c.want)
				}
				s.clean()
			})
		})
	}
}

// clean waits until no host knows a connection, and checks that nothing is left over.
func (s *sim) clean() {
	s.t.Helper()
	s.each(func(x *simConn) { x.lazy = false })
	for _, h := range s.hosts {
		h.poll(s.now)
	}
	s.run(s.now+10e9, func() bool {
		for _, h := range s.hosts {
			if h.e.Conns() > 0 {
				return false
			}
		}
		return true
	})
	s.leftovers()
}

// Two sides that close at the same time acknowledge what is under way between them, and do not wait for the dead time.
func TestBothCloseWhileMessagesWaitForCredit(t *testing.T) {
	seedsOf(t, 20, func(t *testing.T, seed uint64) {
		s, x, y := pair(t, seed, faultless())
		x.stuck, y.stuck = true, true // nothing is released, so that messages wait
		x.load(100, 0, 500)
		y.load(100, 0, 500)
		s.run(s.now+1e9, func() bool { return x.c.needsCredit() && y.c.needsCredit() && x.c.next < x.c.end && y.c.next < y.c.end })
		x.stuck, y.stuck = false, false
		x.close(false)
		y.close(false)
		begin := s.now
		s.run(s.now+3e9, func() bool { return s.hosts[0].e.Conns()+s.hosts[1].e.Conns() == 0 })
		if took := s.now - begin; took > 100e6 {
			s.fail("closed after %v", time.Duration(took))
		}
		s.leftovers()
	})
}

// What a peer acknowledges late because it polls seldom is not sent again.
func TestSlowPeersGetNothingAgain(t *testing.T) {
	for _, slow := range []Time{100e3, 500e3, 2e6} {
		w := faultless()
		w.slow = slow
		s, x, _ := pair(t, 1, w)
		const messages = 200
		for range messages {
			x.load(1, 0, 500)
			x.h.poll(s.now)
			s.run(s.now+1e9, x.done)
		}
		if n := s.hosts[0].e.stats.Retransmits; n > messages/10 {
			s.fail("%d of %d messages were sent again to a peer that polls every %v", n, messages, time.Duration(slow))
		}
		s.finish()
	}
}

func TestCallGivenUpInEveryStateLeavesNothing(t *testing.T) {
	seedsOf(t, 300, func(t *testing.T, seed uint64) {
		w := faultless()
		w.loss = 0.1
		s := newSim(t, seed, w)
		s.addHost(Config{DeadTime: 300 * time.Millisecond})
		s.addHost(Config{DeadTime: 300 * time.Millisecond})
		x, y := s.connect(0, 1)
		if seed%2 == 0 {
			x, y = y, x
		}
		s.pass(Time(s.rnd.Int64N(400_000)))
		if x.err == nil {
			x.close(seed%3 == 0)
		}
		// Another call between the same two is made all the same.
		s.pass(Time(s.rnd.Int64N(100_000)))
		if y.err == nil {
			y.close(false)
		}
		a, b := s.connect(0, 1)
		a.load(10, 1, 2000)
		s.run(s.now+10e9, func() bool { return a.done() && b.up })
		if a.err != nil || b.err != nil {
			s.fail("the second call: %v, %v", a.err, b.err)
		}
		a.close(false)
		s.clean()
	})
}

// A call to a peer that does not answer fails after the dead time, however many others begin and are given up meanwhile.
func TestCallsGivenUpDoNotRenewTheDeadTime(t *testing.T) {
	w := faultless()
	w.cutTo = never
	s := newSim(t, 1, w)
	s.addHost(Config{DeadTime: time.Second})
	s.addHost(Config{DeadTime: time.Second})
	x, _ := s.connect(0, 1)
	begin := s.now
	for x.err == nil && s.now < begin+3e9 {
		a, b := s.connect(0, 1)
		s.pass(3e8)
		a.close(true)
		b.close(true)
	}
	x.wantErr(errBroken)
	if s.now > begin+15e8 {
		s.fail("the call failed after %v, the dead time is 1s", time.Duration(s.now-begin))
	}
}

// An endpoint with another secret gets no connection, nor does another endpoint at the address; the error names the
// reason.
func TestConnectingReportsWhyItFails(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		turn func(s *sim)
		want error
	}{
		{"another secret", Config{Secret: []byte("another secret, long enough")}, nil, ErrAuth},
		{"another endpoint at the address", Config{ID: 77}, nil, errGone},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, 1, faultless())
			s.addHost(Config{})
			s.addHost(c.cfg)
			x, y := s.connect(0, 1)
			s.run(s.now+2e9, func() bool { return x.err != nil })
			x.wantErr(c.want)
			y.close(false)
			s.clean()
		})
	}
	t.Run("another version", func(t *testing.T) {
		s := newSim(t, 1, faultless())
		s.addHost(Config{})
		s.addHost(Config{})
		x, y := s.connect(0, 1)
		s.hosts[1].warp = func(b []byte) { // its packets arrive with the next version
			if kind(b[0]) == kindInit {
				b[1] = version + 1
				finishPacket(b)
			}
		}
		s.run(s.now+2e9, func() bool { return x.err != nil })
		x.wantErr(ErrVersion)
		y.close(false)
		s.clean()
	})
}

// restart has another endpoint at the place of host 1.
func (s *sim) restart() {
	old := s.hosts[1]
	s.hosts = s.hosts[:1]
	s.addHost(Config{ID: 4242, DeadTime: time.Second}).e.random() // its ids are others than those of before
	old.n = 9
	for k := range s.queue {
		s.queue[k].to = s.hosts[min(s.queue[k].to.n, 1)]
	}
}

// A peer that starts again at its address does not know the connection: a sender learns that at once, long before the
// dead time, and a call to the old endpoint learns that it is gone.
func TestPeerRestartedAtItsAddress(t *testing.T) {
	s, x, y := pair(t, 1, faultless())
	s.restart()
	x.out = append(x.out, simMessage{1, 100})
	x.h.poll(s.now)
	from := s.now
	s.run(s.now+9e8, func() bool { return x.err != nil })
	x.wantErr(errReset)
	if s.now-from > 2e8 {
		s.fail("noticed after %v", time.Duration(s.now-from))
	}
	z, err := x.h.e.Dial(s.now, 2, 1001, nil, &simConn{h: x.h})
	if err != nil {
		t.Fatal(err)
	}
	x.h.poll(s.now)
	s.run(s.now+2e9, func() bool { return z.state == stateDown })
	if got := z.User.(*simConn).err; !errors.Is(got, errGone) {
		t.Errorf("calling the old endpoint: got %v, want %v", got, errGone)
	}
	_ = y
}

// A Reset that the peer did not send breaks nothing: the peer is asked.
func TestForgedResetIsIgnored(t *testing.T) {
	s, x, y := pair(t, 1, faultless())
	x.load(300, 0, 5000)
	b := make([]byte, smallPacketSize)
	for range 20 {
		putSmall(b, kindReset, x.c.peer, 0, 0)
		x.h.e.Input(s.now, nil, Frame{Data: b})
		x.h.poll(s.now)
		s.pass(20e6)
	}
	s.run(s.now+20e9, x.done)
	if x.err != nil || y.err != nil {
		s.fail("%v, %v", x.err, y.err)
	}
	s.finish()
}

// A connection is encrypted if either side requires it, and its keys change while packets are lost and reordered.
func TestOneSideCanRequestEncryption(t *testing.T) {
	for n := range 2 {
		w := faultless()
		w.keyPackets, w.loss, w.reorder, w.late = 40, 0.05, 0.3, 300_000
		s := newSim(t, 3, w)
		s.addHost(Config{Encrypt: n == 0})
		s.addHost(Config{Encrypt: n == 1})
		x, y := s.connect(0, 1)
		x.load(2000, 3, 3000)
		y.load(2000, 3, 3000)
		s.run(60e9, func() bool { return x.done() && y.done() })
		if x.err != nil || y.err != nil || !x.c.encrypted() || !y.c.encrypted() {
			s.fail("%v, %v, encrypted %v, %v", x.err, y.err, x.c.encrypted(), y.c.encrypted())
		}
		if x.c.sealer.changes < 3 || y.c.sealer.changes < 3 {
			s.fail("keys changed %d and %d times", x.c.sealer.changes, y.c.sealer.changes)
		}
		s.finish()
	}
}

// Clocks and numbers are cut off on the wire: nothing happens when the short forms wrap.
func TestShortNumbersWrap(t *testing.T) {
	for _, encrypt := range []bool{false, true} {
		w := faultless()
		w.encrypt = encrypt
		s := newSim(t, 5, w)
		s.now = 1<<42 - 1e6 // the stamp's 2^32 units of 1024 ns are 2^42 ns
		s.addHost(Config{DeadTime: time.Second})
		s.addHost(Config{DeadTime: time.Second})
		x, y := s.connect(0, 1)
		s.run(s.now+20e6, func() bool { return x.up && y.up })
		quiet := s.now + 1e6 // nothing of before is under way
		s.run(s.now+500e6, func() bool { return s.now >= quiet })
		const at = 1<<32 - 40
		for _, c := range []*Conn{x.c, y.c} {
			c.una, c.next, c.sender.end, c.limit, c.round = c.una+at, c.next+at, c.sender.end+at, c.limit+at, c.round+at
			c.cum, c.top, c.consumed, c.granted, c.lostFrom = c.cum+at, c.top+at, c.consumed+at, c.granted+at, c.lostFrom+at
			c.used, c.sender.sent, c.arrived = c.used+at, c.sender.sent+at, c.arrived+at
			clear(c.bits)
		}
		s.w.loss, s.w.dup, s.w.reorder, s.w.late = 0.05, 0.05, 0.1, 200_000
		x.load(500, 3, 5000)
		y.load(500, 3, 5000)
		s.run(s.now+20e9, func() bool { return x.done() && y.done() })
		if x.err != nil || y.err != nil || s.now < 1<<42 || x.c.cum < 1<<32 {
			s.fail("%v, %v, cum %d", x.err, y.err, x.c.cum)
		}
		s.finish()
	}
}

// The packet that brings credit may be lost: the sender asks again, and does not wait for the keepalive.
func TestLostCreditIsAskedFor(t *testing.T) {
	seedsOf(t, 20, func(t *testing.T, seed uint64) {
		s, x, y := pair(t, seed, faultless())
		y.stuck = true
		x.load(100, 0, 100)
		s.run(s.now+5e9, func() bool { return x.c.waited && x.c.inflight == 0 })
		s.w.cutFrom, s.w.cutTo = s.now, s.now+1e6
		y.stuck = false
		y.h.poll(s.now)
		from := s.now
		s.run(s.now+9e8, x.done)
		if s.now-from > 100e6 {
			s.fail("went on after %v", time.Duration(s.now-from))
		}
		s.finish()
	})
}

func TestManySendersOneReceiver(t *testing.T) {
	n := 100
	w := faultless()
	w.rate, w.queue, w.frames, w.loss, w.sendFrames = 1.25, 60, 4096, 0.01, 300
	s := newSim(t, 1, w)
	s.shared = true
	s.addHost(Config{})
	for k := range n {
		s.addHost(Config{})
		x, _ := s.connect(k+1, 0)
		x.load(100, 1, 3000)
	}
	s.run(60e9, func() bool {
		done := true
		s.each(func(x *simConn) { done = done && x.done() })
		return done
	})
	s.finish()
}

// A handler may make all calls, which it may make at any time, also within its methods.
func TestHandlerMayCloseWithinEachOfItsMethods(t *testing.T) {
	for _, where := range []string{"up", "deliver", "place", "placed"} {
		seedsOf(t, 60, func(t *testing.T, seed uint64) {
			w := faultless()
			w.loss, w.reorder, w.late, w.dup = 0.1, 0.3, 200_000, 0.1
			s := newSim(t, seed, w)
			s.addHost(Config{DeadTime: time.Second})
			s.addHost(Config{DeadTime: time.Second})
			x, y := s.connect(0, 1)
			y.closeIn, y.closeAfter = where, s.rnd.IntN(8)
			if where == "up" {
				y.closeAfter = 0
			}
			x.load(60, 12, 6000)
			y.load(60, 12, 6000)
			s.run(s.now+10e9, func() bool { return y.closed && x.err != nil })
			if !errors.Is(x.err, errAborted) && !errors.Is(x.err, ErrClosed) {
				s.fail("%s: %v", where, x.err)
			}
			s.clean()
		})
	}
}

// One side accepts and closes at once, and its Accept is lost: the other side, which repeats its Init, learns of the end
// in order, and not by the dead time.
func TestClosedWhileItsAcceptWasLost(t *testing.T) {
	s := newSim(t, 1, faultless())
	s.addHost(Config{})
	s.addHost(Config{})
	x, y := s.connect(0, 1)
	s.run(1e9, func() bool { return y.c.state == stateAccepted })
	y.c.Close(s.now, false)
	y.closed = true
	s.queue = slices.DeleteFunc(s.queue, func(ev *simEvent) bool { return ev.to == x.h && ev.b != nil })
	heap.Init(&s.queue)
	s.run(20e9, func() bool { return x.err != nil })
	if !x.up || !errors.Is(x.err, ErrClosed) {
		t.Errorf("up %v, ended with %v, want ErrClosed", x.up, x.err)
	}
}
