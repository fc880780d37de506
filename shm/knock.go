package shm

import "github.com/bywash/bywash/driver"

// A peer whose user has called Connect is known here before ours has: either
// it has dialed, or it watches until this side does.

// beWatched counts the peers that wait for this side to dial.
func (c *Context) beWatched(from uint64, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[from] += n; c.watched[from] == 0 {
		delete(c.watched, from)
		return
	}
	c.knocked()
}

// knocked is called with mu held.
func (c *Context) knocked() {
	if c.onKnock != nil {
		c.onKnock()
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

// connecting tells whether a connection to a peer is being made. The caller
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
	c.onKnock = f
	c.knocked()
}

var _ driver.Knocker = (*Context)(nil)
