package link

import (
	"fmt"
	"sort"
	"testing"
)

func TestZZ(t *testing.T) {
	x := contest{flows: 100, queue: 100, rate: 10 * gbit, delay: 20000, spread: 1, mtu: 1500, length: 200e6}
	zz = func(s *sim, flows []*simConn, from []uint64) {
		idx := make([]int, len(flows))
		for k := range idx {
			idx[k] = k
		}
		sort.Slice(idx, func(a, b int) bool { return flows[idx[a]].flooded-from[idx[a]] < flows[idx[b]].flooded-from[idx[b]] })
		for _, k := range idx {
			c := flows[k].twin.c
			fmt.Printf("%d got %d: cwnd %.2f target %v room %v floor %.2f loss %.2f min %v srtt %v var %v latest %v inflight %d lost %d backoff %d look %v/%v pause %v fast %v limited %v lim %d next %d una %d probes %d again %d\n", k, flows[k].flooded-from[k], c.cwnd, c.target, c.room, c.floor, c.loss, c.minRTT, c.srtt, c.rttvar, c.latest, c.inflight, c.lost, c.backoff, c.lookAt-s.now, c.lookTo, c.lookPause, c.fast, c.limited, c.limit, c.next, c.una, c.e.stats.Probes, c.e.stats.Retransmits)
		}
	}
	t.Log(x.run(t, 1))
}
