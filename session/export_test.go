package session

import (
	"fmt"

	"github.com/bywash/bywash/session/header"
	"github.com/bywash/bywash/session/rdv"
)

// CloseRail closes the contexts of one rail, as if its device had gone away; between messages, as closing takes away the memory
// in which they lie.
func (s *Session) CloseRail(k int) {
	s.mu.lock()
	defer s.mu.unlock()
	s.nics[k].close()
}

// Knock has this session hear a knock of another one's connection with that number. It
// tells whether the gate to there is idle after it.
func (s *Session) Knock(from *Session, number uint64) (idle bool) {
	k := knock{rank: uint32(from.rank), from: from.card.incarnation, to: s.card.incarnation, dial: number}
	s.knocked(k.append(nil, s.job.Secret()))
	s.mu.lock()
	defer s.mu.unlock()
	return s.gates[from.rank].state == gateIdle
}

// Pending is what the session still has of messages and operations; empty if there is nothing.
func (s *Session) Pending() string {
	s.mu.lock()
	defer s.leave()
	var what string
	count := func(name string, n int) {
		if n != 0 {
			what += fmt.Sprintf("%d %s; ", n, name)
		}
	}
	outs, ins, syncs, ops := 0, 0, 0, 0
	s.outs.each(func(uint64, *outgoing) { outs++ })
	s.ins.each(func(uint64, *incoming) { ins++ })
	s.syncs.each(func(uint64, *Request) { syncs++ })
	s.ops.each(func(uint64, *Op) { ops++ })
	count("long messages that leave", outs)
	count("long messages that arrive", ins)
	count("acknowledgements", syncs)
	count("operations by message", ops)
	count("operations", len(s.liveOps))
	count("pieces", len(s.pieces))
	count("receives", s.table.Posted())
	count("messages kept", s.table.Waiting())
	count("bytes of the budget", s.cfg.Unexpected-s.budget)
	count("bytes of the budget of active messages", s.cfg.Unexpected-s.activeBudget)
	count("peers held up", len(s.stalled))
	count("handlers", s.running)
	count("calls", len(s.calls))
	count("regions", len(s.regions))
	for _, g := range s.gates {
		if g != nil && g.state != gateUp {
			count("links, operations and others of a gate that does not stand", len(g.links)+g.ops+g.live+len(g.postponed)+g.backlog.n+g.later.n)
		}
	}
	for _, l := range s.links {
		if l.g.state != gateUp {
			count("link of no gate", 1)
		}
	}
	return what
}

// ForgeActive tells the peer of n long active messages of that length, none of which ever comes.
func (g *Gate) ForgeActive(n int, total uint64) {
	s := g.s
	s.mu.lock()
	defer s.leave()
	for k := range n {
		pc, body := s.control(header.Header{Kind: header.RTS, Flags: flagActive, Tag: 9}, nil)
		req := header.Request{ID: 1<<40 + uint64(k), Total: total, Modes: uint8(rdv.Set(0).With(rdv.Null))}
		req.Put(body)
		g.tell(pc)
	}
}

// Foreign is how many gates to processes of other sessions there are, and how many there have been at a time.
func (s *Session) Foreign() (now, most int) {
	s.mu.lock()
	defer s.mu.unlock()
	for _, g := range s.gates[s.size:] {
		if g != nil {
			now++
		}
	}
	return now, len(s.gates) - s.size
}
