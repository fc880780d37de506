package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bywash/bywash/internal/handshake"
)

const (
	nameEmbedded = "embedded"
	// How long the rendezvous may take to come up, where ctx has no earlier end.
	joinTime = 30 * time.Second
)

// embedded is the dialect of the rendezvous.
type embedded struct {
	hello
	key     *handshake.Key
	conn    net.Conn
	byRank0 bool            // rank 0, which is another process, serves the rendezvous
	frames  *handshake.Conn // wmu guards sending
	lost    func(error)
	over    chan struct{} // closed when the reader has ended

	wmu sync.Mutex

	mu        sync.Mutex
	fenced    *reply    // of the fence in progress
	how       fenceKind // its kind
	given     [][]byte  // the data that has come for it
	exchanged bool      // the job is lost when a rank is gone
	onEnd     func(End)
	lookups   []*reply // in the order of their requests

	sent, received, requests atomic.Uint64
}

var _ dialect = (*embedded)(nil)

// Join makes this process a rank of the embedded job whose rendezvous, a [Server], is at addr: for programs that start
// their ranks themselves. secret is that of the server, at least 16 bytes long. It blocks until the rendezvous has
// answered, ctx ends, or 30 seconds have passed. The error is ErrAuth, ErrVersion, ErrTaken, ErrInvalid, or that of
// the connection; a rendezvous that does not exist is an error at once.
func Join(ctx context.Context, addr string, rank, size int, secret []byte) (*Client, error) {
	if size < 1 || size > MaxSize {
		return nil, opError(nameEmbedded, "join", fmt.Errorf("a job of %d ranks: %w", size, ErrInvalid))
	}
	if err := checkRank(rank, size); err != nil {
		return nil, opError(nameEmbedded, "join", err)
	}
	c, err := joinEmbedded(ctx, addr, rank, size, secret, false)
	return c, opError(nameEmbedded, "join", err)
}

// joinEmbedded connects to the rendezvous. If wait is set, the rendezvous may not have started yet.
func joinEmbedded(ctx context.Context, addr string, rank, size int, secret []byte, wait bool) (*Client, error) {
	c := newClient(nameEmbedded, rank, size)
	if err := c.setSecret(secret); err != nil {
		return nil, err
	}
	e := &embedded{hello: hello{uint32(rank), uint32(size)}, key: c.key, byRank0: wait && rank != 0, over: make(chan struct{})}
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := e.connect(ctx, addr)
		if err == nil {
			c.dialect, e.lost = e, c.fail
			go e.read()
			return c, nil
		}
		if !retryable(err, wait) {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if e.byRank0 {
				err = fmt.Errorf("rank 0, which serves the rendezvous, does not answer: %w", err)
			}
			return nil, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// retryable reports whether joining is worth another attempt. A flood of unauthenticated connections can push a
// genuine handshake out, which shows as a connection that ends.
func retryable(err error, wait bool) bool {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return true
	case wait:
		var n net.Error
		return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) || errors.As(err, &n) && n.Timeout()
	}
	return false
}

// withoutLoopback adds the remedy where processes of this host cannot reach each other. The error does not tell: an
// interface that was up before keeps its addresses, and connections to them time out.
func withoutLoopback(addr string, err error) error {
	a, e := netip.ParseAddrPort(addr)
	if e != nil || !a.Addr().IsLoopback() {
		return err
	}
	all, _ := net.Interfaces()
	k := slices.IndexFunc(all, func(i net.Interface) bool { return i.Flags&net.FlagLoopback != 0 })
	if k >= 0 && all[k].Flags&net.FlagUp == 0 {
		err = fmt.Errorf("%w (the loopback interface is down: ip link set lo up)", err)
	}
	return err
}

func (e *embedded) connect(ctx context.Context, addr string) (err error) {
	d := net.Dialer{KeepAliveConfig: keepAlive}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return withoutLoopback(addr, err)
	}
	setUserTimeout(conn)
	conn.SetDeadline(time.Now().Add(handshakeTime))
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			conn.Close()
		}
	}()
	frames, err := handshake.Dial(buffered(conn), e.key, &frameConfig, e.put())
	if err != nil {
		return launchError(err)
	}
	b, err := frames.Receive()
	if err != nil {
		return launchError(err)
	}
	if err := e.parseWelcome(b); err != nil {
		return err
	}
	e.conn, e.frames = conn, frames
	e.sent.Add(uint64(clientBytes))
	e.received.Add(uint64(serverBytes))
	return conn.SetDeadline(time.Time{})
}

func (e *embedded) traffic() Traffic {
	return Traffic{Sent: e.sent.Load(), Received: e.received.Load(), Requests: e.requests.Load()}
}

