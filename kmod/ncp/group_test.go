//go:build linux && cgo

package ncp

import (
	"fmt"
	"testing"
)

func (p *process) join(i uint16, group string, size uint32)    { p.post(cmdJoinGroup, i, size, group) }
func (p *process) barrier(i uint16, group string, size uint32) { p.post(cmdBarrier, i, size, group) }

func TestJoinCompletesWhenTheGroupIsWhole(t *testing.T) {
	for _, nics := range []int{1, 2, 3} {
		c, ps := crowd(t, nics, 3, false)
		ps[0].join(0, "g", 3)
		ps[1].join(1, "g", 3)
		c.run()
		ps[0].wantSend(t, 0, free, 0)
		cookie := ps[2].node.driver(driverCommand{command: joinGroup, index: ps[2].index, group: makeName("g"), size: 3})
		c.run()
		ps[0].wantSend(t, 0, done, 0)
		ps[1].wantSend(t, 1, done, 0)
		if r := ps[2].node.result(t, cookie); r != 0 {
			t.Fatalf("the driver's join: result %d", r)
		}
	}
}

func TestJoinFails(t *testing.T) {
	c, ps := crowd(t, 2, 4, false)
	ps[0].join(0, "g", 2)
	c.run()
	for _, tc := range []struct {
		name  string
		p     *process
		group string
		size  uint32
		want  state
	}{
		{"other size", ps[1], "g", 3, invalid},
		{"size 0", ps[1], "h", 0, invalid},
		{"size of more than can be", ps[1], "h", limits.names + 1, invalid},
		{"no name", ps[1], "", 2, invalid},
		{"twice", ps[0], "g", 2, invalid},
		{"the last", ps[1], "g", 2, done},
		{"one too many", ps[2], "g", 2, invalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.p.clear(false, 1)
			tc.p.join(1, tc.group, tc.size)
			c.run()
			tc.p.wantSend(t, 1, tc.want, 0)
		})
	}
	for i := range limits.groups - 1 {
		ps[3].join(uint16(i%8), fmt.Sprint("filler", i), 1)
		c.run()
		ps[3].wantSend(t, uint16(i%8), done, 0)
	}
	ps[3].join(0, "toomany", 1)
	c.run()
	ps[3].wantSend(t, 0, noMemory, 0)
}

func TestSizesThatDifferAtTheSameTime(t *testing.T) {
	c, ps := crowd(t, 3, 3, false)
	ps[1].join(0, "g", 1)
	ps[2].join(0, "g", 1)
	ps[0].join(0, "g", 2) // the lowest NIC's
	for _, p := range ps {
		p.node.nic.step(4)
	}
	c.run()
	ps[0].wantSend(t, 0, free, 0)
	ps[1].wantSend(t, 0, invalid, 0)
	ps[2].wantSend(t, 0, invalid, 0)
	ps[2].join(0, "g", 2)
	c.run()
	ps[0].wantSend(t, 0, done, 0)
	ps[2].wantSend(t, 0, done, 0)
}

// NICs that have not known each other have groups of one name and two sizes, and their members stay. Whoever joins is
// refused, and does not wait for ever.
func TestJoinAfterNICsWithTwoSizesHaveMet(t *testing.T) {
	c, ps := crowd(t, 2, 4, false)
	c.cut(c.nodes[0], c.nodes[1])
	ps[1].join(0, "g", 1)
	ps[0].join(0, "g", 2)
	ps[2].join(0, "g", 2)
	c.run()
	c.mend(c.nodes[0], c.nodes[1])
	for _, p := range ps[:3] {
		p.wantSend(t, 0, done, 0)
	}
	ps[2].post(cmdLeaveGroup, 1, 0, "g")
	ps[2].clear(false, 0)
	ps[2].join(0, "g", 2)
	c.run()
	ps[2].wantSend(t, 0, invalid, 0)
}

