package toy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
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

// dialed is a connection that said hello.
type dialed struct {
	conn *net.UnixConn
	id   uint64
}

// hello is who dials, whom, and the connection's id, with a proof of the secret.
func (c *nicContext) hello(from, to, id uint64) []byte {
	b := make([]byte, 0, helloSize)
	for _, v := range []uint64{from, to, id} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	proof := c.key.MAC(helloProof, b)
	return append(b, proof[:]...)
}

// Connect implements driver.Context.
func (c *nicContext) Connect(url string) (driver.Instance, error) {
	u, err := kit.ParseURL(name, version, url, driver.MaxURL)
	if c.fault == "any-version" && errors.Is(err, driver.ErrVersion) {
		u, err = driver.ParseURL(url, driver.MaxURL)
	}
	if err == nil && len(u.Rest) > 100 {
		err = fmt.Errorf("%w: path of %d bytes", driver.ErrInvalid, len(u.Rest))
	}
	if err != nil {
		if c.fault == "bare-errors" {
			return nil, errors.Unwrap(err)
		}
		return nil, wrap("connect", url, err)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, wrap("connect", url, driver.ErrClosed)
	}
	i := newInstance(c, url, u)
	twin := false
	for o := range c.insts {
		twin = twin || o.peer == url
	}
	c.insts[i] = struct{}{}
	grudge := c.grudge
	c.mu.Unlock()
	switch {
	case c.fault == "one-instance-a-peer" && twin || grudge && c.fault == "grudge":
		i.fail(driver.ErrBroken)
	case u.Incarnation == c.inc:
		c.connectSelf(i)
	case u.Incarnation < c.inc:
		c.dial(i)
	default:
		c.await(i)
	}
	if c.fault == "connect-blocks" {
		<-i.settled
	}
	return i.self, nil
}

func (c *nicContext) connectSelf(i *instance) {
	if c.fault == "no-self" {
		i.fail(driver.ErrBroken)
		return
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		i.fail(err)
		return
	}
	var ends [2]net.Conn
	for k, fd := range fds {
		f := os.NewFile(uintptr(fd), "self")
		ends[k], _ = net.FileConn(f)
		f.Close()
	}
	i.start(ends[0], ends[1], random())
}

func (c *nicContext) dial(i *instance) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: i.addr})
	if err != nil {
		i.fail(fmt.Errorf("%w: %w", driver.ErrBroken, err))
		return
	}
	id := random()
	if _, err := conn.Write(c.hello(c.inc, i.peerInc, id)); err != nil {
		conn.Close()
		i.fail(driver.ErrBroken)
		return
	}
	if !i.holdDial(conn) {
		conn.Close()
		return
	}
	c.tasks.Go(func() {
		var b [1]byte
		_, err := io.ReadFull(conn, b[:])
		switch {
		case err == nil && b[0] == replyOK:
			i.start(conn, conn, id)
			return
		case err == nil && b[0] == replyAuth:
			i.fail(driver.ErrAuth)
		case err == nil && b[0] == replyClosed:
			i.fail(driver.ErrClosed)
		default:
			i.fail(driver.ErrBroken)
		}
		conn.Close()
	})
}

// await takes the first connection that has arrived from the peer, or queues.
func (c *nicContext) await(i *instance) {
	c.mu.Lock()
	for len(c.arrived[i.peerInc]) > 0 {
		d := c.arrived[i.peerInc][0]
		c.arrived[i.peerInc] = c.arrived[i.peerInc][1:]
		if alive(d.conn) {
			c.mu.Unlock()
			i.accept(d)
			return
		}
		d.conn.Close()
	}
	c.waiting[i.peerInc] = append(c.waiting[i.peerInc], i)
	c.mu.Unlock()
	c.tasks.Go(func() { c.watchAwaited(i) })
}

// watchAwaited notices that the process that is to dial is gone.
func (c *nicContext) watchAwaited(i *instance) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-i.settled:
			return
		case <-tick.C:
		}
		conn, err := net.Dial("unix", i.addr)
		if err != nil {
			i.fail(fmt.Errorf("%w: %w", driver.ErrBroken, err))
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
		c.greet(conn)
	}
}

func (c *nicContext) greet(conn *net.UnixConn) {
	b := make([]byte, helloSize)
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	if n, err := io.ReadFull(conn, b); err != nil {
		if n > 0 {
			c.n.badFrames.Add(1)
		}
		conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	proven := c.key.Check(b[3*8:], helloProof, b[:3*8])
	from, to, id := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	switch {
	case to != c.inc:
		conn.Write([]byte{replyNo})
	case !proven && c.fault != "any-secret":
		c.n.refused.Add(1)
		conn.Write([]byte{replyAuth})
	default:
		c.match(from, dialed{conn, id})
		return
	}
	conn.Close()
}

// match gives the connection to the instance that waits for it, or keeps it.
func (c *nicContext) match(from uint64, d dialed) {
	c.mu.Lock()
	w := c.waiting[from]
	if c.closed || c.fault == "refuse-early-dial" && len(w) == 0 {
		c.mu.Unlock()
		d.conn.Close()
		return
	}
	if len(w) == 0 {
		c.arrived[from] = append(c.arrived[from], d)
		c.mu.Unlock()
		return
	}
	n := 0
	if c.fault == "connect-crossed" {
		n = len(w) - 1
	}
	i := w[n]
	c.waiting[from] = slices.Delete(w, n, n+1)
	c.mu.Unlock()
	i.accept(d)
}

// forget removes an instance that gave up waiting.
func (c *nicContext) forget(i *instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[i.peerInc] = slices.DeleteFunc(c.waiting[i.peerInc], func(o *instance) bool { return o == i })
	delete(c.insts, i)
}

// accept finishes the handshake on the side that was dialed.
func (i *instance) accept(d dialed) {
	d.conn.Write([]byte{replyOK})
	i.start(d.conn, d.conn, d.id)
}

// ConnectWait implements driver.Instance.
func (i *instance) ConnectWait(ctx context.Context) error {
	if i.c.fault == "wait-ignores-context" {
		ctx = context.Background()
	}
	select {
	case <-i.settled:
	case <-ctx.Done():
		return ctx.Err()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state != up {
		return wrap("connect", i.peer, i.err)
	}
	i.waited = true
	return nil
}
