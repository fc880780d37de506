//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"fmt"
	"sync"
	"time"

	"github.com/bywash/bywash/driver"
)

// A connection that was closed on this side is kept as closing while its peer may access memory of this process: for
// ever, if the peer's hazard word stays set. It costs that memory and an entry in the list of one goroutine, which
// polls all closing connections of the process; its socket is closed, and its peer's pidfd is shared by all connections
// to that process.
const (
	// maxClosing is the number of closing connections to a peer above which Connect
	// refuses new ones.
	maxClosing = 64

	firstLook = time.Millisecond
	lastLook  = 256 * time.Millisecond // well below the dead time
)

// closer polls the closing connections. Its goroutine ends when there are none.
type closer struct {
	mu    sync.Mutex
	list  []*closingConn
	awake bool          // the goroutine runs
	added chan struct{} // something was
}

// closingConn is a connection that was closed on this side, and whose peer may still access its memory.
type closingConn struct {
	end  func() bool   // ends it if the peer accesses nothing any more
	next time.Time     // when to call end
	wait time.Duration // until the call after that
}

var closing = closer{added: make(chan struct{}, 1)}

func (l *closer) add(end func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, &closingConn{end: end, next: time.Now().Add(firstLook), wait: firstLook})
	if !l.awake {
		l.awake = true
		go l.run()
	}
	select {
	case l.added <- struct{}{}:
	default:
	}
}

func (l *closer) run() {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-l.added:
		}
		for _, e := range l.due(time.Now()) {
			if e.end() {
				l.remove(e)
			}
		}
		if l.asleep() {
			return
		}
		t.Reset(l.untilNext())
	}
}

// due returns the connections to poll now. The time between two polls of a connection grows.
func (l *closer) due(now time.Time) (due []*closingConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.list {
		if e.next.After(now) {
			continue
		}
		e.wait = min(2*e.wait, lastLook)
		e.next = now.Add(e.wait)
		due = append(due, e)
	}
	return due
}

func (l *closer) remove(e *closingConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, x := range l.list {
		if x == e {
			l.list[i] = l.list[len(l.list)-1]
			l.list[len(l.list)-1] = nil
			l.list = l.list[:len(l.list)-1]
			return
		}
	}
}

// asleep reports whether the list is empty: the goroutine ends.
func (l *closer) asleep() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awake = len(l.list) > 0
	return !l.awake
}

func (l *closer) untilNext() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := time.Now().Add(lastLook)
	for _, e := range l.list {
		if e.next.Before(next) {
			next = e.next
		}
	}
	return max(time.Until(next), 0)
}

// closeLater keeps the memory of a closed connection until end succeeds.
func (n *conn) closeLater(end func() bool) {
	c := n.ctx
	c.Mu.Lock()
	c.closing++
	count(c.old, n.peerInc, 1)
	c.Mu.Unlock()
	closing.add(func() bool {
		if !end() {
			return false
		}
		c.Mu.Lock()
		c.closing--
		count(c.old, n.peerInc, -1)
		last := c.closing == 0 && c.released
		c.Mu.Unlock()
		if last {
			c.unpin()
		}
		return true
	})
}

// tooManyClosing returns an error if too many connections to a peer are closing.
// The caller holds mu.
func (c *hostContext) tooManyClosing(peer uint64) error {
	if n := c.old[peer]; n >= maxClosing {
		return fmt.Errorf("%w: the peer still accesses %d closed connections (limit %d): "+
			"wait, or end the peer process", driver.ErrBusy, n, maxClosing)
	}
	return nil
}

// dropProcess gives up the connection's share in its peer's pidfd.
func (n *conn) dropProcess() {
	n.proc.close()
	n.proc = noProcess
}
