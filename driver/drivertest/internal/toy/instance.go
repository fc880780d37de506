package toy

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"

	"github.com/bywash/bywash/driver"
	"golang.org/x/sys/unix"
)

type state uint8

const (
	connecting state = iota
	up
	gone   // err says why: broken, or closed by the peer
	closed // by us
)

// credits is how many messages a peer may send that were not received.
const credits = 32

// instance is what instances of both tracks have.
type instance struct {
	c       *nicContext
	self    driver.Instance
	peer    string
	addr    string
	peerInc uint64
	settled chan struct{} // closed once the state is not connecting
	closing chan struct{} // closed once we close
	bell    chan struct{} // rung when something is done
	rings   int
	queued  bool // in the context's ready list, under its lock

	poolMu sync.Mutex
	pool   [][]byte

	mu      sync.Mutex
	work    *sync.Cond // for the writer
	state   state
	err     error
	waited  bool // ConnectWait returned nil
	id      uint64
	r, w    net.Conn
	running int // goroutines
	byeSent bool

	sendq   []frame
	ctrl    []frame
	sends   int // posted and not done
	sent    int
	posts   int
	credits int
	bufOut  *driver.Packet
	bufMem  []byte

	inbox   []message
	posted  []*driver.Packet
	recvOut *driver.Packet // holds a buffer of ours
	stale   []byte         // fault write-after-cancel
	ticket  uint64
	rdv     [depth][2 * rdvSize]byte // rdv data of posted receives
	named   bool
	ended1  bool // named once because it ended
	updates map[*driver.Packet][]byte

	ops     [opDepth]*driver.Op
	opsBusy int
	opGen   uint64
}

// message has arrived and waits to be received.
type message struct {
	data   []byte
	ticket uint64
}

// smallInstance and largeInstance add what only their track has.
type smallInstance struct{ *instance }
type largeInstance struct{ *instance }

func newInstance(c *nicContext, url string, u driver.URL) *instance {
	i := &instance{
		c: c, peer: url, addr: u.Rest, peerInc: u.Incarnation, credits: credits,
		settled: make(chan struct{}), closing: make(chan struct{}), bell: make(chan struct{}, 1),
		bufMem: make([]byte, bufferSize), updates: make(map[*driver.Packet][]byte),
	}
	i.work = sync.NewCond(&i.mu)
	if c.prop.Track == driver.Small {
		i.self = smallInstance{i}
	} else {
		i.self = largeInstance{i}
	}
	return i
}

// holdDial keeps the connection that is being made, so that it can be given up.
func (i *instance) holdDial(conn net.Conn) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.r, i.w = conn, conn
	return i.state == connecting
}

// start makes the instance stand.
func (i *instance) start(r, w net.Conn, id uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state != connecting {
		w.Write(byeBytes())
		r.Close()
		w.Close()
		return
	}
	i.r, i.w, i.id = r, w, id
	i.state, i.running = up, 2
	i.c.n.connects.Add(1)
	i.c.tasks.Go(i.reader)
	i.c.tasks.Go(i.writer)
	close(i.settled)
}

func byeBytes() []byte {
	var b [headerSize]byte
	(&header{kind: byeFrame}).encode(&b)
	return b[:]
}

// fail ends the connection from the other side. Only the first call counts.
func (i *instance) fail(err error) {
	i.mu.Lock()
	was := i.state
	if was == connecting || was == up {
		i.state, i.err = gone, err
	}
	if was == up && err == driver.ErrBroken {
		i.c.n.broken.Add(1) // before anybody sees that it is
	}
	i.work.Broadcast()
	i.mu.Unlock()
	if was == connecting {
		close(i.settled)
	}
	if was != up {
		return
	}
	if i.c.fault != "leak-after-death" {
		i.r.Close()
		i.w.Close()
	} else if u, ok := i.w.(*net.UnixConn); ok {
		f, _ := u.File()
		if f != nil {
			_, _ = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			f.Close()
		}
		i.w.Close()
	}
	if err == driver.ErrBroken {
		i.spread()
	}
	i.ring()
	if i.c.fault != "probe-misses-death" {
		i.c.enqueue(i)
	}
}

// spread does what the faults about deaths say.
func (i *instance) spread() {
	i.c.mu.Lock()
	i.c.grudge = true
	var others []*instance
	for o := range i.c.insts {
		if o != i && i.c.fault == "death-spreads" {
			others = append(others, o)
		}
	}
	i.c.mu.Unlock()
	for _, o := range others {
		o.fail(driver.ErrClosed)
	}
}

// ended is called by reader and writer as they end. The second of them, when
// nobody touches the caller's memory any more, completes what is pending.
func (i *instance) ended() {
	i.mu.Lock()
	i.running--
	if i.running > 0 {
		i.mu.Unlock()
		return
	}
	err := i.err
	if i.state == closed || err == nil {
		err = driver.ErrClosed
	}
	for k := range i.sendq {
		i.finish(i.sendq[k].p, err)
	}
	i.sendq = i.sendq[:0]
	for _, op := range i.ops {
		if op != nil {
			op.Driver.Phase, op.Driver.Err = driver.Done, err
		}
	}
	i.ops, i.opsBusy = [opDepth]*driver.Op{}, 0
	r, w := i.r, i.w
	i.mu.Unlock()
	i.ring()
	r.Close()
	w.Close()
}

