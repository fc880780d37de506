//go:build linux && cgo

package ncp

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// crumbs are descriptors of one byte each.
func crumbs(h uint32, n int) (d []descriptor) {
	for i := range n {
		d = append(d, descriptor{h, 1, uint64(i)})
	}
	return d
}

// stepWork is what a step may move of one-byte descriptors: three parts of NCP_WORK.
const stepWork = 3 * 256

const packet = 1024

// steps runs the cluster a step at a time, until nothing can be done. No step may bring more bytes to where they go, in
// one-byte pieces, than stepWork; pieces that are a packet count as one. The bytes are not 0.
func (c *cluster) steps(t *testing.T, to ...[]byte) (n int) {
	t.Helper()
	came := func() (sum int) {
		for _, b := range to {
			sum += len(b) - bytes.Count(b, []byte{0})
		}
		return sum
	}
	for busy := true; busy; n++ {
		busy = false
		for _, node := range c.nodes {
			before := came()
			busy = node.nic.step(1) > 0 || busy
			if got := came() - before; got > stepWork && got != packet {
				t.Fatalf("step %d of NIC %d moved %d descriptors, want at most %d", n, node.nic.id, got, stepWork)
			} else if got >= 200 && got%packet != 0 && node.nic.weight() < 200/32 {
				t.Fatalf("step %d of NIC %d moved %d descriptors, and weighs %d", n, node.nic.id, got, node.nic.weight())
			}
		}
		busy = c.carry() || busy
	}
	return n
}

// Messages of thousands of descriptors, at either end or both, take many steps.
func TestStepIsBoundedInDescriptors(t *testing.T) {
	const size = 3 * packet
	r := registrationSizes{commands: 16, sends: 2, receives: 2, regionSize: 1024, poolEntries: size}
	whole := func(h uint32, n int) []descriptor { return []descriptor{{h, uint32(n), 0}} }
	for _, tc := range []struct {
		name     string
		from, to func(uint32, int) []descriptor
		late     bool // the receive comes when the message is in local memory
		early    bool // and before that when it is on its way there
	}{
		{"sender", crumbs, whole, false, false},
		{"receiver", whole, crumbs, false, false},
		{"both", crumbs, crumbs, false, false},
		{"buffered", crumbs, crumbs, true, false},
		{"being_buffered", crumbs, crumbs, true, true},
	} {
		for _, nics := range []int{1, 2} {
			t.Run(fmt.Sprint(tc.name, "/nics=", nics), func(t *testing.T) {
				c := newCluster(t, nics, limits)
				a, _ := c.nodes[0].begin("a", "", 0, r)
				b, _ := c.nodes[nics-1].begin("b", "", 0, r)
				c.run()
				from, h := a.memory(t, size, readAccess)
				to, th := b.memory(t, size, writeAccess)
				for i := range from {
					from[i] = byte(1 + i%255)
				}
				post := func() {
					b.context(true, 0, message{peer: "a", tag: 1, len: size, flags: flagDoorbell | flagPool, descriptors: tc.to(th, size)})
					b.post(cmdReceive, 0, 0, "")
				}
				if !tc.late {
					post()
					c.run()
				}
				a.context(false, 0, message{peer: "b", tag: 1, len: size, flags: flagDoorbell | flagPool, descriptors: tc.from(h, size)})
				a.post(cmdSend, 0, 0, "")
				if tc.early {
					for range 4 {
						c.nodes[0].nic.step(1)
						c.carry()
						c.nodes[nics-1].nic.step(1)
						c.carry()
					}
				}
				if !tc.early {
					c.steps(t, to)
				}
				if tc.late {
					post()
					c.steps(t, to)
				}
				a.wantSend(t, 0, done, size)
				b.wantRecv(t, 0, done, size)
				if !bytes.Equal(from, to) {
					t.Fatal("other bytes arrived")
				}
			})
		}
	}
}

// Descriptors of no bytes are read too.
func TestStepIsBoundedInEmptyDescriptors(t *testing.T) {
	for _, nics := range []int{1, 2} {
		c := newCluster(t, nics, limits)
		a, _ := c.nodes[0].begin("a", "", 0,
			registrationSizes{commands: 16, sends: 2, receives: 2, regionSize: 1024, poolEntries: 60000})
		b := c.nodes[nics-1].register("b")
		_, h := a.memory(t, 8, readAccess)
		b.recv(0, message{peer: "a", tag: 1, len: 8, flags: flagDoorbell | flagInline})
		c.run()
		d := slices.Repeat([]descriptor{{h, 0, 0}}, 60000)
		d[len(d)-1].len = 8
		a.context(false, 0, message{peer: "b", tag: 1, len: 8, flags: flagDoorbell | flagPool, descriptors: d})
		a.post(cmdSend, 0, 0, "")
		if n := c.steps(t); n < 60000/stepWork {
			t.Errorf("nics=%d: 60000 descriptors took %d steps, want %d at least", nics, n, 60000/stepWork)
		}
		a.wantSend(t, 0, done, 8)
		b.wantRecv(t, 0, done, 8)
	}
}