// The same where the process with the lower number still waits for others.
func TestJoinWhereAWaitingOneHasAnotherSize(t *testing.T) {
	c, ps := crowd(t, 2, 4, false)
	c.cut(c.nodes[0], c.nodes[1])
	ps[0].join(0, "g", 3)
	ps[1].join(0, "g", 2)
	ps[3].join(0, "g", 2)
	c.run()
	c.mend(c.nodes[0], c.nodes[1])
	ps[0].wantSend(t, 0, free, 0)
	ps[3].post(cmdLeaveGroup, 1, 0, "g")
	ps[3].clear(false, 0)
	ps[3].join(0, "g", 2)
	c.run()
	ps[3].wantSend(t, 0, invalid, 0)
}

func TestLeave(t *testing.T) {
	c, ps := crowd(t, 2, 2, true)
	ps[0].post(cmdLeaveGroup, 0, 0, "all")
	ps[0].post(cmdLeaveGroup, 1, 0, "all")
	ps[0].post(cmdLeaveGroup, 2, 0, "none")
	ps[0].post(cmdLeaveGroup, 3, 0, "")
	c.run()
	ps[0].wantSend(t, 0, done, 0)
	ps[0].wantSend(t, 1, invalid, 0)
	ps[0].wantSend(t, 2, unknown, 0)
	ps[0].wantSend(t, 3, invalid, 0)
	cookie := ps[1].node.driver(driverCommand{command: leaveGroup, index: ps[1].index, group: makeName("all")})
	c.run()
	if r := ps[1].node.result(t, cookie); r != 0 {
		t.Fatalf("the driver's leave: result %d", r)
	}
	// The group is gone with its last member, and can be another.
	ps[0].post(cmdLeaveGroup, 0, 0, "all")
	ps[1].join(0, "all", 1)
	c.run()
	ps[0].wantSend(t, 0, unknown, 0)
	ps[1].wantSend(t, 0, done, 0)
}

// churn lets a process join a group of one and leave it, while no other NIC reads, and reports whether the NIC has refused
// that. Otherwise the process is in the group.
func (p *process) churn(times int) (refused bool) {
	for range times {
		p.clear(false, 1)
		p.post(cmdLeaveGroup, 1, 0, "g")
		p.node.nic.step(64)
		p.clear(false, 0)
		p.join(0, "g", 1)
		p.node.nic.step(64)
		left, _ := p.doorbell(false, 1)
		joined, _ := p.doorbell(false, 0)
		if left == noMemory || joined == noMemory {
			return true
		}
	}
	return false
}

// together lets two processes join a group of two.
func together(t *testing.T, c *cluster, p, q *process) {
	t.Helper()
	p.join(2, "both", 2)
	q.join(2, "both", 2)
	c.run()
	p.wantSend(t, 2, done, 0)
	q.wantSend(t, 2, done, 0)
}

// A process that joins and leaves faster than another NIC reads is refused, and so are new processes and barriers, before
// that NIC counts as lost.
func TestChurnThatANICDoesNotRead(t *testing.T) {
	c, ps := crowd(t, 2, 2, false)
	n := ps[0].node
	together(t, c, ps[0], ps[1])
	if !ps[0].churn(100_000) {
		t.Error("no join or leave was refused")
	}
	ps[0].barrier(3, "both", 2)
	n.nic.step(64)
	ps[0].wantSend(t, 3, noMemory, 0)
	_, cookie := n.begin("late", "", 0, ordinary)
	n.nic.step(64)
	if r := n.result(t, cookie); state(r) != noMemory {
		t.Errorf("a new process: %v, want %v", state(r), noMemory)
	}
	c.run()
	for _, p := range ps {
		p.barrier(4, "both", 2)
		c.run()
	}
	for _, p := range ps {
		p.wantSend(t, 4, done, 0)
	}
	if lost := n.nic.lost(); lost != 0 {
		t.Errorf("NIC %d was lost", lost)
	}
}