// read handles the frames of the rendezvous until the connection ends.
func (e *embedded) read() {
	defer close(e.over)
	defer e.conn.Close()
	for {
		k, body, err := receiveFrame(e.frames)
		if err == nil {
			e.received.Add(uint64(frameSize(len(body))))
			err = e.handle(k, body)
		}
		if err != nil {
			var rank *RankError
			if !errors.As(err, &rank) {
				err = e.launcherGone(err)
			}
			e.lost(err)
			return
		}
	}
}

// launcherGone returns the error of a rendezvous that is gone; it names rank 0 if that served.
func (e *embedded) launcherGone(err error) error {
	if e.byRank0 {
		return fmt.Errorf("%w: %w: %w", ErrLauncher, &RankError{Why: "served the rendezvous and has ended"}, noEOF(err))
	}
	return fmt.Errorf("%w: %w", ErrLauncher, noEOF(err))
}

// handle handles a frame. It returns why the job is lost, or that the frame is malformed.
func (e *embedded) handle(k kind, body []byte) error {
	if k == kindEnded {
		return e.ended(body)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch k {
	case kindGiven:
		if e.fenced == nil || len(e.given) >= e.how.answers(int(e.size)) {
			return errFrame
		}
		e.given = append(e.given, body)
		return nil
	case kindFenced:
		if e.fenced == nil || len(e.given) != e.how.answers(int(e.size)) || len(body) != 0 {
			return errFrame
		}
		if e.how == fenceAgree && len(e.given[0]) != 1 {
			return errFrame
		}
		e.fenced.finish(nil, e.given...)
		e.fenced, e.given = nil, nil
		return nil
	case kindGone:
		gone, err := parseRankError(body)
		switch {
		case err != nil:
			return err
		case gone.Code != 0, e.exchanged:
			return gone
		case e.fenced == nil:
			return errFrame
		}
		gone.Why += ", so that the fence cannot complete"
		e.fenced.finish(gone)
		e.fenced, e.given = nil, nil
		return nil
	case kindCard:
		if len(e.lookups) == 0 {
			return errFrame
		}
		r := e.lookups[0]
		e.lookups = e.lookups[1:]
		if len(body) == 0 {
			r.finish(ErrNoCard)
		} else {
			r.finish(nil, body)
		}
		return nil
	}
	return errFrame
}

// send writes a frame and reports whether that has worked. If not, the job is lost when the reader has received why, if
// the rendezvous has sent that: after a frame that was cut short nothing can be sent.
func (e *embedded) send(k kind, body []byte) bool {
	e.wmu.Lock()
	defer e.wmu.Unlock()
	return e.sendLocked(k, body)
}

func (e *embedded) sendLocked(k kind, body []byte) bool {
	e.conn.SetWriteDeadline(time.Now().Add(writeTime))
	e.requests.Add(1)
	e.sent.Add(uint64(frameSize(len(body))))
	err := sendFrame(e.frames, k, body)
	if err != nil {
		e.conn.SetReadDeadline(time.Now().Add(byeTime))
	}
	return err == nil
}

func (e *embedded) publish(_ context.Context, card []byte, r *reply) {
	if e.send(kindPublish, card) {
		r.finish(nil)
	}
}

func (e *embedded) lookup(_ context.Context, rank int, r *reply) {
	e.wmu.Lock() // requests are sent in the order of e.lookups
	defer e.wmu.Unlock()
	e.mu.Lock()
	e.lookups = append(e.lookups, r) // until the answer has come, even if the caller stops waiting
	e.mu.Unlock()
	e.sendLocked(kindLookup, putLookup(rank))
}

func (e *embedded) fence(_ context.Context, how fenceKind, data []byte, r *reply) {
	e.mu.Lock()
	e.fenced, e.how = r, how
	e.exchanged = e.exchanged || how == fenceExchange
	e.mu.Unlock()
	e.send(kindFence, append([]byte{byte(how)}, data...))
}

// abort waits until the rendezvous has notified all ranks, this one included.
func (e *embedded) abort(code int, why string) {
	e.send(kindAbort, putRankError(&RankError{int(e.rank), code, why}))
	<-e.over
}

// close sends bye and waits until the rendezvous closes the connection: closing a socket with unread bytes discards
// bytes that were sent.
func (e *embedded) close() error {
	e.conn.SetDeadline(time.Now().Add(byeTime)) // also of a send that is in progress
	e.wmu.Lock()
	defer e.wmu.Unlock()
	e.conn.SetDeadline(time.Now().Add(byeTime))
	if err := sendFrame(e.frames, kindBye, nil); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	e.sent.Add(uint64(frameSize(0)))
	<-e.over
	return nil
}

func (e *embedded) hangUp() { e.conn.Close() }
