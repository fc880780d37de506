package qnix

import (
	"slices"
	"sync"
	"time"
)

// attention lists what the keeper is to look at.
type attention struct {
	mu    sync.Mutex
	peers []*peer
	conns []*conn
}

func (a *attention) addPeer(p *peer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.peers, p) {
		a.peers = append(a.peers, p)
	}
}

func (a *attention) addConn(n *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.conns, n) {
		a.conns = append(a.conns, n)
	}
}

func (a *attention) take(peers []*peer, conns []*conn) ([]*peer, []*conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	peers, conns = append(peers[:0], a.peers...), append(conns[:0], a.conns...)
	clear(a.peers)
	clear(a.conns)
	a.peers, a.conns = a.peers[:0], a.conns[:0]
	return peers, conns
}

// attend has the keeper look at a connection.
func (c *process) attend(n *conn) {
	c.attention.addConn(n)
	c.nudge()
}

// nudge has the keeper look at once.
func (c *process) nudge() {
	select {
	case c.nudged <- struct{}{}:
	default:
	}
	if c.keeperSleeps.Load() {
		c.proc.Wake()
	}
}

// How long the keeper sleeps: while others drain the Doorbell Ring; while somebody waits in the kernel, who does it as well, and
// who tells the keeper of his end if that takes longer; and else, when the NIC or a nudge wakes it.
const (
	polledPause  = time.Millisecond
	watchedPause = 100 * time.Millisecond
	longestSleep = time.Second
	retryPause   = time.Millisecond
)

// keep makes and ends connections, and drains the Doorbell Ring when nobody else does.
func (c *process) keep() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var peers []*peer
	var conns []*conn
	others := false // drain, for now
	patient := false
	for c.live.Err() == nil {
		c.Mu.Lock()
		peers, conns = c.attention.take(peers, conns)
		for _, p := range peers {
			p.step()
		}
		for _, n := range conns {
			n.api.tend()
			n.part()
		}
		c.buryRetired()
		c.Mu.Unlock()
		clear(peers)
		clear(conns)
		c.kick()
		select {
		case c.progress <- struct{}{}:
		default:
		}
		seen := c.bells.seen.Load()
		watched := false
		switch {
		case c.retry.Swap(false):
			c.pause(timer, retryPause)
			c.attendAll()
		case c.failing.Load():
			c.pause(timer, longestSleep)
		case c.waits.Watching():
			watched = c.pauseWatched(timer, patient)
		case others && c.waits.Sleepers() == 0:
			c.pause(timer, polledPause)
		default:
			c.sleepAsKeeper(seen)
		}
		patient = watched
		others = !c.Drain() && c.bells.seen.Load() != seen
	}
}

// attendAll looks at everything, after a post that found the Command Queue full.
func (c *process) attendAll() {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, p := range c.peers {
		c.attention.addPeer(p)
	}
	for n := range c.all {
		if n.watched.Load() || n.api.waits() {
			c.attention.addConn(n)
		}
	}
}

// pause returns whether nobody nudged.
func (c *process) pause(timer *time.Timer, d time.Duration) bool {
	timer.Reset(d)
	select {
	case <-timer.C:
		return true
	case <-c.nudged:
		return false
	}
}

// pauseWatched is the pause while somebody watches: a long one if the last one passed in peace. Short waits then tell nobody
// of their end.
func (c *process) pauseWatched(timer *time.Timer, patient bool) bool {
	if !patient {
		return c.pause(timer, watchedPause)
	}
	c.waits.Rely(true)
	defer c.waits.Rely(false)
	// Looked at after that is said: either this sees the end of who watches, or he sees that he has to tell.
	return c.waits.Watching() && c.pause(timer, longestSleep)
}

// sleepAsKeeper sleeps until something rings, or somebody nudges.
func (c *process) sleepAsKeeper(seen uint32) {
	c.keeperSleeps.Store(true)
	defer c.keeperSleeps.Store(false)
	select {
	case <-c.nudged:
		return
	default:
	}
	if err := c.proc.Wait(seen, longestSleep); err != nil {
		c.nicFailed(err)
	}
}
