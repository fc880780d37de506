//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/descriptors"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/internal/kit"
)

// stagger is the time after which the next candidate is dialed beside one that has not answered. RFC 8305 recommends
// 250 ms for the web; our handshakes take microseconds to milliseconds.
const stagger = 50 * time.Millisecond

// attempt is how the dialing of one candidate ended.
type attempt struct {
	link *link
	err  error
}

// Pauses between attempts to reach a peer that has closed the connection, or whose program has not called Connect.
const (
	firstPause = 5 * time.Millisecond
	callPause  = 200 * time.Millisecond
	lazyPause  = 2 * time.Second // the peer dials, too, when its program calls Connect
)

// persist repeats the race, after a pause, for the dead time if the peer closed the connection before it answered:
// unauthenticated dialers may fill its port's limit. If its process is gone, the next attempt finds that out. A peer
// that answers busy lives, and is dialed again as long as an instance waits for it.
func (c *share) persist(p *pendingPeer, targets []netip.AddrPort, pause time.Duration) (*link, error) {
	limit := time.Now().Add(c.opts.deadTime)
	err := errBusy
	for next := firstPause; ; {
		if pause > 0 {
			select {
			case <-time.After(pause):
			case <-c.live.Done():
				return nil, err
			}
			if !p.awaited() {
				return nil, errNotAwaited
			}
		}
		var l *link
		var again bool
		l, again, err = c.race(c.live, p.peer, targets)
		most := callPause
		if errors.Is(err, errBusy) {
			most, limit = lazyPause, time.Now().Add(c.opts.deadTime)
		}
		if err == nil || !again || time.Now().After(limit) {
			return l, err
		}
		pause, next = next, min(2*next, most)
	}
}

// errNotAwaited ends the dialing of a peer for which no instance waits any more.
var errNotAwaited = errors.New("no instance waits for the peer")

// awaited reports whether an instance waits for the peer.
func (p *pendingPeer) awaited() bool {
	p.ctx.Mu.Lock()
	defer p.ctx.Mu.Unlock()
	return len(p.waiting) > 0
}

// hungUp reports whether the other end closed an established TCP connection.
func hungUp(err error) bool {
	for _, e := range []error{unix.ECONNRESET, unix.EPIPE, io.EOF, io.ErrUnexpectedEOF, errBusy} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// race dials the candidates of a peer, the next one when those before have failed or take long, and returns the first
// link on which the peer has proved the secret and its incarnation. A candidate that fails harms nothing: it may be an
// address that many hosts have. again reports that one closed the connection, and may be the peer, whatever the errors
// of the others are.
func (c *share) race(ctx context.Context, peer uint64, targets []netip.AddrPort) (_ *link, again bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, max(c.opts.deadTime, time.Second))
	defer cancel()
	results := make(chan attempt, len(targets))
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failure error
	for next, under := 0, 0; ; {
		select {
		case <-timer.C:
			if next < len(targets) {
				to := targets[next]
				next, under = next+1, under+1
				c.tasks.Go(func() {
					l, err := c.dial(ctx, peer, to)
					results <- attempt{l, err}
				})
				timer.Reset(stagger)
			}
		case r := <-results:
			under--
			if r.err == nil {
				cancel()
				c.tasks.Go(func() { dismiss(results, under) })
				return r.link, false, nil
			}
			again = again || hungUp(r.err)
			failure = worse(failure, r.err)
			if next < len(targets) {
				timer.Reset(0)
			} else if under == 0 {
				return nil, again, failure
			}
		}
	}
}

// dismiss closes the links that lost the race.
func dismiss(results <-chan attempt, n int) {
	for range n {
		if r := <-results; r.err == nil {
			_ = r.link.sock.Close()
		}
	}
}

// worse returns the more specific of two errors: a wrong secret or version before a process that is gone.
func worse(a, b error) error {
	rank := func(err error) int {
		switch {
		case err == nil:
			return 0
		case errors.Is(err, driver.ErrAuth), errors.Is(err, driver.ErrVersion):
			return 3
		case errors.Is(err, driver.ErrInvalid), errors.Is(err, errBusy):
			return 2
		}
		return 1
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}

// dial speaks the dialer's part with one candidate.
func (c *share) dial(ctx context.Context, peer uint64, to netip.AddrPort) (_ *link, err error) {
	var d net.Dialer
	d.SetMultipathTCP(false)
	var nc net.Conn
	err = kit.InNamespace(c.opts.netns, func() (err error) {
		nc, err = d.DialContext(ctx, "tcp", to.String()) // of one address: the socket is made by this goroutine
		return err
	})
	if err != nil {
		what := "the peer cannot be reached"
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			what = "the peer's process is gone"
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
			what = "no file can be opened" + descriptors.Remedy(err)
		}
		return nil, fmt.Errorf("%w: %s: %w", driver.ErrBroken, what, err)
	}
	sock := nc.(*net.TCPConn)
	stop := context.AfterFunc(ctx, func() { _ = sock.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil { // the deadline may be set at any moment: the link is of no use
			err = fmt.Errorf("%w: %w", driver.ErrBroken, context.Cause(ctx))
		}
		if err != nil {
			_ = sock.Close()
			err = fmt.Errorf("%v: %w", to, err)
		}
	}()
	prepare(sock, c.opts.deadTime)
	m := claim{
		track: c.Props.Track, encrypt: c.opts.encrypt, deadTime: c.opts.deadTime, from: c.Incarnation, to: peer,
	}
	cfg := &handshake.Config{Protocol: protocol, Limit: noteLimit}
	hs, err := handshake.Dial(sock, c.key, cfg, m.append(nil))
	if err != nil {
		return nil, peerError(err)
	}
	l := &link{ctx: c, sock: sock, hs: hs, dialed: true}
	n, err := l.receive()
	switch {
	case err != nil:
		return nil, peerError(err)
	case n.kind != noteWelcome:
		return nil, peerError(errMalformed)
	case n.code != welcome:
		return nil, n.code.err()
	}
	l.deadTime = n.deadTime
	return l, nil
}
