//go:build linux && cgo

package ncp

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
)

// listen hears all doorbells of a process and holds them against the model.
func (s *sim) listen(a *actor) {
	if a.nicDead {
		return
	}
	if r, ok := a.node.results[a.cookie]; ok && !a.registered && !a.dead {
		switch {
		case r == 0:
			a.registered = true
			for _, m := range a.groups {
				m.settled = s.tick()
			}
		default:
			// A process that joined a group in the meantime may have been one too many.
			s.tracef("p%d is refused: %d", a.uid, r)
			if state(r) != invalid || len(a.groups) == 0 {
				s.failf("p%d: registration gives %d", a.uid, r)
			}
			a.dead = true
			for g := range a.groups {
				g.leave(a)
			}
		}
	}
	for {
		receive, i, ok := a.rung()
		if !ok {
			return
		}
		got, n := a.doorbell(receive, i)
		a.clear(receive, i)
		if receive {
			s.received(a, i, got, n)
		} else {
			s.sent(a, i, got, n)
		}
	}
}

// anyDead says that one of them is gone or not registered yet.
func (s *sim) anyDead(uids []int) bool {
	for _, uid := range uids {
		if b := s.actors[uid]; b.dead || !b.registered {
			return true
		}
	}
	return false
}

func (s *sim) sent(a *actor, i uint16, got state, n int) {
	op := &a.sends[i]
	if !op.busy {
		s.failf("p%d: send doorbell %d rings %v for nothing", a.uid, i, got)
	}
	op.busy = false
	s.tracef("p%d: send context %d: %v, %d", a.uid, i, got, n)
	switch op.command {
	case cmdBarrier:
		s.barrierRang(a, op, got)
		return
	case cmdJoinGroup, cmdLeaveGroup:
		if got == done {
			s.stats.joins++
			if m := a.groups[op.group]; m != nil && op.command == cmdJoinGroup {
				m.settled = s.tick()
			}
		}
		// Where a leaver's message has not come yet, the group may seem full.
		if got != done && !op.group.left && !op.canceled {
			s.failf("p%d: joining or leaving %s: %v", a.uid, op.group.name, got)
		}
		if op.command == cmdJoinGroup && got != done && a.groups[op.group] != nil {
			op.group.leave(a)
		}
		return
	}
	op.message.result = got
	switch got {
	case done:
		if n != op.message.len {
			s.failf("p%d: message %d of %d bytes: done with %d", a.uid, op.message.id, op.message.len, n)
		}
	case canceled:
		if !op.canceled {
			s.failf("p%d: message %d canceled by nobody", a.uid, op.message.id)
		}
	case gone, unknown:
		if op.group == nil && !op.early && !s.anyDead(op.to) {
			s.failf("p%d: message %d: %v, and all receivers live", a.uid, op.message.id, got)
		}
	default:
		s.failf("p%d: message %d: %v", a.uid, op.message.id, got)
	}
}

// barrierRang checks a barrier that is done: all members that a's NIC certainly knew when it was posted have posted one
// for it. That may have rung as GONE, if a member has left, and a's NIC did not know yet.
func (s *sim) barrierRang(a *actor, op *simSend, got state) {
	g, x := op.group, op.barrier
	x.rang = s.tick()
	x.never = got == invalid || got == unknown
	if got != done {
		// The group was not whole when the command was read, or a member has left.
		if got != gone && !x.never {
			s.failf("p%d: barrier of %s: %v", a.uid, g.name, got)
		}
		return
	}
	s.stats.barriers++
	m := a.groups[g]
	if m == nil || !slices.Contains(m.barriers, x) {
		return // a has left
	}
	if g.count() != g.size && !g.left { // word of a leaver may be on its way
		s.failf("p%d: barrier of %s is done with %d of %d members", a.uid, g.name, g.count(), g.size)
	}
	for _, b := range g.members {
		other := b.groups[g]
		if b == a || other.settled == 0 || other.settled >= x.posted {
			continue
		}
		s.stats.checked++
		before := m.matched[other]
		if !m.match(other, x) {
			s.failf("p%d: barrier %d of %s is done, and p%d has posted %d, the first %d for earlier ones", a.uid,
				slices.Index(m.barriers, x)+1, g.name, b.uid, len(other.barriers), before)
		}
	}
}

// match finds the other member's barrier that has completed with x, behind those for earlier ones.
func (m *membership) match(other *membership, x *simBarrier) bool {
	for i := m.matched[other]; i < len(other.barriers); i++ {
		m.matched[other] = i + 1
		// A barrier that rang before x was posted was one of other members, as x's NIC knew.
		if y := other.barriers[i]; !y.never && (y.rang == 0 || y.rang > x.posted || !x.current) {
			return true
		}
	}
	return false
}

func (s *sim) received(a *actor, i uint16, got state, n int) {
	op := &a.receives[i]
	if !op.busy {
		s.failf("p%d: receive doorbell %d rings %v for nothing", a.uid, i, got)
	}
	op.busy = false
	s.tracef("p%d: receive context %d from p%d tag %d: %v, %d", a.uid, i, op.from, op.tag, got, n)
	switch got {
	case done, truncated:
		s.arrived(a, i, op, got, n)
	case canceled:
		if !op.canceled {
			s.failf("p%d: receive %d canceled by nobody", a.uid, i)
		}
	case gone, unknown:
		if !op.early && !s.anyDead([]int{op.from}) {
			s.failf("p%d: receive from p%d: %v, and it lives", a.uid, op.from, got)
		}
	default:
		s.failf("p%d: receive from p%d: %v", a.uid, op.from, got)
	}
}

