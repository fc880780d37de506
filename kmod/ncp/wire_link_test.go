//go:build cgo

package ncp

import (
	"math"
	"testing"
	"time"
)

// pairNet is two hosts with a NIC each, linked.
func pairNet(t *testing.T, seed uint64, change func(c *wireConfig)) (n *simNet, a, b *simNIC) {
	n = newSimNet(seed)
	t.Cleanup(n.close)
	n.faults.delay = 100 * time.Microsecond
	for i := range 2 {
		c := wireConfig{nic: uint16(10 + i), frame: 4096, buffer: 32768}
		if change != nil {
			change(&c)
		}
		h := n.addHost(c)
		h.nics[0].quota = 50
		h.nics[0].sizes = func() int { return n.rng.IntN(4097) }
		if err := h.nics[0].start(); err != nil {
			t.Fatal(err)
		}
	}
	a, b = n.hosts[0].nics[0], n.hosts[1].nics[0]
	a.know(1)
	return n, a, b
}

func finish(t *testing.T, n *simNet, within time.Duration) {
	t.Helper()
	n.run(n.now+within, n.complete)
	if n.fail != nil {
		t.Fatal(n.fail)
	}
	if !n.complete() {
		for _, h := range n.hosts {
			t.Errorf("not complete: %+v, %+v", h.nics[0].wire.counters(), h.nics[0].wire.links())
		}
	}
}

// Replaying all recorded datagrams, to both ends, from any address, while the link is up or after ends were restarted,
// neither ends a link, nor makes one, nor delivers a frame twice.
func TestWireRepeatedDatagramsChangeNothing(t *testing.T) {
	for _, restart := range [][]int{nil, {0}, {1}, {0, 1}} {
		n, a, b := pairNet(t, 3, nil)
		nics := []*simNIC{a, b}
		var tape [][]byte
		n.tap = func(data []byte) { tape = append(tape, data) }
		finish(t, n, time.Second)
		for _, i := range restart { // the first two links are on the tape
			nics[i].restart(0, false)
			n.run(n.now+time.Millisecond, nil)
		}
		n.run(n.now+7*time.Second, nil)
		finish(t, n, time.Second)
		for _, i := range restart {
			nics[i].restart(0, false)
			n.run(n.now+time.Millisecond, nil)
		}
		n.run(n.now+7*time.Second, nil)
		finish(t, n, time.Second)
		n.tap = nil
		before := []int{len(a.events), len(b.events)}
		for i, d := range tape {
			n.arrive(time.Duration(i)*20*time.Microsecond, n.hosts[0], 1+i%2, d)
			n.arrive(time.Duration(i)*20*time.Microsecond, n.hosts[1], i%2*2, d)
		}
		n.run(n.now+10*time.Second, nil)
		if n.fail != nil {
			t.Fatalf("restarted %v: %v", restart, n.fail)
		}
		for i, c := range nics {
			if len(c.events) != before[i] {
				t.Errorf("restarted %v: NIC %d: events %+v", restart, c.config.nic, c.events[before[i]:])
			}
			if got := c.wire.counters(); got.Replayed+got.Stale == 0 {
				t.Errorf("restarted %v: nothing was dropped: %+v", restart, got)
			}
		}
		finish(t, n, time.Second)
	}
}

// Datagrams for a NIC that is gone have no lasting effect.
func TestWireRepeatedDatagramsBringNobodyBack(t *testing.T) {
	n, a, b := pairNet(t, 4, nil)
	var tape [][]byte
	n.tap = func(data []byte) { tape = append(tape, data) }
	finish(t, n, time.Second)
	n.tap = nil
	b.stop()
	n.run(n.now+6*time.Second, nil)
	if e := a.events[len(a.events)-1]; e.up || e.reason != wireSilent {
		t.Fatalf("got %+v", a.events)
	}
	events := len(a.events)
	for i, d := range tape {
		n.arrive(time.Duration(i)*time.Millisecond, n.hosts[0], 1, d)
	}
	n.run(n.now+20*time.Second, nil)
	if len(a.events) != events || n.fail != nil {
		t.Errorf("events %+v, %v", a.events[events:], n.fail)
	}
}

