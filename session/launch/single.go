package launch

import (
	"bytes"
	"context"
	"sync"

	"github.com/bywash/bywash/internal/handshake"
)

const nameAlone = "alone"

// singleJob is the job of a process that no launcher started.
type singleJob struct {
	secret []byte
	key    *handshake.Key

	mu     sync.Mutex
	agreed bool
	card   []byte
	closed bool
}

var _ Job = (*singleJob)(nil)

// Alone returns a job of one rank, with a random secret.
func Alone() Job { return singleJobWith(newSecret()) }

func singleJobWith(secret []byte) Job {
	key, _ := jobKey(secret) // fails for shorter ones only
	return &singleJob{secret: secret, key: key}
}

func (a *singleJob) Rank() int      { return 0 }
func (a *singleJob) Size() int      { return 1 }
func (a *singleJob) Name() string   { return nameAlone }
func (a *singleJob) ID() string     { return jobID(a.key) }
func (a *singleJob) Secret() []byte { return a.secret }

func (a *singleJob) do(ctx context.Context, op string, f func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := ctx.Err()
	if a.closed {
		err = ErrClosed
	}
	if err == nil {
		err = f()
	}
	return opError(nameAlone, op, err)
}

func (a *singleJob) Agree(ctx context.Context, word []byte) (bool, error) {
	err := a.do(ctx, "agree", func() error {
		if a.agreed || a.card != nil {
			return errAgreed
		}
		a.agreed = true
		return checkWord(word)
	})
	return err == nil, err
}

func (a *singleJob) Publish(ctx context.Context, card []byte) error {
	return a.do(ctx, "publish", func() error {
		if a.card != nil {
			return errTwice
		}
		if err := checkCard(card); err != nil {
			return err
		}
		a.card = bytes.Clone(card)
		return nil
	})
}

func (a *singleJob) Fence(ctx context.Context) error {
	return a.do(ctx, "fence", func() error {
		if a.card == nil {
			return errUnpublished
		}
		return nil
	})
}

func (a *singleJob) Lookup(ctx context.Context, rank int) (card []byte, err error) {
	err = a.do(ctx, "lookup", func() error {
		if err := checkRank(rank, 1); err != nil {
			return err
		}
		if a.card == nil {
			return ErrNoCard
		}
		card = bytes.Clone(a.card)
		return nil
	})
	return card, err
}

// Abort has no other process to end: the caller exits.
func (a *singleJob) Abort(int, string) {}

func (a *singleJob) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	return nil
}