func (i *instance) finish(p *driver.Packet, err error) {
	if p != nil {
		p.Driver.Phase, p.Driver.Err = driver.Done, err
		i.sends--
	}
}

// ring wakes the waiter of the instance.
func (i *instance) ring() {
	i.mu.Lock()
	i.rings++
	lost := i.c.fault == "lost-wakeup" && i.rings%7 == 0
	i.mu.Unlock()
	if lost {
		return
	}
	select {
	case i.bell <- struct{}{}:
	default:
	}
}

func (i *instance) local() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.state == closed
}

// nextFrame waits for something to write, and flushes the buffer when there is nothing more.
func (i *instance) nextFrame(w *bufio.Writer) (frame, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for {
		switch {
		case i.state == gone, i.byeSent:
			return frame{}, false
		case len(i.ctrl) > 0 && !i.holds():
			n := 0
			if i.c.fault == "fence-ignored" && i.ctrl[0].op != nil {
				n = len(i.ctrl) - 1
			}
			f := i.ctrl[n]
			i.ctrl = append(i.ctrl[:n], i.ctrl[n+1:]...)
			return f, true
		case i.credits > 0 && i.nextSend() >= 0:
			n := i.nextSend()
			f := i.sendq[n]
			i.sendq = append(i.sendq[:n], i.sendq[n+1:]...)
			i.credits--
			return f, true
		case i.state == closed:
			i.byeSent = true
			return frame{h: header{kind: byeFrame}}, true
		}
		if w.Buffered() > 0 {
			i.mu.Unlock()
			w.Flush()
			i.mu.Lock()
			continue
		}
		i.work.Wait()
	}
}

// holds makes the fault fence-ignored wait for a second operation.
func (i *instance) holds() bool {
	if i.c.fault != "fence-ignored" || len(i.ctrl) > 1 || i.ctrl[0].op == nil {
		return false
	}
	i.mu.Unlock()
	time.Sleep(2 * time.Millisecond)
	i.mu.Lock()
	return false
}

// nextSend picks the message to write: the first that need not wait for an
// update of its rdv data.
func (i *instance) nextSend() int {
	if i.c.fault == "disconnect-drops" && len(i.sendq) == 1 {
		return -1 // so that there is something to drop
	}
	for k := range i.sendq {
		if i.sendq[k].h.c == 0 {
			if i.c.fault == "reorder" && (i.sent+1)%7 == 0 && k+1 < len(i.sendq) {
				return k + 1
			}
			return k
		}
	}
	return -1
}

// wrote completes a message. It reports whether that was the last frame.
func (i *instance) wrote(f *frame) bool {
	if f.p != nil {
		i.mu.Lock()
		f.p.N = int(f.h.len)
		i.sent++
		i.finish(f.p, nil)
		i.mu.Unlock()
		i.c.n.sent.Add(1)
		i.c.n.bytesSent.Add(uint64(f.h.len))
		if i.c.fault != "send-wakeup-lost" {
			i.ring()
		}
	}
	return f.h.kind == byeFrame
}

// Peer implements driver.Instance.
func (i *instance) Peer() string { return i.peer }

// Path implements driver.Instance.
func (i *instance) Path() string { return "socket" }

// Disconnect implements driver.Instance.
func (i *instance) Disconnect() error {
	i.mu.Lock()
	if i.state == closed {
		i.mu.Unlock()
		return wrap("disconnect", i.peer, driver.ErrClosed)
	}
	if i.c.fault == "disconnect-drops" {
		for k := range i.sendq {
			i.finish(i.sendq[k].p, nil)
		}
		i.sendq = nil
	}
	if i.state == up && i.sends+i.opsBusy > 0 {
		i.mu.Unlock()
		return driver.ErrBusy
	}
	i.close()
	i.c.forget(i)
	return nil
}

// close ends the connection from our side. It is called locked and unlocks.
func (i *instance) close() {
	was := i.state
	i.state = closed
	close(i.closing)
	i.err = driver.ErrClosed
	for _, p := range i.posted {
		if i.c.fault != "close-leaves-posted" {
			p.Driver.Phase, p.Driver.Err = driver.Done, driver.ErrClosed
		}
	}
	i.posted = nil
	i.work.Broadcast()
	conn := i.w
	i.mu.Unlock()
	switch {
	case was == connecting:
		close(i.settled)
		if conn != nil {
			conn.Close()
		}
	case was == up:
		i.c.n.disconnects.Add(1)
	}
	i.ring()
}

// closeNow is for the end of the context: whatever waits for the peer is given
// up after a moment.
func (i *instance) closeNow() {
	i.mu.Lock()
	if i.state != closed {
		for k := range i.sendq {
			i.finish(i.sendq[k].p, driver.ErrClosed)
		}
		i.sendq = nil
		i.close()
	} else {
		i.mu.Unlock()
	}
	i.mu.Lock()
	conn := i.w
	i.mu.Unlock()
	if conn != nil {
		_ = conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	}
}

// wait sleeps until the bell rings.
func (i *instance) wait(ctx context.Context) error {
	if i.c.fault == "recv-wait-deaf" {
		ctx = context.Background()
	}
	return sleep(ctx, i.c, i.bell)
}
