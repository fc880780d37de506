package session_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

func twoRails(_ int, c *session.Config) {
	c.Rails = []session.Rail{{Driver: "shm"}, {Driver: "shm", Options: map[string]string{"path": "cma"}}}
}

func TestLongMessagesShareTheirRails(t *testing.T) {
	s := joinAll(t, 2, twoRails)
	for _, n := range append(sizes, 40<<20) {
		transfer(t, s[0], s[1], n)
		transfer(t, s[1], s[0], n)
	}
	if got := s[0].Gate(1).Explain(); len(got) != 2 || !got[0].Taken || !got[1].Taken {
		t.Errorf("rails: %+v", got)
	}
	if n := received(s[0]); n < 40<<20 {
		t.Errorf("counted %d bytes", n)
	}
	transfer(t, s[0], s[0], 5<<20)
}

// received is how many bytes have come to a rank.
func received(s *session.Session) uint64 {
	var c driver.Counters
	s.Counters(&c)
	return c.BytesReceived
}

// A rail is lost in the middle of long messages, at either end: they come over the other, once
// and whole, and so do later ones.
func TestMessagesGoOnWhenARailIsLost(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 6
	}
	const n, size = 12, 6 << 20
	rng := rand.New(rand.NewPCG(seed(t), 2))
	for i := range rounds {
		who, moment := i%2, rng.Uint64N(n*size)
		ok := t.Run(fmt.Sprintf("%d", i), func(t *testing.T) {
			s := joinAll(t, 2, twoRails)
			ctx := deadline(t)
			stuck := time.AfterFunc(testTime+5*time.Second, func() {
				for _, x := range s {
					_ = x.Dump(os.Stderr)
				}
			})
			defer stuck.Stop()
			transfer(t, s[0], s[1], 1000)
			src := pattern(size, 6)
			var wg sync.WaitGroup
			wg.Go(func() {
				for k := range n {
					if err := s[0].Gate(1).Send(ctx, uint64(k), src[k:]); err != nil {
						t.Errorf("send %d: %v", k, err)
						return
					}
				}
			})
			wg.Go(func() {
				for start := received(s[1]); received(s[1])-start < moment && ctx.Err() == nil; {
					time.Sleep(50 * time.Microsecond)
				}
				s[who].CloseRail(1)
			})
			for k := range n {
				dst := make([]byte, size)
				got, err := s[1].Gate(0).Recv(ctx, uint64(k), dst)
				if err != nil || !bytes.Equal(dst[:got], src[k:]) {
					t.Fatalf("message %d: %d bytes, %v, equal %v", k, got, err, bytes.Equal(dst[:got], src[k:]))
				}
			}
			wg.Wait()
			transfer(t, s[1], s[0], 3<<20)
		})
		if !ok {
			t.Fatalf("rank %d lost its rail after %d bytes", who, moment)
		}
	}
}
