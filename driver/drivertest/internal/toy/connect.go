//go:build linux

package toy

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"golang.org/x/sys/unix"
)

// Of two contexts the one with the higher incarnation dials, in Connect, and
// the other matches what arrives with its own calls of Connect, in order.

const (
	helloSize   = 3*8 + kit.ProofSize
	helloProof  = "bywash toy dialer"
	replyOK     = 'k'
	replyAuth   = 'a'
	replyClosed = 'c'
	replyNo     = 'n'
)

// dialed is a connection that has sent its hello.
type dialed struct {
	conn *net.UnixConn
	id   uint64
}

// hello has the incarnations of dialer and listener, and the connection's id, with a proof of the secret.
func (c *nicContext) hello(from, to, id uint64) []byte {
	b := make([]byte, 0, helloSize)
	for _, v := range []uint64{from, to, id} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	proof := c.key.MAC(helloProof, b)
	return append(b, proof[:]...)
}

func (c *nicContext) Dial(num uint32, url string, to driver.URL) (*conn, error) {
	if len(to.Rest) > 100 {
		return nil, fmt.Errorf("%w: path of %d bytes", driver.ErrInvalid, len(to.Rest))
	}
	twin := false
	for o := range c.Conns.All() {
		twin = twin || o.Peer() == url
	}
	n := newConn(c, num, url, to)
	switch {
	case c.fault == "one-instance-a-peer" && twin, c.fault == "refuse-after-broken" && c.refuses.Load():
		n.refuse(driver.ErrBroken)
	case to.Incarnation == c.Incarnation:
		c.connectSelf(n)
	case to.Incarnation < c.Incarnation:
		c.dial(n)
	default:
		c.await(n)
	}
	return n, nil
}

func (c *nicContext) connectSelf(n *conn) {
	if c.fault == "no-self" {
		n.refuse(driver.ErrBroken)
		return
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		n.refuse(err)
		return
	}
	var ends [2]net.Conn
	for k, fd := range fds {
		f := os.NewFile(uintptr(fd), "self")
		ends[k], _ = net.FileConn(f)
		f.Close()
	}
	n.start(ends[0], ends[1], random())
}

func (c *nicContext) dial(n *conn) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: n.addr})
	if err != nil {
		n.refuse(fmt.Errorf("%w: %w", driver.ErrBroken, err))
		return
	}
	id := random()
	if _, err := conn.Write(c.hello(c.Incarnation, n.peerInc, id)); err != nil {
		conn.Close()
		n.refuse(driver.ErrBroken)
		return
	}
	if !n.holdDial(conn) {
		conn.Close()
		return
	}
	c.tasks.Go(func() {
		var b [1]byte
		_, err := io.ReadFull(conn, b[:])
		switch {
		case err == nil && b[0] == replyOK:
			n.start(conn, conn, id)
			return
		case err == nil && b[0] == replyAuth:
			n.refuse(driver.ErrAuth)
		case err == nil && b[0] == replyClosed:
			n.refuse(driver.ErrClosed)
		default:
			n.refuse(driver.ErrBroken)
		}
		conn.Close()
	})
}

// await takes the first connection that has arrived from the peer, or queues. The caller holds Mu.
func (c *nicContext) await(n *conn) {
	for len(c.arrived[n.peerInc]) > 0 {
		d := c.arrived[n.peerInc][0]
		c.arrived[n.peerInc] = c.arrived[n.peerInc][1:]
		if alive(d.conn) {
			n.accept(d)
			return
		}
		d.conn.Close()
	}
	c.waiting[n.peerInc] = append(c.waiting[n.peerInc], n)
	c.tasks.Go(func() { c.watchAwaited(n) })
}

// watchAwaited notices that the process that is to dial is gone.
func (c *nicContext) watchAwaited(n *conn) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-n.closing:
			return
		case <-tick.C:
		}
		if n.State() != kit.StateConnecting {
			return
		}
		conn, err := net.Dial("unix", n.addr)
		if err != nil {
			n.refuse(fmt.Errorf("%w: %w", driver.ErrBroken, err))
			return
		}
		conn.Close()
	}
}

// alive reports whether the dialing side has not hung up.
func alive(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	up := true
	_ = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		up = n > 0 || err == unix.EAGAIN
	})
	return up
}

func (c *nicContext) accept() {
	for {
		conn, err := c.ln.AcceptUnix()
		if err != nil {
			return
		}
		c.receiveHello(conn)
	}
}

func (c *nicContext) receiveHello(conn *net.UnixConn) {
	b := make([]byte, helloSize)
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	if got, err := io.ReadFull(conn, b); err != nil {
		if got > 0 {
			c.badFrames.Add(1)
		}
		conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	proven := c.key.Check(b[3*8:], helloProof, b[:3*8])
	from, to, id := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	switch {
	case to != c.Incarnation:
		conn.Write([]byte{replyNo})
	case !proven && c.fault != "any-secret":
		c.refused.Add(1)
		conn.Write([]byte{replyAuth})
	default:
		c.match(from, dialed{conn, id})
		return
	}
	conn.Close()
}

// match gives the connection to the instance that waits for it, or keeps it.
func (c *nicContext) match(from uint64, d dialed) {
	c.Mu.Lock()
	w := c.waiting[from]
	if c.IsClosed() || c.fault == "refuse-early-dial" && len(w) == 0 {
		c.Mu.Unlock()
		d.conn.Close()
		return
	}
	if len(w) == 0 {
		c.arrived[from] = append(c.arrived[from], d)
		c.Mu.Unlock()
		return
	}
	k := 0
	if c.fault == "connect-crossed" {
		k = len(w) - 1
	}
	n := w[k]
	c.waiting[from] = slices.Delete(w, k, k+1)
	c.Mu.Unlock()
	n.accept(d)
}

// forget removes a connection that this side has closed.
func (c *nicContext) forget(n *conn) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.waiting[n.peerInc] = slices.DeleteFunc(c.waiting[n.peerInc], func(o *conn) bool { return o == n })
	c.Conns.Remove(n.Number(), n)
}

// accept finishes the handshake on the side that was dialed.
func (n *conn) accept(d dialed) {
	d.conn.Write([]byte{replyOK})
	n.start(d.conn, d.conn, d.id)
}
