//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/integrity"
)

// open opens a context for a test.
func open(t testing.TB, track driver.Track, opts map[string]string) driver.Context {
	t.Helper()
	nic, err := shmDriver{}.Query(driver.Hints{Track: track, Options: opts})
	if err != nil {
		t.Fatal(err)
	}
	c, err := nic.Open(driver.Attributes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// pair connects two contexts of this process.
func pair(t testing.TB, track driver.Track, opts map[string]string) (a, b driver.Instance) {
	t.Helper()
	ca, cb := open(t, track, opts), open(t, track, opts)
	return join(t, ca, cb)
}

func join(t testing.TB, ca, cb driver.Context) (a, b driver.Instance) {
	t.Helper()
	a, err := ca.Connect(cb.URL())
	if err != nil {
		t.Fatal(err)
	}
	if b, err = cb.Connect(ca.URL()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, i := range []driver.Instance{a, b} {
		if err := i.ConnectWait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// await polls until done.
func await(t testing.TB, poll func() (bool, error)) error {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if done, err := poll(); done {
			return err
		}
		runtime.Gosched()
	}
	t.Fatal("not done after 20 s")
	return nil
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b)
	return b
}

func TestSmallMessagesArriveComplete(t *testing.T) {
	a, b := pair(t, driver.Small, nil)
	for _, n := range []int{0, 1, 8, inlineMax, inlineMax + 1, 1000, stepBytes, stepBytes + 1, maxSmall - 1, maxSmall} {
		for round := range 50 {
			want := random(n)
			got := make([]byte, n+8)
			s, r := driver.Packet{IOV: [][]byte{want}}, driver.Packet{IOV: [][]byte{got}}
			if err := b.RecvPost(&r); err != nil {
				t.Fatal(err)
			}
			if err := a.SendPost(&s); err != nil {
				t.Fatal(err)
			}
			if err := await(t, func() (bool, error) { return a.SendPoll(&s) }); err != nil {
				t.Fatal(err)
			}
			if err := await(t, func() (bool, error) { return b.RecvPoll(&r) }); err != nil {
				t.Fatal(err)
			}
			if r.N != n || !bytes.Equal(got[:n], want) {
				t.Fatal(integrity.Errorf("size %d round %d: got %d bytes, equal %v", n, round, r.N, bytes.Equal(got[:n], want)))
			}
		}
	}
}

// transferLarge sends one message and checks it.
func transferLarge(t *testing.T, a, b driver.Instance, src, dst []byte) {
	t.Helper()
	copy(src, random(len(src)))
	clear(dst)
	s, r := driver.Packet{IOV: [][]byte{src}}, driver.Packet{IOV: [][]byte{dst}}
	if err := b.RecvPost(&r); err != nil {
		t.Fatal(err)
	}
	s.RdvData = bytes.Clone(r.RdvData)
	if err := a.SendPost(&s); err != nil {
		t.Fatal(err)
	}
	var sent, got bool
	await(t, func() (bool, error) {
		var err error
		if !sent {
			if sent, err = a.SendPoll(&s); err != nil {
				t.Fatal(err)
			}
		}
		if !got {
			if got, err = b.RecvPoll(&r); err != nil {
				t.Fatal(err)
			}
		}
		return sent && got, nil
	})
	if r.N != len(src) || !bytes.Equal(src, dst) {
		t.Fatalf("%d bytes: got %d, equal %v", len(src), r.N, bytes.Equal(src, dst))
	}
}

func TestLongMessagesTakeEveryPath(t *testing.T) {
	for _, tt := range []struct{ path, ends, arena, want string }{
		{"auto", "both", "both", "arena-both"},
		{"auto", "sender", "both", "arena-put"},
		{"auto", "receiver", "both", "arena-get"},
		{"arena", "both", "recv", "arena-put"},
		{"arena", "both", "send", "arena-get"},
		{"auto", "both", "recv", "arena-put+cma-get"},
		{"auto", "both", "send", "cma-put+arena-get"},
		{"cma", "both", "none", "cma-both"},
		{"cma", "sender", "none", "cma-put"},
		{"cma", "receiver", "none", "cma-get"},
		{"ring", "both", "both", "ring"},
		{"arena", "both", "none", "ring"},
	} {
		t.Run(fmt.Sprintf("%s-%s-%s", tt.path, tt.ends, tt.arena), func(t *testing.T) {
			a, b := pair(t, driver.Large, map[string]string{"path": tt.path, "ends": tt.ends})
			ar, err := driver.NewArena(8 << 20)
			if err != nil {
				t.Fatal(err)
			}
			src, dst := make([]byte, 3<<20), make([]byte, 3<<20)
			if tt.arena == "both" || tt.arena == "send" {
				src = ar.Alloc(3 << 20)
			}
			if tt.arena == "both" || tt.arena == "recv" {
				dst = ar.Alloc(3 << 20)
			}
			for _, n := range []int{0, 1, 4095, 65536, 65537, 1 << 20, 3 << 20} {
				transferLarge(t, a, b, src[:n], dst[:n])
			}
			// An end that does not get a core in time leaves all of a message to the other.
			for again := 0; again < 50 && (a.Path() != tt.want || b.Path() != tt.want); again++ {
				transferLarge(t, a, b, src, dst)
			}
			if a.Path() != tt.want || b.Path() != tt.want {
				t.Errorf("path is %s at the sender, %s at the receiver, want %s", a.Path(), b.Path(), tt.want)
			}
			if err := a.Disconnect(); err != nil {
				t.Error(err)
			}
			if err := ar.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