// A NIC that misses a message, for want of memory, is removed. The host learns of it, and both can add each other again.
func TestHostLearnsOfALostNIC(t *testing.T) {
	c, ps := crowd(t, 2, 2, false)
	a, b := ps[0].node, ps[1].node
	ps[0].churn(10_000) // more than the FIFO holds
	a.nic.failAfter(0)
	ps[0].post(cmdLeaveGroup, 1, 0, "g")
	a.nic.step(64)
	a.nic.failAfter(-1)
	if lost := a.nic.lost(); lost != b.nic.id {
		t.Fatalf("NIC %d was lost, want %d", lost, b.nic.id)
	}
	a.nic.drop(b.nic.id)
	b.nic.drop(a.nic.id)
	b.driver(driverCommand{command: removeNIC, nic: a.nic.id})
	c.run()
	a.driver(driverCommand{command: addNIC, nic: b.nic.id})
	b.driver(driverCommand{command: addNIC, nic: a.nic.id})
	c.run()
	together(t, c, ps[0], ps[1])
}

func TestJoinCanBeTakenBack(t *testing.T) {
	c, ps := crowd(t, 2, 3, false)
	ps[0].join(0, "g", 2)
	cookie := ps[1].node.driver(driverCommand{command: joinGroup, index: ps[1].index, group: makeName("h"), size: 2})
	c.run()
	ps[0].post(cmdCancelSend, 0, 0, "")
	ps[1].node.driver(driverCommand{command: abandon, cookie: cookie})
	c.run()
	ps[0].wantSend(t, 0, canceled, 0)
	if r := ps[1].node.result(t, cookie); state(r) != canceled {
		t.Fatalf("the driver's join: got %v, want canceled", state(r))
	}
	for _, g := range []string{"g", "h"} {
		ps[2].join(0, g, 1)
		c.run()
		ps[2].wantSend(t, 0, done, 0)
	}
}

func TestBarrierHoldsUntilAllHaveReachedIt(t *testing.T) {
	for _, nics := range []int{1, 2, 5} {
		t.Run(fmt.Sprint("nics=", nics), func(t *testing.T) {
			c, ps := crowd(t, nics, 6, true)
			for round := range 4 {
				for i := range ps {
					p := ps[(i*5+round)%6]
					if i == 5 {
						for j := range 5 {
							q := ps[(j*5+round)%6]
							q.wantSend(t, 0, free, 0)
						}
					}
					p.barrier(0, "all", 6)
					c.run()
				}
				for _, p := range ps {
					p.wantSend(t, 0, done, 0)
					p.clear(false, 0)
				}
			}
		})
	}
}

func TestBarriersOfOneProcessCount(t *testing.T) {
	c, ps := crowd(t, 2, 2, true)
	for i := range uint16(3) { // three ahead
		ps[0].barrier(i, "all", 2)
	}
	c.run()
	for i := range uint16(3) {
		ps[0].wantSend(t, i, free, 0)
		ps[1].barrier(0, "all", 2)
		c.run()
		ps[1].wantSend(t, 0, done, 0)
		ps[0].wantSend(t, i, done, 0)
	}
}

// A member has a bounded number of barriers under way, and those that begin when the group becomes whole begin one by one,
// so that no step is long and no other NIC gets more messages at once than it can be kept.
func TestBarriersUnderWayAreBounded(t *testing.T) {
	const most = 16
	sizes := ordinary
	sizes.sends, sizes.commands = 32, 64
	c := newCluster(t, 2, limits)
	var ps []*process
	for i, node := range []*node{c.nodes[0], c.nodes[0], c.nodes[1]} {
		p, _ := node.begin(fmt.Sprint("p", i), "", 0, sizes)
		ps = append(ps, p)
	}
	c.run()
	early := ps[:2]
	for _, p := range early {
		p.join(20, "g", 3)
		for i := range uint16(most + 1) {
			p.barrier(i, "g", 3)
		}
	}
	c.run()
	for _, p := range early {
		p.wantSend(t, most-1, free, 0)
		p.wantSend(t, most, noMemory, 0)
	}
	ps[2].join(20, "g", 3)
	a, b := c.nodes[0].nic, c.nodes[1].nic
	b.step(64)
	b.carry(a, 64)
	all := 0
	for a.step(1) > 0 {
		frames := 0
		for len(a.frame(b.id)) > 0 {
			a.consume(b.id)
			frames++
		}
		if frames > 2 { // an acknowledgement of the join, and a barrier
			t.Errorf("one step sent %d messages", frames)
		}
		all += frames
	}
	if all != 1+2*most {
		t.Errorf("the other NIC got %d messages, want an acknowledgement and %d barriers", all, 2*most)
	}
	ps[1].post(cmdLeaveGroup, 21, 0, "g")
	c.run()
	for _, p := range early {
		p.wantSend(t, most-1, gone, 0)
		p.clear(false, 0)
	}
	ps[1].clear(false, 20)
	ps[1].join(20, "g", 3)
	c.run()
	for i, p := range ps {
		p.barrier(22, "g", 3)
		c.run()
		if i < 2 {
			p.wantSend(t, 22, free, 0)
		}
	}
	for _, p := range ps {
		p.wantSend(t, 22, done, 0)
	}
}

