package link

import "hash/maphash"

// A note is a packet between endpoints, outside of connections, authenticated with the session secret. Notes report
// that a listener waits for an Init, that an endpoint is alive, and that a connection does not exist any more.
//
// An attacker must not be able to use one endpoint against another's connection (RFC 9000, section 21.11). A Reset
// means only that an endpoint got a packet of a connection that it does not have; an attacker may have redirected the
// packet. An endpoint therefore never believes a Reset: it asks the peer itself with a Query. It believes the Gone that
// answers, because only two endpoints can send one:
//
//   - the peer's endpoint itself, if it does not have the connection;
//   - the endpoint that lives where the peer lived, alone (Config.Sole): the process was started again.
//
// All other endpoints stay silent: the MACs of Query and Gone also cover the address of the endpoint that is asked.

// sendNote sends a note. place is the address of the endpoint that a Query or Gone is about; nil for other notes.
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

// noteHolds reports whether an endpoint with the secret has sent the note, about the endpoint that is at place.
func (e *Endpoint) noteHolds(b, place []byte) bool {
	return e.secrets.note.Check(b[atNoteMAC:noteSize], b[:4], b[8:atNoteMAC], place)
}

// takeNote handles a note, and reports whether it is genuine.
func (e *Endpoint) takeNote(b []byte) bool {
	var n note
	n.parse(b)
	if b[1] != version {
		return true
	}
	if n.kind == kindQuery {
		return e.takeQuery(&n, b)
	}
	if n.to != e.cfg.ID {
		return true // for an earlier endpoint at this address
	}
	if n.kind == kindGone {
		return e.takeGone(&n, b)
	}
	if !e.noteHolds(b, nil) {
		return false
	}
	if n.kind == kindConnectRequest {
		e.takeConnectRequest(&n)
		return true
	}
	if sent := Time(n.sent); sent >= 0 && sent <= e.now {
		e.alive(n.from, sent)
	}
	return true
}

// alive records for all calls to an endpoint that it was alive at a time.
func (e *Endpoint) alive(peer uint64, at Time) {
	if k := e.peers[peer]; k != nil {
		for _, list := range [2][]*Conn{k.dial, k.listen} {
			for _, c := range list {
				c.lastReceived = max(c.lastReceived, at)
			}
		}
	}
}

// sendHere answers a peer whose call this side has not made yet, so that the peer does not take this endpoint for dead.
func (e *Endpoint) sendHere(peer, conn, sent uint64) {
	e.sendNote(Reply, note{kind: kindHere, to: peer, from: e.cfg.ID, conn: conn, sent: sent}, nil)
}

// takeConnectRequest sends the Init that a listening peer waits for, or a Here if no call for the peer is under way. A
// connect request is no sign of life, as it may be a replay.
func (e *Endpoint) takeConnectRequest(n *note) {
	k := e.peers[n.from]
	if k == nil || len(k.dial) == 0 || k.dial[0].state != stateDialing {
		e.sendHere(n.from, n.conn, n.sent)
		return
	}
	if c := k.dial[0]; e.now >= c.answerAt {
		c.answerAt = e.now + Time(firstPause) // limits how often a peer can make this side send
		c.sendInit()
	}
}

// takeReset asks the peer about the connection that the Reset names.
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
	c.queryAt = e.now + Time(firstPause) // limits how often a peer can make this side send
	n := note{kind: kindQuery, to: c.peerID, from: e.cfg.ID, conn: c.peer, sent: uint64(e.now)}
	e.sendNote(c.route, n, e.carrier.Address(c.route))
}

// takeQuery answers with a Gone if the connection that the Query names does not exist here.
func (e *Endpoint) takeQuery(n *note, b []byte) bool {
	if !e.noteHolds(b, e.cfg.Address) {
		return false
	}
	if n.to == e.cfg.ID {
		if k := int(n.conn & 0xffff); k < len(e.conns) && e.conns[k] != nil && e.conns[k].id == n.conn {
			return true // the connection exists: no answer is needed
		}
	} else if !e.cfg.Sole {
		return true
	}
	if e.mayAnswer() {
		e.sendNote(Reply, note{kind: kindGone, to: n.from, from: e.cfg.ID, conn: n.conn, sent: n.sent}, e.cfg.Address)
	}
	return true
}

// takeGone ends a connection that the peer does not have. Ids are random and used once, so the peer never has it again,
// and it does not matter which Query the Gone answers.
func (e *Endpoint) takeGone(n *note, b []byte) bool {
	c := e.remote[n.conn]
	if c == nil || c.state < stateUp {
		return true
	}
	if !e.noteHolds(b, e.carrier.Address(c.route)) {
		return false
	}
	if c.state == stateClosing {
		c.finish()
		return true
	}
	c.fail(errReset)
	return true
}

// sources seeds the hashes of the addresses that greetings come from.
var sources = maphash.MakeSeed()

// succeeds looks for connections that the peer of c may have replaced: they come from the same address but belong to
// another endpoint. It sends queries for them, as otherwise they would only be noticed when they have something to
// send.
func (e *Endpoint) succeeds(c *Conn, from []byte) {
	c.source = maphash.Bytes(sources, from)
	for _, x := range e.conns {
		if x != nil && x.state >= stateUp && x.source == c.source && x.peerID != c.peerID {
			x.query()
		}
	}
}
