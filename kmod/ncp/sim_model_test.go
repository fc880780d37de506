//go:build linux && cgo

package ncp

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// flowKey: messages of one pair under one tag keep their order.
type flowKey struct {
	from, to int
	tag      uint16
}

// flow is what was sent under a key, in the order it was posted.
type flow struct {
	sent []*simMessageSent
	last int // index of the message received last, + 1
}

type simMessageSent struct {
	id, len  int
	result   state
	optional bool // may come or not: nobody knows who was in the group
	received map[int]bool
	to       []int
}

type simSend struct {
	busy     bool
	tag      uint16
	command  uint32
	message  *simMessageSent
	to       []int // uids
	group    *simGroup
	barrier  *simBarrier
	canceled bool
	early    bool // a receiver was not registered when it was posted
}

type simReceive struct {
	busy     bool
	early    bool
	from     int
	tag      uint16
	len      int
	inline   bool
	canceled bool
}

// simGroup knows who should be in a group.
type simGroup struct {
	name    string
	size    int
	members []*actor
	left    bool // somebody has
}

// membership has the barriers that a process has posted since it joined.
type membership struct {
	barriers []*simBarrier
	settled  int // time when all NICs knew of it; 0: not yet
	// Of other members, how many barriers are behind: the last one has completed with one of this process.
	matched map[*membership]int
}

// simBarrier is a barrier that a process has posted.
type simBarrier struct {
	posted int  // time
	rang   int  // time; 0: not yet
	never  bool // its command was refused: the process did not enter it
	// Its NIC knew no member any more that has left: what rang before it was posted belongs to other members.
	current bool
}

func (g *simGroup) count() int { return len(g.members) }

func (g *simGroup) join(a *actor) {
	a.groups[g] = &membership{matched: map[*membership]int{}}
	g.members = append(g.members, a)
}

func (g *simGroup) leave(a *actor) {
	for i, m := range g.members {
		if m == a {
			g.members = append(g.members[:i:i], g.members[i+1:]...)
		}
	}
	g.left = true
	delete(a.groups, g)
}

// inBarrier is how many barriers of g the process has posted that have not rung.
func (a *actor) inBarrier(g *simGroup) (n int) {
	for i := range a.sends {
		n += b2i(a.sends[i].busy && a.sends[i].group == g && a.sends[i].command == cmdBarrier)
	}
	return n
}

func (s *sim) flow(k flowKey) *flow {
	f := s.flows[k]
	if f == nil {
		f = &flow{}
		s.flows[k] = f
	}
	return f
}

func pattern(b []byte, id int) {
	for i := range b {
		b[i] = byte(id*131 + i*7 + i>>8)
	}
	binary.LittleEndian.PutUint32(b, uint32(id))
}

func (s *sim) act(a *actor) {
	if a.full() {
		return
	}
	switch k := s.rng.IntN(100); {
	case k < 40:
		s.actSend(a)
	case k < 80:
		s.actReceive(a)
	case k < 90:
		s.actGroup(a)
	case k < 94:
		s.actMany(a)
	case k < 97:
		i := uint16(s.rng.IntN(len(a.sends)))
		a.sends[i].canceled = a.sends[i].busy
		a.post(cmdCancelSend, i, 0, "")
	default:
		i := uint16(s.rng.IntN(len(a.receives)))
		a.receives[i].canceled = a.receives[i].busy
		a.post(cmdCancelReceive, i, 0, "")
	}
}

// freeSend is a Send Context that is not under way, or -1.
func (a *actor) freeSend() int {
	for i := range a.sends {
		if !a.sends[i].busy {
			return i
		}
	}
	return -1
}

func (a *actor) freeReceive() int {
	for i := range a.receives {
		if !a.receives[i].busy {
			return i
		}
	}
	return -1
}