// Silence is told once; a peer, or a host, that is stopped for less loses nothing; an end that was started
// again at once is seen at once; a goodbye too.
func TestWireDeathsAreTold(t *testing.T) {
	const dead = 5 * time.Second
	for _, c := range []struct {
		name   string
		do     func(n *simNet, b *simNIC)
		within time.Duration
		want   []wireEvent // of NIC 10, after the first UP
	}{
		{"cut", func(n *simNet, _ *simNIC) { n.cut[[2]int{0, 1}], n.cut[[2]int{1, 0}] = true, true }, dead + time.Second,
			[]wireEvent{{11, false, wireSilent}}},
		{"cut for less", func(n *simNet, _ *simNIC) {
			n.cut[[2]int{0, 1}], n.cut[[2]int{1, 0}] = true, true
			n.after(dead*3/4, func() { clear(n.cut) })
		}, 3 * dead, nil},
		{"stopped for less", func(n *simNet, b *simNIC) { b.host.pause(dead * 4 / 5) }, 3 * dead, nil},
		{"both stopped for long", func(n *simNet, b *simNIC) {
			for _, h := range n.hosts {
				h.pause(10 * dead)
			}
		}, 13 * dead, nil},
		{"started again", func(_ *simNet, b *simNIC) { b.restart(time.Millisecond, false) }, time.Second,
			[]wireEvent{{11, false, wireRestarted}, {11, true, 0}}},
		{"taken down by the other end", func(n *simNet, b *simNIC) { b.wire.restart(n.now, 10); b.step() }, time.Second,
			[]wireEvent{{11, false, wireRestarted}, {11, true, 0}}},
		{"taken down by this end", func(n *simNet, _ *simNIC) {
			a := n.hosts[0].nics[0]
			a.wire.restart(n.now, 11)
			a.step()
		}, time.Second, []wireEvent{{11, false, wireRestarted}, {11, true, 0}}},
		{"goodbye", func(_ *simNet, b *simNIC) { b.restart(math.MaxInt64/4, true) }, 100 * time.Millisecond,
			[]wireEvent{{11, false, wireClosed}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, a, b := pairNet(t, 5, func(c *wireConfig) { c.dead = dead })
			finish(t, n, time.Second)
			events := len(a.events)
			a.peers[11].sent, b.peers[10].sent = 50, 50
			c.do(n, b)
			n.run(n.now+c.within, nil)
			if n.fail != nil {
				t.Fatal(n.fail)
			}
			got := a.events[events:]
			if len(got) != len(c.want) {
				t.Fatalf("got %+v, want %+v", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Fatalf("got %+v, want %+v", got, c.want)
				}
			}
		})
	}
}

// A receiver that consumes nothing stops its peer, not others, and loses nothing.
func TestWireSlowReceiverIsNotOverrun(t *testing.T) {
	n, a, b := pairNet(t, 6, nil)
	a.quota, b.quota = 2000, 0
	held := true
	b.hold = func() bool { return held }
	n.run(n.now+3*time.Second, nil)
	if l := a.wire.links()[0]; !l.up || l.queued < 16384 || a.peers[11].sent == 2000 {
		t.Errorf("the sender goes on: %+v", l)
	}
	held = false
	b.step()
	finish(t, n, 10*time.Second)
	if c := b.wire.counters(); c.Overrun > 0 {
		t.Errorf("got %+v", c)
	}
}

// All sizes of frames fit into the smallest buffers, over the smallest and the largest datagrams.
func TestWireAllSizes(t *testing.T) {
	for _, c := range []wireConfig{
		{frame: 1000, buffer: 4096, datagram: 512},
		{frame: 16404, buffer: 131072, datagram: 512},
		{frame: 16404, buffer: 131072, datagram: 8952},
		{frame: 65556, buffer: 524288, datagram: 65507},
		{frame: 8184, buffer: 32768, datagram: 1452},
	} {
		n, a, b := pairNet(t, 8, func(to *wireConfig) { to.frame, to.buffer, to.datagram = c.frame, c.buffer, c.datagram })
		n.faults.loss = 0.01
		size := 0
		for _, c := range []*simNIC{a, b} {
			c.quota = 300
			c.sizes = func() int {
				size++
				return []int{simHead, c.config.frame, size % c.config.frame}[size%3]
			}
		}
		finish(t, n, 30*time.Second)
	}
	if _, err := newWire(wireConfig{nic: 1, frame: 1024, buffer: 4096}, 0); err == nil {
		t.Error("a buffer of less than four frames is allowed")
	}
}

