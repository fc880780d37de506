//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"slices"
	"sync"
	"time"
)

// workList has the peers and connections that the background goroutine must poll.
type workList struct {
	mu    sync.Mutex
	peers []*peer
	conns []*conn
}

func (a *workList) addPeer(p *peer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.peers, p) {
		a.peers = append(a.peers, p)
	}
}

func (a *workList) addConn(n *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.conns, n) {
		a.conns = append(a.conns, n)
	}
}

func (a *workList) take(peers []*peer, conns []*conn) ([]*peer, []*conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	peers, conns = append(peers[:0], a.peers...), append(conns[:0], a.conns...)
	clear(a.peers)
	clear(a.conns)
	a.peers, a.conns = a.peers[:0], a.conns[:0]
	return peers, conns
}

// schedule makes the background goroutine poll a connection.
func (c *process) schedule(n *conn) {
	c.workList.addConn(n)
	c.wakeBackground()
}

// wakeBackground wakes the background goroutine.
func (c *process) wakeBackground() {
	select {
	case c.backgroundWoken <- struct{}{}:
	default:
	}
	if c.backgroundSleeps.Load() {
		c.proc.Wake()
	}
}

// The longest sleeps of the background goroutine: while other goroutines poll, in Go's runtime, because a sleep in the
// kernel keeps the P until the runtime notices, and a program with one P would not poll for up to 10 ms; while a waiter sleeps in the kernel,
// which drains the ring, too, and wakes the background goroutine at its end after a long wait; and otherwise, when the
// NIC or wakeBackground wakes it.
const (
	polledPause  = time.Millisecond
	watchedPause = 100 * time.Millisecond
	longestSleep = time.Second
	retryPause   = time.Millisecond
)

// background makes and ends connections, and drains the Doorbell Ring when no other goroutine does.
func (c *process) background() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var peers []*peer
	var conns []*conn
	others := false // other goroutines poll now, and drain the ring
	undisturbed := false
	for c.live.Err() == nil {
		c.Mu.Lock()
		peers, conns = c.workList.take(peers, conns)
		for _, p := range peers {
			p.step()
		}
		for _, n := range conns {
			n.api.backgroundWork()
			n.progressLeave()
		}
		c.releaseRetired()
		c.stepFence()
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
			c.scheduleAll()
		case c.failing.Load():
			c.pause(timer, longestSleep)
		case c.waits.Watching():
			watched = c.pauseWatched(timer, undisturbed)
		case others && c.waits.Sleepers() == 0:
			c.pause(timer, polledPause)
		default:
			c.sleepInKernel(seen)
		}
		undisturbed = watched
		others = c.polled.Swap(false)
		c.drain()
	}
}

// scheduleAll schedules all peers and connections, after a post that found the Command Queue full.
func (c *process) scheduleAll() {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, p := range c.peers {
		c.workList.addPeer(p)
	}
	for n := range c.all {
		if n.watched.Load() || n.api.waits() {
			c.workList.addConn(n)
		}
	}
}

// pause sleeps for d, and reports whether no wake-up ended it.
func (c *process) pause(timer *time.Timer, d time.Duration) bool {
	timer.Reset(d)
	select {
	case <-timer.C:
		return true
	case <-c.backgroundWoken:
		return false
	}
}

// pauseWatched pauses while a waiter watches the ring. The pause is long if the last one passed without a wake-up,
// so that the ends of short waits need not wake the background goroutine.
func (c *process) pauseWatched(timer *time.Timer, undisturbed bool) bool {
	if !undisturbed {
		return c.pause(timer, watchedPause)
	}
	c.waits.Rely(true)
	defer c.waits.Rely(false)
	// The check of Watching comes after Rely: either this goroutine sees that the watch has ended, or the watcher sees
	// that it must wake the background goroutine.
	return c.waits.Watching() && c.pause(timer, longestSleep)
}

// sleepInKernel sleeps until a doorbell rings or a wake-up comes.
func (c *process) sleepInKernel(seen uint32) {
	c.backgroundSleeps.Store(true)
	defer c.backgroundSleeps.Store(false)
	wakes := c.proc.Wakes() // wakeBackground wakes after its token, which is looked for next
	select {
	case <-c.backgroundWoken:
		return
	default:
	}
	if err := c.proc.WaitSince(seen, wakes, longestSleep); err != nil {
		c.nicFailed(err)
	}
}
