//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"fmt"
	"slices"
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

// poller calls functions until each has returned true, with pauses that grow until another one is added. Its goroutine
// ends when there are none.
type poller struct {
	mu    sync.Mutex
	list  []func() bool
	awake bool          // the goroutine runs
	added chan struct{} // something was
}

// polled are what ends a closing connection if its peer accesses nothing any more, and what sends a message if a peer has
// begun to read again. None of them blocks.
var polled = poller{added: make(chan struct{}, 1)}

func (l *poller) add(f func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, f)
	if !l.awake {
		l.awake = true
		go l.run()
	}
	select {
	case l.added <- struct{}{}:
	default:
	}
}

func (l *poller) run() {
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		select {
		case <-l.added:
			wait = firstLook
			time.Sleep(wait)
		case <-time.After(wait):
		}
		l.mu.Lock()
		list := l.list
		l.list = nil
		l.mu.Unlock()
		list = slices.DeleteFunc(list, func(f func() bool) bool { return f() })
		l.mu.Lock()
		l.list = append(list, l.list...)
		l.awake = len(l.list) > 0
		awake := l.awake
		l.mu.Unlock()
		if !awake {
			return
		}
	}
}

// closeLater keeps the memory of a closed connection until end succeeds.
func (n *conn) closeLater(end func() bool) {
	c := n.ctx
	c.Mu.Lock()
	count(c.old, n.peerInc, 1)
	c.Mu.Unlock()
	polled.add(func() bool {
		if !end() {
			return false
		}
		c.Mu.Lock()
		count(c.old, n.peerInc, -1)
		c.Mu.Unlock()
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
