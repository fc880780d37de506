//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/handshake"
)

// proofTime is the time in which a dialer must prove the secret. Tests shorten it.
var proofTime = 5 * time.Second

// Limits of what dialers of a context can hold.
const (
	// A context keeps at most maxUnauthenticated dialers that have not proved the secret: one more displaces the oldest.
	maxUnauthenticated = 256
	// maxLeaving is the limit of dropped dialers whose goroutines have not ended; more dialers are refused meanwhile.
	maxLeaving = 64

	acceptPause = 50 * time.Millisecond
)

// unauthenticated are sockets that were accepted and whose peers have not proved the secret, the oldest first.
type unauthenticated struct {
	mu      sync.Mutex
	list    []*net.TCPConn
	leaving int
	over    bool
}

// add adds a socket, and reports whether there is room. It drops the oldest one if there are too many: a genuine peer
// proves the secret within milliseconds.
func (s *unauthenticated) add(sock *net.TCPConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.leaving >= maxLeaving {
		return false
	}
	if len(s.list) == maxUnauthenticated {
		reset(s.list[0])
		s.list = slices.Delete(s.list, 0, 1)
		s.leaving++
	}
	s.list = append(s.list, sock)
	return true
}

// remove is called once for each socket, when its peer has proved the secret or the socket is closed.
func (s *unauthenticated) remove(sock *net.TCPConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := slices.Index(s.list, sock); k >= 0 {
		s.list = slices.Delete(s.list, k, k+1)
	} else {
		s.leaving--
	}
}

func (s *unauthenticated) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, sock := range s.list {
		reset(sock)
	}
	s.leaving += len(s.list)
	s.list = nil
}

// reset closes a socket so that the kernel keeps nothing of it.
func reset(sock *net.TCPConn) {
	_ = sock.SetLinger(0)
	_ = sock.Close()
}

// serve accepts dialers until the context closes.
func (c *share) serve(l *net.TCPListener) {
	for {
		sock, err := l.AcceptTCP()
		switch {
		case c.live.Err() != nil:
			if err == nil {
				reset(sock)
			}
			return
		case err != nil: // out of descriptors: dialers wait in the queue
			select {
			case <-time.After(acceptPause):
			case <-c.live.Done():
			}
		case c.unauthenticated.add(sock):
			c.tasks.Go(func() { c.handleDialer(sock) })
		default:
			c.refused.Add(1)
			reset(sock)
		}
	}
}

// handleDialer runs the listener's part of the handshake with one dialer, and serves the link if it is established.
func (c *share) handleDialer(sock *net.TCPConn) {
	l, peer, err := c.authenticate(sock)
	c.unauthenticated.remove(sock)
	if err != nil {
		reset(sock)
		return
	}
	if !c.admit(l, peer) {
		c.refused.Add(1)
		_ = l.send(note{kind: noteWelcome, code: refuseBusy})
		_ = sock.Close()
		return
	}
	l.serve()
}

// authenticate has the dialer prove the secret, and reads which incarnation it wants.
func (c *share) authenticate(sock *net.TCPConn) (*link, uint64, error) {
	prepare(sock, c.opts.deadTime)
	_ = sock.SetDeadline(time.Now().Add(proofTime))
	cfg := &handshake.Config{Protocol: protocol, Limit: noteLimit}
	hs, claim, err := handshake.Accept(sock, c.key.Find, cfg)
	if err != nil {
		c.refused.Add(1)
		return nil, 0, err
	}
	m, err := parseClaim(claim)
	if err != nil {
		c.bad.Add(1)
		return nil, 0, err
	}
	code := welcome
	switch {
	case m.to != c.Incarnation:
		code = refuseStale
	case m.track != c.Props.Track:
		code = refuseTrack
	case m.encrypt != c.opts.encrypt:
		code = refuseEncrypt
	}
	l := &link{ctx: c, sock: sock, hs: hs, deadTime: m.deadTime}
	if code != welcome {
		c.refused.Add(1)
		err = code.err()
		_ = l.send(note{kind: noteWelcome, code: code})
		return nil, 0, err
	}
	_ = sock.SetDeadline(time.Time{})
	return l, m.from, nil
}

// prepare sets a socket's options until it carries messages: meanwhile the kernel finds hosts that are gone.
func prepare(sock *net.TCPConn, dead time.Duration) {
	_ = sock.SetNoDelay(true)
	_ = sock.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: max(dead/3, time.Second), Interval: max(dead/6, time.Second), Count: 4,
	})
	setUserTimeout(sock, dead)
}

// setUserTimeout bounds how long sent bytes may stay unacknowledged; 0 is the kernel's own limit.
func setUserTimeout(sock *net.TCPConn, d time.Duration) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
