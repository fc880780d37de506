//go:build linux && !(386 || arm || mips || mipsle)

package softnic

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/nic"
)

// pair is two processes, on NICs of one softnic.
func pair(t testing.TB, s *Server) (a, b *nic.Process) {
	paths := s.Sockets()
	return join(t, paths[0], nic.Config{Name: "a", PoolEntries: 64}),
		join(t, paths[len(paths)-1], nic.Config{Name: "b", PoolEntries: 64})
}

func TestShortMessage(t *testing.T) {
	for nics := 1; nics <= 2; nics++ {
		a, b := pair(t, serve(t, Config{NICs: nics}))
		for i := range 100 {
			text := []byte("message " + string(rune('A'+i%26)))
			copy(a.SendRegion(0), text)
			kick(t, b, b.ReceiveShort(1, name("a"), 7, 100))
			kick(t, a, a.SendShort(0, name("b"), 7, len(text)))
			if s, n := received(t, b, 1); s != nic.Done || n != len(text) || !bytes.Equal(b.ReceiveRegion(1)[:n], text) {
				t.Fatalf("%d NICs: received %v, %d bytes, %q", nics, s, n, b.ReceiveRegion(1)[:n])
			}
			if s, n := sent(t, a, 0); s != nic.Done || n != len(text) {
				t.Fatalf("%d NICs: sent %v, %d bytes", nics, s, n)
			}
		}
	}
}

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// Every kind of memory to every kind, near and far, in odd pieces.
func TestTranslatedMemory(t *testing.T) {
	const size = 1<<20 + 4321
	for nics := 1; nics <= 2; nics++ {
		a, b := pair(t, serve(t, Config{NICs: nics}))
		fileFrom, fd1 := mapping(t, 2<<20)
		fileTo, fd2 := mapping(t, 2<<20)
		plainFrom, plainTo := anonymous(t, 2<<20), anonymous(t, 2<<20)
		translate := func(p *nic.Process, m []byte, fd int, access nic.Access) nic.Handle {
			t.Helper()
			h, err := p.Translate(m[100:], access)
			if fd >= 0 {
				h, err = p.TranslateFile(m[100:], fd, 100, access)
			}
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		for k, x := range []struct {
			from, to []byte
			f1, f2   int
		}{
			{fileFrom, fileTo, fd1, fd2}, {fileFrom, plainTo, fd1, -1}, {plainFrom, fileTo, -1, fd2}, {plainFrom, plainTo, -1, -1},
		} {
			from, to := x.from[100:], x.to[100:]
			fill(from[:size], uint64(k))
			clear(to)
			h1, h2 := translate(a, x.from, x.f1, nic.Read), translate(b, x.to, x.f2, nic.Write)
			kick(t, b, b.Post(nic.Receive, 0, &nic.Message{Peer: name("a"), Tag: 1, Len: size, Flags: nic.Doorbell,
				Descriptors: []nic.Descriptor{{Handle: h2, Len: 777, Offset: 3}, {Handle: h2, Len: size, Offset: 3 + 777}}}))
			kick(t, a, a.Post(nic.Send, 0, &nic.Message{Peer: name("b"), Tag: 1, Len: size, Flags: nic.Doorbell,
				Descriptors: []nic.Descriptor{{Handle: h1, Len: 123456}, {Handle: h1, Len: size, Offset: 123456}}}))
			if s, n := received(t, b, 0); s != nic.Done || n != size || !bytes.Equal(to[3:3+size], from[:size]) {
				t.Errorf("%d NICs, memory %d: %v, %d bytes, equal %v", nics, k, s, n, bytes.Equal(to[3:3+size], from[:size]))
			}
			if s, n := sent(t, a, 0); s != nic.Done || n != size {
				t.Errorf("%d NICs, memory %d: sent %v, %d bytes", nics, k, s, n)
			}
			for _, err := range []error{a.Untranslate(h1), b.Untranslate(h2)} {
				if err != nil {
					t.Error(err)
				}
			}
			if a.Untranslate(h1) == nil {
				t.Error("a handle was given up twice")
			}
		}
	}
}

// anonymous is private memory outside the Go heap.
func anonymous(t testing.TB, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func TestBufferPool(t *testing.T) {
	a, b := pair(t, serve(t, Config{}))
	from, to := anonymous(t, 1<<16), anonymous(t, 1<<16)
	fill(from, 1)
	if _, err := a.TranslatePool(from, nic.Read, 8, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := b.TranslatePool(to, nic.Write, 0, 1024); err != nil {
		t.Fatal(err)
	}
	const size = 20000
	kick(t, b, b.Post(nic.Receive, 0, &nic.Message{Peer: name("a"), Len: size, Flags: nic.Doorbell | nic.FromPool, Pool: 10, PoolCount: 20}))
	kick(t, a, a.Post(nic.Send, 0, &nic.Message{Peer: name("b"), Len: size, Flags: nic.Doorbell | nic.FromPool, Pool: 9, PoolCount: 5}))
	if s, n := received(t, b, 0); s != nic.Done || n != size || !bytes.Equal(to[10240:10240+size], from[4096:4096+size]) {
		t.Errorf("%v, %d bytes", s, n)
	}
}

func TestStatesOfFailure(t *testing.T) {
	a, b := pair(t, serve(t, Config{}))
	mem := anonymous(t, 8192)
	h, err := a.Translate(mem[:4096], nic.Read)
	if err != nil {
		t.Fatal(err)
	}
	one := func(l uint32, off uint64) []nic.Descriptor {
		return []nic.Descriptor{{Handle: h, Len: l, Offset: off}}
	}
	for what, x := range map[string]struct {
		m    nic.Message
		want nic.State
	}{
		"unknown":        {nic.Message{Peer: name("nobody"), Len: 1, Flags: nic.Inline}, nic.Unknown},
		"foreign handle": {nic.Message{Peer: name("b"), Tag: 1, Len: 10, Descriptors: []nic.Descriptor{{Handle: h + 1, Len: 10}}}, nic.Fault},
		"beyond":         {nic.Message{Peer: name("b"), Tag: 1, Len: 4096, Descriptors: one(4096, 4000)}, nic.Fault},
		"far beyond":     {nic.Message{Peer: name("b"), Tag: 1, Len: 4096, Descriptors: one(4096, 1<<63)}, nic.Fault},
	} {
		m := x.m
		m.Flags |= nic.Doorbell
		kick(t, b, b.Post(nic.Receive, 0, &nic.Message{Peer: name("a"), Tag: 1, Len: 1000, Flags: nic.Inline | nic.Doorbell}))
		kick(t, a, a.Post(nic.Send, 0, &m))
		if s, _ := sent(t, a, 0); s != x.want {
			t.Errorf("%s: %v, want %v", what, s, x.want)
		}
		_ = b.CancelReceive(0)
		kick(t, b, nil)
		received(t, b, 0)
	}
	copy(a.SendRegion(0), "0123456789")
	kick(t, b, b.ReceiveShort(0, name("a"), 2, 4))
	kick(t, a, a.SendShort(0, name("b"), 2, 10))
	if s, n := received(t, b, 0); s != nic.Truncated || n != 10 || string(b.ReceiveRegion(0)[:4]) != "0123" {
		t.Errorf("%v, %d, %q: want truncated, 10", s, n, b.ReceiveRegion(0)[:4])
	}
	sent(t, a, 0)
	kick(t, b, b.ReceiveShort(0, name("a"), 3, 4))
	kick(t, b, b.CancelReceive(0))
	if s, _ := received(t, b, 0); s != nic.Canceled {
		t.Errorf("a receive that was cancelled: %v", s)
	}
}
