package launch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bywash/bywash/internal/handshake"
)

// byeTime is how long Close, and Abort of a rank that does not serve, wait for the launcher to take notice.
const byeTime = time.Second

// dialect is the protocol of a launcher. Its first three methods make a request, some after waiting for the answers to
// earlier ones until ctx ends, and finish the reply when the launcher has answered. Client has one fence in progress at
// a time.
type dialect interface {
	publish(ctx context.Context, card []byte, r *reply)
	lookup(ctx context.Context, rank int, r *reply)                  // the card
	fence(ctx context.Context, how fenceKind, data []byte, r *reply) // what fenceKind says
	watchEnds(f func(End)) error
	// abort asks the launcher to end the job.
	abort(code int, why string)
	// close leaves the job in order, within byeTime. hangUp makes calls in progress fail.
	close() error
	hangUp()
	traffic() Traffic
}

// reply is what a call waits for. One goroutine finishes it, once.
type reply struct {
	done   chan struct{}
	values [][]byte
	err    error
}

func newReply() *reply { return &reply{done: make(chan struct{})} }

func (r *reply) finish(err error, values ...[]byte) {
	r.values, r.err = values, err
	close(r.done)
}

func (r *reply) finished() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Client is the Job of a launcher that this package implements. All ranks make their calls of Agree, Fence, Exchange and
// Barrier in the same order.
type Client struct {
	name       string
	rank, size int
	secret     []byte
	key        *handshake.Key
	dialect    dialect
	server     *Server       // rank 0's own
	lost       chan struct{} // closed when the job is lost before Close
	left       chan struct{} // closed by Close

	mu         sync.Mutex
	card       *reply // of Publish
	agreed     bool   // Agree was called
	exchanging bool   // an exchange is in progress, or its caller has stopped waiting
	watching   bool   // WatchEnds was called
	closed     bool
	err        error  // why the job is lost
	last       *reply // of the last fence of any kind
	fence      *reply // of Fence, until a caller has seen its end
}

var _ Job = (*Client)(nil)

// newClient returns a client without a secret.
func newClient(name string, rank, size int) *Client {
	c := &Client{name: name, rank: rank, size: size, lost: make(chan struct{}), left: make(chan struct{}), last: newReply()}
	c.last.finish(nil)
	return c
}

// setSecret returns ErrInvalid for a secret that is too short.
func (c *Client) setSecret(secret []byte) (err error) {
	c.secret = secret
	c.key, err = jobKey(secret)
	return err
}

func (c *Client) Rank() int      { return c.rank }
func (c *Client) Size() int      { return c.size }
func (c *Client) Name() string   { return c.name }
func (c *Client) ID() string     { return jobID(c.key) }
func (c *Client) Secret() []byte { return c.secret }

// Lost returns a channel that is closed when the launcher is gone, a rank has aborted the job, or, after Exchange, a
// rank has died or left. Only the embedded launcher reports more than that it is gone.
func (c *Client) Lost() <-chan struct{} { return c.lost }

// Err returns the cause once Lost is closed: ErrLauncher, a RankError, or, if rank 0 was the launcher, both. It is nil
// before.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Traffic counts the bytes and requests that were exchanged with the launcher.
func (c *Client) Traffic() Traffic { return c.dialect.traffic() }

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.err == nil {
		c.err = err
		close(c.lost)
	}
}

// usable returns why no request can be sent any more, or nil; c.mu is held.
func (c *Client) usable() error {
	if c.closed {
		return ErrClosed
	}
	return c.err
}

// begin returns err if that is set, else why the job is not usable, else the result of refuse, which marks that a call
// has begun unless it refuses it.
func (c *Client) begin(err error, refuse func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		err = c.usable()
	}
	if err == nil {
		err = refuse()
	}
	return err
}

