//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/session"
)

// A receiver that has gone to sleep is woken by a message, short or long, whatever the pause before it, again and
// again.
func TestSleepingReceiverIsWoken(t *testing.T) {
	for _, n := range []int{0, 64 << 10} {
		for _, p := range []session.Progress{session.Background, session.Explicit} {
			t.Run(fmt.Sprintf("%d bytes, progress %d", n, p), func(t *testing.T) {
				s := joinAll(t, 2, func(_ int, c *session.Config) { c.Progress = p })
				ctx := deadline(t)
				const rounds = 60
				var wg sync.WaitGroup
				wg.Go(func() {
					for i := range rounds {
						// The test cannot see how far it is on the way to sleep: the pauses bring it to every step.
						time.Sleep(time.Duration(i%7) * 300 * time.Microsecond)
						if err := s[0].Gate(1).Send(ctx, 2, make([]byte, n)); err != nil {
							t.Error(err)
							return
						}
					}
				})
				for i := range rounds {
					if _, err := s[1].Gate(0).Recv(ctx, 2, make([]byte, n)); err != nil {
						t.Fatalf("message %d: %v", i, err)
					}
				}
				wg.Wait()
			})
		}
	}
}

// What a goroutine sends while another one, which was polling, is inside a handler of another peer, is moved on by the
// background.
func TestSendDuringAPollersHandler(t *testing.T) {
	s := joinAll(t, 3, nil)
	ctx := deadline(t)
	transfer(t, s[0], s[1], 10)
	transfer(t, s[0], s[2], 10)
	inside, release := make(chan bool, 1), make(chan struct{})
	s[0].Handle(1, func(*session.Gate, *session.Active) {
		stack := make([]byte, 4096)
		polls := strings.Contains(string(stack[:runtime.Stack(stack, false)]), "session.(*Request).block(")
		if inside <- polls; polls { // else the background must not be blocked
			<-release
		}
	})
	const enough = 20
	hits := 0
	for round := 0; hits < enough && round < 100*enough; round++ {
		polls := make(chan error, 1)
		go func() { _, err := s[0].Gate(1).Recv(ctx, 3, nil); polls <- err }()
		if _, err := s[1].Gate(0).AM(1, nil, nil); err != nil {
			t.Fatal(err)
		}
		if <-inside {
			hits++
			sent := make(chan error, 1)
			out := session.Out{Tag: 4, Buf: make([]byte, 1<<20), Then: func(_ session.Status, err error) { sent <- err }}
			_, err := s[0].Gate(2).IsendMsg(&out)
			if err == nil {
				_, err = s[2].Gate(0).Recv(ctx, 4, make([]byte, 1<<20))
			}
			if err == nil {
				err = <-sent
			}
			release <- struct{}{}
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if err := s[1].Gate(0).Send(ctx, 3, nil); err != nil {
			t.Fatal(err)
		}
		if err := <-polls; err != nil {
			t.Fatal(err)
		}
	}
	if hits == 0 {
		t.Error("no handler was called by a poller")
	}
}

// A caller that polls for one peer's messages, of which there is always another one, also takes what other peers send.
func TestEveryRailIsPolled(t *testing.T) {
	s := joinAll(t, 3, func(rank int, c *session.Config) {
		if rank == 0 {
			c.Progress = session.Explicit
		}
	})
	ctx := deadline(t)
	transfer(t, s[1], s[0], 10)
	transfer(t, s[2], s[0], 10)
	var flooded atomic.Uint64
	s[0].Handle(1, func(*session.Gate, *session.Active) {
		for start := time.Now(); time.Since(start) < 10*time.Microsecond; { // slower than the flood
		}
		flooded.Add(1)
	})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := s[1].Gate(0).AMNow(1, nil, nil); err != nil {
				s[1].Progress()
			}
		}
	})
	came := make(chan struct{})
	in := session.In{Match: session.Match{From: s[0].Gate(2), Tag: 5}, Then: func(session.Status, error) { close(came) }}
	if _, err := s[0].IrecvMsg(&in); err != nil {
		t.Fatal(err)
	}
	r, err := s[0].Gate(1).Irecv(6, nil)
	if err != nil {
		t.Fatal(err)
	}
	for flooded.Load() < 1000 {
		if done, _, err := r.Test(); done {
			t.Fatal(err)
		}
	}
	if err := s[2].Gate(0).Send(ctx, 5, nil); err != nil {
		t.Fatal(err)
	}
	const most = 1000
	polls := 0
	for taken := false; !taken && polls < most; polls++ {
		if done, _, err := r.Test(); done {
			t.Fatal(err)
		}
		select {
		case <-came:
			taken = true
		default:
		}
	}
	if polls == most {
		t.Errorf("%d polls, and the other peer's message is not taken", polls)
	}
	close(stop)
	wg.Wait()
	r.Cancel()
	_, _, _ = r.Test()
}