func TestBarrierFails(t *testing.T) {
	c, ps := crowd(t, 2, 3, false)
	ps[0].join(0, "g", 2)
	c.run()
	ps[0].barrier(4, "g", 2) // early
	for i, tc := range []struct {
		p     *process
		group string
		size  uint32
		want  state
	}{
		{ps[0], "none", 2, unknown}, {ps[0], "", 2, invalid}, {ps[0], "g", 3, invalid}, {ps[2], "g", 2, invalid},
	} {
		tc.p.barrier(1, tc.group, tc.size)
		c.run()
		if s, _ := tc.p.doorbell(false, 1); s != tc.want {
			t.Fatalf("case %d: got %v, want %v", i, s, tc.want)
		}
	}
	ps[0].wantSend(t, 4, free, 0)
	ps[1].join(0, "g", 2)
	ps[1].barrier(1, "g", 2)
	c.run()
	ps[0].wantSend(t, 4, done, 0)
	ps[1].wantSend(t, 1, done, 0)
}

func TestDeathBreaksABarrier(t *testing.T) {
	for _, nics := range []int{1, 2, 3} {
		for _, how := range []string{"end", "leave", "nic"} {
			if how == "nic" && nics < 3 {
				continue
			}
			t.Run(fmt.Sprint(how, nics), func(t *testing.T) {
				c, ps := crowd(t, nics, 3, true)
				ps[0].barrier(0, "all", 3)
				ps[1].barrier(0, "all", 3)
				c.run()
				switch how {
				case "end":
					ps[2].end()
				case "leave":
					ps[2].post(cmdLeaveGroup, 0, 0, "all")
				case "nic":
					for _, n := range c.nodes[:2] {
						n.driver(driverCommand{command: removeNIC, nic: 3})
					}
				}
				c.run()
				ps[0].wantSend(t, 0, gone, 0)
				ps[1].wantSend(t, 0, gone, 0)
				ps[1].barrier(1, "all", 3) // the group is not whole any more
				c.run()
				ps[1].wantSend(t, 1, gone, 0)
				// Another one in its place: the group is whole, and counts anew.
				p := c.nodes[0].register("p3")
				p.join(0, "all", 3)
				c.run()
				p.wantSend(t, 0, done, 0)
				for _, q := range []*process{ps[0], ps[1], p} {
					q.barrier(2, "all", 3)
				}
				c.run()
				for _, q := range []*process{ps[0], ps[1], p} {
					q.wantSend(t, 2, done, 0)
				}
			})
		}
	}
}

// A member that leaves and joins again counts its barriers anew, and so do the others.
func TestWhoComesBackCountsAnew(t *testing.T) {
	c, ps := crowd(t, 2, 2, true)
	ps[0].barrier(0, "all", 2)
	ps[0].barrier(1, "all", 2)
	c.run()
	ps[1].post(cmdLeaveGroup, 0, 0, "all")
	c.run()
	ps[0].wantSend(t, 0, gone, 0)
	ps[0].wantSend(t, 1, gone, 0)
	ps[1].join(0, "all", 2)
	c.run()
	ps[1].barrier(1, "all", 2)
	c.run()
	ps[1].wantSend(t, 1, free, 0)
	ps[0].barrier(2, "all", 2)
	c.run()
	ps[0].wantSend(t, 2, done, 0)
	ps[1].wantSend(t, 1, done, 0)
}

