package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
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
	// How long Close and Abort wait for the rendezvous to take notice.
	byeTime = time.Second
)

// embedded is the client side of the rendezvous: one rank.
type embedded struct {
	rank, size int
	key        *handshake.Key
	secret     []byte
	conn       net.Conn
	server     *Server         // rank 0's own
	byRank0    bool            // rank 0, which is another process, serves the rendezvous
	frames     *handshake.Conn // wmu guards sending
	lost       chan struct{}   // closed when the job ends before Close
	over       chan struct{}   // closed when the reader has ended

	wmu sync.Mutex

	mu       sync.Mutex
	publish  publication
	closed   bool
	err      error // why nothing can be asked any more
	agree    *reply
	fence    *reply
	exchange *exchangeReply // the exchange in progress, or the last one if its caller cancelled it
	onEnd    func(End)
	lookups  map[uint32]*reply
	next     uint32

	sent, received, requests atomic.Uint64
}

var (
	_ Watcher = (*embedded)(nil)
	_ Meter   = (*embedded)(nil)
	_ Leaver  = (*embedded)(nil)

	_ Exchanger  = (*embedded)(nil)
	_ EndWatcher = (*embedded)(nil)
)

// exchangeReply collects the data that the ranks give.
type exchangeReply struct {
	*reply
	given   [][]byte
	missing int
}

func newExchangeReply(size int) *exchangeReply {
	return &exchangeReply{reply: newReply(), given: make([][]byte, size), missing: size}
}

// Join makes this process a rank of the embedded job whose rendezvous, a [Server], is at addr: for programs that start
// their ranks themselves. secret is that of the server, at least 16 bytes long. It blocks until the rendezvous has
// answered, ctx ends, or 30 seconds have passed. The error is ErrAuth, ErrVersion, ErrTaken, ErrInvalid, or that of
// the connection; a rendezvous that does not exist is an error at once.
func Join(ctx context.Context, addr string, rank, size int, secret []byte) (Exchanger, error) {
	if size < 1 || size > MaxSize {
		return nil, opError(nameEmbedded, "join", fmt.Errorf("a job of %d ranks: %w", size, ErrInvalid))
	}
	if err := checkRank(rank, size); err != nil {
		return nil, opError(nameEmbedded, "join", err)
	}
	e, err := joinEmbedded(ctx, addr, rank, size, secret, false)
	if err != nil {
		return nil, opError(nameEmbedded, "join", err)
	}
	return e, nil
}

// joinEmbedded connects to the rendezvous. If wait is set, the rendezvous may not have started yet.
func joinEmbedded(ctx context.Context, addr string, rank, size int, secret []byte, wait bool) (*embedded, error) {
	key, err := jobKey(secret)
	if err != nil {
		return nil, err
	}
	e := &embedded{rank: rank, size: size, key: key, secret: secret, byRank0: wait && rank != 0,
		lost: make(chan struct{}), over: make(chan struct{}), lookups: map[uint32]*reply{}}
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := e.connect(ctx, addr)
		if err == nil {
			go e.read()
			return e, nil
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

// withoutLoopback adds the remedy where processes of this host cannot reach each other.
func withoutLoopback(addr string, err error) error {
	a, e := netip.ParseAddrPort(addr)
	if e == nil && a.Addr().IsLoopback() && (errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EADDRNOTAVAIL)) {
		return fmt.Errorf("%w (the loopback interface is down: ip link set lo up)", err)
	}
	return err
}

func (e *embedded) connect(ctx context.Context, addr string) (err error) {
	d := net.Dialer{KeepAliveConfig: keepAlive}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return withoutLoopback(addr, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			conn.Close()
		}
	}()
	conn.SetDeadline(time.Now().Add(handshakeTime))
	h := hello{rank: uint32(e.rank), size: uint32(e.size)}
	frames, err := handshake.Dial(buffered(conn), e.key, &frameConfig, h.put())
	if err != nil {
		return launchError(err)
	}
	b, err := frames.Receive()
	if err != nil {
		return launchError(err)
	}
	if err := h.parseWelcome(b); err != nil {
		return err
	}
	e.conn, e.frames = conn, frames
	e.sent.Add(uint64(clientBytes))
	e.received.Add(uint64(serverBytes))
	return conn.SetDeadline(time.Time{})
}

