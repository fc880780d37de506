package link

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Hosts that do not run for a moment delay acknowledgements: that is no queue in the network, and costs little more than
// the time in which either host stands still.
func TestHostsThatStandStillKeepTheirRate(t *testing.T) {
	const stallEvery = 8e6
	for _, c := range []struct {
		mtu        int
		rtt, stall Time
		want       float64 // share of the rate that is possible while both hosts run
	}{
		{1500, 40e3, 1e6, 0.9},
		{1500, 40e3, 2e6, 0.9},
		{1500, 1e6, 1e6, 0.9},
		{1500, 1e6, 2e6, 0.7},
		{9000, 1e6, 2e6, 0.7},
	} {
		x := newContest(1, 500)
		x.mtu, x.delay, x.stall, x.window, x.length = c.mtu, c.rtt/2, c.stall, 1024, 200e6
		running := stallEvery / (stallEvery + float64(c.stall))
		for seed := range contests() {
			if o := x.run(t, seed+1); o.used < c.want*running*running {
				t.Errorf("seed %d, MTU %d, round trip %v, stalls of %v: used %.2f, want %.2f of %.2f", seed+1, c.mtu, time.Duration(c.rtt),
					time.Duration(c.stall), o.used, c.want, running*running)
			}
		}
	}
}

// Hosts that are busy all the time delay each packet, now more and now less. That is no queue in the network, either.
func TestBusyHostsFillTheirPath(t *testing.T) {
	x := newContest(1, 1000)
	x.rate, x.delay, x.stall, x.every, x.window = 0.1, 200e3, 200e3, 400e3, 1024
	for seed := range contests() {
		if o := x.run(t, seed+1); o.used < 0.93 {
			t.Errorf("seed %d: %v, want used >= 0.93", seed+1, o)
		}
	}
}

// Fragments that arrive late are sent again without need. The peer reports that, and the window stays.
func TestLateFragmentsAreNoLosses(t *testing.T) {
	x := newContest(1, 500)
	x.delay, x.loss, x.delayed, x.window = 100e3, 0.03, 0.05, 1024
	for seed := range contests() {
		if o := x.run(t, seed+1); o.used < 0.9 {
			t.Errorf("seed %d, 3 %% loss and 5 %% late: %v, want used >= 0.9", seed+1, o)
		}
	}
}

// A message whose only packet is lost is sent again after about two round trips.
func TestLostMessageIsSentAgainSoon(t *testing.T) {
	for _, c := range []struct{ rtt, want Time }{{40e3, 200e3}, {1e6, 2_200e3}} {
		s := newSim(t, 11, netConfig{delay: c.rtt / 2, jitter: 2000, mtu: 1500, window: 256, frames: 4096, loss: 0.01, idle: 1000})
		s.addHost(Config{})
		s.addHost(Config{})
		x, y := s.connect(0, 1)
		s.run(5e9, func() bool { return x.up && y.up })
		var took []Time
		for k := range 5000 {
			from := s.now
			for _, z := range []*simConn{x, y} {
				m := simMessage{uint64(k), 8}
				z.out, z.twin.expect = append(z.out, m), append(z.twin.expect, m)
				z.h.poll(s.now)
				s.run(s.now+5e9, func() bool { return z.twin.gotMsgs == k+1 })
			}
			took = append(took, s.now-from)
		}
		slices.Sort(took)
		if got := took[len(took)*998/1000]; got > c.want {
			t.Errorf("round trip %v, 1 %% loss: 2 of 1000 ping-pongs take %v and more, want at most %v", time.Duration(c.rtt), time.Duration(got),
				time.Duration(c.want))
		}
	}
}

// Eight hosts send to one at the same time, through a queue that does not hold it all.
func TestIncastCostsLittle(t *testing.T) {
	s := newSim(t, 11, netConfig{
		delay: 20e3, jitter: 2000, mtu: 1500, window: 256, frames: 4096, idle: 1000, rate: 10 * gbit, queue: 64, sendFrames: 600,
	})
	s.shared = true
	s.addHost(Config{})
	var xs []*simConn
	for k := range 8 {
		s.addHost(Config{})
		x, _ := s.connect(k+1, 0)
		xs = append(xs, x)
	}
	s.run(5e9, func() bool { return !slices.ContainsFunc(xs, func(x *simConn) bool { return !x.up || !x.twin.up }) })
	const rounds, size = 30, 64 << 10
	from := s.now
	for r := range uint64(rounds) {
		for _, x := range xs {
			x.place(r, size)
		}
		s.run(s.now+5e9, func() bool { return !slices.ContainsFunc(xs, func(x *simConn) bool { return !x.done() }) })
	}
	ideal := float64(len(xs)*size) * (1500 + wireBytes) / (1500 - placedHeaderSize) / (10 * gbit)
	if got := float64(s.now-from) / rounds / ideal; got > 1.7 {
		t.Errorf("8 x 64 KiB through a queue of 64 packets take %.2f x the time of the link alone, want at most 1.7", got)
	}
}