// wait returns the answer, or why there is none: the cause of ctx, or the end of the job. An answer that has come
// counts, whatever has ended since: callers end their contexts when the job is lost.
func (c *Client) wait(ctx context.Context, r *reply) ([][]byte, error) {
	select {
	case <-r.done:
	case <-c.lost:
	case <-c.left:
	case <-ctx.Done():
	}
	if r.finished() && r.err == nil {
		return r.values, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch err := c.usable(); {
	case errors.Is(err, ErrClosed):
		return nil, err
	case r.finished():
		return nil, r.err
	case err != nil:
		return nil, err
	}
	return nil, context.Cause(ctx)
}

// inTurn enters a fence when the one before it has ended, even if the caller of that one does not wait for it.
func (c *Client) inTurn(ctx context.Context, how fenceKind, data []byte, r *reply) ([][]byte, error) {
	for {
		c.mu.Lock()
		last := c.last
		free := last.finished()
		if free {
			c.last = r
		}
		c.mu.Unlock()
		if free {
			c.dialect.fence(ctx, how, data, r)
			return c.wait(ctx, r)
		}
		if _, err := c.wait(ctx, last); !last.finished() {
			r.finish(err)
			return nil, err
		}
	}
}

// Publish implements Job.
func (c *Client) Publish(ctx context.Context, card []byte) error {
	r := newReply()
	err := c.begin(checkLen("card", card, 1, MaxCard), func() error {
		if c.card != nil {
			return fmt.Errorf("Publish called twice: %w", ErrInvalid)
		}
		c.card = r
		return nil
	})
	if err == nil {
		c.dialect.publish(ctx, card, r)
		_, err = c.wait(ctx, r)
	}
	return opError(c.name, "publish", err)
}

// Fence implements Job.
func (c *Client) Fence(ctx context.Context) error {
	r, resumed := newReply(), false
	err := c.begin(nil, func() error {
		if c.card == nil || !c.card.finished() || c.card.err != nil {
			return fmt.Errorf("Fence called before Publish: %w", ErrInvalid)
		}
		if resumed = c.fence != nil && (!c.fence.finished() || c.fence.err == nil); resumed {
			r = c.fence
		}
		c.fence = r
		return nil
	})
	switch {
	case err != nil:
	case resumed:
		_, err = c.wait(ctx, r)
	default:
		_, err = c.inTurn(ctx, fencePlain, nil, r)
	}
	c.mu.Lock()
	if c.fence == r && r.finished() && (err == nil || r.err != nil) { // else the next call waits for the same fence
		c.fence = nil
	}
	c.mu.Unlock()
	return opError(c.name, "fence", err)
}

// Lookup implements Job.
func (c *Client) Lookup(ctx context.Context, rank int) ([]byte, error) {
	err := c.begin(checkRank(rank, c.size), func() error { return nil })
	if err == nil {
		r := newReply()
		c.dialect.lookup(ctx, rank, r)
		var values [][]byte
		if values, err = c.wait(ctx, r); err == nil {
			return values[0], nil
		}
	}
	return nil, opError(c.name, fmt.Sprintf("lookup of rank %d", rank), err)
}

// Agree reports whether all ranks run on one host and have called it with the same word, of 1 to MaxWord bytes; all of
// them get the same answer. Every rank calls it once, or none does, before Publish: it blocks until all have called it
// or ctx ends, and then the answer is lost. The traffic of a rank does not grow with the job. The answer is false
// without a comparison if the launcher knows of several hosts, and also if a rank has died or left. Agree fails with
// ErrLauncher, or with a RankError if the job was aborted.
func (c *Client) Agree(ctx context.Context, word []byte) (bool, error) {
	err := c.begin(checkLen("value", word, 1, MaxWord), func() error {
		if c.agreed || c.card != nil {
			return fmt.Errorf("Agree called twice, or after Publish: %w", ErrInvalid)
		}
		c.agreed = true
		return nil
	})
	if err != nil {
		return false, opError(c.name, "agree", err)
	}
	values, err := c.inTurn(ctx, fenceAgree, word, newReply())
	return err == nil && values[0][0] == 1, opError(c.name, "agree", err)
}

// Exchange gives data, of 0 to MaxCard bytes, to all ranks. It returns when all ranks have called it, with what each
// gave, by rank; the slices belong to the caller. One call may be in progress at a time. When ctx ends first, no
// further call succeeds. The traffic of a job grows with the square of its ranks. Launchers with PMI and PMIx keep the
// data of all exchanges until the job ends, and answer one look-up for each rank's data.
//
// A rank that has exchanged needs all others: when one of them dies or leaves and the launcher reports it, the job is
// lost for it. Lost is closed and Err is a RankError, whether an exchange is in progress or not.
func (c *Client) Exchange(ctx context.Context, data []byte) ([][]byte, error) {
	err := c.begin(checkLen("data", data, 0, MaxCard), func() error {
		if c.exchanging {
			return fmt.Errorf("Exchange already in progress or cancelled: %w", ErrInvalid)
		}
		c.exchanging = true
		return nil
	})
	if err != nil {
		return nil, opError(c.name, "exchange", err)
	}
	given, err := c.inTurn(ctx, fenceExchange, data, newReply())
	if err != nil {
		return nil, opError(c.name, "exchange", err)
	}
	c.mu.Lock()
	c.exchanging = false
	c.mu.Unlock()
	return given, nil
}

// Barrier returns when all ranks have called it: an Exchange of nothing.
func (c *Client) Barrier(ctx context.Context) error {
	_, err := c.Exchange(ctx, nil)
	return err
}

// WatchEnds has f called, from a goroutine of the job, once for each other rank that has ended or ends from now on,
// until this job is closed. A rank that leaves in order is reported as Left, also if its process then fails. The
// launcher reports a rank some milliseconds after its end; half a second after, if it cannot know the exit status
// (Server.Started), as where rank 0 serves the rendezvous. f must not block. WatchEnds is called once. It returns an
// error if the launcher is gone, and errors.ErrUnsupported with a launcher other than the embedded.
func (c *Client) WatchEnds(f func(End)) error {
	err := c.begin(nil, func() error {
		if c.watching {
			return fmt.Errorf("watch ends a second time: %w", ErrInvalid)
		}
		c.watching = true
		return nil
	})
	if err == nil {
		err = c.dialect.watchEnds(f)
	}
	return opError(c.name, "watch ends", err)
}

// Abort implements Job.
func (c *Client) Abort(code int, why string) {
	if c.begin(nil, func() error { return nil }) != nil {
		return
	}
	if code < 1 || code > 255 {
		code = 1
	}
	done := make(chan struct{})
	go func() { // not after other calls: one may never return
		defer close(done)
		c.dialect.abort(code, plain(why[:min(len(why), maxWhy)]))
		if c.server != nil { // which then has told all other ranks: this process may end at once
			_ = c.server.Close()
		}
	}()
	limit := byeTime
	if c.server != nil {
		limit = writeTime // as long as a rank that reads nothing may delay it
	}
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// Close implements Job.
func (c *Client) Close() error { return c.Leave(context.Background()) }

// Leave is Close, but waits for other ranks only until ctx ends, and then returns the error of ctx. Ranks that have not
// closed by then lose their launcher. Leave informs the launcher even if ctx has ended: a rank that leaves without that
// counts as dead.
func (c *Client) Leave(ctx context.Context) error {
	c.mu.Lock()
	over := c.err != nil
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	close(c.left)
	c.mu.Unlock()
	var err error
	if !over {
		err = c.dialect.close()
	}
	c.dialect.hangUp()
	if c.server != nil {
		if !over {
			err = errors.Join(err, c.server.wait(ctx))
		}
		err = errors.Join(err, c.server.Close())
	}
	return opError(c.name, "close", err)
}
