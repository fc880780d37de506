package shm

import (
	"fmt"
	"sync"
	"time"

	"github.com/bywash/bywash/driver"
)

// A connection that was closed lingers while its peer may be inside memory of
// this process: for ever, if the peer says so in shared memory. It costs that memory and a place in the
// list of one goroutine, which looks after all such connections of the process; its socket is closed, its
// peer's pidfd is that of all connections to the process.
const (
	// maxLingering is the number of closed connections to a peer that may linger before
	// Connect refuses new ones.
	maxLingering = 64

	firstLook = time.Millisecond
	lastLook  = 256 * time.Millisecond // well below the dead time
)

// lingerer looks after what lingers. Its goroutine ends when there is nothing.
type lingerer struct {
	mu    sync.Mutex
	list  []*lingering
	awake bool          // the goroutine runs
	added chan struct{} // something was
}

// lingering is a closed connection.
type lingering struct {
	end  func() bool   // ends it if the peer is out
	next time.Time     // when to look
	wait time.Duration // until the look after that
}

var linger = lingerer{added: make(chan struct{}, 1)}

func (l *lingerer) add(end func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, &lingering{end: end, next: time.Now().Add(firstLook), wait: firstLook})
	if !l.awake {
		l.awake = true
		go l.run()
	}
	select {
	case l.added <- struct{}{}:
	default:
	}
}

func (l *lingerer) run() {
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

// due returns those to look at now. Each look at a connection comes later than the one before.
func (l *lingerer) due(now time.Time) (due []*lingering) {
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

func (l *lingerer) remove(e *lingering) {
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

// asleep reports whether there is nothing to look after: the goroutine ends.
func (l *lingerer) asleep() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awake = len(l.list) > 0
	return !l.awake
}

func (l *lingerer) untilNext() time.Duration {
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

// linger keeps what a closed connection has until end succeeds.
func (n *conn) linger(end func() bool) {
	c := n.ctx
	c.Mu.Lock()
	c.lingering++
	count(c.old, n.peerInc, 1)
	c.Mu.Unlock()
	linger.add(func() bool {
		if !end() {
			return false
		}
		c.Mu.Lock()
		c.lingering--
		count(c.old, n.peerInc, -1)
		last := c.lingering == 0 && c.released
		c.Mu.Unlock()
		if last {
			c.unpin()
		}
		return true
	})
}

// lingers returns an error if too many connections to a peer linger. The caller
// holds mu.
func (c *hostContext) lingers(peer uint64) error {
	if n := c.old[peer]; n >= maxLingering {
		return fmt.Errorf("%w: the peer is still inside memory of %d connections to it that were closed, at most %d may be: "+
			"end it, or wait until it has left", driver.ErrBusy, n, maxLingering)
	}
	return nil
}

// dropProcess gives up the connection's share in its peer's pidfd.
func (n *conn) dropProcess() {
	n.proc.close()
	n.proc = noProcess
}
