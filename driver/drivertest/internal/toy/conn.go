//go:build linux

package toy

import (
	"bufio"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// credits is how many messages a peer may send that were not received.
const credits = 32

// conn is a connection to a peer; both tracks build on it. Two goroutines read and write its stream.
type conn struct {
	kit.Conn
	c       *nicContext
	api     track
	addr    string
	peerInc uint64
	closing chan struct{} // closed once we close

	fresh atomic.Bool // a message came when no other was there
	stale []byte      // fault write-after-cancel; the owner's

	poolMu sync.Mutex
	pool   [][]byte

	mu        sync.Mutex
	work      *sync.Cond // for the writer
	id        uint64
	r, w      net.Conn
	running   int  // goroutines
	over      bool // they have ended
	closeSent bool
	rings     int

	sendq     []frame
	ctrl      []frame
	overtaken bool        // fault fence-ignored: the second of two operations has left, the first has not
	written   [depth]bool // sends of the large track
	sent      int
	credits   int
	inbox     []message

	ops     [opDepth]*driver.Op
	opsBusy int
	opGen   uint64
}

// track is what a track adds to a connection.
type track interface {
	driver.Instance
	kit.ConnHooks
	// awaits reports whether a message with that ticket can be received. The caller holds mu.
	awaits(ticket uint64) bool
	// wrote is called when a message has left.
	wrote()
}

// message has arrived and waits to be received.
type message struct {
	data   []byte
	ticket uint64
}

// newConn begins a connection. The caller holds Mu.
func newConn(c *nicContext, num uint32, url string, u driver.URL) *conn {
	var n *conn
	if c.Props.Track == driver.Small {
		s := &small{}
		s.Small.Init(&s.Conn, s)
		n, s.api = &s.conn, s
	} else {
		l := &large{}
		l.Large.Init(&l.Conn, l, c.longest())
		l.Prefetcher.Init(&l.Conn, l)
		n, l.api = &l.conn, l
	}
	n.c, n.addr, n.peerInc, n.credits = c, u.Rest, u.Incarnation, credits
	n.closing = make(chan struct{})
	n.work = sync.NewCond(&n.mu)
	c.Add(n, num, url, n.api, n.api)
	return n
}

// longest is the length of the longest message.
func (c *nicContext) longest() int {
	n := c.Props.Capabilities.MaxMessage
	if c.fault == "long-accepted" {
		n++
	}
	return n
}

// holdDial keeps the stream of a connection that is being made, so that it can be given up.
func (n *conn) holdDial(s net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.w = s
	return n.State() == kit.StateConnecting
}

// refuse gives up connecting.
func (n *conn) refuse(err error) { n.Resolve(kit.StateBroken, err) }

// start establishes the connection.
func (n *conn) start(r, w net.Conn, id uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.r, n.w, n.id, n.running = r, w, id, 2
	if !n.Resolve(kit.StateUp, nil) {
		n.running = 0
		w.Write(closeBytes())
		r.Close()
		w.Close()
		return
	}
	n.c.tasks.Go(n.reader)
	n.c.tasks.Go(n.writer)
}

func closeBytes() []byte {
	var b [headerSize]byte
	(&header{kind: closeFrame}).encode(&b)
	return b[:]
}

// end ends an established connection, from the other side. Only the first call counts.
func (n *conn) end(s kit.State, err error) {
	if n.State() != kit.StateUp {
		return
	}
	if s == kit.StateBroken {
		n.c.refuses.Store(true)
	}
	n.Finish(s, err)
	n.mu.Lock()
	n.work.Broadcast()
	n.mu.Unlock()
	if n.c.fault != "leak-after-death" {
		n.r.Close()
	} else if u, ok := n.w.(*net.UnixConn); ok {
		f, _ := u.File()
		if f != nil {
			_, _ = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			f.Close()
		}
	}
	n.w.Close()
	if n.c.fault == "death-spreads" && s == kit.StateBroken {
		n.spread()
	}
}

// spread ends the other connections of the context.
func (n *conn) spread() {
	n.c.Mu.Lock()
	others := n.c.Conns.List()
	n.c.Mu.Unlock()
	for _, o := range others {
		if o != n {
			o.end(kit.StatePeerClosed, nil)
		}
	}
}

// ended is called by reader and writer as they end. The second of them, when no goroutine accesses the caller's memory
// any more, completes what is pending.
func (n *conn) ended() {
	n.mu.Lock()
	n.running--
	if n.running > 0 {
		n.mu.Unlock()
		return
	}
	n.over, n.sendq = true, nil
	err := n.Failure("operation")
	for _, op := range n.ops {
		if op != nil {
			op.Driver.Phase, op.Driver.Err = driver.Done, err
		}
	}
	n.ops, n.opsBusy = [opDepth]*driver.Op{}, 0
	r, w := n.r, n.w
	n.mu.Unlock()
	n.ring()
	r.Close()
	w.Close()
}

// ring wakes the waiter of the instance.
func (n *conn) ring() {
	n.mu.Lock()
	n.rings++
	lost := n.c.fault == "lost-wakeup" && n.rings%7 == 0
	n.mu.Unlock()
	if !lost {
		n.Wake()
	}
}

// nextFrame waits for something to write, and flushes the buffer when there is nothing more.
func (n *conn) nextFrame(w *bufio.Writer) (frame, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		st := n.State()
		switch {
		case st == kit.StatePeerClosed || st == kit.StateBroken, n.closeSent:
			return frame{}, false
		case len(n.ctrl) > 0 && !n.holds(w):
			k := 0
			if n.c.fault == "fence-ignored" && n.ctrl[0].op != nil {
				k = len(n.ctrl) - 1
				n.overtaken = k > 0
			}
			f := n.ctrl[k]
			n.ctrl = append(n.ctrl[:k], n.ctrl[k+1:]...)
			return f, true
		case n.credits > 0 && n.nextSend() >= 0:
			k := n.nextSend()
			f := n.sendq[k]
			n.sendq = append(n.sendq[:k], n.sendq[k+1:]...)
			n.credits--
			return f, true
		case st == kit.StateClosed:
			n.closeSent = true
			return frame{h: header{kind: closeFrame}}, true
		}
		if w.Buffered() > 0 {
			n.mu.Unlock()
			w.Flush()
			n.mu.Lock()
			continue
		}
		n.work.Wait()
	}
}

