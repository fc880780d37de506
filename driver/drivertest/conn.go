package drivertest

import (
	"encoding/json"
	"errors"

	"github.com/bywash/bywash/driver"
)

// conn is an instance with the conversation that carries its rdv data.
type conn struct {
	e  *end
	l  *link
	ch int
	i  driver.Instance

	rdvSent, rdvPosted int
	sends              map[int]*driver.Packet // that may get updates
	recvs              map[*driver.Packet]int
	notes              []note // received while something else was awaited
	early              []note // updates for messages that are not posted yet

	reg     driver.RemoteRegion // of a victim
	bounced [2]driver.Packet    // see bounce
}

// connectPeer connects to the process at the other end of the link, which calls
// connectPeer as well. The nth calls belong together.
func (l *link) connectPeer() *conn {
	l.e.Helper()
	c := l.begin()
	c.waitUp()
	return c
}

// begin exchanges urls and calls Connect.
func (l *link) begin() *conn {
	l.e.Helper()
	var url string
	l.sendNote("url", l.e.context().URL())
	l.recvNote("url", &url)
	i, err := l.e.context().Connect(url)
	l.e.noErr("connect", err)
	return l.newConn(i)
}

func (l *link) newConn(i driver.Instance) *conn {
	l.connects++
	return &conn{
		e: l.e, l: l, ch: l.connects, i: i,
		sends: make(map[int]*driver.Packet), recvs: make(map[*driver.Packet]int),
	}
}

// waitUp waits until the connection is established.
func (c *conn) waitUp() {
	c.e.Helper()
	ctx, cancel := c.e.bound()
	defer cancel()
	if err := c.i.ConnectWait(ctx); err != nil {
		c.e.dumpf("connect wait: %v", err)
	}
}

// self connects the context to itself.
func (e *end) self() *conn {
	e.Helper()
	i, err := e.context().Connect(e.context().URL())
	e.noErr("connect to oneself", err)
	c := newLoop(e).newConn(i)
	c.waitUp()
	return c
}

// pair starts a peer and connects to it.
func (e *end) pair(name string, args any) (*peer, *conn) {
	e.Helper()
	p := e.peer(name, args)
	return p, p.connectPeer()
}

func (c *conn) sendNote(tag string, v any) { c.e.Helper(); c.l.post(note{Ch: c.ch, Tag: tag}, v) }

// next is the next note that is no update.
func (c *conn) next(want string) note {
	c.e.Helper()
	if len(c.notes) > 0 {
		n := c.notes[0]
		c.notes = c.notes[1:]
		return n
	}
	for {
		n := c.l.next(c.ch, want)
		if n.Tag != "update" {
			return n
		}
		c.update(n)
	}
}

// pump carries updates of rdv data in both directions.
func (c *conn) pump() {
	if !c.e.caps.RdvUpdate || len(c.recvs)+len(c.sends) == 0 {
		return
	}
	for p, seq := range c.recvs {
		u, err := c.i.(driver.RdvUpdater).RecvRdvUpdate(p)
		if err == nil && u != nil {
			c.l.post(note{Ch: c.ch, Tag: "update", Seq: seq}, u)
		}
	}
	for {
		n, ok := c.l.try(c.ch)
		switch {
		case !ok:
			return
		case n.Tag == "update":
			c.update(n)
		default:
			c.notes = append(c.notes, n)
		}
	}
}

func (c *conn) update(n note) {
	c.e.Helper()
	p := c.sends[n.Seq]
	if p == nil && n.Seq > c.rdvPosted {
		c.early = append(c.early, n)
		return
	}
	if p == nil {
		return // done without it
	}
	var u []byte
	if err := json.Unmarshal(n.V, &u); err != nil {
		c.e.Fatalf("decode update: %v", err)
	}
	if err := c.i.(driver.RdvUpdater).SendRdvUpdate(p, u); err != nil && !ends(err) {
		c.e.Fatalf("rdv update of message %d: %v", n.Seq, err)
	}
}

