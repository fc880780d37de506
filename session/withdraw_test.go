//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/internal/lab/integrity"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/rdv"
)

// A long message is taken back while it is matched and begun: it either arrives whole, or its receive goes on to wait
// for the next one; nothing is left of it at either end. In every mode.
func TestWithdrawnMessagesLeaveNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed(t), 8))
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for mode := rdv.Null; mode < rdv.Modes; mode++ {
		t.Run(mode.String(), func(t *testing.T) {
			s := joinAll(t, 2, func(_ int, c *session.Config) { c.Mode = modeOf(int(mode)) })
			ctx := deadline(t)
			src, last := pattern(300_000, 7), pattern(200_000, 9)
			for k := range rounds {
				timeout := time.Duration(rng.IntN(200)) * time.Microsecond
				var wg sync.WaitGroup
				wg.Go(func() {
					short, cancel := context.WithTimeout(ctx, timeout)
					defer cancel()
					if err := s[0].Gate(1).Send(short, uint64(k), src); err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("message %d, cancelled: %v", k, err)
					}
					if err := s[0].Gate(1).Send(ctx, uint64(k), last); err != nil {
						t.Errorf("message %d: %v", k, err)
					}
				})
				for came := 0; came != len(last); {
					dst := make([]byte, len(src))
					n, err := s[1].Gate(0).Recv(ctx, uint64(k), dst)
					if want := src; err != nil || n != len(src) && n != len(last) {
						t.Fatalf("message %d: %d bytes, %v", k, n, err)
					} else if n == len(last) {
						want = last
						came = n
						if !bytes.Equal(dst[:n], want) {
							t.Fatal(integrity.Errorf("message %d differs", k))
						}
					} else if !bytes.Equal(dst[:n], want) {
						t.Fatal(integrity.Errorf("message %d, not cancelled in time, differs", k))
					}
				}
				wg.Wait()
			}
			for _, x := range s {
				eventually(t, "nothing is left", func() bool { s[0].Progress(); s[1].Progress(); return x.Pending() == "" })
			}
		})
	}
}
