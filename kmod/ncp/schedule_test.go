//go:build linux && cgo

package ncp

import (
	"fmt"
	"math"
	"testing"
)

// jain is Jain's fairness index: 1 when all are served alike, 1/n when one is served alone.
func jain(served []int) float64 {
	sum, squares := 0.0, 0.0
	for _, s := range served {
		sum += float64(s)
		squares += float64(s) * float64(s)
	}
	return sum * sum / (float64(len(served)) * squares)
}

// Both levels: a process with one operation gets as many packets as one with three, whose operations get alike.
func TestRoundRobinIsFair(t *testing.T) {
	for nics := 1; nics <= 2; nics++ {
		const processes, size = 6, 200_000
		c := newCluster(t, nics, limits)
		b := c.nodes[nics-1].register("b")
		var ps []*process
		var from []uint32
		for i := range processes {
			p := c.nodes[0].register(fmt.Sprint("p", i))
			_, h := p.memory(t, size, readAccess)
			ps, from = append(ps, p), append(from, h)
		}
		_, th := b.memory(t, size, writeAccess)
		for context := range uint16(8) { // one operation each, but three of p5
			p := min(context, 5)
			b.recv(context, message{peer: ps[p].name, tag: context - p, len: size, descriptors: []descriptor{{th, size, 0}}})
		}
		c.run()
		for context := range uint16(8) {
			p := min(context, 5)
			ps[p].send(context-p, message{peer: "b", tag: context - p, len: size, descriptors: []descriptor{{from[p], size, 0}}})
		}
		served := make([]int, processes)
		for range 300 {
			for _, n := range c.nodes {
				n.nic.step(1)
			}
			c.carry()
		}
		for i, p := range ps {
			s, _ := p.node.nic.processStatistics(p.index)
			served[i] = int(s.packetsSent)
		}
		if f := jain(served); f < 0.999 {
			t.Errorf("nics=%d, processes: fairness %.4f: %v", nics, f, served)
		}
		t.Logf("nics=%d: packets by process %v, fairness %.5f", nics, served, jain(served))
	}
}

func TestOperationsOfOneProcessTakeTurns(t *testing.T) {
	c := newCluster(t, 2, limits)
	a, b := c.nodes[0].register("a"), c.nodes[1].register("b")
	const size = 100 * 1024
	_, h := a.memory(t, size, readAccess)
	_, th := b.memory(t, size, writeAccess)
	for i := range uint16(4) {
		b.recv(i, message{peer: "a", tag: i, len: size, descriptors: []descriptor{{th, size, 0}}})
	}
	c.run()
	for i := range uint16(4) {
		a.send(i, message{peer: "b", tag: i, len: size, descriptors: []descriptor{{h, size, 0}}})
	}
	packets := make([]int, 4)
	for range 120 {
		c.nodes[0].nic.step(1)
		for f := c.nodes[0].nic.frame(2); len(f) > 0; f = c.nodes[0].nic.frame(2) {
			if tag := int(f[12])<<8 | int(f[13]); tag < 4 {
				packets[tag]++
			}
			c.nodes[1].nic.receive(1, f)
			c.nodes[0].nic.consume(2)
		}
		c.nodes[1].nic.step(2)
		c.carry()
	}
	least, most := math.MaxInt, 0
	for _, n := range packets {
		least, most = min(least, n), max(most, n)
	}
	if least == 0 || most-least > 4 {
		t.Fatalf("packets by operation: %v", packets)
	}
	t.Logf("packets by operation %v, fairness %.5f", packets, jain(packets))
}

// A short message does not wait for the long ones that were there before it.
func TestShortMessagePassesLongOnes(t *testing.T) {
	onOneAndTwo(t, func(t *testing.T, c *cluster, a, b *process) {
		_, h := a.memory(t, 100_000, readAccess)
		_, th := b.memory(t, 100_000, writeAccess)
		for i := range uint16(7) {
			b.recv(i, message{peer: "a", tag: i, len: 100_000, flags: flagDoorbell, descriptors: []descriptor{{th, 100_000, 0}}})
		}
		b.recv(7, message{peer: "a", tag: 7, len: 8, flags: flagDoorbell | flagInline})
		c.run()
		for i := range uint16(7) {
			a.send(i, message{peer: "b", tag: i, len: 100_000, flags: flagDoorbell, descriptors: []descriptor{{h, 100_000, 0}}})
		}
		a.short(7, message{peer: "b", tag: 7, len: 8, flags: flagDoorbell})
		for range 40 {
			for _, n := range c.nodes {
				n.nic.step(1)
			}
			c.carry()
		}
		b.wantRecv(t, 7, done, 8)
		b.wantRecv(t, 0, free, 0)
		c.run()
		b.wantRecv(t, 6, done, 100_000)
	})
}
