package qnix

import (
	"slices"
	"sync"
	"time"
)

// attention lists the peers and connections that the keeper must look at.
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

// attend makes the keeper look at a connection.
func (c *process) attend(n *conn) {
	c.attention.addConn(n)
	c.nudge()
}

// nudge wakes the keeper.
func (c *process) nudge() {
	select {
	case c.nudged <- struct{}{}:
	default:
	}
	if c.keeperSleeps.Load() {
		c.proc.Wake()
	}
}

// The longest sleeps of the keeper: while other goroutines poll; while a waiter sleeps in the kernel, which drains the
// ring, too, and wakes the keeper at its end after a long wait; and otherwise, when the NIC or a nudge wakes the
// keeper.
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
	others := false // other goroutines drain the ring now
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
		seen := c.doorbells.seen.Load()
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
		others = !c.Drain() && c.doorbells.seen.Load() != seen
	}
}

// attendAll looks at all peers and connections, after a post that found the Command Queue full.
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

// pause sleeps for d, and reports whether no nudge ended it.
func (c *process) pause(timer *time.Timer, d time.Duration) bool {
	timer.Reset(d)
	select {
	case <-timer.C:
		return true
	case <-c.nudged:
		return false
	}
}

// pauseWatched pauses while a waiter watches the ring. The pause is long if the last one passed without a nudge, so
// that the ends of short waits need not wake the keeper.
func (c *process) pauseWatched(timer *time.Timer, patient bool) bool {
	if !patient {
		return c.pause(timer, watchedPause)
	}
	c.waits.Rely(true)
	defer c.waits.Rely(false)
	// The look at Watching comes after the announcement: either this goroutine sees that the watch has ended, or the
	// watcher sees that it must wake the keeper.
	return c.waits.Watching() && c.pause(timer, longestSleep)
}

// sleepAsKeeper sleeps until a doorbell rings or a nudge comes.
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