// An idle link costs a datagram now and then, and no time.
func TestWireIdleLinkIsQuiet(t *testing.T) {
	n, a, b := pairNet(t, 9, nil)
	finish(t, n, time.Second)
	n.run(n.now+time.Second, nil)
	before := a.wire.counters().DatagramsOut + b.wire.counters().DatagramsOut
	steps := a.steps
	n.run(n.now+100*time.Second, nil)
	after := a.wire.counters().DatagramsOut + b.wire.counters().DatagramsOut
	if after-before > 600 || after == before {
		t.Errorf("%d datagrams in 100 s", after-before)
	}
	if a.steps-steps > 1500 {
		t.Errorf("the host ran %d times in 100 s", a.steps-steps)
	}
}

// A long way there and back delays the link, and brings up one.
func TestWireLongRoundTrip(t *testing.T) {
	for _, delay := range []time.Duration{150 * time.Millisecond, 400 * time.Millisecond} {
		for who := range 2 {
			n, a, b := pairNet(t, 10, nil)
			n.faults.delay = delay
			if who == 1 {
				a.restart(0, false) // forgets where b is; so b must find it
				a.host.net.knows = 2
				n.run(n.now, nil)
				b.know(0)
			}
			finish(t, n, 60*time.Second)
			if len(a.events) != 1 || len(b.events) != 1 {
				t.Errorf("%v: events %+v and %+v", delay, a.events, b.events)
			}
		}
	}
}

// Many senders share a receiver's line, and none starves. All times are simulated.
func TestWireManyIntoOne(t *testing.T) {
	for _, flows := range []int{2, 8} {
		if testing.Short() && flows == 2 {
			continue
		}
		each, again := goodput(t, 0, 125e6, 200*time.Microsecond, 2*time.Millisecond, time.Second, flows)
		sum, least := 0.0, each[0]
		for _, v := range each {
			sum, least = sum+v, min(least, v)
		}
		t.Logf("%d flows: %.1f %% of the line, the least of them %.1f %% of a fair share, %.1f %% sent again",
			flows, 100*sum/125e6, 100*least*float64(flows)/sum, 100*again)
		if sum < 0.8*125e6 || least < 0.2*sum/float64(flows) {
			t.Errorf("got %.0f of %v bytes a second, least %.0f", sum, 125e6, least)
		}
	}
}

// BenchmarkWire moves frames from one wire to another, without a network.
func BenchmarkWire(b *testing.B) {
	for _, c := range []struct {
		name            string
		frame, datagram int
	}{
		{"28B/1452", 28, 1452}, {"16KiB/1452", 16404, 1452}, {"16KiB/8952", 16404, 8952}, {"16KiB/65507", 16404, 65507},
	} {
		b.Run(c.name, func(b *testing.B) {
			now := time.Second
			var w [2]*wire
			for i := range w {
				w[i], _ = newWire(wireConfig{nic: uint16(1 + i), datagram: c.datagram, seed: uint64(i + 1)}, now)
				defer w[i].close()
			}
			buffer := make([]byte, 65536)
			var to wireAddress
			pump := func() {
				for i := range w {
					for n := w[i].output(now, &to, buffer); n > 0; n = w[i].output(now, &to, buffer) {
						w[1-i].input(now, &to, buffer[:n])
					}
					if w[i].timer() <= now {
						w[i].tick(now)
					}
				}
			}
			f := wireForger{from: 2, to: 1}
			w[0].input(now, &to, f.handshake(wireConnectRequest, 16404))
			for range 4 {
				pump()
			}
			w[0].event()
			w[1].event()
			b.SetBytes(int64(c.frame))
			b.ReportAllocs()
			for b.Loop() {
				p := w[0].reserve(2, c.frame)
				for ; p == nil; p = w[0].reserve(2, c.frame) {
					now += 10 * time.Microsecond
					pump()
					for _, got := w[1].peek(now); got != nil; _, got = w[1].peek(now) {
						w[1].consume(now)
					}
				}
				w[0].commit(now, 2, c.frame)
			}
		})
	}
}

// A host that reads its clock before other calls tells an earlier time now and then: nothing comes of it.
func TestWireTimeThatGoesBack(t *testing.T) {
	n, a, b := pairNet(t, 11, nil)
	a.back, b.back = 3*time.Millisecond, 700*time.Microsecond
	n.faults.loss = 0.02
	finish(t, n, 20*time.Second)
	for _, c := range []*simNIC{a, b} {
		if l := c.wire.links()[0]; len(c.events) != 1 || l.rtt > 100*time.Millisecond {
			t.Errorf("NIC %d: %+v, %+v", c.config.nic, c.events, l)
		}
	}
}
