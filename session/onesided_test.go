//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

const allAccess = driver.RemoteRead | driver.RemoteWrite | driver.RemoteAtomic

// Native and emulated operations do the same. In an arena the driver does the
// atomics, in other memory messages do; both are atomic with each other.
func TestOneSidedOperations(t *testing.T) {
	for _, k := range []int{0, 1, 2} {
		arena, emulate := k > 0, k > 1
		t.Run(fmt.Sprintf("arena %v, emulated %v", arena, emulate), func(t *testing.T) {
			s := joinAll(t, 2, func(_ int, c *session.Config) { c.Emulate = emulate })
			ctx := deadline(t)
			mem := make([]byte, 1<<20)
			if arena {
				a, err := driver.NewArena(1 << 20)
				if err != nil {
					t.Fatal(err)
				}
				mem = a.Bytes()
			}
			region, err := s[1].Register(mem, allAccess)
			if err != nil {
				t.Fatal(err)
			}
			g := s[0].Gate(1)
			r, err := g.Import(region.Key())
			if err != nil {
				t.Fatal(err)
			}
			if r.Len() != len(mem) || r.Access() != allAccess || !r.AtomicWithCPU() {
				t.Fatalf("region of %d bytes, access %d, atomic with CPU %v", r.Len(), r.Access(), r.AtomicWithCPU())
			}
			for _, n := range []int{0, 1, 100, 10_000, 1 << 20} {
				src, dst := pattern(n, 5), make([]byte, n)
				if err := g.Put(ctx, r, len(mem)-n, src); err != nil {
					t.Fatalf("put %d: %v", n, err)
				}
				if err := g.Get(ctx, r, len(mem)-n, dst); err != nil || !bytes.Equal(src, dst) {
					t.Fatalf("get %d: %v, equal %v", n, err, bytes.Equal(src, dst))
				}
			}
			atomics(t, g, r)
			concurrent(t, s, g, r, region)
			if err := region.Deregister(); err != nil {
				t.Fatal(err)
			}
			if err := g.Put(ctx, r, 0, []byte{1}); !errors.Is(err, driver.ErrRemoteKey) {
				t.Errorf("put with a revoked key: %v", err)
			}
		})
	}
}

