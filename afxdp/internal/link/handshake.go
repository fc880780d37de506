package link

import (
	"fmt"
	"slices"
	"time"
)

// Connecting takes two round trips. A Cookie, of which the listener remembers nothing, answers the first Init; an
// Accept answers an Init with the cookie. The caller must see to it that one endpoint dials and the other listens.
// Connections between the same two endpoints are made one after the other, in the order of the calls, so that the nth
// call on one side is matched with the nth on the other. The next one begins when the peer has confirmed the one
// before, or when this side has given it up.

const (
	firstPause = 2 * time.Millisecond
	longPause  = 100 * time.Millisecond
	cookieLife = 10 * time.Second
	rejectWait = 50 * time.Millisecond // an Accept may come after a forged Reject
)

// Dial begins a connection to the endpoint peer; hello, at most maxHello bytes, is sent with it. It does not block. It
// sends until the peer answers, the dead time ends or the caller calls Close: a deadline is the caller's matter. It
// returns errFull if frames or connections are used up, and errInvalid for a hello that is too long or for the route
// Reply.
func (e *Endpoint) Dial(now Time, r Route, peer uint64, hello []byte, user any) (*Conn, error) {
	return e.call(now, r, peer, hello, user, true)
}

// Listen begins to wait for a connection from the endpoint peer, which must dial. Arguments and errors are those of
// Dial.
func (e *Endpoint) Listen(now Time, r Route, peer uint64, hello []byte, user any) (*Conn, error) {
	return e.call(now, r, peer, hello, user, false)
}

func (e *Endpoint) call(now Time, r Route, peer uint64, hello []byte, user any, dial bool) (*Conn, error) {
	e.now = max(e.now, now)
	if len(hello) > maxHello || r == Reply {
		return nil, fmt.Errorf("%w: hello of %d bytes (at most %d) or no route", errInvalid, len(hello), maxHello)
	}
	c := &Conn{e: e, route: r, peerID: peer, User: user, dialer: dial, lastReceived: e.now}
	if err := c.share(); err != nil {
		return nil, err
	}
	if err := e.insert(c); err != nil {
		c.unshare()
		return nil, err
	}
	c.mine = greeting{
		version: version, to: peer, from: e.cfg.ID, id: c.id, mtu: uint32(e.cfg.Unit),
		longest: uint16(e.cfg.MTU), window: uint16(e.cfg.Window), options: optParts, hello: slices.Clone(hello),
	}
	if e.cfg.Encrypt {
		c.mine.options |= optEncrypt
	}
	le.PutUint64(c.mine.nonce[:], e.random())
	le.PutUint64(c.mine.nonce[8:], e.random())
	k := e.peers[peer]
	if k == nil {
		k = new(callers)
		e.peers[peer] = k
	}
	c.pause = Time(firstPause)
	if dial {
		c.state, c.mine.kind = stateDialing, kindInit
		k.dial = append(k.dial, c)
	} else {
		c.state, c.mine.kind = stateListening, kindAccept
		k.listen = append(k.listen, c)
	}
	c.soon(e.now)
	return c, nil
}

// uncall removes a connection from the calls of its peer, and starts the next one.
func (e *Endpoint) uncall(c *Conn) {
	k := e.peers[c.peerID]
	if k == nil {
		return
	}
	is := func(x *Conn) bool { return x == c }
	first := len(k.dial) > 0 && k.dial[0] == c
	k.dial, k.listen = slices.DeleteFunc(k.dial, is), slices.DeleteFunc(k.listen, is)
	if first && len(k.dial) > 0 { // the dead time of the next one begins
		k.dial[0].lastReceived = e.now
		k.dial[0].soon(e.now)
	}
	if len(k.dial)+len(k.listen) == 0 {
		delete(e.peers, c.peerID)
	}
}

// tryConnect is the timer of a connection that is not established yet: it fails one whose peer has rejected it or is
// silent, and repeats the Init or the connect request of the oldest call of each peer.
func (c *Conn) tryConnect() {
	e := c.e
	if c.rejected != nil && e.now >= c.rejectAt {
		c.fail(c.rejected)
		return
	}
	if e.now-c.lastReceived >= Time(e.cfg.DeadTime) {
		c.fail(fmt.Errorf("%w for %v", errBroken, e.cfg.DeadTime))
		return
	}
	k := e.peers[c.peerID]
	switch c.state {
	case stateDialing:
		if k.dial[0] == c { // else its turn comes
			c.sendInit()
		}
	case stateListening:
		if k.listen[0] == c {
			n := note{kind: kindConnectRequest, to: c.peerID, from: e.cfg.ID, conn: c.id, sent: uint64(e.now)}
			e.sendNote(c.route, n, nil)
		}
	}
	due := e.now + c.pause
	c.pause = min(2*c.pause, Time(longPause))
	if c.rejected != nil {
		due = min(due, c.rejectAt)
	}
	c.soon(due)
}

