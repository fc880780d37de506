package launch

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bywash/bywash/internal/handshake"
)

// kvs is a launcher's key-value space. One call is in progress at a time; each blocks until the launcher has answered.
// Values are text of the URL-safe base64 alphabet, ',' and digits, so that no protocol has to quote them.
type kvs interface {
	// maxValue is the longest value in bytes that every server takes.
	maxValue() int
	put(key, value string) error
	// get returns what a rank has put, errNoKey where it has not.
	get(rank int, key string) (string, error)
	// fence returns when all ranks are in it, and then all see what each had put.
	fence() error
	// oneHost reports whether the launcher knows that all ranks are on one host; all ranks get the same answer.
	oneHost(size int) (bool, error)
	// watch is called once, before put: lost is then called, at most once, when the launcher is gone.
	watch(lost func(error))
	// abort asks the launcher to end the job, and does not wait.
	abort(code int, why string)
	// close ends the session with the launcher; hangUp, from another goroutine, makes a call in progress fail.
	close() error
	hangUp()
	traffic() Traffic
}

var errNoKey = errors.New("no such key")

// Keys. A card is split over as many as the server's limit takes.
const keySecret = "bw-secret"

func cardKey(rank, part int) string {
	return "bw-" + strconv.Itoa(rank) + "-" + strconv.Itoa(part)
}

var b64 = base64.RawURLEncoding.Strict()

// splitCard makes the values of a card's keys: "1,bytes,parts," and the card in
// base64, cut at the limit. So one look-up of a short card is one request.
func splitCard(card []byte, limit int) ([]string, error) {
	text := b64.EncodeToString(card)
	parts := 1
	for {
		head := fmt.Sprintf("1,%d,%d,", len(card), parts)
		if limit <= len(head) {
			return nil, fmt.Errorf("the launcher takes values of %d bytes only: %w", limit, ErrInvalid)
		}
		whole := head + text
		n := (len(whole) + limit - 1) / limit
		if n != parts {
			parts = n // and its own length may differ
			if parts > MaxCard {
				return nil, errFrame
			}
			continue
		}
		var values []string
		for len(whole) > limit {
			values, whole = append(values, whole[:limit]), whole[limit:]
		}
		return append(values, whole), nil
	}
}

// joinCard is its inverse; get fetches the further parts.
func joinCard(first string, get func(part int) (string, error)) ([]byte, error) {
	version, rest, ok := strings.Cut(first, ",")
	bytes, rest, ok2 := strings.Cut(rest, ",")
	count, text, ok3 := strings.Cut(rest, ",")
	if !ok {
		return nil, errFrame
	}
	if version != "1" {
		return nil, fmt.Errorf("card of version %q, this program has 1: %w", plain(version[:min(len(version), 16)]), ErrVersion)
	}
	size, err := strconv.Atoi(bytes)
	parts, err2 := strconv.Atoi(count)
	most := b64.EncodedLen(MaxCard)
	if !ok2 || !ok3 || err != nil || err2 != nil || size < 1 || size > MaxCard || parts < 1 || parts > most {
		return nil, errFrame
	}
	var all strings.Builder
	all.WriteString(text)
	for p := 1; p < parts; p++ {
		s, err := get(p)
		if err != nil {
			return nil, err
		}
		if s == "" || all.Len()+len(s) > most {
			return nil, errFrame
		}
		all.WriteString(s)
	}
	card, err := b64.DecodeString(all.String())
	if err != nil || len(card) != size {
		return nil, errFrame
	}
	return card, nil
}

// kvJob is a job over a key-value space.
type kvJob struct {
	name       string
	rank, size int
	secret     []byte
	key        *handshake.Key
	kv         kvs
	turn       chan struct{} // held by the goroutine that talks to the launcher
	lost       chan struct{} // closed when the launcher is gone before Close
	left       chan struct{} // closed by Close, which keeps the turn

	mu      sync.Mutex
	publish publication
	agreed  bool // Agree was called
	closed  bool
	err     error // the launcher is gone
	fence   *reply
}

var (
	_ Meter   = (*kvJob)(nil)
	_ Watcher = (*kvJob)(nil)
)

// joinKV agrees on a secret with all other ranks.
func joinKV(ctx context.Context, name string, rank, size int, kv kvs) (*kvJob, error) {
	j := &kvJob{name: name, rank: rank, size: size, kv: kv, turn: make(chan struct{}, 1), lost: make(chan struct{}), left: make(chan struct{})}
	kv.watch(j.fail)
	var secret []byte
	err := j.do(ctx, func() (err error) {
		secret, err = spreadSecret(kv, rank)
		return err
	})
	if err == nil {
		j.secret = secret
		j.key, err = jobKey(secret)
	}
	if err != nil {
		kv.hangUp()
		return nil, err
	}
	return j, nil
}

func spreadSecret(kv kvs, rank int) ([]byte, error) {
	secret := newSecret()
	if rank == 0 {
		if err := kv.put(keySecret, b64.EncodeToString(secret)); err != nil {
			return nil, err
		}
	}
	if err := kv.fence(); err != nil {
		return nil, err
	}
	if rank == 0 {
		return secret, nil
	}
	s, err := kv.get(0, keySecret)
	if err != nil {
		return nil, fmt.Errorf("the job's secret: %w", err)
	}
	if secret, err = b64.DecodeString(s); err != nil || len(secret) != SecretSize {
		return nil, fmt.Errorf("the job's secret: %w", errFrame)
	}
	return secret, nil
}

