//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

func TestFirstMessageConnects(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	go func() {
		if err := s[0].Gate(1).Send(ctx, 42, []byte("hello")); err != nil {
			t.Error(err)
		}
	}()
	buf := make([]byte, 10)
	n, err := s[1].Gate(0).Recv(ctx, 42, buf)
	if err != nil || !bytes.Equal(buf[:n], []byte("hello")) {
		t.Fatalf("received %q, %v", buf[:n], err)
	}
}

// All ranks send to all at the same moment: connections cross, and order holds for each
// pair, for short and long messages together.
func TestOrderHoldsBetweenEachPair(t *testing.T) {
	const n = 4
	messages := 200
	if testing.Short() {
		messages = 60
	}
	for _, p := range []session.Progress{session.Background, session.Explicit} {
		t.Run(fmt.Sprintf("progress %d", p), func(t *testing.T) {
			s := joinAll(t, n, func(_ int, c *session.Config) { c.Progress = p })
			ctx := deadline(t)
			length := func(i int) int { return []int{8, 200, 3000, 50_000}[i%4] }
			var wg sync.WaitGroup
			for me := range n {
				wg.Go(func() {
					for i := range messages {
						for to := range n {
							b := make([]byte, length(i))
							binary.LittleEndian.PutUint32(b, uint32(i))
							if err := s[me].Gate(to).Send(ctx, 7, b); err != nil {
								t.Errorf("rank %d to %d: %v", me, to, err)
								return
							}
						}
					}
				})
				wg.Go(func() {
					next := make([]int, n)
					buf := make([]byte, 50_000)
					for range n * messages {
						st, err := s[me].Recv(ctx, session.Match{Tag: 7}, buf)
						if err != nil {
							t.Errorf("rank %d: %v", me, err)
							return
						}
						from := st.From.Rank()
						if got := int(binary.LittleEndian.Uint32(buf)); got != next[from] || st.Len != length(got) {
							t.Errorf("rank %d got message %d of %d bytes from %d, want %d", me, got, st.Len, from, next[from])
							return
						}
						next[from]++
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestTagsMasksAndSources(t *testing.T) {
	s := joinAll(t, 3, nil)
	ctx := deadline(t)
	for _, tag := range []uint64{0x100, 0x201, 0x102} {
		if err := s[1].Gate(0).Send(ctx, tag, binary.LittleEndian.AppendUint64(nil, tag)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s[2].Gate(0).Send(ctx, 0x900, binary.LittleEndian.AppendUint64(nil, 0x900)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8)
	for _, tt := range []struct {
		m    session.Match
		want uint64
	}{
		{session.Match{From: s[0].Gate(1), Tag: 0x102}, 0x102},
		{session.Match{Tag: 0x200, Ignore: 0xff}, 0x201},
		{session.Match{From: s[0].Gate(2), Ignore: ^uint64(0)}, 0x900},
		{session.Match{Ignore: ^uint64(0)}, 0x100},
	} {
		st, err := s[0].Recv(ctx, tt.m, buf)
		if err != nil || st.Tag != tt.want || binary.LittleEndian.Uint64(buf) != tt.want {
			t.Errorf("%+v: got tag %#x, %v, want %#x", tt.m, st.Tag, err, tt.want)
		}
	}
}

func TestHeaderTravelsWithData(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	for _, n := range []int{0, 10, 5000, 100_000} {
		o := session.Out{Tag: 1, Header: pattern(session.MaxHeader, 9), Buf: pattern(n, 8), Sync: n == 10}
		go func() {
			if err := s[0].Gate(1).SendMsg(ctx, &o); err != nil {
				t.Error(err)
			}
		}()
		in := session.In{Match: session.Match{Tag: 1}, Header: make([]byte, 300), Buf: make([]byte, n)}
		st, err := s[1].RecvMsg(ctx, &in)
		if err != nil || !bytes.Equal(in.Header[:st.Header], o.Header) || !bytes.Equal(in.Buf, o.Buf) {
			t.Errorf("%d bytes: %+v, %v", n, st, err)
		}
	}
	if err := s[0].Gate(1).SendMsg(ctx, &session.Out{Header: make([]byte, session.MaxHeader+1)}); !errors.Is(err, session.ErrInvalid) {
		t.Errorf("header that is too long: %v", err)
	}
	pieces := &driver.Contiguous{B: make([]byte, 8)}
	if err := s[0].Gate(1).SendMsg(ctx, &session.Out{Buf: make([]byte, 8), Layout: pieces}); !errors.Is(err, session.ErrInvalid) {
		t.Errorf("a message with two sorts of data: %v", err)
	}
	if _, err := s[0].RecvMsg(ctx, &session.In{Buf: make([]byte, 8), Layout: pieces}); !errors.Is(err, session.ErrInvalid) {
		t.Errorf("a receive with two sorts of memory: %v", err)
	}
}

func TestSynchronousSendWaitsForItsReceive(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	for _, n := range []int{8, 100_000} {
		r, err := s[0].Gate(1).IsendMsg(&session.Out{Tag: 1, Buf: make([]byte, n), Sync: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s[1].Probe(ctx, session.Match{Tag: 1}); err != nil { // wait until it has arrived
			t.Fatal(err)
		}
		for range 100 {
			if done, _, _ := r.Test(); done {
				t.Fatalf("%d bytes: done before the receive", n)
			}
		}
		if _, err := s[1].Gate(0).Recv(ctx, 1, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestProbeAndImprobe(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	any := session.Match{Ignore: ^uint64(0)}
	if st, ok := s[1].Iprobe(any); ok {
		t.Fatalf("found %+v", st)
	}
	for _, n := range []int{30, 70_000} {
		want := pattern(n, 2)
		r, err := s[0].Gate(1).Isend(3, want)
		if err != nil {
			t.Fatal(err)
		}
		st, err := s[1].Probe(ctx, any)
		if err != nil || st.Len != n || st.Tag != 3 || st.From.Rank() != 0 {
			t.Fatalf("probe: %+v, %v", st, err)
		}
		m, ok := s[1].Improbe(any)
		if !ok || m.Status().Len != n {
			t.Fatal("improbe finds what probe has found")
		}
		if _, ok := s[1].Iprobe(any); ok {
			t.Fatal("a message that was taken is found")
		}
		got := make([]byte, n)
		if _, err := m.Recv(ctx, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("receive: %v", err)
		}
		if _, err := m.Irecv(got); !errors.Is(err, session.ErrInvalid) {
			t.Errorf("second receive: %v", err)
		}
		if r != nil {
			if _, err := r.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestCancelledReceiveTakesNothing(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	first, second := make([]byte, 8), make([]byte, 8)
	r, err := s[1].Gate(0).Irecv(1, first)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Cancel() {
		t.Fatal("a receive that waits can be cancelled")
	}
	if _, err := r.Wait(ctx); !errors.Is(err, session.ErrCanceled) {
		t.Fatalf("cancelled: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	defer cancel()
	if _, err := s[1].Gate(0).Recv(short, 1, first); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("receive beyond its deadline: %v", err)
	}
	if err := s[0].Gate(1).Send(ctx, 1, []byte("12345678")); err != nil {
		t.Fatal(err)
	}
	if _, err := s[1].Gate(0).Recv(ctx, 1, second); err != nil || string(second) != "12345678" || first[0] != 0 {
		t.Fatalf("received %q and %q, %v", first, second, err)
	}
}

func TestTruncationErrorHasBothSizes(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	for _, n := range []int{100, 60_000} {
		src := pattern(n, 4)
		go func() { _ = s[0].Gate(1).Send(ctx, 1, src) }()
		buf := make([]byte, 50)
		got, err := s[1].Gate(0).Recv(ctx, 1, buf)
		var e *driver.TruncatedError
		if !errors.As(err, &e) || e.Message != n || e.Buffer != 50 || got != 50 || !bytes.Equal(buf, src[:50]) {
			t.Errorf("%d bytes into 50: %d, %v", n, got, err)
		}
	}
}

// A sender whose messages are not received is blocked by the budget, loses nothing, and goes on when its messages are
// received.
func TestUnexpectedMessagesKeepWithinTheirBudget(t *testing.T) {
	const budget, n, size = 64 << 10, 1000, 1000
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.Unexpected = budget })
	ctx := deadline(t)
	var sent atomic.Int32
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, size)
		for i := range n {
			binary.LittleEndian.PutUint32(b, uint32(i))
			if err := s[0].Gate(1).Send(ctx, 1, b); err != nil {
				t.Error(err)
				return
			}
			sent.Add(1)
		}
	})
	for s[1].Stats().Stalls == 0 {
		s[1].Progress()
		if ctx.Err() != nil {
			t.Fatal("the budget blocks no sender")
		}
	}
	if stored := s[1].Stats().Unexpected; stored*size > budget {
		t.Errorf("%d messages of %d bytes are stored, more than %d bytes", stored, size, budget)
	}
	b := make([]byte, size)
	for i := range n {
		if _, err := s[1].Gate(0).Recv(ctx, 1, b); err != nil {
			t.Fatal(err)
		}
		if got := binary.LittleEndian.Uint32(b); got != uint32(i) {
			t.Fatalf("message %d, want %d", got, i)
		}
	}
	wg.Wait()
}

func TestActiveMessages(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	const n = 500
	done := make(chan struct{})
	next := 0
	s[1].Handle(200, func(g *session.Gate, a *session.Active) {
		if got := int(binary.LittleEndian.Uint32(a.Data)); got != next || string(a.Header) != "head" || g.Rank() != 0 {
			t.Errorf("message %d with header %q from %d, want %d", got, a.Header, g.Rank(), next)
		}
		if next++; next == n {
			close(done)
		}
		if _, err := g.AM(3, nil, a.Data[:4]); err != nil { // handlers may send
			t.Error(err)
		}
	})
	var back atomic.Int32
	s[0].Handle(3, func(*session.Gate, *session.Active) { back.Add(1) })
	g := s[0].Gate(1)
	if err := g.AMNow(200, nil, nil); !errors.Is(err, session.ErrBusy) {
		t.Errorf("before the connection is established: %v", err)
	}
	if err := g.ConnectWait(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		b := make([]byte, 4+i*7)
		binary.LittleEndian.PutUint32(b, uint32(i))
		for i%2 == 0 {
			err := g.AMNow(200, []byte("head"), b)
			if err == nil {
				break
			}
			if err != session.ErrBusy {
				t.Fatal(err)
			}
			s[0].Progress()
		}
		if i%2 == 1 {
			r, err := g.AM(200, []byte("head"), b)
			if err != nil {
				t.Fatal(err)
			}
			if r != nil {
				if _, err := r.Wait(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatalf("%d of %d have arrived", next, n)
	}
	for back.Load() != n && ctx.Err() == nil {
		s[0].Progress()
	}
	if err := g.AMNow(1, nil, make([]byte, g.MaxActive()+1)); !errors.Is(err, driver.ErrTooLong) {
		t.Errorf("too long: %v", err)
	}
}

// Callbacks are called without any lock, and may go on.
func TestCallbacksMaySendMore(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	const n = 50
	var sent atomic.Int32
	var more func(session.Status, error)
	payload := make([]byte, 20_000)
	send := func() {
		if r, err := s[0].Gate(1).IsendMsg(&session.Out{Tag: 1, Buf: payload, Then: more}); err != nil || r != nil {
			t.Errorf("%v, %v", r, err)
		}
	}
	more = func(_ session.Status, err error) {
		if err != nil {
			t.Error(err)
		}
		if sent.Add(1) < n {
			send()
		}
	}
	send()
	for range n {
		if _, err := s[1].Gate(0).Recv(ctx, 1, make([]byte, 20_000)); err != nil {
			t.Fatal(err)
		}
	}
	for sent.Load() < n && ctx.Err() == nil {
		s[0].Progress()
	}
	if sent.Load() != n {
		t.Errorf("%d callbacks, want %d", sent.Load(), n)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, rails := range []func(int, *session.Config){nil, twoRails} {
		s := joinAll(t, 1, rails)
		g := s[0].Gate(0)
		for _, n := range []int{8, 4000, 100_000} {
			src, dst := make([]byte, n), make([]byte, n)
			allocatesNothing(t, fmt.Sprintf("a message of %d bytes over %s", n, g.Path()), g, dst, func() error { return g.Send(context.Background(), 1, src) })
		}
		allocatesNothing(t, "a prepared message", g, make([]byte, 100), func() error {
			p, err := g.Prepare(0, 100)
			if err != nil {
				return err
			}
			return p.Send(1)
		})
		oneSidedAllocateNothing(t, s[0], g)
	}
}

// oneSidedAllocateNothing is for operations that the driver does, and for those that messages do.
func oneSidedAllocateNothing(t *testing.T, s *session.Session, g *session.Gate) {
	t.Helper()
	ctx := context.Background()
	arena, err := driver.NewArena(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	for _, mem := range [][]byte{arena.Bytes(), make([]byte, 1<<16)} {
		region, err := s.Register(mem, allAccess)
		if err != nil {
			t.Fatal(err)
		}
		r, err := g.Import(region.Key())
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 20_000)
		for _, op := range []struct {
			name string
			do   func() error
		}{
			{"a put", func() error { return g.Put(ctx, r, 8, buf) }},
			{"a get", func() error { return g.Get(ctx, r, 8, buf) }},
			{"an atomic", func() error { _, err := g.FetchAdd(ctx, r, 8, 1); return err }},
			{"two puts with a fence between", func() error {
				first, err := g.Iput(r, 0, buf)
				if err != nil {
					return err
				}
				g.Fence()
				err = g.Put(ctx, r, 0, buf)
				_, firstErr := first.Wait(ctx)
				return errors.Join(err, firstErr)
			}},
		} {
			steadyAllocatesNothing(t, fmt.Sprintf("%s over %s", op.name, g.Path()), func() {
				if err := op.do(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// Long active messages, too, as far as the session uses their memory again; of longer ones that memory is all.
func TestLongActiveMessagesAllocateTheirMemoryOnly(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for name, rails := range map[string]func(int, *session.Config){"one rail": nil, "two": twoRails} {
		s := joinAll(t, 1, rails)[0]
		g := s.Gate(0)
		var came atomic.Int64
		s.Handle(3, func(*session.Gate, *session.Active) { came.Add(1) })
		for _, tt := range []struct {
			n      int
			allocs float64
		}{{20_000, 0}, {64<<10 - 8, 0}, {100_000, 1}, {3 << 20, 1}} {
			src, head := make([]byte, tt.n), make([]byte, 8)
			trip := func() {
				before := came.Load()
				r, err := g.AM(3, head, src)
				if err == nil && r != nil {
					_, err = r.Wait(context.Background())
				}
				if err != nil {
					t.Fatal(err)
				}
				for came.Load() == before {
					s.Progress()
					runtime.Gosched()
				}
			}
			for range 200 {
				trip()
			}
			// Large allocations are of whole pages.
			want := uint64(tt.allocs)*uint64(tt.n+len(head)+8192) + 1024
			// The session's sleeps in the background allocate, too: there are some when this goroutine waits for a CPU.
			var got float64
			var bytes uint64
			for range 5 {
				if got, bytes = allocated(trip); got < tt.allocs+0.5 && bytes <= want {
					break
				}
			}
			if got >= tt.allocs+0.5 {
				t.Errorf("%s, %d bytes: %v allocations a message, want %v", name, tt.n, got, tt.allocs)
			}
			if bytes > want {
				t.Errorf("%s, %d bytes: %d bytes are allocated for a message, want at most %d", name, tt.n, bytes, want)
			}
		}
	}
}

// allocated is how often a trip allocates, and how many bytes.
func allocated(trip func()) (allocs float64, bytes uint64) {
	const runs = 100
	var was, is runtime.MemStats
	runtime.ReadMemStats(&was)
	allocs = testing.AllocsPerRun(runs, trip)
	runtime.ReadMemStats(&is)
	return allocs, (is.TotalAlloc - was.TotalAlloc) / (runs + 1) // AllocsPerRun makes one trip more
}

func allocatesNothing(t *testing.T, what string, g *session.Gate, dst []byte, send func() error) {
	t.Helper()
	steadyAllocatesNothing(t, what, func() {
		r, err := g.Irecv(1, dst)
		if err == nil {
			err = send()
		}
		if err == nil {
			_, err = r.Wait(context.Background())
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

func steadyAllocatesNothing(t *testing.T, what string, trip func()) {
	t.Helper()
	for range 200 {
		trip()
	}
	if got := testing.AllocsPerRun(300, trip); got >= 0.5 {
		t.Errorf("%s: %v allocations, want none", what, got)
	}
}

// Operations that are done at once, each begun by the callback of the one before, do not fill the stack.
func TestCallbacksDoNotNestWithoutBound(t *testing.T) {
	s := joinAll(t, 2, nil)
	const n = 3000
	for range n {
		if err := s[0].Gate(1).Send(deadline(t), 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all messages are stored", func() bool { s[1].Progress(); return s[1].Stats().Unexpected == n })
	var depth, deepest, received atomic.Int32
	var next func(session.Status, error)
	receive := func() {
		if _, err := s[1].IrecvMsg(&session.In{Match: session.Match{Tag: 1}, Then: next}); err != nil {
			t.Error(err)
		}
	}
	next = func(_ session.Status, err error) {
		if err != nil {
			t.Error(err)
			return
		}
		deepest.Store(max(deepest.Load(), depth.Add(1)))
		if received.Add(1) < n {
			receive()
		}
		depth.Add(-1)
	}
	receive()
	eventually(t, "all messages are received", func() bool { return received.Load() == n })
	if got := deepest.Load(); got > session.MaxCalling+1 {
		t.Errorf("%d callbacks inside one another", got)
	}
}