func atomics(t *testing.T, g *session.Gate, r *session.Remote) {
	ctx := deadline(t)
	for _, size := range []int{4, 8} {
		mask := uint64(1)<<(8*size-1)<<1 - 1
		value := uint64(0xfedcba9876543210) & mask
		if _, err := g.Atomic(ctx, r, 64, session.Atomic{Op: driver.Swap, Size: size, Operand: value}); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			op   driver.AtomicOp
			want func(v, x uint64) uint64
		}{
			{driver.Add, func(v, x uint64) uint64 { return v + x }},
			{driver.And, func(v, x uint64) uint64 { return v & x }},
			{driver.Or, func(v, x uint64) uint64 { return v | x }},
			{driver.Xor, func(v, x uint64) uint64 { return v ^ x }},
			{driver.Swap, func(_, x uint64) uint64 { return x }},
			{driver.CompareSwap, func(_, x uint64) uint64 { return x }},
		} {
			x := 0x0f1e2d3c4b5a6978 & mask
			got, err := g.Atomic(ctx, r, 64, session.Atomic{Op: tt.op, Size: size, Operand: x, Compare: value, Fetch: true})
			if err != nil || got != value {
				t.Fatalf("%v of %d bytes: %#x, %v, want %#x", tt.op, size, got, err, value)
			}
			value = tt.want(value, x) & mask
		}
		if got, err := g.Atomic(ctx, r, 64, session.Atomic{Op: driver.CompareSwap, Size: size, Operand: 1, Compare: value + 1, Fetch: true}); err != nil || got != value {
			t.Errorf("failing compare-and-swap: %#x, %v, want %#x", got, err, value)
		}
	}
	for _, tt := range []struct {
		name string
		f    func() error
		want error
	}{
		{"bounds", func() error { return g.Put(ctx, r, r.Len()-1, make([]byte, 2)) }, driver.ErrBounds},
		{"negative", func() error { return g.Get(ctx, r, -1, make([]byte, 2)) }, driver.ErrBounds},
		{"alignment", func() error { _, err := g.FetchAdd(ctx, r, 4, 1); return err }, driver.ErrAlignment},
		{"size", func() error { _, err := g.Atomic(ctx, r, 0, session.Atomic{Size: 2}); return err }, session.ErrInvalid},
		{"key", func() error { _, err := g.Import([]byte("nonsense that is long enough")); return err }, driver.ErrRemoteKey},
	} {
		if err := tt.f(); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// concurrent adds from both ranks at once.
func concurrent(t *testing.T, s []*session.Session, g *session.Gate, r *session.Remote, region *session.Region) {
	own, err := s[1].Gate(1).Import(region.Key())
	if err != nil {
		t.Fatal(err)
	}
	ctx := deadline(t)
	if err := g.Put(ctx, r, 128, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	const n = 300
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range n {
				if _, err := g.FetchAdd(ctx, r, 128, 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
		wg.Go(func() {
			for range n {
				if _, err := s[1].Gate(1).FetchAdd(ctx, own, 128, 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got, err := g.FetchAdd(ctx, r, 128, 0); err != nil || got != 4*n {
		t.Errorf("counted %d, %v, want %d", got, err, 4*n)
	}
}

// Operations after a fence take effect after those before it.
func TestFenceOrders(t *testing.T) {
	for _, emulate := range []bool{false, true} {
		s := joinAll(t, 2, func(_ int, c *session.Config) { c.Emulate = emulate })
		ctx := deadline(t)
		mem := make([]byte, 1<<20)
		region, err := s[1].Register(mem, allAccess)
		if err != nil {
			t.Fatal(err)
		}
		g := s[0].Gate(1)
		r, err := g.Import(region.Key())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			first, err := g.Iput(r, 0, bytes.Repeat([]byte{byte(i)}, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			g.Fence()
			second, err := g.Iput(r, 500_000, []byte{0xff})
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			for _, q := range []*session.Request{first, second} {
				if _, err := q.Wait(ctx); err != nil {
					t.Fatal(err)
				}
			}
			got := make([]byte, 3)
			if err := g.Get(ctx, r, 499_999, got); err != nil || !bytes.Equal(got, []byte{byte(i), 0xff, byte(i)}) {
				t.Fatalf("round %d: %v, %v", i, got, err)
			}
		}
	}
}

// Each of several fences holds, whether or not earlier operations are done when it is called: operations after the last
// fence take effect after all earlier ones.
func TestEachFenceOrders(t *testing.T) {
	s := joinAll(t, 2, func(rank int, c *session.Config) {
		c.Emulate = true // many messages an operation, that this test moves on
		if rank == 0 {
			c.Progress = session.Explicit
		}
	})
	ctx := deadline(t)
	const n = 1 << 20
	region, err := s[1].Register(make([]byte, n), allAccess)
	if err != nil {
		t.Fatal(err)
	}
	g := s[0].Gate(1)
	r, err := g.Import(region.Key())
	if err != nil {
		t.Fatal(err)
	}
	var all []*session.Request
	begin := func(q *session.Request, err error) *session.Request {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, q)
		return q
	}
	for round := range 3 {
		value := byte(round + 1)
		first := begin(g.Iput(r, 0, make([]byte, 200_000)))
		g.Fence()
		begin(g.Iput(r, 0, bytes.Repeat([]byte{value}, n)))
		g.Fence() // while the fence before it is waited for
		early := make([]byte, 1)
		begin(g.Iget(r, n-1, early))
		g.Fence()
		if _, err := first.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		all = slices.DeleteFunc(all, func(q *session.Request) bool { return q == first })
		s[0].Progress() // the second begins, the others wait
		late := make([]byte, 1)
		begin(g.Iget(r, n-1, late))
		for _, q := range all {
			if _, err := q.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		all = all[:0]
		if early[0] != value || late[0] != value {
			t.Fatalf("round %d: gets after the second and the third fence read %d and %d", round, early[0], late[0])
		}
	}
}

// A peer that sends requests and reads no answers cannot make this process hold more answers than the limit: its gate
// ends.
func TestUnreadRepliesAreBounded(t *testing.T) {
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.Progress = session.Explicit })
	connectPair(t, s)
	region, err := s[0].Register(make([]byte, 1<<16), allAccess)
	if err != nil {
		t.Fatal(err)
	}
	victim, hostile := s[0].Gate(1), s[1].Gate(0)
	asked, most := 0, 0
	eventually(t, "the gate ends", func() bool {
		asked += hostile.ForgeGets(region, 500, 50)
		s[0].Progress()
		most = max(most, victim.Waiting())
		return victim.Path() == "broken"
	})
	if most == 0 || most > 256 {
		t.Errorf("of %d answers %d were queued, want some, and 256 at most", asked, most)
	}
	victim.Disconnect()
}

// Any number of operations may be under way by message at both ends at once: none asks for more than the other end
// keeps answers of.
func TestManyOperationsByMessageAreAnswered(t *testing.T) {
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.Emulate = true })
	ctx := deadline(t)
	const n = 20_000
	var remotes [2]*session.Remote
	for i := range s {
		region, err := s[i].Register(pattern(n, uint64(i)), allAccess)
		if err != nil {
			t.Fatal(err)
		}
		if remotes[1-i], err = s[1-i].Gate(i).Import(region.Key()); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range s {
		wg.Go(func() {
			g := s[i].Gate(1 - i)
			want := pattern(n, uint64(1-i))
			var bufs [400][]byte
			var requests [len(bufs)]*session.Request
			for k := range bufs {
				bufs[k] = make([]byte, n)
				var err error
				if requests[k], err = g.Iget(remotes[i], 0, bufs[k]); err != nil {
					t.Error(err)
					return
				}
			}
			for k, r := range requests {
				if _, err := r.Wait(ctx); err != nil || !bytes.Equal(bufs[k], want) {
					t.Errorf("rank %d, get %d: %v, equal %v", i, k, err, bytes.Equal(bufs[k], want))
				}
			}
		})
	}
	wg.Wait()
}

// Deregister that returns nil means that no driver has the memory, also when a Quiesce failed in between, because the
// peer did not answer or a driver still used the memory.
func TestDeregisterOutlastsAPauseThatFails(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("held by a driver %v", held), func(t *testing.T) {
			s := joinAll(t, 2, func(rank int, c *session.Config) {
				if rank == 0 {
					c.Progress = session.Explicit // answers nothing
				}
			})
			ctx := deadline(t)
			arena, err := driver.NewArena(1 << 16)
			if err != nil {
				t.Fatal(err)
			}
			region, err := s[1].Register(arena.Bytes(), allAccess)
			if err != nil {
				t.Fatal(err)
			}
			release := func() {}
			if held { // no gate is in the way
				release = region.HoldRegistrations()
			} else if err := s[0].Gate(1).ConnectWait(ctx); err != nil {
				t.Fatal(err)
			} else if err := s[1].Gate(0).ConnectWait(ctx); err != nil {
				t.Fatal(err)
			}
			over, cancel := context.WithCancel(ctx)
			cancel()
			goOn := func() {}
			if !held {
				goOn = s[0].Stop() // also its background, which may not have noticed yet that no caller sleeps any more
			}
			for range 2 {
				if err := s[1].Quiesce(over); !errors.Is(err, context.Canceled) {
					t.Errorf("quiesce: %v, want that it is given up", err)
				}
			}
			goOn()
			if held {
				for range 2 {
					if err := region.Deregister(); !errors.Is(err, session.ErrBusy) {
						t.Fatalf("deregister while a driver holds the memory: %v, want busy", err)
					}
				}
			}
			release()
			if err := region.Deregister(); err != nil {
				t.Fatal(err)
			}
			if err := arena.Close(); err != nil {
				t.Errorf("after it the arena still is in use: %v", err)
			}
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestDumpNamesWhatIsUnderWay(t *testing.T) {
	s := joinAll(t, 2, nil)
	r, err := s[0].Gate(1).Isend(1, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s[1].Probe(deadline(t), session.Match{Tag: 1}); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	callsBack := writerFunc(func(p []byte) (int, error) {
		s[0].Stats()
		return b.Write(p)
	})
	if err := s[0].Dump(callsBack); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"1048576 bytes", " 0 attempts refused"} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("the dump lacks %q:\n%s", part, b.String())
		}
	}
	if _, err := s[1].Gate(0).Recv(deadline(t), 1, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(deadline(t)); err != nil {
		t.Fatal(err)
	}
}

func TestEagerLimit(t *testing.T) {
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.Eager = 100 })
	for _, n := range []int{100, 101} {
		transfer(t, s[0], s[1], n)
	}
	if got := s[1].Stats().Long; got != 1 {
		t.Errorf("%d messages were long, want 1", got)
	}
}

// An importer of a region learns whether atomics there are atomic with those of its owner's CPU.
func TestKeysTellCPUAtomics(t *testing.T) {
	s := joinAll(t, 1, nil)
	region, err := s[0].Register(make([]byte, 8), allAccess)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		flags byte
		want  bool
	}{{0, true}, {1, false}, {3, true}} { // done by messages; by the driver alone; by the driver, with the CPU
		key := append(slices.Clone(region.Key()[:session.KeyHeader]), 0, tt.flags, 0, 0) // a rail without a key of the driver
		key[2] = 1
		r, err := s[0].Gate(0).Import(key)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.AtomicWithCPU(); got != tt.want {
			t.Errorf("flags %d: atomic with the CPU %v, want %v", tt.flags, got, tt.want)
		}
	}
}