// write makes a message in the memory of send context i.
func (s *sim) write(a *actor, i int, tag uint16, short bool) (message, *simMessageSent) {
	n := 4 + s.rng.IntN(500)
	if !short && s.chance(30) {
		n = 4 + s.rng.IntN(simMessage-3)
	}
	m := &simMessageSent{id: len(s.byID), len: n, received: map[int]bool{}}
	s.byID = append(s.byID, m)
	out := message{tag: tag, len: n, flags: flagDoorbell}
	if n <= 512 && (short || s.chance(50)) {
		out.flags |= flagInline
		pattern(a.region(false, uint16(i))[:n], m.id)
	} else {
		memory := a.out[i*simMessage:][:n]
		pattern(memory, m.id)
		out.descriptors = cut(a.outH, uint64(i*simMessage), n, 1+s.rng.IntN(7))
	}
	s.stats.sent++
	return out, m
}

// cut makes k descriptors, or fewer, of n bytes.
func cut(handle uint32, at uint64, n, k int) (d []descriptor) {
	for left := n; left > 0; {
		part := min(left, n/k+1)
		d = append(d, descriptor{handle, uint32(part), at})
		at += uint64(part)
		left -= part
	}
	return d
}

func (s *sim) actSend(a *actor) {
	i := a.freeSend()
	if i < 0 {
		return
	}
	b := s.actors[s.rng.IntN(len(s.actors))]
	tag := uint16(s.rng.IntN(simTags))
	short := s.chance(40)
	m, sent := s.write(a, i, tag, short)
	m.peer = b.name
	f := s.flow(flowKey{a.uid, b.uid, tag})
	f.sent = append(f.sent, sent)
	a.sends[i] = simSend{busy: true, command: cmdSend, message: sent, to: []int{b.uid}, early: s.anyDead([]int{b.uid})}
	sent.to = []int{b.uid}
	s.tracef("p%d sends message %d, %d bytes, to p%d tag %d, context %d", a.uid, sent.id, sent.len, b.uid, tag, i)
	if short {
		a.short(uint16(i), m)
	} else {
		a.send(uint16(i), m)
	}
}

func (s *sim) actReceive(a *actor) {
	i := a.freeReceive()
	if i < 0 {
		return
	}
	s.receive(a, i, s.rng.IntN(len(s.actors)), uint16(s.rng.IntN(simTags)))
}

func (s *sim) receive(a *actor, i, from int, tag uint16) {
	m := message{peer: fmt.Sprint("p", from), tag: tag, flags: flagDoorbell, len: simMessage}
	if s.chance(20) {
		m.len = 4 + s.rng.IntN(simMessage-4)
	}
	if m.len <= 512 {
		m.flags |= flagInline
	} else {
		m.descriptors = cut(a.inH, uint64(i*simMessage), m.len, 1+s.rng.IntN(9))
	}
	a.receives[i] = simReceive{busy: true, from: from, tag: tag, len: m.len, early: s.anyDead([]int{from}), inline: m.flags&flagInline != 0}
	s.tracef("p%d receives from p%d tag %d, context %d", a.uid, from, tag, i)
	a.recv(uint16(i), m)
}

// expect notes the broadcasts under way for a new process, as it may be in their group when they are read.
func (s *sim) expect(a *actor) {
	for _, b := range s.actors {
		var sent []*simSend
		for i := range b.sends {
			if op := &b.sends[i]; op.busy && op.command == cmdBroadcast {
				sent = append(sent, op)
			}
		}
		slices.SortFunc(sent, func(a, b *simSend) int { return a.message.id - b.message.id })
		for _, op := range sent {
			f := s.flow(flowKey{b.uid, a.uid, op.tag})
			f.sent = append(f.sent, op.message)
		}
	}
}