// holds makes the fault fence-ignored wait for a second operation, which leaves first, and lets the peer see that one
// alone for a while.
func (n *conn) holds(w *bufio.Writer) bool {
	if n.c.fault != "fence-ignored" || n.ctrl[0].op == nil {
		return false
	}
	if !n.overtaken {
		return len(n.ctrl) == 1
	}
	n.overtaken = false
	n.mu.Unlock()
	w.Flush()
	time.Sleep(100 * time.Millisecond)
	n.mu.Lock()
	return false
}

// nextSend picks the message to write: the first that need not wait for an update of its rdv data.
func (n *conn) nextSend() int {
	if n.c.fault == "disconnect-drops" && len(n.sendq) == 1 {
		return -1 // so that there is something to drop
	}
	for k := range n.sendq {
		if n.sendq[k].h.c == 0 {
			if n.c.fault == "reorder" && (n.sent+1)%7 == 0 && k+1 < len(n.sendq) {
				return k + 1
			}
			return k
		}
	}
	return -1
}

// wrote completes a message. It reports whether that was the last frame.
func (n *conn) wrote(f *frame) bool {
	if f.h.kind == msgFrame {
		n.mu.Lock()
		n.sent++
		if f.p != nil {
			n.written[f.slot] = true
		}
		n.mu.Unlock()
		n.api.wrote()
		if n.c.fault != "send-wakeup-lost" {
			n.ring()
		}
	}
	return f.h.kind == closeFrame
}

// arrive takes a message from the wire.
func (n *conn) arrive(m message) {
	to := n
	if n.c.fault == "cross-talk" && len(m.data) > 0 && m.data[0]%16 == 1 {
		n.c.Mu.Lock()
		for o := range n.c.Conns.All() {
			if o != n {
				to = o
			}
		}
		n.c.Mu.Unlock()
	}
	to.mu.Lock()
	if !to.api.awaits(m.ticket) { // the receive was cancelled
		to.credit()
		to.mu.Unlock()
		n.free(m.data)
		return
	}
	if len(to.inbox) == 0 {
		to.fresh.Store(true)
	}
	to.inbox = append(to.inbox, m)
	to.mu.Unlock()
	if m.ticket == 0 {
		to.Announce()
	}
	to.ring()
}

// take removes a message from the inbox, and lets the peer send another.
func (n *conn) take(ticket uint64) (m message, ok bool) {
	for k := range n.inbox {
		if n.inbox[k].ticket == ticket {
			m = n.inbox[k]
			n.inbox = append(n.inbox[:k], n.inbox[k+1:]...)
			n.credit()
			return m, true
		}
	}
	return m, false
}