func TestWhoLeavesAfterABarrierDoesNotBreakIt(t *testing.T) {
	c, ps := crowd(t, 3, 3, true)
	for _, p := range ps {
		p.barrier(0, "all", 3)
	}
	// p2's NIC hears of all, p0's of p2 alone; then p2 ends, before p0's NIC hears of p1.
	for _, n := range c.nodes {
		n.nic.step(4)
	}
	c.nodes[0].nic.carry(c.nodes[2].nic, 9)
	c.nodes[1].nic.carry(c.nodes[2].nic, 9)
	c.nodes[2].nic.step(9)
	ps[2].wantSend(t, 0, done, 0)
	ps[2].end()
	c.nodes[2].nic.step(9)
	c.nodes[2].nic.carry(c.nodes[0].nic, 9)
	c.nodes[0].nic.step(9)
	ps[0].wantSend(t, 0, free, 0)
	c.run()
	ps[0].wantSend(t, 0, done, 0)
	ps[1].wantSend(t, 0, done, 0)
}

// On one NIC a process has joined, and another's leaving is not known there yet: the group has a member too many. A
// member that enters a barrier then, and again when the joiner has left, must not count twice.
func TestMemberTooManyDoesNotCountTwice(t *testing.T) {
	c, ps := crowd(t, 4, 4, true) // one on each NIC; c never reaches the barrier
	a, b, d := ps[0], ps[1], ps[3]
	nics := []*hostNIC{c.nodes[0].nic, c.nodes[1].nic, c.nodes[2].nic, c.nodes[3].nic}
	e := c.nodes[2].register("e")
	for _, p := range []*process{a, b, d} {
		p.barrier(0, "all", 4)
	}
	c.run()
	d.end()
	nics[3].step(9)
	nics[3].carry(nics[2], 9)
	nics[2].step(9)
	e.join(0, "all", 4)
	nics[2].step(9)
	nics[2].carry(nics[1], 9)
	nics[1].step(9)
	b.barrier(1, "all", 4)
	nics[1].step(9)
	e.post(cmdCancelSend, 0, 0, "")
	nics[2].step(9)
	nics[2].carry(nics[1], 9)
	nics[1].step(9)
	b.wantSend(t, 0, free, 0)
	b.wantSend(t, 1, gone, 0)
	b.barrier(2, "all", 4)
	nics[1].step(9)
	nics[1].carry(nics[0], 9)
	nics[0].step(9)
	a.wantSend(t, 0, free, 0)
	c.run()
	a.wantSend(t, 0, gone, 0)
	b.wantSend(t, 2, gone, 0)
	b.wantSend(t, 0, gone, 0)
}

// The numbers of barriers wrap.
func TestBarriersBeyondTheLastNumber(t *testing.T) {
	c, ps := crowd(t, 2, 3, true)
	all := func() {
		for i, p := range ps {
			for _, q := range ps[:i] {
				q.wantSend(t, 0, free, 0)
			}
			p.barrier(0, "all", 3)
			c.run()
		}
		for _, p := range ps {
			p.wantSend(t, 0, done, 0)
			p.clear(false, 0)
		}
	}
	all()
	for _, n := range c.nodes {
		n.nic.setRound("all", 1<<32-3)
	}
	for range 5 {
		all()
	}
	// Barriers that all have reached complete, though a member that has left them ends.
	for _, n := range c.nodes {
		n.nic.setRound("all", 1<<32-1)
	}
	all()
	ps[0].barrier(0, "all", 3)
	c.run()
	ps[1].end()
	c.run()
	ps[0].wantSend(t, 0, gone, 0)
}

