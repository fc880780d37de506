package session_test

import (
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/session"
)

// A receiver that has gone to sleep is woken by a message, whatever the pause
// before it, again and again.
func TestSleepingReceiverIsWoken(t *testing.T) {
	for _, p := range []session.Progress{session.Background, session.Explicit} {
		s := joinAll(t, 2, func(_ int, c *session.Config) { c.Progress = p })
		ctx := deadline(t)
		const rounds = 60
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range rounds {
				// Nothing tells how deep it sleeps: the pauses bring it to every step on the way.
				time.Sleep(time.Duration(i%7) * 300 * time.Microsecond)
				if err := s[0].Gate(1).Send(ctx, 2, nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for i := range rounds {
			if _, err := s[1].Gate(0).Recv(ctx, 2, nil); err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		wg.Wait()
	}
}