// actMany multicasts to some, or broadcasts to a group.
func (s *sim) actMany(a *actor) {
	i := a.freeSend()
	if i < 0 {
		return
	}
	tag := uint16(s.rng.IntN(simTags))
	short := s.chance(50)
	if len(s.groups) > 0 && s.chance(50) {
		g := s.groups[s.rng.IntN(len(s.groups))]
		m, sent := s.write(a, i, tag, short)
		sent.optional = true
		to := []int{}
		for _, b := range s.actors { // whoever was in it or will be
			if b != a {
				f := s.flow(flowKey{a.uid, b.uid, tag})
				f.sent = append(f.sent, sent)
				to = append(to, b.uid)
			}
		}
		a.sends[i] = simSend{busy: true, command: cmdBroadcast, message: sent, to: to, group: g, tag: tag}
		a.context(false, uint16(i), m)
		a.post(cmdBroadcast+uint32(b2i(short)), uint16(i), 0, g.name)
		s.tracef("p%d broadcasts message %d to %s tag %d", a.uid, sent.id, g.name, tag)
		return
	}
	n := 1 + s.rng.IntN(6)
	if int(a.info.commands) < 8 || a.ahead() > int(a.info.commands)-4 {
		return
	}
	m, sent := s.write(a, i, tag, short)
	var to []int
	var names []string
	for range n {
		b := s.actors[s.rng.IntN(len(s.actors))]
		twice := false
		for _, uid := range to {
			twice = twice || uid == b.uid
		}
		if twice {
			continue
		}
		to, names = append(to, b.uid), append(names, b.name)
		f := s.flow(flowKey{a.uid, b.uid, tag})
		f.sent = append(f.sent, sent)
	}
	a.sends[i] = simSend{busy: true, command: cmdMulticast, message: sent, to: to, early: s.anyDead(to)}
	sent.to = to
	a.context(false, uint16(i), m)
	a.post(cmdMulticast+uint32(b2i(short)), uint16(i), uint32(len(names)), "")
	a.postNames(names...)
	s.tracef("p%d multicasts message %d to %v tag %d", a.uid, sent.id, to, tag)
}

// ahead is how many commands are posted and not read.
func (p *process) ahead() (n int) {
	for i := range p.info.commands {
		if *p.word(p.vni, p.info.commandQueue+i*64) != 0 {
			n++
		}
	}
	return n
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *sim) actGroup(a *actor) {
	i := a.freeSend()
	if i < 0 || len(s.groups) == 0 {
		return
	}
	g := s.groups[s.rng.IntN(len(s.groups))]
	m := a.groups[g]
	switch {
	case m == nil && g.count() < g.size:
		g.join(a)
		a.sends[i] = simSend{busy: true, command: cmdJoinGroup, group: g}
		a.join(uint16(i), g.name, uint32(g.size))
		s.tracef("p%d joins %s", a.uid, g.name)
	case m == nil:
	case s.chance(4):
		g.leave(a)
		a.sends[i] = simSend{busy: true, command: cmdLeaveGroup, group: g}
		a.post(cmdLeaveGroup, uint16(i), 0, g.name)
		s.tracef("p%d leaves %s", a.uid, g.name)
	default:
		s.barrier(a, i, g)
	}
}

func (s *sim) barrier(a *actor, i int, g *simGroup) {
	m := a.groups[g]
	b := &simBarrier{posted: s.tick(), current: s.current(a.node, g)}
	m.barriers = append(m.barriers, b)
	a.sends[i] = simSend{busy: true, command: cmdBarrier, group: g, barrier: b}
	a.process.barrier(uint16(i), g.name, uint32(g.size))
	s.tracef("p%d posts barrier %d of %s, context %d", a.uid, len(m.barriers), g.name, i)
}

func (s *sim) tick() int {
	s.now++
	return s.now
}

// current reports whether all members of g that NIC n knows are members at their own NICs.
func (s *sim) current(n *node, g *simGroup) bool {
	for _, m := range n.nic.members(g.name) {
		at := slices.IndexFunc(s.nodes, func(n *node) bool { return n.nic.id == m.nic })
		if at < 0 || !slices.Contains(s.nodes[at].nic.members(g.name), m) {
			return false
		}
	}
	return true
}
