package link

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"
)

// randomNet is a network that a seed makes up.
func randomNet(s *sim) netConfig {
	r := s.rnd
	chance := func(p, most float64) float64 {
		if r.Float64() < p {
			return r.Float64() * most
		}
		return 0
	}
	w := netConfig{
		loss: chance(0.5, 0.15), dup: chance(0.4, 0.2), damage: chance(0.3, 0.05), reorder: chance(0.5, 0.4),
		delay: Time(1000 + r.Int64N(200_000)), jitter: Time(r.Int64N(20_000)), late: Time(1 + r.Int64N(2_000_000)),
		burst: chance(0.3, 0.002), burstTime: 1 + Time(r.Int64N(20e6)), mtu: 256 + r.IntN(1300), encrypt: r.IntN(6) == 0,
		window: 64 << r.IntN(7), frames: 3*4*minShare + r.IntN(1000), idle: Time(r.Int64N(50_000)), keyPackets: 50,
	}
	if r.IntN(3) == 0 {
		w.delay *= 20
	}
	if r.IntN(3) == 0 {
		w.rate, w.queue = 0.01+r.Float64(), 5+r.IntN(200)
	}
	if r.IntN(2) == 0 {
		w.slowTx, w.txRoom = Time(1000+r.Int64N(30_000)), 1+r.IntN(64)
	}
	if r.IntN(4) == 0 {
		w.cutFrom = Time(r.Int64N(20e6))
		w.cutTo = w.cutFrom + Time(r.Int64N(1.5e9))
	}
	if r.IntN(6) == 0 {
		w.stallAt, w.stallFor = Time(r.Int64N(20e6)), Time(r.Int64N(1.5e9))
	}
	randomEnds(r, &w)
	holds := func(e endConfig) bool {
		return max(e.unit, e.mtu) >= partPacket && (e.unit == 0 || e.unit >= partPacket)
	}
	if r.IntN(4) == 0 && holds(w.ends[0]) && holds(w.ends[1]) {
		w.hole, w.holeFrom = partPacket+r.IntN(w.mtu), Time(r.Int64N(20e6))
		if r.IntN(2) == 0 {
			w.holeTo = w.holeFrom + Time(r.Int64N(100e6))
		}
	}
	return w
}

// randomEnds makes up what each host has for itself: packets longer than its frames, and other limits than the peer's.
func randomEnds(r *rand.Rand, w *netConfig) {
	if r.IntN(3) == 0 {
		return
	}
	w.mtu = 256 + r.IntN(8000)
	w.longFrames = 1 + r.IntN(20)
	for k := range w.ends {
		end := endConfig{mtu: w.mtu, unit: 256 + r.IntN(1300), window: 64 << r.IntN(7)}
		if r.IntN(3) == 0 {
			end.mtu = 256 + r.IntN(8000)
		}
		end.frames = 3*4*max(minShare, 2*units(end.mtu, end.unit)) + r.IntN(1000)
		w.ends[k] = end
	}
}

// seedsOf runs f over the seeds from 1 to n, on all processors, or with the one of BYWASH_SEED; a short
// test runs a part of them.
func seedsOf(t *testing.T, n int, f func(t *testing.T, seed uint64)) {
	if v := os.Getenv("BYWASH_SEED"); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		f(t, seed)
		return
	}
	if testing.Short() {
		n = max(n/25, 2)
	}
	percent := debug.SetGCPercent(800) // the heap is small, and a quarter of the time went into its collection
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	parts := runtime.GOMAXPROCS(0)
	for part := range parts {
		t.Run(fmt.Sprintf("part %d of %d", part+1, parts), func(t *testing.T) {
			t.Parallel()
			for k := part; k < n; k += parts {
				f(t, uint64(k+1))
			}
		})
	}
}

// With any faults of the network that last less than the dead time, every message is delivered exactly once and in
// order, memory and credit stay within their bounds, and no frame is left over.
func TestEveryMessageArrivesOnceAndInOrder(t *testing.T) {
	n := 10_000
	if os.Getenv("BYWASH_SOAK") == "" { // all of them take two minutes of processor time
		n /= 40
	}
	seedsOf(t, n, func(t *testing.T, seed uint64) {
		s := newSim(t, seed, netConfig{})
		s.seldom = 16
		s.w = randomNet(s)
		s.addHost(Config{DeadTime: 2 * time.Second})
		s.addHost(Config{DeadTime: 2 * time.Second})
		for range 1 + s.rnd.IntN(3) {
			x, y := s.connect(0, 1)
			x.lazy, y.lazy = s.rnd.IntN(2) == 0, s.rnd.IntN(2) == 0
			x.load(s.rnd.IntN(60), s.rnd.IntN(4), 6*s.w.mtu)
			if s.rnd.IntN(2) == 0 {
				y.load(s.rnd.IntN(60), s.rnd.IntN(4), 6*s.w.mtu)
			}
		}
		s.run(60e9, func() bool {
			done := true
			s.each(func(x *simConn) { done = done && x.done() })
			return done
		})
		s.each(func(x *simConn) {
			if x.err != nil {
				s.fail("conn %d broke: %v", x.name, x.err)
			}
		})
		s.finish()
	})
}
