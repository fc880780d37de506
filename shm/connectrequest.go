//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/kit"
)

// A connect request is known here before this side's user calls Connect: the peer either has dialed, or watches until
// this side dials.

// beWatched notes a peer that waits for this side to dial.
func (c *hostContext) beWatched(a *pendingDialer) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.watched[a.hello.from] = append(c.watched[a.hello.from], a)
	c.requested()
}

// unwatched forgets a peer that does not wait any more.
func (c *hostContext) unwatched(a *pendingDialer) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	remove(c.watched, a.hello.from, a)
	if len(c.watched[a.hello.from]) > 0 {
		c.requested()
	}
}

// requested reports a connect request to the user. The caller holds mu.
func (c *hostContext) requested() {
	if c.onRequest != nil {
		c.onRequest()
	}
}

// ended is called when a connection to a peer has ended, which that peer may still wait for. The caller holds mu.
func (c *hostContext) ended(peer uint64) {
	if f := c.onRequest; f != nil && len(c.watched[peer]) > 0 {
		go f() // this may be the program's goroutine
	}
}

// ConnectRequests implements driver.ConnectRequestReceiver. A peer may hang up before its connection is established.
// ConnectRequests therefore polls the sockets: it leaves out a request that has been answered even if the goroutine
// that reads the socket has not seen the end yet.
func (c *hostContext) ConnectRequests(dst []uint64) []uint64 {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for from, list := range c.arrived {
		if slices.ContainsFunc(list, (*pendingDialer).waits) {
			dst = append(dst, from)
		}
	}
	if len(c.watched) == 0 {
		return dst
	}
	connecting := make(map[uint64]struct{})
	for n := range c.Conns.All() {
		if n.State() == kit.StateConnecting {
			connecting[n.peerInc] = struct{}{}
		}
	}
	for from, list := range c.watched {
		if _, made := connecting[from]; !made && slices.ContainsFunc(list, (*pendingDialer).waits) {
			dst = append(dst, from)
		}
	}
	return dst
}

// waits reports whether the peer has not hung up.
func (a *pendingDialer) waits() bool {
	raw, err := a.sock.SyscallConn()
	if err != nil {
		return false
	}
	up := false
	err = raw.Control(func(fd uintptr) {
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, err := unix.Poll(p[:], 0)
		up = err != nil || p[0].Revents == 0
	})
	return err == nil && up
}

// OnConnectRequest implements driver.ConnectRequestReceiver.
func (c *hostContext) OnConnectRequest(f func()) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.onRequest = f
	c.requested()
}
