package session_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"

	_ "github.com/bywash/bywash/shm"
)

// board is where the ranks of a job in one process publish their cards.
type board struct {
	mu    sync.Mutex
	cards [][]byte
	n     int
	all   chan struct{}
	seen  int // lookups
}

func newBoard(n int) *board { return &board{cards: make([][]byte, n), all: make(chan struct{})} }

// seat is a rank's job.
type seat struct {
	b    *board
	rank int
}

var _ launch.Job = (*seat)(nil)

func (j *seat) Rank() int      { return j.rank }
func (j *seat) Size() int      { return len(j.b.cards) }
func (j *seat) Name() string   { return "test" }
func (j *seat) ID() string     { return "test" }
func (j *seat) Secret() []byte { return bytes.Repeat([]byte{7}, launch.SecretSize) }
func (j *seat) Publish(_ context.Context, card []byte) error {
	j.b.mu.Lock()
	defer j.b.mu.Unlock()
	j.b.cards[j.rank] = bytes.Clone(card)
	if j.b.n++; j.b.n == len(j.b.cards) {
		close(j.b.all)
	}
	return nil
}
func (j *seat) Fence(ctx context.Context) error {
	select {
	case <-j.b.all:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (j *seat) Lookup(_ context.Context, rank int) ([]byte, error) {
	j.b.mu.Lock()
	defer j.b.mu.Unlock()
	j.b.seen++
	if rank < 0 || rank >= len(j.b.cards) {
		return nil, fmt.Errorf("no rank %d", rank)
	}
	return j.b.cards[rank], nil
}
func (j *seat) Abort(int, string) {}
func (j *seat) Close() error      { return nil }

// deadline bounds every test.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	t.Cleanup(cancel)
	return ctx
}

// joinAll makes n sessions in this process, over shm unless the config says
// otherwise.
func joinAll(t testing.TB, n int, change func(rank int, c *session.Config)) []*session.Session {
	t.Helper()
	b := newBoard(n)
	out := make([]*session.Session, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			cfg := session.Config{Job: &seat{b, i}, Rails: []session.Rail{{Driver: "shm"}}}
			if change != nil {
				change(i, &cfg)
			}
			out[i], errs[i] = session.Join(deadline(t), cfg)
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTime)
		defer cancel()
		var wg sync.WaitGroup
		for _, s := range out { // closing takes both sides
			if t.Failed() {
				_ = s.Dump(os.Stderr)
			}
			wg.Go(func() { _ = s.Close(ctx) })
		}
		wg.Wait()
	})
	return out
}