func (c *Conn) sendInit() {
	c.mine.credit, c.mine.sent = uint32(c.e.cfg.share()), uint64(c.e.now)
	c.e.control(c.route, func(b []byte) []byte { return c.e.putGreeting(b, &c.mine, c.cookie[:], nil) })
}

// putGreeting writes a greeting with its MAC. The MAC of an Accept also covers the Init that it answers.
func (e *Endpoint) putGreeting(b []byte, g *greeting, cookie []byte, answers *greeting) []byte {
	b = b[:greetingSize]
	g.put(b)
	copy(b[atCookie:atSent], cookie)
	nonce, id := answered(answers)
	copy(b[atMAC:], e.secrets.greeting.MAC(b[:4], b[8:atMAC], nonce, id))
	finishPacket(b)
	return b
}

// greetingHolds reports whether an endpoint with the secret has sent the greeting, an Accept in answer to that Init.
func (e *Endpoint) greetingHolds(b []byte, answers *greeting) bool {
	nonce, id := answered(answers)
	return e.secrets.greeting.Check(b[atMAC:greetingSize], b[:4], b[8:atMAC], nonce, id)
}

// answered returns the fields of an Init that the MAC of the Accept that answers it covers. An Init answers nothing.
func answered(g *greeting) (nonce, id []byte) {
	if g == nil {
		return nil, nil
	}
	return g.nonce[:], le.AppendUint64(nil, g.id)
}

// unconnected handles packets that belong to no connection.
func (e *Endpoint) unconnected(k kind, b, from []byte) {
	if le.Uint32(b[4:]) != sum(b) {
		e.stats.Bad++
		return
	}
	ok := false
	switch k {
	case kindInit:
		ok = len(b) == greetingSize && e.init(b, from)
	case kindCookie:
		ok = len(b) == cookiePacketSize && e.takeCookie(b)
	case kindAccept:
		ok = len(b) == greetingSize && e.accepted(b, from)
	case kindReject:
		ok = len(b) == smallPacketSize && e.takeReject(b)
	case kindReset:
		ok = len(b) == smallPacketSize && e.takeReset(b)
	case kindConnectRequest, kindHere, kindQuery, kindGone:
		ok = len(b) == noteSize && e.takeNote(b)
	}
	if !ok {
		e.stats.Bad++
	}
}

// init answers a request for a connection. It stores nothing about an address until a cookie has proven that the sender
// receives there.
func (e *Endpoint) init(b, from []byte) bool {
	var g greeting
	id := le.Uint64(b[24:])
	if b[1] != version {
		e.reject(id, rejectVersion)
		return true
	}
	if !g.parse(b) {
		return false
	}
	if g.to != e.cfg.ID {
		e.reject(id, rejectGone)
		return true
	}
	if !e.cookieHolds(b, from) {
		e.control(Reply, func(out []byte) []byte {
			out = out[:cookiePacketSize]
			clear(out)
			out[0], out[1] = byte(kindCookie), version
			le.PutUint16(out[2:], cookiePacketSize)
			le.PutUint64(out[8:], g.id)
			le.PutUint64(out[16:], uint64(e.now))
			copy(out[24:], e.secrets.cookie.MAC(out[16:24], b[24:32], from)[:macSize])
			finishPacket(out)
			return out
		})
		return true
	}
	if !e.greetingHolds(b, nil) {
		e.reject(id, rejectAuth)
		return true
	}
	e.alive(g.from, e.now) // it is no older than its cookie
	e.pair(&g, from)
	return true
}

func (e *Endpoint) cookieHolds(b, from []byte) bool {
	when := b[atCookie : atCookie+8]
	age := e.now - Time(le.Uint64(when))
	if age < 0 || age > Time(cookieLife) {
		return false
	}
	return e.secrets.cookie.Check(b[atCookie+8:atSent], when, b[24:32], from)
}

func (e *Endpoint) reject(id uint64, code rejectCode) {
	e.stats.Refused++
	e.control(Reply, func(out []byte) []byte { return putSmall(out, kindReject, id, e.cfg.ID, uint8(code)) })
}