func (e *embedded) Rank() int             { return e.rank }
func (e *embedded) Size() int             { return e.size }
func (e *embedded) Name() string          { return nameEmbedded }
func (e *embedded) ID() string            { return jobID(e.key) }
func (e *embedded) Secret() []byte        { return e.secret }
func (e *embedded) Lost() <-chan struct{} { return e.lost }

func (e *embedded) Traffic() Traffic {
	return Traffic{Sent: e.sent.Load(), Received: e.received.Load(), Requests: e.requests.Load()}
}

func (e *embedded) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// usable returns why no request can be sent any more, or nil; e.mu is held.
func (e *embedded) usable() error {
	if e.closed {
		return ErrClosed
	}
	return e.err
}

// fail fails all pending and later requests.
func (e *embedded) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return
	}
	if !e.closed {
		e.err = err
		close(e.lost)
	} else {
		e.err = ErrClosed
	}
	for _, r := range []*reply{e.agree, e.fence} {
		if r != nil {
			r.finish(nil, e.err)
		}
	}
	if e.exchange != nil {
		e.exchange.finish(nil, e.err)
	}
	for id, r := range e.lookups {
		r.finish(nil, e.err)
		delete(e.lookups, id)
	}
}

// read handles the frames of the rendezvous until the connection ends.
func (e *embedded) read() {
	defer close(e.over)
	defer e.conn.Close()
	for {
		k, body, err := receiveFrame(e.frames)
		if err == nil {
			e.received.Add(uint64(frameSize(len(body))))
			if k == kindEnded {
				err = e.ended(body)
			} else {
				err = e.handle(k, body)
			}
		}
		if err != nil {
			var rank *RankError
			if !errors.As(err, &rank) {
				err = e.launcherGone(err)
			}
			e.fail(err)
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

func (e *embedded) handle(k kind, body []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch k {
	case kindFenced, kindGone:
		var err error
		if k == kindGone {
			rank, f, bad := parseGone(body)
			if bad != nil {
				return bad
			}
			err = &RankError{Rank: rank, Why: f.String() + ", so that the fence cannot complete"}
		} else if len(body) != 0 {
			return errFrame
		}
		if e.fence == nil {
			return errFrame
		}
		e.fence.finish(nil, err)
		return nil
	case kindAgreed:
		if e.agree == nil || len(body) != 1 || body[0] > 1 {
			return errFrame
		}
		e.agree.finish(body, nil)
		return nil
	case kindCard:
		id, card, err := parseCard(body)
		r := e.lookups[id]
		if err != nil || r == nil {
			return errFrame
		}
		delete(e.lookups, id)
		if card == nil {
			err = ErrNoCard
		}
		r.finish(card, err)
		return nil
	case kindGiven:
		rank, data, err := parseGiven(body)
		x := e.exchange
		if err != nil || x == nil || rank >= e.size || x.given[rank] != nil {
			return errFrame
		}
		x.given[rank] = data
		if x.missing--; x.missing == 0 {
			x.finish(nil, nil)
		}
		return nil
	case kindLost:
		rank, f, err := parseGone(body)
		if err != nil {
			return err
		}
		return &RankError{Rank: rank, Why: f.String()}
	case kindAborted:
		rank, code, why, err := parseAborted(body)
		if err != nil {
			return err
		}
		return &RankError{Rank: rank, Code: code, Why: why}
	}
	return errFrame
}

// send writes a frame. After a frame that was cut short nothing can be sent.
func (e *embedded) send(k kind, body []byte) error {
	e.wmu.Lock()
	defer e.wmu.Unlock()
	e.conn.SetWriteDeadline(time.Now().Add(writeTime))
	e.requests.Add(1)
	e.sent.Add(uint64(frameSize(len(body))))
	if err := sendFrame(e.frames, k, body); err != nil {
		// The rendezvous may have sent the reason, which the reader must receive first.
		e.conn.SetReadDeadline(time.Now().Add(byeTime))
		<-e.over
		return e.Err()
	}
	return nil
}

func (e *embedded) Agree(ctx context.Context, word []byte) (bool, error) {
	err := checkWord(word)
	r := newReply()
	if err == nil {
		e.mu.Lock()
		if err = e.usable(); err == nil && (e.agree != nil || e.publish != unpublished) {
			err = errAgreed
		}
		if err == nil {
			e.agree = r
		}
		e.mu.Unlock()
	}
	if err == nil {
		err = e.send(kindAgree, word)
	}
	if err == nil {
		err = r.wait(ctx)
	}
	return err == nil && r.card[0] == 1, opError(nameEmbedded, "agree", err)
}

func (e *embedded) Publish(_ context.Context, card []byte) error {
	err := checkCard(card)
	if err == nil {
		e.mu.Lock()
		if err = e.usable(); err == nil && e.publish != unpublished {
			err = errTwice
		}
		if err == nil {
			e.publish = publishing
		}
		e.mu.Unlock()
	}
	if err == nil {
		err = e.send(kindPublish, card)
	}
	if err == nil {
		e.mu.Lock()
		e.publish = published
		e.mu.Unlock()
	}
	return opError(nameEmbedded, "publish", err)
}

func (e *embedded) Fence(ctx context.Context) error {
	e.mu.Lock()
	err := e.usable()
	if err == nil && e.publish != published {
		err = errUnpublished
	}
	f, enter := e.fence, false
	if err == nil && f == nil {
		f, enter = newReply(), true
		e.fence = f
	}
	e.mu.Unlock()
	if enter {
		err = e.send(kindFence, nil)
	}
	if err == nil {
		err = f.wait(ctx)
		e.mu.Lock()
		select {
		case <-f.done:
			if e.fence == f {
				e.fence = nil
			}
		default: // the next call waits for the same fence
		}
		e.mu.Unlock()
	}
	return opError(nameEmbedded, "fence", err)
}

func (e *embedded) Lookup(ctx context.Context, rank int) ([]byte, error) {
	op := fmt.Sprintf("lookup of rank %d", rank)
	if err := checkRank(rank, e.size); err != nil {
		return nil, opError(nameEmbedded, op, err)
	}
	r := newReply()
	e.mu.Lock()
	err := e.usable()
	id := e.next
	if err == nil {
		e.next++
		e.lookups[id] = r
	}
	e.mu.Unlock()
	if err == nil {
		err = e.send(kindLookup, putLookup(id, uint32(rank)))
	}
	if err == nil {
		// If the caller cancels the wait, the reply is still matched by its id.
		err = r.wait(ctx)
	}
	if err != nil {
		return nil, opError(nameEmbedded, op, err)
	}
	return r.card, nil
}

func (e *embedded) Exchange(ctx context.Context, data []byte) ([][]byte, error) {
	var err error
	if len(data) > MaxCard {
		err = fmt.Errorf("data of %d bytes, want at most %d: %w", len(data), MaxCard, ErrInvalid)
	}
	x := newExchangeReply(e.size)
	if err == nil {
		e.mu.Lock()
		if err = e.usable(); err == nil && e.exchange != nil {
			err = errExchanging
		}
		if err == nil {
			e.exchange = x
		}
		e.mu.Unlock()
	}
	if err == nil {
		err = e.send(kindExchange, data)
	}
	if err == nil {
		err = x.wait(ctx)
	}
	if err != nil {
		return nil, opError(nameEmbedded, "exchange", err)
	}
	e.mu.Lock()
	e.exchange = nil
	e.mu.Unlock()
	return x.given, nil
}

func (e *embedded) Barrier(ctx context.Context) error {
	_, err := e.Exchange(ctx, nil)
	return err
}

func (e *embedded) Abort(code int, why string) {
	e.mu.Lock()
	err := e.usable()
	e.mu.Unlock()
	if err != nil || e.send(kindAbort, putAbort(code, plain(why))) != nil {
		return
	}
	select {
	case <-e.lost: // the rendezvous has notified all ranks of the abort
	case <-time.After(byeTime):
	}
}

func (e *embedded) Close() error { return e.Leave(context.Background()) }

// Leave tries to send bye for up to a second, even if ctx has ended: a rank that leaves without it counts as dead.
func (e *embedded) Leave(ctx context.Context) error {
	e.mu.Lock()
	over := e.err != nil
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	e.mu.Unlock()
	if !over {
		e.sendBye()
	}
	e.conn.Close()
	if e.server == nil {
		return nil
	}
	var err error
	if !over {
		err = opError(nameEmbedded, "close", e.server.wait(ctx))
	}
	return errors.Join(err, e.server.Close())
}

// sendBye sends bye and waits until the rendezvous closes the connection: closing a socket with unread bytes discards
// bytes that were sent.
func (e *embedded) sendBye() {
	e.wmu.Lock()
	defer e.wmu.Unlock()
	e.conn.SetDeadline(time.Now().Add(byeTime))
	if err := sendFrame(e.frames, kindBye, nil); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	e.sent.Add(uint64(frameSize(0)))
	<-e.over
}
