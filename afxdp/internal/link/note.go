package link

import "hash/maphash"

// Notes are what endpoints say to each other outside of connections, under the session secret: that somebody waits for
// a call, that an endpoint is there, and that a connection is not there any more.
//
// Nobody can have an endpoint say something that hurts another connection (RFC 9000, section 21.11): a Reset says only
// that the one who got a packet does not have its connection, which may be because somebody sent the packet elsewhere.
// An endpoint never believes a Reset: it asks the peer itself, by a Query. A Gone is believed, as only two can answer that
// Query:
//
//   - the peer's endpoint itself, if it does not have the connection;
//   - the endpoint that lives where the peer lived, alone (Config.Sole): the process was started again.
//
// All others are silent: the mac of a Query is also over the address of the one that is asked. So is that of a Gone.

// sendNote sends a note; place is the address of the endpoint that a Query is about.
func (e *Endpoint) sendNote(r Route, n note, place []byte) {
	e.control(r, func(b []byte) []byte { return e.putNote(b, &n, place) })
}

func (e *Endpoint) putNote(b []byte, n *note, place []byte) []byte {
	b = b[:noteSize]
	n.put(b)
	copy(b[atNoteMAC:], e.secrets.note.MAC(b[:4], b[8:atNoteMAC], place))
	finishPacket(b)
	return b
}

// noteHolds reports whether somebody with the secret has sent the note, about the endpoint that is at place.
func (e *Endpoint) noteHolds(b, place []byte) bool {
	return e.secrets.note.Check(b[atNoteMAC:noteSize], b[:4], b[8:atNoteMAC], place)
}

// takeNote handles a note, and reports whether it is genuine.
func (e *Endpoint) takeNote(b []byte) bool {
	var n note
	n.parse(b)
	if b[1] != Version {
		return true
	}
	if n.kind == kindQuery {
		return e.takeQuery(&n, b)
	}
	if n.to != e.cfg.ID {
		return true // of one that was here before
	}
	if n.kind == kindGone {
		return e.takeGone(&n, b)
	}
	if !e.noteHolds(b, nil) {
		return false
	}
	if n.kind == kindKnock {
		e.takeKnock(&n)
		return true
	}
	if sent := Time(n.sent); sent >= 0 && sent <= e.now {
		e.alive(n.from, sent)
	}
	return true
}

// alive tells those who wait for an endpoint that it was there at a time.
func (e *Endpoint) alive(peer uint64, at Time) {
	if k := e.peers[peer]; k != nil {
		for _, list := range [2][]*Conn{k.dial, k.listen} {
			for _, c := range list {
				c.heard = max(c.heard, at)
			}
		}
	}
}

// sayHere answers a peer that waits for a call that was not made yet, so that it does not take us for dead.
func (e *Endpoint) sayHere(peer, conn, sent uint64) {
	e.sendNote(Reply, note{kind: kindHere, to: peer, from: e.cfg.ID, conn: conn, sent: sent}, nil)
}

// takeKnock calls the peer that waits for it. A Knock is no sign of life: it may have been recorded.
func (e *Endpoint) takeKnock(n *note) {
	k := e.peers[n.from]
	if k == nil || len(k.dial) == 0 || k.dial[0].state != stateDialing {
		e.sayHere(n.from, n.conn, n.sent)
		return
	}
	if c := k.dial[0]; e.now >= c.knocked {
		c.knocked = e.now + Time(firstKnock) // nobody makes us send more often
		c.sendInit()
	}
}

// takeReset asks the peer about a connection that somebody does not have.
func (e *Endpoint) takeReset(b []byte) bool {
	if c := e.remote[le.Uint64(b[8:])]; c != nil && c.state >= stateUp {
		c.query()
	}
	return true
}

// query asks the peer whether it still has the connection.
func (c *Conn) query() {
	e := c.e
	if e.now < c.queryAt {
		return
	}
	c.queryAt = e.now + Time(firstKnock) // nobody makes us send more often
	n := note{kind: kindQuery, to: c.peerID, from: e.cfg.ID, conn: c.peer, sent: uint64(e.now)}
	e.sendNote(c.route, n, e.carrier.Address(c.route))
}

// takeQuery answers a peer whose connection is not here.
func (e *Endpoint) takeQuery(n *note, b []byte) bool {
	if !e.noteHolds(b, e.cfg.Address) {
		return false
	}
	if n.to == e.cfg.ID {
		if k := int(n.conn & 0xffff); k < len(e.conns) && e.conns[k] != nil && e.conns[k].id == n.conn {
			return true // it is here
		}
	} else if !e.cfg.Sole {
		return true
	}
	if e.mayAnswer() {
		e.sendNote(Reply, note{kind: kindGone, to: n.from, from: e.cfg.ID, conn: n.conn, sent: n.sent}, e.cfg.Address)
	}
	return true
}

// takeGone ends a connection that the peer does not have. It never will again: ids are random and used once. So it does
// not matter which Query is answered.
func (e *Endpoint) takeGone(n *note, b []byte) bool {
	c := e.remote[n.conn]
	if c == nil || c.state < stateUp {
		return true
	}
	if !e.noteHolds(b, e.carrier.Address(c.route)) {
		return false
	}
	if c.state == stateClosing {
		e.drop(c)
		return true
	}
	c.fail(ErrReset)
	return true
}

// sources hashes where greetings come from.
var sources = maphash.MakeSeed()

// succeeds is told of a connection whose peer has proven itself, and of where it is. If other connections are with
// another endpoint at that place, this one may be its successor: they are asked about, lest they wait until they have
// something to send.
func (e *Endpoint) succeeds(c *Conn, from []byte) {
	c.source = maphash.Bytes(sources, from)
	for _, x := range e.conns {
		if x != nil && x.state >= stateUp && x.source == c.source && x.peerID != c.peerID {
			x.query()
		}
	}
}
