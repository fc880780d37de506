package link

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A case of congestion: flows from a host each into one receiver, through one bottleneck.
type contest struct {
	flows  int
	queue  int     // packets in front of the bottleneck
	rate   float64 // of it, bytes/ns
	delay  Time    // one way
	spread float64 // the farthest host is so many times farther
	late   bool    // half of the flows begin later
	loss   float64
	mess   bool // packets are reordered and repeated, too
	mtu    int
	length Time
}

// outcome is what the flows got of it.
type outcome struct {
	jain, used   float64 // used: goodput by what the bottleneck could carry
	wait, wait99 time.Duration
	again        float64 // share of fragments that were sent again
	low, high    float64 // slowest and fastest flow, in shares of the mean
}

func (x *contest) run(t testing.TB, seed uint64) (o outcome) {
	w := weather{
		delay: x.delay, jitter: 2000, rate: x.rate, queue: x.queue, mtu: x.mtu, loss: x.loss, window: 256, frames: 4096, idle: 1000,
		sendFrames: 600,
	}
	if x.mess {
		w.reorder, w.late, w.dup = 0.01, 3*x.delay, 0.01
	}
	s := newSim(t, seed, w)
	s.shared, s.seldom = true, 64
	s.addHost(Config{})
	var flows []*simConn
	for k := range x.flows {
		h := s.addHost(Config{})
		if x.flows > 1 {
			h.far = Time(float64(x.delay) * (x.spread - 1) * float64(k) / float64(x.flows-1))
		}
		h.far = max(h.far, 0)
		a, b := s.connect(k+1, 0)
		a.flood, b.flood = true, true
		flows = append(flows, b)
	}
	begin := func(fs []*simConn) {
		for _, b := range fs {
			a := b.twin
			a.tide.Len = 1 << 50
			a.c.Start(s.now, &a.tide)
			a.h.poll(s.now)
		}
	}
	until := func(at Time) {
		s.push(simEvent{at: at, to: s.hosts[0]})
		s.run(at+1e9, func() bool { return s.now >= at })
	}
	early := flows
	if x.late {
		early = flows[:(x.flows+1)/2]
	}
	s.run(5e9, func() bool { return !slices.ContainsFunc(flows, func(b *simConn) bool { return !b.up || !b.twin.up }) })
	begin(early)
	if x.late {
		until(s.now + x.length/4)
		begin(flows[len(early):])
	}
	until(s.now + x.length/2)
	at, from, sent := s.now, make([]uint64, x.flows), s.sentBy()
	for k, b := range flows {
		from[k] = b.flooded
	}
	s.waits = make([]Time, 0, 1<<16)
	until(s.now + x.length)
	var sum, squares float64
	o.low = 1e9
	for k, b := range flows {
		got := float64(b.flooded - from[k])
		sum, squares = sum+got, squares+got*got
		o.low, o.high = min(o.low, got), max(o.high, got)
	}
	mean := sum / float64(x.flows)
	o.low, o.high = o.low/mean, o.high/mean
	o.jain = sum * sum / (float64(x.flows) * squares)
	o.used = sum / float64(s.now-at) / (x.rate * float64(x.mtu-PlacedHeaderSize) / float64(x.mtu+wireBytes))
	slices.Sort(s.waits)
	for _, d := range s.waits {
		o.wait += time.Duration(d)
	}
	if n := len(s.waits); n > 0 {
		o.wait /= time.Duration(n)
		o.wait99 = time.Duration(s.waits[n*99/100])
	}
	total := s.sentBy()
	o.again = float64(total.Retransmits-sent.Retransmits) / float64(total.Sent-sent.Sent)
	return o
}

// sentBy is what all senders have sent.
func (s *sim) sentBy() (sum Stats) {
	for _, h := range s.hosts[1:] {
		sum.Sent += h.e.stats.Sent
		sum.Retransmits += h.e.stats.Retransmits
	}
	return sum
}

func (o outcome) String() string {
	return fmt.Sprintf("jain %.3f (%.2f to %.2f of the mean)  used %5.1f %%  wait %6.1f µs, p99 %6.1f  again %5.2f %%",
		o.jain, o.low, o.high, 100*o.used, float64(o.wait)/1e3, float64(o.wait99)/1e3, 100*o.again)
}

const gbit = 0.125 // bytes/ns

func TestFigures(t *testing.T) {
	length := Time(200e6)
	for _, rtt := range []Time{40_000, 1_000_000} {
		for _, n := range []int{1, 2, 8, 32, 100} {
			for _, queue := range []int{20, 100, 1000} {
				x := contest{flows: n, queue: queue, rate: 10 * gbit, delay: rtt / 2, spread: 1, mtu: 1500, length: length}
				t.Logf("rtt %4d µs, %3d flows, queue %4d: %v", rtt/1000, n, queue, x.run(t, 1))
			}
		}
	}
	for _, n := range []int{2, 8, 32, 100} {
		x := contest{flows: n, queue: 200, rate: 10 * gbit, delay: 20_000, spread: 1, late: true, mtu: 1500, length: length}
		t.Logf("latecomers, %3d flows: %v", n, x.run(t, 1))
		x.late, x.spread = false, 10
		t.Logf("RTTs 1:10, %3d flows: %v", n, x.run(t, 1))
	}
	for _, delay := range []Time{20_000, 200_000} {
		for _, loss := range []float64{0, 0.001, 0.01, 0.02, 0.05, 0.1} {
			x := contest{flows: 1, queue: 500, rate: 10 * gbit, delay: delay, spread: 1, mtu: 1500, length: length, loss: loss}
			o := x.run(t, 1)
			x.mess = true
			t.Logf("delay %v, loss %4.1f %%: %v; messy: used %5.1f again %.1f", time.Duration(delay), 100*loss, o, 100*x.run(t, 1).used, 100*x.run(t, 1).again)
		}
	}
	_ = os.Args
	_ = filepath.Join
}
