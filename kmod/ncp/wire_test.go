//go:build cgo

package ncp

import (
	"flag"
	"testing"
	"time"
)

var (
	wireSeeds = flag.Int("wire.seeds", 0, "how many networks of wires are simulated")
	wireSeed  = flag.Uint64("wire.seed", 0, "simulate this one alone")
)

// A healthy network brings up what was found behind an address, and carries frames of all sizes.
func TestWireFindsPeersAndCarriesFrames(t *testing.T) {
	n := newSimNet(1)
	defer n.close()
	n.faults.delay = 50 * time.Microsecond
	a := n.addHost(wireConfig{nic: 3, frame: 16404}, wireConfig{nic: 9, frame: 16404})
	b := n.addHost(wireConfig{nic: 5, frame: 16404})
	for _, h := range n.hosts {
		for _, c := range h.nics {
			c.quota = 100
			c.sizes = func() int { return n.rng.IntN(16405) }
			if err := c.start(); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.nics[0].know(a.index) // the other direction finds itself
	n.run(3*time.Second, n.complete)
	if n.fail != nil {
		t.Fatal(n.fail)
	}
	if !n.complete() {
		t.Fatalf("not complete: %+v, %+v", b.nics[0].wire.counters(), b.nics[0].wire.links())
	}
	if c := b.nics[0].wire.counters(); c.Retransmitted+c.Timeouts+c.Unauthenticated+c.Malformed+c.Overrun+c.Downs > 0 {
		t.Errorf("a network without faults: %+v", c)
	}
	t.Logf("done after %v, %+v", n.now, b.nics[0].wire.links())
}
