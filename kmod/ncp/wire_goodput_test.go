//go:build cgo

package ncp

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// goodput is how many bytes of frames a second arrive over a bottleneck of rate bytes a second, in
// simulated time, and what was sent again for it.
func goodput(t *testing.T, loss, rate float64, rtt, queue, length time.Duration, flows int) (each []float64, again float64) {
	n := newSimNet(7)
	defer n.close()
	n.faults.delay, n.faults.loss = rtt/2, loss
	n.link.rate, n.link.queue = rate, queue
	var from, to []wireConfig
	for i := range flows {
		from = append(from, wireConfig{nic: uint16(i + 1), buffer: 1 << 20})
		to = append(to, wireConfig{nic: uint16(i + 101), buffer: 1 << 20})
	}
	a, b := n.addHost(from...), n.addHost(to...)
	got := make([]float64, flows)
	measuring := false
	for i := range flows {
		for _, c := range []*simNIC{a.nics[i], b.nics[i]} {
			if err := c.start(); err != nil {
				t.Fatal(err)
			}
			c.sizes = func() int { return 16404 }
			c.onFrame = func(_ uint16, b []byte) {
				if measuring {
					got[i] += float64(len(b) - 20)
				}
			}
		}
		wanted := uint16(i + 1)
		b.nics[i].only = &wanted
		a.nics[i].quota = 1 << 30
		peer := uint16(i + 101)
		a.nics[i].only = &peer
		a.nics[i].know(b.index)
	}
	n.run(n.now+length/4, nil)
	measuring = true
	before := a.counters()
	n.run(n.now+length, nil)
	if n.fail != nil {
		t.Fatal(n.fail)
	}
	after := a.counters()
	for i := range got {
		got[i] /= length.Seconds()
	}
	return got, float64(after.Retransmitted-before.Retransmitted) / float64(after.DatagramsOut-before.DatagramsOut)
}

func (h *simHost) counters() (sum wireCounters) {
	for _, c := range h.nics {
		sum.add(c.wire.counters())
	}
	return sum
}

// Isolated losses cost what they lose, and not the window. All times are simulated.
func TestWireGoodputUnderLoss(t *testing.T) {
	for _, path := range []struct {
		name               string
		rate               float64
		rtt, queue, length time.Duration
		least              [5]float64 // share of the line, by loss
	}{
		{"1 Gbit/s, 100 µs", 125e6, 100 * time.Microsecond, 2 * time.Millisecond, 200 * time.Millisecond, [5]float64{0.85, 0.8, 0.8, 0.7, 0.65}},
		{"1 Gbit/s, 1 ms", 125e6, time.Millisecond, 2 * time.Millisecond, 200 * time.Millisecond, [5]float64{0.85, 0.8, 0.8, 0.7, 0.65}},
		{"1 Gbit/s, 1 ms, shallow queue", 125e6, time.Millisecond, 200 * time.Microsecond, 200 * time.Millisecond, [5]float64{0.6, 0.6, 0.6, 0.6, 0.55}},
		{"100 Mbit/s, 10 ms", 12.5e6, 10 * time.Millisecond, 20 * time.Millisecond, 2 * time.Second, [5]float64{0.85, 0.8, 0.8, 0.75, 0.7}},
	} {
		for i, loss := range []float64{0, 0.01, 0.02, 0.05, 0.10} {
			if testing.Short() && i%4 > 0 || os.Getenv("BYWASH_SOAK") == "" && i%2 > 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%g%%", path.name, loss*100), func(t *testing.T) {
				each, again := goodput(t, loss, path.rate, path.rtt, path.queue, path.length, 1)
				share := each[0] / path.rate
				t.Logf("goodput %.1f %% of the line, %.1f %% sent again", 100*share, 100*again)
				if share < path.least[i] {
					t.Errorf("got %.2f of the line, want at least %.2f", share, path.least[i])
				}
			})
		}
	}
}
