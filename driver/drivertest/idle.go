package drivertest

import (
	"encoding/json"
	"slices"
)

// An emulated processor takes half a second to start a process, which is most of what a check costs there. A peer whose
// role has returned then plays another one, in the next check: its context is closed, and it opens a new one. On real
// processors each peer is a process of its own, which ends.

// tagAgain gives a peer process another role; V is its set-up. tagOver ends it.
const (
	tagAgain = "again"
	tagOver  = "over"
)

// mortal are the roles of processes that are killed, or that must not have lived before.
var mortal = []string{roleSurvivor, roleVictim, roleSwap}

// idlePeers are the peer processes of a run that play no role now.
type idlePeers struct{ free []*peer }

// reuses reports whether the process of a role plays others before and after it.
func (e *end) reuses(name string) bool { return e.idle != nil && !slices.Contains(mortal, name) }

// idlePeer gives a role to a peer process that has none; nil if there is none.
func (e *end) idlePeer(name string, argv json.RawMessage) *peer {
	if !e.reuses(name) || len(e.idle.free) == 0 {
		return nil
	}
	last := len(e.idle.free) - 1
	p := e.idle.free[last]
	e.idle.free = e.idle.free[:last]
	p.resting = false
	p.renew(e)
	p.name = "peer " + name
	p.sendNote(tagAgain, e.setup(name, argv))
	return p
}

// renew makes the link that of another check: notes that were not received were for the one before.
func (l *link) renew(e *end) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.e, l.connects, l.queues = e, 0, make(map[int]chan note)
}

// end ends the processes. Each must end by itself, and in order.
func (i *idlePeers) end(e *end) {
	for _, p := range i.free {
		p.renew(e)
		p.sendNote(tagOver, nil)
	}
	for _, p := range i.free {
		p.awaitExit()
		if p.status != nil {
			e.Errorf("%s: %v\n%s", p.name, p.status, p.stderr.String())
		}
		p.free()
	}
}

// nextRole waits in a peer process for another role. False: there is none.
func (l *link) nextRole(s *setup) bool {
	for q := l.queue(0); ; {
		var n note
		select {
		case n = <-q:
		case <-l.gone: // which ends the process
			select {}
		}
		switch n.Tag {
		case tagOver:
			return false
		case tagAgain:
			l.expect(n, tagAgain, s)
			return true
		}
	}
}
