//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
)

// stream carries the bytes of a link. One goroutine writes at a time, and one reads.
type stream interface {
	io.ReadWriter
	SetDeadline(time.Time) error
	// CloseWrite ends what is written: the peer reads all bytes and then the end. A later Write fails.
	CloseWrite() error
	// Close ends both directions at once. It may be called more than once.
	Close() error
}

// link is an authenticated stream to a peer. It serves one endpoint, or a peer that watches whether this process lives.
type link struct {
	stream   stream
	number   uint64 // of accepted connections, in their order; 0 for a link that this side dialed
	conn     *handshake.Conn
	received chan message // except alive; closed when the link ends
	err      error        // why the link ended; valid once received is closed

	sending sync.Mutex
	heard   atomic.Int64 // when the last message came, by hub.now; -1: no further message is expected
	silent  atomic.Bool  // the link was ended because the peer was silent
	keeping context.Context
	settle  context.CancelFunc // ends keep: neither side waits for the other any more
	leaving chan struct{}      // closed by finish
	once    sync.Once
}

const (
	beats      = 10          // messages alive within a time-out
	finishTime = time.Second // for a link to end in order
)

// Reasons for which a link ends.
var (
	errSilent = fmt.Errorf("%w: the peer does not answer", driver.ErrBroken)
	errGone   = fmt.Errorf("%w: the peer gave up or disconnected", driver.ErrClosed)
	errBye    = fmt.Errorf("%w: the peer has closed", driver.ErrClosed)
	errEnded  = fmt.Errorf("%w: the peer's process has ended, or its connection was cut", driver.ErrBroken)
)

// newLink starts to read from a link to the peer inc, and to tell it that this process is alive.
func (h *hub) newLink(inc, number uint64, s stream, conn *handshake.Conn) *link {
	l := &link{stream: s, number: number, conn: conn, received: make(chan message, 1), leaving: make(chan struct{})}
	l.keeping, l.settle = context.WithCancel(context.Background())
	l.heard.Store(h.now())
	h.count(&h.stats.links)
	h.tasks.Go(func() { h.read(l, inc) })
	h.tasks.Go(func() { h.keep(l) })
	return l
}

func (l *link) send(m *message) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	return l.conn.Send(m.append(nil))
}

// keep tells the peer that this process is alive, and ends the link when the peer has been silent for the time-out.
func (h *hub) keep(l *link) {
	tick := time.NewTicker(h.timeout / beats)
	defer tick.Stop()
	for {
		select {
		case <-l.keeping.Done():
			return
		case <-tick.C:
		}
		if at := l.heard.Load(); at >= 0 && h.now()-at > int64(h.timeout) {
			l.silent.Store(true)
			_ = l.stream.Close() // ends the reader, too
			return
		}
		if l.send(&message{kind: msgAlive}) != nil {
			return // the reader knows why
		}
	}
}

// expectNothing says that no message of the peer is waited for.
func (l *link) expectNothing() { l.heard.Store(-1) }

// read receives messages until the link ends.
func (h *hub) read(l *link, inc uint64) {
	defer l.stream.Close()
	defer l.settle()
	defer close(l.received)
	for {
		var m message
		b, err := l.conn.Receive()
		if err == nil {
			err = m.parse(b)
		}
		if err != nil {
			l.err = h.reason(l, err)
			return
		}
		if at := l.heard.Load(); at >= 0 {
			l.heard.CompareAndSwap(at, h.now())
		}
		switch m.kind {
		case msgAlive:
			continue
		case msgBye: // before the stream is closed, which the peer waits for
			h.lost(inc, nil, errBye)
		}
		select {
		case l.received <- m:
		case <-l.leaving:
		}
	}
}

// reason returns why a link has ended whose reader got err, and counts what only a faulty or hostile peer sends.
func (h *hub) reason(l *link, err error) error {
	select {
	case <-l.leaving:
		return errEnded
	default:
	}
	switch {
	case l.silent.Load():
		return fmt.Errorf("%w for %v", errSilent, h.timeout)
	case errors.Is(err, handshake.ErrSecret), errors.Is(err, handshake.ErrMalformed), errors.Is(err, errMalformed):
		h.count(&h.stats.BadMessages)
		return fmt.Errorf("%w: %w", driver.ErrBroken, err)
	case errors.Is(err, io.EOF):
		return errEnded
	}
	return fmt.Errorf("%w: %w", errEnded, err)
}

// next returns the next message of that kind. Any other message is the error that it stands for.
func (h *hub) next(l *link, want messageKind, stop <-chan struct{}) (message, error) {
	select {
	case <-stop:
		return message{}, errStopped
	case m, ok := <-l.received:
		return m, h.meaning(l, &m, ok, want)
	}
}

// meaning returns nil for a message of the kind that is expected, and else what has happened: ok is false when the link
// has ended.
func (h *hub) meaning(l *link, m *message, ok bool, want messageKind) error {
	switch {
	case !ok:
		return l.err
	case m.kind == want:
		return nil
	case m.kind == msgReject:
		return m.rejectError()
	case m.kind == msgGone:
		return errGone
	case m.kind == msgBye:
		return errBye
	}
	h.count(&h.stats.BadMessages)
	return fmt.Errorf("%w: %w: message of kind %d instead of %d", driver.ErrBroken, errMalformed, m.kind, want)
}

// open waits for a message that nobody else takes, and reports whether the link is still open.
func (l *link) open() bool {
	_, ok := <-l.received
	return ok
}

// errStopped means that this side's endpoint has ended meanwhile.
var errStopped = errors.New("the endpoint has ended")

// finish ends a link in order, after a last message unless that is nil. Only the first call has an effect. It may take
// finishTime.
func (l *link) finish(last *message) {
	l.once.Do(func() {
		close(l.leaving)
		l.settle()
		_ = l.stream.SetDeadline(time.Now().Add(finishTime))
		if last != nil {
			_ = l.send(last)
		}
		_ = l.stream.CloseWrite() // the reader closes the stream when the peer has ended its part
	})
}
