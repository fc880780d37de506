//go:build linux && cgo

package ncp

import (
	"fmt"
	"testing"
)

// BenchmarkShort is one message of 8 bytes from a process to another of the NIC, posted, stepped and received, while
// others are registered and idle, each of which has posted something once.
func BenchmarkShort(b *testing.B) {
	for _, idle := range []int{0, 1000} {
		b.Run(fmt.Sprint("idle=", idle), func(b *testing.B) {
			l := tableLimits{processes: 1100, names: 1100, groups: 8, nics: 8, packetSize: 16384, localMemory: 1 << 20}
			c := newCluster(b, 1, l)
			small := registrationSizes{commands: 8, sends: 2, receives: 2, regionSize: 64}
			for i := range idle {
				p, _ := c.nodes[0].begin(fmt.Sprint("idle", i), "", 0, small)
				c.run()
				p.post(cmdCancelSend, 0, 0, "")
			}
			x, _ := c.nodes[0].begin("x", "", 0, small)
			y, _ := c.nodes[0].begin("y", "", 0, small)
			c.run()
			nic := c.nodes[0].nic
			for range 2000 { // until nobody looks at the idle ones
				nic.step(1)
			}
			x.context(false, 0, message{peer: "y", tag: 1, len: 8})
			y.context(true, 0, message{peer: "x", tag: 1, len: 8, flags: flagDoorbell | flagInline})
			b.ReportAllocs()
			for b.Loop() {
				y.post(cmdReceive, 0, 0, "")
				x.post(cmdSendShort, 0, 0, "")
				for s := free; s != done; s, _ = y.doorbell(true, 0) {
					nic.step(2)
				}
				y.clear(true, 0)
			}
		})
	}
}

// BenchmarkFar is a round trip of short messages between two NICs, each way with a receive that is posted before, and the
// frames that it takes.
func BenchmarkFar(b *testing.B) {
	for _, n := range []int{8, 1024, 1025} {
		b.Run(fmt.Sprint("len=", n), func(b *testing.B) {
			l := limits
			l.packetSize = 16384
			c := newCluster(b, 2, l)
			r := registrationSizes{commands: 8, sends: 1, receives: 1, regionSize: 2048}
			var ps [2]*process
			for i, name := range []string{"x", "y"} {
				ps[i], _ = c.nodes[i].begin(name, "", 0, r)
			}
			c.run()
			for i, p := range ps {
				peer := ps[1-i].name
				p.context(false, 0, message{peer: peer, tag: 1, len: n, flags: flagDoorbell | flagInline})
				p.context(true, 0, message{peer: peer, tag: 1, len: n, flags: flagDoorbell | flagInline})
				p.post(cmdReceive, 0, 0, "")
			}
			c.run()
			frames, steps := 0, 0
			b.ReportAllocs()
			for b.Loop() {
				for i, p := range ps {
					q := ps[1-i]
					p.post(cmdSend, 0, 0, "")
					for s := free; s != done; s, _ = q.doorbell(true, 0) {
						for j, node := range c.nodes {
							steps += node.nic.step(2)
							frames += node.nic.carry(c.nodes[1-j].nic, 8)
						}
					}
					q.clear(true, 0)
					q.post(cmdReceive, 0, 0, "")
				}
			}
			b.ReportMetric(float64(frames)/float64(b.N), "frames/op")
			b.ReportMetric(float64(steps)/float64(b.N), "steps/op")
		})
	}
}

func BenchmarkLong(b *testing.B) {
	for nics := 1; nics <= 2; nics++ {
		b.Run(fmt.Sprint("nics=", nics), func(b *testing.B) {
			l := limits
			l.packetSize = 16384
			c := newCluster(b, nics, l)
			x, y := c.nodes[0].register("x"), c.nodes[nics-1].register("y")
			const n = 1 << 20
			_, h := x.memory(b, n, readAccess)
			_, th := y.memory(b, n, writeAccess)
			x.context(false, 0, message{peer: "y", tag: 1, len: n, descriptors: []descriptor{{h, n, 0}}})
			y.context(true, 0, message{peer: "x", tag: 1, len: n, flags: flagDoorbell, descriptors: []descriptor{{th, n, 0}}})
			b.SetBytes(n)
			for b.Loop() {
				y.post(cmdReceive, 0, 0, "")
				x.post(cmdSend, 0, 0, "")
				c.run()
				if s, _ := y.doorbell(true, 0); s != done {
					b.Fatal(s)
				}
				y.clear(true, 0)
			}
		})
	}
}