// cut makes two NICs lose each other, and mend makes them see each other again.
func (c *cluster) cut(a, b *node) {
	for _, x := range [][2]*node{{a, b}, {b, a}} {
		x[0].nic.drop(x[1].nic.id)
		x[0].driver(driverCommand{command: removeNIC, nic: x[1].nic.id})
	}
	c.run()
}

func (c *cluster) mend(a, b *node) {
	a.driver(driverCommand{command: addNIC, nic: b.nic.id})
	b.driver(driverCommand{command: addNIC, nic: a.nic.id})
	c.run()
}

// NICs that have lost each other and meet again count barriers anew, also if the members are those of before.
func TestNICThatComesBackCountsAnew(t *testing.T) {
	for _, tc := range []struct {
		name string
		cut  [][2]int
	}{
		{"two of two", [][2]int{{0, 1}}},
		{"one from all", [][2]int{{0, 2}, {1, 2}}},
		{"two of three", [][2]int{{0, 2}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nics := 1 + tc.cut[0][1]
			c, ps := crowd(t, nics, nics, true)
			for _, p := range ps[:nics-1] {
				p.barrier(0, "all", uint32(nics))
			}
			c.run()
			for _, x := range tc.cut {
				c.cut(c.nodes[x[0]], c.nodes[x[1]])
			}
			for _, p := range ps[:nics-1] {
				p.wantSend(t, 0, gone, 0)
			}
			for _, x := range tc.cut {
				c.mend(c.nodes[x[0]], c.nodes[x[1]])
			}
			c.everyTurn(t, ps)
		})
	}
}

// everyTurn has each process be the last at a barrier once.
func (c *cluster) everyTurn(t *testing.T, ps []*process) {
	t.Helper()
	for last := range ps {
		for i := range ps {
			p := ps[(last+1+i)%len(ps)]
			for j := range i {
				ps[(last+1+j)%len(ps)].wantSend(t, 1, free, 0)
			}
			p.barrier(1, "all", uint32(len(ps)))
			c.run()
		}
		for _, p := range ps {
			p.wantSend(t, 1, done, 0)
			p.clear(false, 1)
		}
	}
}

// A NIC that has restarted numbers its processes and joins from 1 again: these are others than before.
func TestRestartedNICCountsAnew(t *testing.T) {
	c, ps := crowd(t, 2, 2, true)
	ps[0].barrier(0, "all", 2)
	ps[1].barrier(0, "all", 2)
	c.run()
	c.nodes[0].driver(driverCommand{command: removeNIC, nic: 2})
	c.nodes[0].nic.step(9)
	c.nodes[0].nic.drop(2)
	c.nodes[1].nic.close()
	ps[1].free()
	c.nodes = c.nodes[:1]
	p := c.add(2, limits).register("again")
	p.join(0, "all", 2)
	c.run()
	p.wantSend(t, 0, done, 0)
	c.everyTurn(t, []*process{ps[0], p})
}

// A NIC hears late of a process that has joined and left before a barrier began: the barrier goes on.
func TestBarrierGoesOnWithoutALateJoiner(t *testing.T) {
	c, ps := crowd(t, 3, 3, false)
	a, b, x := ps[0], ps[1], ps[2]
	one, two, three := c.nodes[0].nic, c.nodes[1].nic, c.nodes[2].nic
	a.join(0, "g", 2)
	c.run()
	x.join(0, "g", 2)
	x.post(cmdLeaveGroup, 1, 0, "g")
	three.step(9)
	three.carry(one, 9)
	one.step(9)
	b.join(0, "g", 2) // its NIC knows nothing of x
	b.barrier(1, "g", 2)
	two.step(9)
	three.carry(two, 9)
	two.step(9)
	b.wantSend(t, 1, free, 0)
	a.barrier(1, "g", 2)
	c.run()
	a.wantSend(t, 1, gone, 0) // read before its NIC knew of b
	a.barrier(2, "g", 2)
	c.run()
	a.wantSend(t, 2, done, 0)
	b.wantSend(t, 1, done, 0)
}
