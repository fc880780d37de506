//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/integrity"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/rdv"
)

func pattern(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

// transfer sends from one rank to another and checks every byte.
func transfer(t *testing.T, from, to *session.Session, n int) {
	t.Helper()
	ctx := deadline(t)
	src, dst := pattern(n, uint64(n)), make([]byte, n)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := from.Gate(to.Rank()).Send(ctx, 9, src); err != nil {
			t.Errorf("send %d bytes: %v", n, err)
		}
	})
	got, err := to.Gate(from.Rank()).Recv(ctx, 9, dst)
	wg.Wait()
	if err != nil {
		t.Fatalf("receive %d bytes: %v", n, err)
	}
	if got != n || !bytes.Equal(src, dst) {
		t.Fatal(integrity.Errorf("%d bytes: received %d, equal %v", n, got, bytes.Equal(src, dst)))
	}
}

var sizes = []int{0, 1, 8, 40, 256, 257, 4096, 8000, 16872, 16873, 20000, 65536, 1<<20 + 3, longest}

// A message that fits into a packet goes at once from ordinary memory, and by the large track from an arena, where that
// saves time.
func TestMessageInAnArenaTakesTheLargeTrack(t *testing.T) {
	s := joinAll(t, 2, nil)
	ctx := deadline(t)
	arena, err := driver.NewArena(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	inArena := arena.Alloc(16 << 10)
	into := arena.Alloc(16 << 10)
	for _, x := range []struct {
		name string
		buf  []byte
		long uint64 // messages
	}{
		{"ordinary memory", make([]byte, 16<<10), 0},
		{"an arena", inArena, 1},
		{"an arena, but few bytes", inArena[:1000], 0},
	} {
		before := s[1].Stats().Long
		copy(x.buf, pattern(len(x.buf), 1))
		sent := make(chan error, 1)
		go func() { sent <- s[0].Gate(1).Send(ctx, 1, x.buf) }()
		n, err := s[1].Gate(0).Recv(ctx, 1, into)
		if err := errors.Join(err, <-sent); err != nil || !bytes.Equal(into[:n], x.buf) {
			t.Fatalf("%s: %d bytes of %d arrived, error %v", x.name, n, len(x.buf), err)
		}
		if long := s[1].Stats().Long - before; long != x.long {
			t.Errorf("%s: %d long messages, want %d", x.name, long, x.long)
		}
	}
}

func TestEveryModeCarriesEveryLength(t *testing.T) {
	modes := []*rdv.Mode{nil}
	for m := range rdv.Modes {
		modes = append(modes, &m)
	}
	for _, m := range modes {
		for _, chunk := range []int{0, 100_000} {
			name := "auto"
			if m != nil {
				name = m.String()
			}
			t.Run(fmt.Sprintf("%s/chunk %d", name, chunk), func(t *testing.T) {
				s := joinAll(t, 2, func(_ int, c *session.Config) { c.Mode, c.Chunk = m, chunk })
				for _, n := range sizes {
					transfer(t, s[0], s[1], n)
					transfer(t, s[1], s[0], n)
				}
				transfer(t, s[0], s[0], 1<<20) // oneself
			})
		}
	}
}

// Layouts at both ends differ from each other; the error of a truncation has both sizes.
func TestLayoutsAndShortBuffers(t *testing.T) {
	for m := range rdv.Modes {
		t.Run(m.String(), func(t *testing.T) {
			s := joinAll(t, 2, func(_ int, c *session.Config) {
				if m == rdv.Null || m == rdv.Cooperative {
					c.Mode = &m
				}
			})
			ctx := deadline(t)
			for _, n := range []int{100, 6000, 300_000} {
				src, dst := pattern(2*n, 1), make([]byte, 3*n)
				from, err := driver.NewStrided(src, n/10, n/5, 10)
				if err != nil {
					t.Fatal(err)
				}
				to, err := driver.NewIndexed(dst, []driver.Block{{Offset: 2 * n, Len: n / 3}, {Offset: 5, Len: n/2 - n/3}, {Offset: n, Len: n - n/2 - 7}})
				if err != nil {
					t.Fatal(err)
				}
				go func() { _ = s[0].Gate(1).SendMsg(ctx, &session.Out{Tag: 1, Layout: from, Header: []byte("head")}) }()
				head := make([]byte, 10)
				st, err := s[1].RecvMsg(ctx, &session.In{Match: session.Match{From: s[1].Gate(0), Tag: 1}, Layout: to, Header: head})
				var short *driver.TruncatedError
				if !errors.As(err, &short) || short.Message != n || short.Buffer != n-7 || st.Len != n-7 || string(head[:st.Header]) != "head" {
					t.Fatalf("%d bytes into %d: %v, %+v, header %q", n, n-7, err, st, head[:st.Header])
				}
				a, b := make([]byte, n-7), make([]byte, n-7)
				pa, pb := driver.Packet{Data: from}, driver.Packet{Data: to}
				ca, cb := pa.Cursor(), pb.Cursor()
				ca.Gather(a)
				cb.Gather(b)
				if !bytes.Equal(a, b) {
					t.Fatal(integrity.Errorf("%d bytes differ", n))
				}
			}
		})
	}
}

// A message whose sender's context ends before it is matched is gone, and the
// receive that would have taken it takes the next one.
func TestCancelledSendHasNoEffect(t *testing.T) {
	s := joinAll(t, 2, nil)
	transfer(t, s[0], s[1], 10)
	g := s[0].Gate(1)
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
		if err := g.Send(ctx, 5, make([]byte, 100_000)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("send without a receiver: %v", err)
		}
		cancel()
	}
	want := pattern(100_000, 3)
	r, err := g.Isend(5, want)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 100_000)
	if _, err := s[1].Gate(0).Recv(deadline(t), 5, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("receive: %v, equal %v", err, bytes.Equal(got, want))
	}
	if _, err := r.Wait(deadline(t)); err != nil {
		t.Fatal(err)
	}
}

// To begin a long send touches none of its memory, however long it is.
func TestIsendTouchesNoPage(t *testing.T) {
	s := joinAll(t, 2, nil)
	transfer(t, s[0], s[1], 10)
	const size = 512 << 20
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	r, err := s[0].Gate(1).Isend(5, mem)
	if err != nil {
		t.Fatal(err)
	}
	s[0].Progress()
	resident := make([]byte, size/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[0])), size, uintptr(unsafe.Pointer(&resident[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	if n := bytes.Count(resident, []byte{1}); n > 0 {
		t.Errorf("%d of %d pages are in memory", n, len(resident))
	}
	if !r.Cancel() {
		t.Fatal("the send cannot be cancelled")
	}
	if done, _, err := r.Test(); !done || !errors.Is(err, session.ErrCanceled) {
		t.Errorf("got %v, %v", done, err)
	}
}