// credit notifies the peer that a message was consumed. The caller holds mu.
func (n *conn) credit() {
	n.ctrl = append(n.ctrl, frame{h: header{kind: creditFrame, a: 1}})
	n.work.Signal()
}

func (n *conn) Path() string { return "socket" }

// OnClose implements kit.ConnHooks: the writer sends the close message, after what was sent.
func (n *conn) OnClose(before kit.State) {
	close(n.closing)
	limit := 5 * time.Second
	if n.c.IsClosed() {
		limit = 200 * time.Millisecond
	}
	n.mu.Lock()
	for k := len(n.sendq) - 1; k >= 0; k-- {
		if n.sendq[k].p != nil { // in memory that is the caller's now
			n.sendq = append(n.sendq[:k], n.sendq[k+1:]...)
		}
	}
	n.work.Broadcast()
	switch {
	case n.running > 0:
		_ = n.w.SetWriteDeadline(time.Now().Add(limit))
	case n.w != nil:
		n.w.Close()
	}
	n.mu.Unlock()
	n.c.forget(n)
}

// From here on methods add faults to those of the kit.

func (n *conn) ConnectWait(ctx context.Context) error {
	if n.c.fault == "wait-ignores-context" {
		ctx = context.Background()
	}
	return n.Conn.ConnectWait(ctx)
}

func (n *conn) Disconnect() error {
	if n.c.fault == "disconnect-drops" {
		n.mu.Lock()
		for _, f := range n.sendq {
			n.written[f.slot] = true
		}
		n.sendq = nil
		n.mu.Unlock()
	}
	return n.Conn.Disconnect()
}

// post is the post of a packet.
func (n *conn) post(p *driver.Packet, post func(*driver.Packet) error) error {
	if n.c.fault == "early-post" && !n.Waited() || n.c.fault == "zombie" && n.State() == kit.StateClosed {
		return nil
	}
	return n.disguised(post(p))
}

// disguised is the error of a call, in which a fault hides an orderly end.
func (n *conn) disguised(err error) error {
	if n.c.fault == "closed-as-broken" && n.State() == kit.StatePeerClosed && errors.Is(err, driver.ErrClosed) {
		return n.Fault("call", driver.ErrBroken)
	}
	return err
}

func (n *conn) SendWait(ctx context.Context, p *driver.Packet) error {
	return n.wait(ctx, p, n.api.SendPoll, n.Conn.SendWait)
}

func (n *conn) RecvWait(ctx context.Context, p *driver.Packet) error {
	return n.wait(ctx, p, n.api.RecvPoll, n.Conn.RecvWait)
}

func (n *conn) wait(ctx context.Context, p *driver.Packet, poll func(*driver.Packet) (bool, error),
	wait func(context.Context, *driver.Packet) error) error {
	switch n.c.fault {
	case "recv-wait-ignores-context":
		ctx = context.Background()
	case "burn-cpu":
		for ctx.Err() == nil {
			if done, err := poll(p); done {
				return err
			}
		}
		return ctx.Err()
	}
	return wait(ctx, p)
}

// polled is a poll of a receive.
func (n *conn) polled(p *driver.Packet, poll func(*driver.Packet) (bool, error)) (bool, error) {
	posted := p.Driver.Phase != driver.Idle
	if posted && p.Driver.Phase == driver.Posted && n.c.fault == "close-leaves-posted" && n.State() == kit.StateClosed {
		return false, nil
	}
	done, err := poll(p)
	if done && posted {
		err = n.spoiled(p, err)
	}
	return done, n.disguised(err)
}

// canceled is the cancel of a receive.
func (n *conn) canceled(p *driver.Packet, cancel func(*driver.Packet) error) error {
	posted := p.Driver.Phase == driver.Posted
	err := cancel(p)
	switch {
	case !posted || err != nil:
	case n.c.fault == "cancel-ignored":
		p.Driver.Phase = driver.Posted // but no receive has it
	case p.Driver.Phase == driver.Done && p.Driver.Err == driver.ErrCanceled:
		n.remember(p)
	}
	return err
}

// remember keeps the memory of a receive that was cancelled, for the fault that writes there.
func (n *conn) remember(p *driver.Packet) {
	if b, ok := p.Contiguous(); ok && n.c.fault == "write-after-cancel" {
		n.stale = b
	}
}

// late writes a message that came to the memory of a receive that was cancelled.
func (n *conn) late(data []byte) { copy(n.stale, data) }