// arrived checks that a message is the right one, whole, and in its turn.
func (s *sim) arrived(a *actor, i uint16, op *simReceive, got state, n int) {
	memory := a.in[int(i)*simMessage:]
	if op.inline {
		memory = a.region(true, i)
	}
	memory = memory[:min(n, op.len)]
	id := int(binary.LittleEndian.Uint32(memory))
	f := s.flow(flowKey{op.from, a.uid, op.tag})
	at := -1
	for j := f.last; j < len(f.sent); j++ {
		if f.sent[j].id == id {
			at = j
			break
		}
	}
	if at < 0 {
		s.failf("p%d: from p%d tag %d came message %d, which is not one to come (twice, out of order or another's)",
			a.uid, op.from, op.tag, id)
	}
	m := f.sent[at]
	if n != m.len || (got == truncated) != (m.len > op.len) {
		s.failf("p%d: message %d of %d bytes, room for %d: %v with %d", a.uid, id, m.len, op.len, got, n)
	}
	want := make([]byte, m.len)
	pattern(want, id)
	if string(want[:len(memory)]) != string(memory) {
		s.failf("p%d: message %d arrived with other bytes", a.uid, id)
	}
	m.received[a.uid] = true
	f.last = at + 1
	s.stats.received++
}

// drain receives all messages that are still on their way: as many at a time as there are contexts.
func (s *sim) drain() {
	tried := map[flowKey]bool{} // nothing came in a whole round
	for posted := true; posted; {
		posted = false
		now := map[flowKey]int{}
		for _, k := range s.keys() {
			a := s.actors[k.to]
			if a.dead || !a.registered || tried[k] || !s.owed(k) || a.full() {
				continue
			}
			i := a.freeReceive()
			if i >= 0 && !s.waiting(a, k) {
				s.receive(a, i, k.from, k.tag)
			}
			if i >= 0 || s.waiting(a, k) {
				now[k] = s.flows[k].last
				posted = true
			}
		}
		s.settle()
		for k, last := range now {
			tried[k] = s.flows[k].last == last
		}
		posted = s.makeRoom() || posted
	}
}

// owed says that a message of that key has not come, and may.
func (s *sim) owed(k flowKey) bool {
	f := s.flows[k]
	for _, m := range f.sent[f.last:] {
		if !m.received[k.to] && m.result != canceled && m.result != unknown {
			return true
		}
	}
	return false
}

// keys are those of all flows, in an order that a replay repeats.
func (s *sim) keys() []flowKey {
	return slices.SortedFunc(maps.Keys(s.flows), func(a, b flowKey) int {
		return cmp.Or(a.from-b.from, a.to-b.to, int(a.tag)-int(b.tag))
	})
}

// makeRoom takes back the receives that nothing came for.
func (s *sim) makeRoom() (any bool) {
	for _, a := range s.alive() {
		for i := range a.receives {
			if a.receives[i].busy && !a.full() {
				a.receives[i].canceled = true
				a.post(cmdCancelReceive, uint16(i), 0, "")
				any = true
			}
		}
	}
	s.settle()
	return any
}

// waiting says that a receive of that key is posted already.
func (s *sim) waiting(a *actor, k flowKey) bool {
	for i := range a.receives {
		if r := &a.receives[i]; r.busy && r.from == k.from && r.tag == k.tag {
			return true
		}
	}
	return false
}

// checkFlows: a send that was reported as done has been received, or its receiver is gone.
func (s *sim) checkFlows() {
	for _, k := range s.keys() {
		f := s.flows[k]
		from, to := s.actors[k.from], s.actors[k.to]
		if to.dead || !to.registered || from.nicDead {
			continue
		}
		for _, m := range f.sent {
			if m.result == done && !m.optional && !m.received[k.to] {
				s.failf("message %d from p%d to p%d tag %d is lost", m.id, k.from, k.to, k.tag)
			}
			if m.result == canceled && len(m.to) == 1 && m.received[k.to] {
				s.failf("message %d from p%d to p%d tag %d was cancelled, and received", m.id, k.from, k.to, k.tag)
			}
			if !from.dead && m.result == free && !m.optional && !s.anyDead(m.to) {
				s.failf("message %d from p%d to p%d tag %d hangs", m.id, k.from, k.to, k.tag)
			}
		}
	}
}

// checkGroups: everybody of a whole group has been told, and barriers that all have reached are done.
func (s *sim) checkGroups() {
	for _, g := range s.groups {
		if g.count() < g.size {
			continue
		}
		wait := 0
		for _, a := range g.members {
			if !a.registered {
				s.failf("%s has its %d members, and p%d still registers", g.name, g.size, a.uid)
			}
			for i := range a.sends {
				if op := &a.sends[i]; op.busy && op.group == g && op.command == cmdJoinGroup {
					s.failf("%s has its %d members, and p%d's join hangs", g.name, g.size, a.uid)
				}
			}
			wait += b2i(a.inBarrier(g) > 0)
		}
		if wait == g.size {
			s.failf("all of %s wait in a barrier", g.name)
		}
	}
}

// checkEmpty ends everything that lives: then the NICs hold what they held at first.
func (s *sim) checkEmpty() {
	for _, a := range s.actors {
		if !a.nicDead {
			a.node.driver(driverCommand{command: deleteProcess, index: a.index})
		}
	}
	s.run()
	for _, n := range s.nodes {
		st := n.nic.statistics()
		if st.badFrames != 0 {
			s.failf("NIC %d: %d bad frames among honest NICs", n.nic.id, st.badFrames)
		}
		if st.localMemory != 0 || st.processes != 0 {
			s.failf("NIC %d: %d bytes of local memory, %d processes are left", n.nic.id, st.localMemory, st.processes)
		}
		if got := n.nic.allocated(); got != s.base[n] {
			s.failf("NIC %d holds %d bytes more than when it was made", n.nic.id, got-s.base[n])
		}
	}
}