// pair finds the call that listens for the sender of an Init.
func (e *Endpoint) pair(g *greeting, from []byte) {
	if c := e.remote[g.id]; c != nil { // our Accept was lost; without it the peer takes no Close
		if (c.state == stateAccepted || c.state == stateClosing) && c.peerID == g.from {
			c.sendAccept(Reply)
		}
		return
	}
	k := e.peers[g.from]
	if k == nil || len(k.listen) == 0 {
		e.sendHere(g.from, g.id, g.sent) // the peer repeats its Init
		return
	}
	c := k.listen[0]
	if c.state == stateAccepted { // an earlier Init, whose sender may have given up
		if g.sent < c.theirs.sent {
			return // late: its sender has given up
		}
		c.unaccept()
	}
	hello := slices.Clone(g.hello)
	c.theirs = *g
	c.theirs.hello = hello
	c.peer, e.remote[g.id] = g.id, c
	e.succeeds(c, from)
	c.state = stateAccepted
	c.mine.to = g.id
	c.mine.credit = uint32(e.cfg.share())
	c.secure()
	c.sendAccept(Reply)
}

func (c *Conn) sendAccept(r Route) {
	c.e.control(r, func(b []byte) []byte { return c.e.putGreeting(b, &c.mine, nil, &c.theirs) })
}

// unaccept goes back to listening: the peer has not confirmed the Accept, and calls anew.
func (c *Conn) unaccept() {
	delete(c.e.remote, c.peer)
	c.peer, c.sealer, c.state = 0, nil, stateListening
	c.renew() // packets of the call that was given up must not match the new one
	c.soon(c.e.now)
}

// dialing finds the connection that an answer to an Init is for.
func (e *Endpoint) dialing(id uint64) *Conn {
	if n := int(id & 0xffff); n < len(e.conns) {
		if c := e.conns[n]; c != nil && c.id == id && c.state == stateDialing {
			return c
		}
	}
	return nil
}

func (e *Endpoint) takeCookie(b []byte) bool {
	c := e.dialing(le.Uint64(b[8:]))
	if c == nil {
		return true // late
	}
	if [cookieSize]byte(b[16:]) != c.cookie && e.now >= c.cookieAt {
		c.cookie, c.cookieAt = [cookieSize]byte(b[16:]), e.now+Time(firstPause) // limits how often a peer can make this side send
		c.sendInit()
	}
	return true
}

func (e *Endpoint) accepted(b, from []byte) bool {
	c := e.dialing(le.Uint64(b[8:]))
	if c == nil {
		return true // late: the peer gets a Reset when it sends on
	}
	var g greeting
	if b[1] != version || !g.parse(b) || g.from != c.peerID || !e.greetingHolds(b, &c.mine) {
		return false
	}
	if e.remote[g.id] != nil {
		return false // ids are random: two peers do not choose the same
	}
	c.theirs = g
	c.theirs.hello = slices.Clone(g.hello)
	c.peer, e.remote[g.id] = g.id, c
	e.succeeds(c, from)
	c.secure()
	c.establish()
	c.wantPing = true // a packet establishes the peer's side, too
	e.look(c)
	return true
}

func (e *Endpoint) takeReject(b []byte) bool {
	c := e.dialing(le.Uint64(b[8:]))
	if c == nil {
		return true
	}
	var err error
	switch code := rejectCode(b[32]); {
	case b[1] != version || code == rejectVersion:
		err = fmt.Errorf("%w: version %d, this is %d", ErrVersion, b[1], version)
	case code == rejectAuth:
		err = ErrAuth
	case code == rejectGone:
		err = errGone
	default:
		return false
	}
	if c.rejected == nil {
		c.rejected, c.rejectAt = err, e.now+Time(rejectWait)
		c.soon(c.rejectAt)
	}
	return true
}

// secure derives the keys if one side asks for encryption.
func (c *Conn) secure() {
	dial, accept := &c.mine, &c.theirs
	if !c.dialer {
		dial, accept = accept, dial
	}
	if (dial.options|accept.options)&optEncrypt != 0 {
		c.sealer = c.e.secrets.keys(c.dialer, dial, accept)
	}
}

// establish begins the exchange of messages: the greetings are exchanged.
func (c *Conn) establish() {
	e := c.e
	if c.unconfirmed = c.dialer; !c.dialer {
		e.uncall(c)
	}
	c.state = stateUp
	c.pmtu.divides = c.theirs.options&optParts != 0 && min(c.mine.mtu, c.theirs.mtu) >= partPacket
	c.routed(maxMTU)
	c.limit = min(uint64(c.theirs.credit), mostCredit)
	c.lastReceived, c.rejected = e.now, nil
	c.begin()
	c.pause = Time(firstPause)
	c.arm()
	e.handler.Up(c)
}