// A broadcast takes a turn for each receiver, and others' messages pass in between.
func TestBroadcastTakesTurns(t *testing.T) {
	const members, size = 20, 4096
	l := limits
	l.packetSize = 65536
	c := newCluster(t, 1, l)
	var ps []*process
	var to [][]byte
	for i := range members {
		p, _ := c.nodes[0].beginAs(mallory, fmt.Sprint("p", i), "all", members,
			registrationSizes{commands: 8, sends: 1, receives: 1, regionSize: 64, poolEntries: size})
		ps = append(ps, p)
	}
	c.run()
	for i, p := range ps {
		b, h := p.memory(t, size, readAccess|writeAccess)
		if i == 0 {
			fill(b, 1)
			for i := range b {
				b[i] |= 1
			}
			p.context(false, 0, message{tag: 1, len: size, flags: flagDoorbell | flagPool, descriptors: crumbs(h, size)})
			continue
		}
		p.recv(0, message{peer: "p0", tag: 1, len: size, flags: flagDoorbell, descriptors: []descriptor{{h, size, 0}}})
		to = append(to, b)
	}
	q, r := c.nodes[0].register("q"), c.nodes[0].register("r")
	r.recv(0, message{peer: "q", tag: 1, len: 8, flags: flagDoorbell | flagInline})
	c.run()
	ps[0].post(cmdBroadcast, 0, 0, "all")
	c.nodes[0].nic.step(1)
	q.short(0, message{peer: "r", tag: 1, len: 8, flags: flagDoorbell})
	c.nodes[0].nic.step(2)
	r.wantRecv(t, 0, done, 8)
	if n := c.steps(t, to...); n < size*members/stepWork/2 {
		t.Errorf("the broadcast took %d steps only", n)
	}
	ps[0].wantSend(t, 0, done, size)
	for i, b := range to {
		ps[i+1].wantRecv(t, 0, done, size)
		if b[size-1] == 0 {
			t.Errorf("p%d got other bytes", i+1)
		}
	}
}

// Users are served alike, however many processes and operations they have: packets, and commands.
func TestUsersTakeTurns(t *testing.T) {
	for _, nics := range []int{1, 2} {
		const size = 300_000
		c := newCluster(t, nics, limits)
		b := c.nodes[nics-1].register("b")
		users := []uint64{mallory, mallory, mallory, mallory, alice}
		var ps []*process
		var from []uint32
		for i, u := range users {
			p, _ := c.nodes[0].beginAs(u, fmt.Sprint("p", i), "", 0, ordinary)
			c.run()
			_, h := p.memory(t, size, readAccess)
			ps, from = append(ps, p), append(from, h)
		}
		_, th := b.memory(t, size, writeAccess)
		for i, p := range ps {
			b.recv(uint16(i), message{peer: p.name, tag: 0, len: size, descriptors: []descriptor{{th, size, 0}}})
		}
		c.run()
		for i, p := range ps {
			p.send(0, message{peer: "b", tag: 0, len: size, descriptors: []descriptor{{from[i], size, 0}}})
			for range 10 {
				p.post(99, 0, 0, "")
			}
		}
		var packets, commands [2]int
		count := func() (packets, commands [2]int) {
			for i, p := range ps {
				s, _ := p.node.nic.processStatistics(p.index)
				packets[users[i]-mallory] += int(s.packetsSent)
				commands[users[i]-mallory] += int(s.commands)
			}
			return packets, commands
		}
		for range 20 {
			for _, n := range c.nodes {
				n.nic.step(1)
			}
			c.carry()
		}
		if packets, commands = count(); commands[0]-commands[1] > 1 || commands[1]-commands[0] > 1 {
			t.Errorf("nics=%d: commands by user %v, want alike", nics, commands)
		}
		for range 200 {
			for _, n := range c.nodes {
				n.nic.step(1)
			}
			c.carry()
		}
		if packets, _ = count(); packets[0] > packets[1]+15 || packets[1] > packets[0]+15 {
			t.Errorf("nics=%d: packets by user %v, want alike", nics, packets)
		}
		t.Logf("nics=%d: commands by user %v, packets by user %v", nics, commands, packets)
	}
}