// ends reports whether err means that the connection has ended.
func ends(err error) bool {
	return errors.Is(err, driver.ErrBroken) || errors.Is(err, driver.ErrClosed)
}

// tryRecv posts a receive and, on the large track, sends its rdv data to the sender.
func (c *conn) tryRecv(p *driver.Packet) error {
	if err := c.i.RecvPost(p); err != nil {
		return err
	}
	if c.e.large {
		c.rdvSent++
		c.recvs[p] = c.rdvSent
		c.l.post(note{Ch: c.ch, Tag: "rdv", Seq: c.rdvSent}, p.RdvData)
	}
	return nil
}

// postRecv is tryRecv that must succeed.
func (c *conn) postRecv(p *driver.Packet) {
	c.e.Helper()
	c.e.noErr("post receive", c.tryRecv(p))
}

// takeRdv sets the rdv data that the receiver has sent, on the large track.
func (c *conn) takeRdv(p *driver.Packet) {
	c.e.Helper()
	if !c.e.large {
		return
	}
	c.l.expect(c.next("rdv"), "rdv", &p.RdvData)
}

// posted notes that the next send is posted: updates reach it from now on.
func (c *conn) posted(p *driver.Packet) {
	c.e.Helper()
	c.rdvPosted++
	c.sends[c.rdvPosted] = p
	early := c.early
	c.early = nil
	for _, n := range early {
		c.update(n)
	}
}

// trySend posts a send, retrying while the queue is full.
func (c *conn) trySend(p *driver.Packet) error {
	c.e.Helper()
	c.takeRdv(p)
	return c.tryReady(p)
}

// tryReady is trySend for a packet that has its rdv data.
func (c *conn) tryReady(p *driver.Packet) error {
	c.e.Helper()
	var err error
	c.e.until("send while busy", func() bool {
		err = c.i.SendPost(p)
		if err == driver.ErrBusy {
			c.pump()
		}
		return err != driver.ErrBusy
	})
	switch {
	case c.e.large && err == nil:
		c.posted(p)
	case c.e.large:
		c.rdvPosted++
	}
	return err
}

func (c *conn) postSend(p *driver.Packet) {
	c.e.Helper()
	c.e.noErr("post send", c.trySend(p))
}

// sendErr and recvErr poll until the packet is done, and return how it ended.
func (c *conn) sendErr(p *driver.Packet) error {
	c.e.Helper()
	return c.finish("send", p, c.i.SendPoll)
}

func (c *conn) recvErr(p *driver.Packet) error {
	c.e.Helper()
	return c.finish("receive", p, c.i.RecvPoll)
}

func (c *conn) finish(what string, p *driver.Packet, poll func(*driver.Packet) (bool, error)) error {
	c.e.Helper()
	var err error
	c.e.until(what, func() (done bool) {
		c.pump()
		done, err = poll(p)
		if !done && err != nil {
			c.e.Fatalf("poll %s: error %v without done", what, err)
		}
		return done
	})
	c.forget(p)
	return err
}

func (c *conn) forget(p *driver.Packet) {
	delete(c.recvs, p)
	for s, q := range c.sends {
		if q == p {
			delete(c.sends, s)
		}
	}
}

func (c *conn) endSend(p *driver.Packet) { c.e.Helper(); c.e.noErr("send", c.sendErr(p)) }
func (c *conn) endRecv(p *driver.Packet) { c.e.Helper(); c.e.noErr("receive", c.recvErr(p)) }

func packet(b []byte) *driver.Packet { return &driver.Packet{IOV: [][]byte{b}} }

// leave disconnects, waiting for what is pending.
func (c *conn) leave() {
	c.e.Helper()
	c.e.until("disconnect", func() bool {
		c.pump()
		err := c.i.Disconnect()
		if err != nil && err != driver.ErrBusy {
			c.e.Fatalf("disconnect: %v", err)
		}
		return err == nil
	})
}