// place sends a transfer of n bytes.
func (x *simConn) place(tag uint64, n int) {
	t := &simTransfer{seed: tag, seen: map[uint64]bool{}}
	t.Tag, t.Len, t.Total, t.User = tag, uint64(n), uint64(n), tag
	x.places = append(x.places, t)
	copied := *t
	x.twin.expectPlaced[tag] = &copied
	x.h.poll(x.h.s.now)
}

// A path that takes only shorter packets from now on loses all long ones, while acknowledgements and pings pass. If the
// peer takes no parts of fragments, the transfer ends after the dead time, and the error names the cause.
func TestPathThatLosesLongPackets(t *testing.T) {
	for _, c := range []struct {
		name   string
		closes bool
		load   func(x *simConn)
	}{
		{"placed", false, func(x *simConn) { x.place(0, 100<<20) }},
		{"ordered", false, func(x *simConn) { x.load(2000, 0, 100_000) }},
		{"while closing", true, func(x *simConn) { x.load(2000, 0, 100_000) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := faultless()
			w.mtu, w.ends[1].whole = 9000, true
			s := newSim(t, 1, w)
			s.addHost(Config{DeadTime: time.Second})
			s.addHost(Config{DeadTime: time.Second})
			x, y := s.connect(0, 1)
			s.run(s.now+20e6, func() bool { return x.up && y.up })
			from := s.now
			if c.closes {
				s.w.hole = 1500
				c.load(x)
				s.pass(200_000)
				x.close(false)
				s.run(from+3e9, func() bool { return x.h.e.Conns() == 0 && y.err != nil })
				y.wantErr(errAborted)
				return
			}
			c.load(x)
			s.pass(200_000)
			s.w.hole, s.w.holeFrom = 1500, s.now
			from = s.now
			s.run(from+3e9, func() bool { return x.err != nil && y.err != nil })
			x.wantErr(errLost)
			y.wantErr(errAborted)
			if !strings.Contains(fmt.Sprint(x.err), "path MTU") || s.now-from > 1200e6 {
				s.fail("ended after %v with %v", time.Duration(s.now-from), x.err)
			}
			s.leftovers()
		})
	}
}

// A process that does not run for longer than its own dead time blames no peer for that.
func TestOwnStallIsNotThePeersSilence(t *testing.T) {
	w := faultless()
	s := newSim(t, 1, w)
	s.addHost(Config{DeadTime: 20 * time.Second})
	s.addHost(Config{DeadTime: time.Second})
	x, y := s.connect(0, 1)
	s.run(s.now+20e6, func() bool { return x.up && y.up })
	y.place(0, 10<<20)
	y.load(200, 0, 100_000)
	s.pass(200_000)
	s.w.stallAt, s.w.stallFor = s.now, 5e9
	s.run(s.now+20e9, func() bool { return y.done() })
	if err := errors.Join(x.err, y.err); err != nil {
		s.fail("%v", err)
	}
	s.finish()
}

// A peer may acknowledge fragments behind the first one alone, and then stop exactly there.
func TestPeerThatAcknowledgesNoFurther(t *testing.T) {
	e, p, c, _, _ := victim(t, false)
	for range 2 {
		f, _ := p.Get()
		c.Post(e.now, f, 10, false)
	}
	e.Flush(e.now)
	input := func(cum uint64, word byte) {
		n := ackSize
		if word != 0 {
			n += 8
		}
		e.Input(e.now, nil, Frame{Data: packet(c, n, func(h *header, b []byte) {
			h.kind, h.cum = kindAck, cum
			if word != 0 {
				h.words, b[ackSize] = 1, word
			}
		})})
	}
	input(0, 1)
	input(1, 0)
	dead := Time(e.cfg.DeadTime)
	for from := e.now; p.down == nil; e.now += dead / 8 {
		if e.now > from+2*dead {
			t.Fatal("the connection goes on")
		}
		input(1, 0)
		e.Tick(e.now)
	}
	if !errors.Is(p.down, errLost) {
		t.Errorf("the connection ended with %v, want %v", p.down, errLost)
	}
}

// Close waits for a peer that does not take messages until the dead time is over, and no longer.
func TestCloseEndsWithoutThePeersCredit(t *testing.T) {
	s, x, y := pair(t, 1, faultless())
	y.stuck = true
	x.load(1000, 0, 1000)
	y.load(3, 0, 100)
	s.run(s.now+1e9, func() bool { return x.c.waited && x.c.inflight == 0 && x.c.una < x.c.end })
	from := s.now
	x.close(false)
	y.place(9, 100_000) // what arrives at an end that has closed is not acknowledged
	s.run(from+5e9, func() bool { return x.h.e.Conns() == 0 && y.err != nil })
	y.wantErr(errAborted)
	if s.now-from > 2100e6 {
		s.fail("the end took %v, the dead time is 1s", time.Duration(s.now-from))
	}
	s.leftovers()
}