func (j *kvJob) Rank() int             { return j.rank }
func (j *kvJob) Size() int             { return j.size }
func (j *kvJob) Name() string          { return j.name }
func (j *kvJob) ID() string            { return jobID(j.key) }
func (j *kvJob) Secret() []byte        { return j.secret }
func (j *kvJob) Lost() <-chan struct{} { return j.lost }
func (j *kvJob) Traffic() Traffic      { return j.kv.traffic() }

func (j *kvJob) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

func (j *kvJob) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed && j.err == nil {
		j.err = err
		close(j.lost)
	}
}

// usable returns why no request can be sent any more, or nil; j.mu is held.
func (j *kvJob) usable() error {
	if j.closed {
		return ErrClosed
	}
	return j.err
}

// start runs f when it is its turn. A caller that gives up leaves it running: the launcher will answer, and the answer
// has to be taken before the next question.
func (j *kvJob) start(ctx context.Context, r *reply, f func() error) error {
	select {
	case j.turn <- struct{}{}:
	case <-j.lost:
		return j.Err()
	case <-j.left:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	j.mu.Lock()
	err := j.usable()
	j.mu.Unlock()
	if err != nil {
		<-j.turn
		return err
	}
	go func() {
		err := f()
		if errors.Is(err, ErrLauncher) {
			j.fail(err)
		}
		j.mu.Lock()
		if j.closed && err != nil {
			err = ErrClosed
		}
		j.mu.Unlock()
		<-j.turn
		r.finish(nil, err)
	}()
	return nil
}

func (j *kvJob) do(ctx context.Context, f func() error) error {
	r := newReply()
	if err := j.start(ctx, r, f); err != nil {
		return err
	}
	return j.wait(ctx, r)
}

// wait does not wait for a call of libpmix that goes on after the launcher's end.
func (j *kvJob) wait(ctx context.Context, r *reply) error {
	select {
	case <-r.done:
		return r.err
	case <-j.lost:
		return j.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (j *kvJob) Publish(ctx context.Context, card []byte) error {
	return opError(j.name, "publish", j.publishCard(ctx, card))
}

func (j *kvJob) publishCard(ctx context.Context, card []byte) error {
	if err := checkCard(card); err != nil {
		return err
	}
	values, err := splitCard(card, j.kv.maxValue())
	if err != nil {
		return err
	}
	j.mu.Lock()
	if err = j.usable(); err == nil && j.publish != unpublished {
		err = errTwice
	}
	if err == nil {
		j.publish = publishing
	}
	j.mu.Unlock()
	if err != nil {
		return err
	}
	err = j.do(ctx, func() error {
		for i, v := range values {
			if err := j.kv.put(cardKey(j.rank, i), v); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		j.mu.Lock()
		j.publish = published
		j.mu.Unlock()
	}
	return err
}

func (j *kvJob) Agree(ctx context.Context, word []byte) (bool, error) {
	err := checkWord(word)
	if err == nil {
		j.mu.Lock()
		if err = j.usable(); err == nil && (j.agreed || j.publish != unpublished) {
			err = errAgreed
		}
		if err == nil {
			j.agreed = true
		}
		j.mu.Unlock()
	}
	same := false
	if err == nil {
		var s bool
		if err = j.do(ctx, func() (err error) { s, err = agree(j.kv, j.rank, j.size, word); return err }); err == nil {
			same = s
		}
	}
	return same, opError(j.name, "agree", err)
}

func (j *kvJob) Fence(ctx context.Context) error {
	return opError(j.name, "fence", j.fenceOnce(ctx))
}

func (j *kvJob) fenceOnce(ctx context.Context) error {
	j.mu.Lock()
	err := j.usable()
	if err == nil && j.publish != published {
		err = errUnpublished
	}
	f, enter := j.fence, false
	if err == nil && f == nil {
		f, enter = newReply(), true
		j.fence = f
	}
	j.mu.Unlock()
	if err != nil {
		return err
	}
	if enter {
		if err := j.start(ctx, f, j.kv.fence); err != nil {
			f.finish(nil, err)
		}
	}
	err = j.wait(ctx, f)
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case <-f.done:
		if j.fence == f {
			j.fence = nil
		}
	default: // the next call waits for it
	}
	return err
}

func (j *kvJob) Lookup(ctx context.Context, rank int) (card []byte, err error) {
	err = checkRank(rank, j.size)
	if err == nil {
		var c []byte
		err = j.do(ctx, func() error {
			first, err := j.kv.get(rank, cardKey(rank, 0))
			if errors.Is(err, errNoKey) {
				return ErrNoCard
			}
			if err != nil {
				return err
			}
			c, err = joinCard(first, func(part int) (string, error) { return j.kv.get(rank, cardKey(rank, part)) })
			return err
		})
		if err == nil {
			card = c
		}
	}
	return card, opError(j.name, fmt.Sprintf("lookup of rank %d", rank), err)
}

// Abort does not wait for its turn: another call may never return.
func (j *kvJob) Abort(code int, why string) {
	j.mu.Lock()
	err := j.usable()
	j.mu.Unlock()
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		j.kv.abort(exitCode(code), plain(why[:min(len(why), maxWhy)]))
	}()
	select {
	case <-done:
	case <-time.After(byeTime):
	}
}

func (j *kvJob) Close() error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return nil
	}
	j.closed = true
	close(j.left)
	over := j.err != nil
	j.mu.Unlock()
	defer j.kv.hangUp()
	late := time.After(byeTime)
	if over {
		return nil
	}
	select {
	case j.turn <- struct{}{}:
	case <-late: // a call is under way that may never return
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- j.kv.close() }()
	select {
	case err := <-done:
		return opError(j.name, "close", err)
	case <-late:
		return opError(j.name, "close", fmt.Errorf("no answer within %s: %w", byeTime, ErrLauncher))
	}
}
