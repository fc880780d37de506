//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bywash/bywash/internal/handshake"
)

// newServer serves a job for the length of a test.
func newServer(t testing.TB, size int) *Server {
	t.Helper()
	ln, err := Listen(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(ln, size, NewSecret())
	t.Cleanup(func() { s.Close() })
	return s
}

func join(t testing.TB, s *Server, rank int) *Client {
	t.Helper()
	j, err := joinEmbedded(context.Background(), s.Addr(), rank, len(s.ranks), s.secret, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

// wire returns the connection of a rank.
func wire(c *Client) *embedded { return c.dialect.(*embedded) }

// fenced joins all ranks of a job, each of which has published and fenced.
func fenced(t testing.TB, s *Server) []*Client {
	t.Helper()
	jobs := make([]*Client, len(s.ranks))
	var wg sync.WaitGroup
	for r := range jobs {
		jobs[r] = join(t, s, r)
	}
	for r, j := range jobs {
		wg.Go(func() {
			if err := exchange(t.Context(), j, 100, 0); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
	return jobs
}

// A client without the secret is refused. A rendezvous without it learns nothing, not even rank and size.
func TestUnauthenticatedPeersLearnNothing(t *testing.T) {
	s := newServer(t, 2)
	_, err := joinEmbedded(t.Context(), s.Addr(), 0, 2, NewSecret(), false)
	if !errors.Is(err, ErrAuth) {
		t.Errorf("with another secret: %v, want ErrAuth", err)
	}
	// A rendezvous that does not know the secret is detected before the client sends anything.
	ln, err := Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan []byte, 1)
	go func() {
		defer ln.Close()
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		// The false rendezvous knows the key id of a genuine dialer, and no more.
		_, _, err = handshake.Accept(c, func(handshake.KeyID) *handshake.Key { return aKey(NewSecret()) }, &frameConfig)
		if !errors.Is(err, handshake.ErrSecret) {
			t.Errorf("a false rendezvous: %v", err)
		}
		rest, _ := io.ReadAll(c)
		received <- rest
	}()
	_, err = joinEmbedded(t.Context(), ln.Addr().String(), 1, 2, s.secret, false)
	if rest := <-received; !errors.Is(err, ErrAuth) || len(rest) != 0 {
		t.Errorf("false rendezvous: %v, received %q; want ErrAuth and nothing", err, rest)
	}
	fenced(t, s) // the genuine ones are served
}

func TestRefusalsNameTheCause(t *testing.T) {
	s := newServer(t, 2)
	join(t, s, 0)
	for _, c := range []struct {
		rank, size int
		want       string
	}{{0, 2, "has already joined"}, {1, 3, "does not have 3 ranks"}, {7, 2, "has no rank 7"}} {
		_, err := joinEmbedded(t.Context(), s.Addr(), c.rank, c.size, s.secret, false)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("rank %d of %d: %v, want %q", c.rank, c.size, err, c.want)
		}
	}
}

// Client and rendezvous of different versions report ErrVersion.
func TestOtherVersionIsErrVersionOnBothSides(t *testing.T) {
	s := newServer(t, 1)
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := hello{size: 1}
	claim := h.put()
	claim[0]++
	frames, err := handshake.Dial(c, aKey(s.secret), &frameConfig, claim)
	if err != nil {
		t.Fatal(err)
	}
	w, err := frames.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.parseWelcome(w); !errors.Is(err, ErrVersion) {
		t.Errorf("client of another version gets %v", err)
	}
	w = putWelcome(statusOK)
	w[0]++
	if err := h.parseWelcome(w); !errors.Is(err, ErrVersion) {
		t.Errorf("server of another version: %v", err)
	}
}

func aKey(secret []byte) *handshake.Key {
	k, err := handshake.NewKey(secret)
	if err != nil {
		panic(err)
	}
	return k
}

// A flood of silent, slow, broken and malformed connections keeps no rank out and leaves nothing behind.
func TestHostileConnectionsDoNotBlockRanks(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const size = 8
	s := newServer(t, size)
	stop := make(chan struct{})
	var hostile sync.WaitGroup
	for w := range 8 {
		rng := rand.New(rand.NewPCG(seed, uint64(w)))
		hostile.Go(func() {
			var held []net.Conn
			defer func() {
				for _, c := range held {
					c.Close()
				}
			}()
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.Dial("tcp", s.Addr())
				if err != nil {
					continue // this process's own descriptors
				}
				junk := make([]byte, rng.IntN(2*clientBytes))
				for i := range junk {
					junk[i] = byte(rng.Uint32())
				}
				if rng.IntN(2) == 0 {
					copy(junk, "ByHs\x01\x01\x00\x00")
				}
				c.Write(junk)
				if rng.IntN(2) == 0 {
					c.Close()
				} else if held = append(held, c); len(held) > 60 {
					held[0].Close()
					held = held[1:]
				}
			}
		})
	}
	jobs := fenced(t, s)
	for r, j := range jobs {
		if c, err := j.Lookup(t.Context(), (r+1)%size); err != nil || !bytes.Equal(c, card(j.ID(), (r+1)%size, 100)) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	close(stop)
	hostile.Wait()
	if s.Traffic().Requests == 0 {
		t.Error("no connection was refused: there was no flood")
	}
	s.mu.Lock()
	if len(s.unauthenticated) > maxUnauthenticated {
		t.Errorf("%d unauthenticated connections are open, want at most %d", len(s.unauthenticated), maxUnauthenticated)
	}
	s.mu.Unlock()
}

// At most maxUnauthenticated (256) connections without proof are kept; the oldest is closed first, and a genuine rank
// joins.
func TestManySilentConnectionsAreBounded(t *testing.T) {
	s := newServer(t, 1)
	var held []net.Conn
	for range 3 * maxUnauthenticated {
		c, err := net.Dial("tcp", s.Addr())
		if errors.Is(err, syscall.EMFILE) {
			t.Skipf("needs a limit of %d descriptors (ulimit -n): %v", 6*maxUnauthenticated, err)
		} else if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	// The oldest connections were closed: they read EOF.
	held[0].SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, held[0]); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the oldest connection is still open")
	}
	j := join(t, s, 0)
	if err := exchange(t.Context(), j, 10, 1); err != nil {
		t.Error(err)
	}
}

// The connection of an authenticated rank that sends malformed messages is closed, and the rank counts as dead. The
// other ranks are notified which.
func TestMalformedMessageEndsOnlyItsRank(t *testing.T) {
	for name, sendMalformed := range map[string]func(e *embedded){
		"unknown kind":     func(e *embedded) { e.send(99, nil) },
		"no card":          func(e *embedded) { e.send(kindPublish, nil) },
		"no kind of fence": func(e *embedded) { e.send(kindFence, nil) },
		"other fence":      func(e *embedded) { e.send(kindFence, []byte{3}) },
		"huge word":        func(e *embedded) { e.send(kindFence, append([]byte{byte(fenceAgree)}, make([]byte, MaxWord+1)...)) },
		"fence first":      func(e *embedded) { e.send(kindFence, []byte{byte(fencePlain)}) },
		"far rank":         func(e *embedded) { e.send(kindLookup, putLookup(1<<31)) },
		"short look-up":    func(e *embedded) { e.send(kindLookup, []byte{1}) },
		"abort of 0":       func(e *embedded) { e.send(kindAbort, putRankError(&RankError{Rank: 1})) },
		"forged frame":     func(e *embedded) { e.frames.Seal(nil, nil); e.send(kindFence, []byte{byte(fenceExchange)}) },
		"huge frame":       func(e *embedded) { e.conn.Write([]byte{0xff, 0xff, 0xff, 0xff}) },
		"truncated":        func(e *embedded) { e.conn.Write([]byte{0, 1, 0, 0, 1}); e.conn.Close() },
		"huge data":        func(e *embedded) { e.send(kindFence, append([]byte{byte(fenceExchange)}, make([]byte, MaxCard+1)...)) },
		"two exchanges": func(e *embedded) {
			exchange := []byte{byte(fenceExchange)}
			e.send(kindFence, exchange)
			e.send(kindFence, exchange)
		},
		"second goodbye": func(e *embedded) { e.send(kindPublish, []byte("x")); e.send(kindPublish, []byte("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, 2)
			good, bad := join(t, s, 0), join(t, s, 1)
			sendMalformed(wire(bad))
			if <-bad.Lost(); !errors.Is(bad.Err(), ErrLauncher) {
				t.Errorf("the bad rank gets %v", bad.Err())
			}
			if err := good.Publish(t.Context(), []byte("card")); err != nil {
				t.Fatal(err)
			}
			var gone *RankError
			if err := good.Fence(t.Context()); !errors.As(err, &gone) || gone.Rank != 1 {
				t.Errorf("fence: %v, want rank 1 dead", err)
			}
			if _, err := good.Lookup(t.Context(), 0); err != nil {
				t.Errorf("lookup after it: %v", err)
			}
		})
	}
}

func TestOrderOfCalls(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *Client{
		"embedded": func(t *testing.T) *Client { return join(t, newServer(t, 1), 0) },
		"alone":    func(*testing.T) *Client { return Alone() },
		"kvs": func(t *testing.T) *Client {
			j, err := joinKV(t.Context(), namePMI1, 0, 1, newMemKV(1).rank())
			if err != nil {
				t.Fatal(err)
			}
			return j
		},
	} {
		t.Run(name, func(t *testing.T) {
			j, ctx := open(t), t.Context()
			want := func(what string, err, target error) {
				t.Helper()
				if !errors.Is(err, target) {
					t.Errorf("%s: %v, want %v", what, err, target)
				}
			}
			want("fence before publish", j.Fence(ctx), ErrInvalid)
			_, err := j.Lookup(ctx, 0)
			want("early lookup", err, ErrNoCard)
			want("empty card", j.Publish(ctx, nil), ErrInvalid)
			want("huge card", j.Publish(ctx, make([]byte, MaxCard+1)), ErrInvalid)
			want("largest card", j.Publish(ctx, make([]byte, MaxCard)), nil)
			want("second card", j.Publish(ctx, []byte("x")), ErrInvalid)
			for range 3 {
				want("fence", j.Fence(ctx), nil)
			}
			c, err := j.Lookup(ctx, 0)
			if err != nil || len(c) != MaxCard {
				t.Errorf("lookup: %d bytes, %v", len(c), err)
			}
			for _, r := range []int{-1, 1} {
				_, err := j.Lookup(ctx, r)
				want("rank outside", err, ErrInvalid)
			}
			if name != nameEmbedded {
				want("watch ends", j.WatchEnds(func(End) {}), errors.ErrUnsupported)
			}
			want("close", j.Close(), nil)
			want("close again", j.Close(), nil)
			want("fence after close", j.Fence(ctx), ErrClosed)
			_, err = j.Lookup(ctx, 0)
			want("lookup after close", err, ErrClosed)
			want("publish after close", j.Publish(ctx, []byte("x")), ErrClosed)
			j.Abort(1, "after close")
			if len(j.Secret()) != SecretSize || len(j.ID()) != 32 || strings.Contains(fmt.Sprintf("%x", j.Secret()), j.ID()) {
				t.Errorf("ID %q of a secret of %d bytes", j.ID(), len(j.Secret()))
			}
		})
	}
}

// A fence whose caller stopped waiting is resumed by the next call.
func TestCancelledFenceIsResumed(t *testing.T) {
	mem := newMemKV(2)
	kvJobs := make(chan Job, 2)
	for r := range 2 {
		go func() {
			j, err := joinKV(t.Context(), namePMI1, r, 2, mem.rank())
			if err != nil {
				t.Error(err)
			}
			kvJobs <- j
		}()
	}
	s := newServer(t, 2)
	for name, pair := range map[string][2]Job{
		"embedded": {join(t, s, 0), join(t, s, 1)},
		"kvs":      {<-kvJobs, <-kvJobs},
	} {
		t.Run(name, func(t *testing.T) {
			for _, j := range pair {
				if err := j.Publish(t.Context(), []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
			given, cancel := context.WithCancel(t.Context())
			cancel()
			for range 2 {
				if err := pair[0].Fence(given); !errors.Is(err, context.Canceled) {
					t.Errorf("fence given up: %v", err)
				}
			}
			first := make(chan error, 1)
			go func() { first <- pair[0].Fence(t.Context()) }()
			if err := pair[1].Fence(t.Context()); err != nil {
				t.Errorf("the other's fence: %v", err)
			}
			if err := <-first; err != nil {
				t.Errorf("fence resumed: %v", err)
			}
		})
	}
}

// The other ranks and the launcher learn rank, code and reason of an abort, without control characters.
func TestAbortNamesRankAndReason(t *testing.T) {
	s := newServer(t, 3)
	jobs := fenced(t, s)
	jobs[1].Abort(42, "bad \x1b[31minput")
	for _, r := range []int{0, 2} {
		var e *RankError
		<-jobs[r].Lost()
		if !errors.As(jobs[r].Err(), &e) || e.Rank != 1 || e.Code != 42 || !strings.HasSuffix(e.Why, "bad ?[31minput") {
			t.Errorf("rank %d gets %v", r, jobs[r].Err())
		}
		if _, err := jobs[r].Lookup(t.Context(), 0); !errors.As(err, &e) {
			t.Errorf("lookup after an abort: %v", err)
		}
	}
	if a := <-s.Aborted(); a.Rank != 1 || a.Code != 42 {
		t.Errorf("launcher gets %v", a)
	}
}

// A caller of Ended that gives nonsense costs no rank its launcher: the end counts as Lost, or is ignored.
func TestEndedRefusesNonsense(t *testing.T) {
	for name, c := range map[string]struct{ given, want End }{
		"code -1":  {End{Rank: 1, How: Exited, Code: -1}, End{Rank: 1, How: Lost}},
		"code 256": {End{Rank: 1, How: Killed, Code: 256}, End{Rank: 1, How: Lost}},
		"how 0":    {End{Rank: 1, Code: 3}, End{Rank: 1, How: Lost}},
		"how 5":    {End{Rank: 1, How: Lost + 1}, End{Rank: 1, How: Lost}},
		"rank -1":  {End{Rank: -1, How: Exited}, End{}},
		"rank 2":   {End{Rank: 2, How: Exited}, End{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, 2)
			j := join(t, s, 0)
			ends := make(chan End, 1)
			if err := j.WatchEnds(func(e End) { ends <- e }); err != nil {
				t.Fatal(err)
			}
			s.Ended(c.given)
			if c.want == (End{}) { // the next one arrives
				c.want = End{Rank: 1, How: Left}
				s.Ended(c.want)
			}
			select {
			case e := <-ends:
				if e != c.want {
					t.Errorf("the watcher gets %+v, want %+v", e, c.want)
				}
			case <-j.Lost():
				t.Errorf("the watcher has lost its launcher: %v", j.Err())
			}
		})
	}
}

// A fence that cannot complete tells how the rank has ended, if the launcher knows.
func TestFenceTellsHowARankEnded(t *testing.T) {
	for _, e := range []End{{1, Exited, 0}, {1, Exited, 3}, {1, Killed, 9}} {
		s := newServer(t, 2)
		j := join(t, s, 0)
		s.Ended(e)
		if err := j.Publish(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
		var gone *RankError
		if err := j.Fence(t.Context()); !errors.As(err, &gone) || gone.Rank != 1 || !strings.HasPrefix(gone.Why, e.Err().Why) {
			t.Errorf("fence after %+v: %v, want %q", e, err, e.Err().Why)
		}
	}
}

func TestLookupsUnderWayEndWithTheLauncher(t *testing.T) {
	s := newServer(t, 2)
	j := join(t, s, 0)
	if err := j.Publish(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { failed <- j.Fence(t.Context()) }()
	s.Close()
	if err := <-failed; !errors.Is(err, ErrLauncher) {
		t.Errorf("fence: %v, want ErrLauncher", err)
	}
	if _, err := j.Lookup(t.Context(), 0); !errors.Is(err, ErrLauncher) {
		t.Errorf("lookup: %v, want ErrLauncher", err)
	}
}

// rankEnviron is the environment of a rank of a job.
func rankEnviron(addr string, rank, size int, secret []byte) environ {
	var pairs []string
	for _, e := range RankEnv(addr, rank, size, secret) {
		k, v, _ := strings.Cut(e, "=")
		pairs = append(pairs, k, v)
	}
	return envOf(pairs...)
}

func TestRank0Serves(t *testing.T) {
	ln, err := Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	const size = 3
	secret := NewSecret()
	var wg sync.WaitGroup
	closed := make(chan int, size)
	for r := size - 1; r >= 0; r-- { // rank 0 last: the others wait for it
		wg.Go(func() {
			j, err := find(t.Context(), rankEnviron(rank0Prefix+addr, r, size, secret))
			if err == nil {
				err = exchange(t.Context(), j, 50, size)
			}
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
				return
			}
			if r != 0 {
				closed <- r
			}
			if err := j.Close(); err != nil {
				t.Errorf("rank %d: close: %v", r, err)
			}
			if r == 0 && len(closed) != size-1 {
				t.Errorf("rank 0 closed after %d of %d others", len(closed), size-1)
			}
		})
	}
	wg.Wait()
}

// Rank 0, which serves, aborts and exits at once: all others learn who aborted, and why.
func TestAbortOfRank0ReachesAllRanks(t *testing.T) {
	ln, err := Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	const size = 200
	secret := NewSecret()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), envProgram+"=abort0"), RankEnv(rank0Prefix+addr, 0, size, secret)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for r := 1; r < size; r++ {
		wg.Go(func() {
			j, err := find(t.Context(), rankEnviron(rank0Prefix+addr, r, size, secret))
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
				return
			}
			defer j.Close()
			_ = j.Barrier(t.Context()) // the abort may come first
			<-j.Lost()
			var e *RankError
			if err := j.Err(); !errors.As(err, &e) || e.Rank != 0 || e.Code != 42 {
				t.Errorf("rank %d gets %v", r, err)
			}
		})
	}
	wg.Wait()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 42 {
		t.Error(err)
	}
}

// Rank 0, which serves, does not wait longer than its context. The others are notified that the launcher is gone.
func TestRank0LeavesWhenItsContextEnds(t *testing.T) {
	s := newServer(t, 2)
	jobs := fenced(t, s)
	jobs[0].server = s // as findEmbedded has it
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- jobs[0].Leave(ctx) }()
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("leave: %v, want canceled", err)
	}
	<-jobs[1].Lost()
	if err := jobs[1].Err(); !errors.Is(err, ErrLauncher) {
		t.Errorf("the other rank: %v, want ErrLauncher", err)
	}
	if err := jobs[0].Leave(t.Context()); err != nil {
		t.Errorf("once more: %v", err)
	}
}

func TestNothingStaysAfterClose(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := newServer(t, 3)
	for _, j := range fenced(t, s) {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{namePMI1, namePMI2} {
		j, err := joinFake(t, name, &fakePMI{values: map[string]string{}, size: 1, vallen: 1024}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := exchange(t.Context(), j, 10, 1); err != nil {
			t.Error(err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
}
