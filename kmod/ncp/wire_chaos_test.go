//go:build cgo

package ncp

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

// chaos makes a network of a seed, which does its worst for some time and then heals.
func chaos(seed uint64) *simNet {
	n := newSimNet(seed)
	r := n.rng
	pick := func(all ...int) int { return all[r.IntN(len(all))] }
	n.faults = simFaults{
		loss:      r.Float64() * float64(pick(0, 2, 5, 10, 30)) / 100,
		duplicate: r.Float64() * float64(pick(0, 5, 10)) / 100,
		corrupt:   r.Float64() * float64(pick(0, 0, 2, 5)) / 100,
		repeat:    r.Float64() * float64(pick(0, 0, 5, 20)) / 100,
		delay:     time.Duration(pick(1, 20, 100, 1000, 5000)) * time.Microsecond,
	}
	n.faults.jitter = n.faults.delay * time.Duration(pick(0, 1, 2)) * time.Duration(r.IntN(100)) / 100
	frame := pick(64, 1000, 4096, 16404)
	for range 2 + r.IntN(2) {
		var nics []wireConfig
		for range pick(1, 1, 1, 2) {
			nics = append(nics, wireConfig{
				nic: uint16(1 + r.IntN(65535)), frame: frame, datagram: pick(512, 1452, 1452, 8900),
				buffer: pick(65536+32768*(frame/16384)*2, 131072, 262144), dead: 500 * time.Millisecond, links: 8, addresses: 8,
			})
		}
		n.addHost(nics...)
	}
	for _, h := range n.hosts {
		for i, c := range h.nics {
			c.config.nic = c.config.nic/16*16 + uint16(h.index*4+i) + 1 // no two alike
			c.quota = uint32(1 + r.IntN(40))
			c.lazy = r.IntN(4) == 0
			most := pick(16, 100, frame)
			c.sizes = func() int { return r.IntN(most + 1) }
			if err := c.start(); err != nil {
				n.errorf("%v: %+v", err, c.config)
				return n
			}
		}
	}
	n.most = 100000
	n.knows = r.IntN(3)
	n.acquaint()
	if r.IntN(3) > 0 {
		n.disturb(r)
	}
	return n
}

// acquaint tells each NIC the addresses of all other hosts, or only those of the higher or of the lower ones.
func (n *simNet) acquaint() {
	for _, h := range n.hosts {
		for _, c := range h.nics {
			c.acquaint()
		}
	}
}

func (c *simNIC) acquaint() {
	n := c.host.net
	for _, h := range n.hosts {
		if h != c.host && (n.knows == 0 || n.knows == 1 == (h.index > c.host.index)) {
			c.know(h.index)
		}
	}
}

// disturb cuts, stops and restarts, at random times of the first second.
func (n *simNet) disturb(r *rand.Rand) {
	for range 1 + r.IntN(5) {
		h := n.hosts[r.IntN(len(n.hosts))]
		other := n.hosts[r.IntN(len(n.hosts))]
		c := h.nics[r.IntN(len(h.nics))]
		at := time.Duration(r.Int64N(int64(time.Second)))
		length := time.Duration(r.Int64N(int64(900 * time.Millisecond)))
		switch r.IntN(4) {
		case 0:
			n.after(at, func() { h.pause(length) })
		case 1: // one direction, or both
			both := r.IntN(2) == 0
			n.after(at, func() {
				n.cut[[2]int{h.index, other.index}] = true
				n.cut[[2]int{other.index, h.index}] = both
			})
			n.after(at+length, func() { clear(n.cut) })
		case 2:
			n.after(at, func() { c.restart(length, r.IntN(2) == 0) })
		case 3: // at once: the peer sees no silence
			n.after(at, func() { c.restart(0, false) })
		}
	}
}

func (c *simNIC) restart(after time.Duration, goodbye bool) {
	n := c.host.net
	if c.wire == nil {
		return
	}
	if goodbye {
		c.wire.closeAll(n.now)
		c.flush()
	}
	c.stop()
	n.after(after, func() {
		if c.wire != nil {
			return
		}
		if err := c.start(); err != nil {
			n.errorf("%v", err)
			return
		}
		c.acquaint()
	})
}

// checkSeed runs a seed's network to its end.
func checkSeed(seed uint64) (wireCounters, error) {
	n := chaos(seed)
	err := n.check()
	n.close()
	if err == nil {
		err = n.fail
	}
	return n.sum, err
}

func (n *simNet) check() error {
	n.run(2*time.Second, nil)
	n.faults = simFaults{delay: n.faults.delay, jitter: n.faults.jitter}
	clear(n.cut)
	n.run(n.now+20*time.Second, n.complete)
	if n.fail != nil {
		return n.fail
	}
	for _, h := range n.hosts {
		for _, c := range h.nics {
			if !n.complete() {
				return fmt.Errorf("not complete at %v: NIC %d: %+v, %+v", n.now, c.config.nic, c.wire.counters(), c.wire.links())
			}
			if err := c.bounded(); err != nil {
				return err
			}
		}
	}
	return nil
}

// bounded says how the memory of a NIC goes beyond what its configuration allows.
func (c *simNIC) bounded() error {
	link := uint64(2*c.config.buffer) + 512*48 + 4096
	now, most := c.wire.memory()
	if limit := 65536 + uint64(c.config.links)*link; most > limit || now > most {
		return fmt.Errorf("NIC %d: %d bytes allocated, %d at most, expected at most %d", c.config.nic, now, most, limit)
	}
	return nil
}

// On any network each frame arrives exactly once, in order, or the link is reported down; once the network recovers,
// traffic continues.
func TestWireLosesNothingInChaos(t *testing.T) {
	seeds := 2000
	switch {
	case testing.Short():
		seeds = 100
	case os.Getenv("BYWASH_SOAK") == "": // all of them take twenty seconds of processor time
		seeds = 200
	}
	if *wireSeeds > 0 {
		seeds = *wireSeeds
	}
	from, to := uint64(1), uint64(seeds)
	if *wireSeed > 0 {
		from, to = *wireSeed, *wireSeed
	}
	var sum wireCounters
	for seed := from; seed <= to; seed++ {
		c, err := checkSeed(seed)
		if err != nil {
			t.Fatalf("seed %d (go test -run %s -wire.seed %d): %v", seed, t.Name(), seed, err)
		}
		sum.add(c)
	}
	t.Logf("%d seeds: %+v", to-from+1, sum)
	if to-from < 100 {
		return
	}
	for _, c := range []uint64{
		sum.Unauthenticated, sum.Stale, sum.Replayed, sum.Retransmitted, sum.Duplicates, sum.Timeouts, sum.Downs,
	} {
		if c == 0 {
			t.Errorf("a fault has not happened at all: %+v", sum)
		}
	}
}
