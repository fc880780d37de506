//go:build linux && !(386 || arm || mips || mipsle)

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

// jobCards holds the published cards of the ranks of a job in one process.
type jobCards struct {
	mu    sync.Mutex
	cards [][]byte
	n     int
	all   chan struct{}
	seen  int // lookups
}

func newJobCards(n int) *jobCards {
	return &jobCards{cards: make([][]byte, n), all: make(chan struct{})}
}

// cardJob is the launch.Job of one rank.
type cardJob struct {
	b    *jobCards
	rank int
}

var _ launch.Job = (*cardJob)(nil)

func (j *cardJob) Rank() int      { return j.rank }
func (j *cardJob) Size() int      { return len(j.b.cards) }
func (j *cardJob) Name() string   { return "test" }
func (j *cardJob) ID() string     { return "test" }
func (j *cardJob) Secret() []byte { return bytes.Repeat([]byte{7}, launch.SecretSize) }
func (j *cardJob) Publish(_ context.Context, card []byte) error {
	j.b.mu.Lock()
	defer j.b.mu.Unlock()
	j.b.cards[j.rank] = bytes.Clone(card)
	if j.b.n++; j.b.n == len(j.b.cards) {
		close(j.b.all)
	}
	return nil
}
func (j *cardJob) Fence(ctx context.Context) error {
	select {
	case <-j.b.all:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (j *cardJob) Lookup(_ context.Context, rank int) ([]byte, error) {
	j.b.mu.Lock()
	defer j.b.mu.Unlock()
	j.b.seen++
	if rank < 0 || rank >= len(j.b.cards) {
		return nil, fmt.Errorf("no rank %d", rank)
	}
	return j.b.cards[rank], nil
}
func (j *cardJob) Abort(int, string) {}
func (j *cardJob) Close() error      { return nil }

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
	b := newJobCards(n)
	out := make([]*session.Session, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			cfg := session.Config{Job: &cardJob{b, i}, Rails: []session.Rail{{Driver: "shm"}}}
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
