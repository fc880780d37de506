package shm

import "github.com/bywash/bywash/driver"

// A connect request is known here before this side's user calls Connect: the peer either has dialed, or watches until
// this side dials.

// beWatched counts the peers that wait for this side to dial.
func (c *Context) beWatched(from uint64, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[from] += n; c.watched[from] == 0 {
		delete(c.watched, from)
		return
	}
	c.requested()
}

// requested reports a connect request to the user. The caller holds mu.
func (c *Context) requested() {
	if c.onRequest != nil {
		c.onRequest()
	}
}

// Knocking implements driver.Knocker.
func (c *Context) Knocking(dst []uint64) []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for from := range c.arrived {
		dst = append(dst, from)
	}
	for from := range c.watched {
		if !c.connecting(from) {
			dst = append(dst, from)
		}
	}
	return dst
}

// connecting reports whether a connection to a peer is being made. The caller
// holds mu.
func (c *Context) connecting(peer uint64) bool {
	for n := range c.conns {
		if n.peerInc == peer && n.state.Load() == stateConnecting {
			return true
		}
	}
	return false
}

// OnKnock implements driver.Knocker.
func (c *Context) OnKnock(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onRequest = f
	c.requested()
}

var _ driver.Knocker = (*Context)(nil)
