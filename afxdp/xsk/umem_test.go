//go:build linux && !(386 || arm || mips || mipsle)

package xsk_test

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

func TestUMEMRefusesWhatTheKernelWould(t *testing.T) {
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 4*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	tests := []struct {
		name string
		cfg  xsk.UMEMConfig
		ok   bool
	}{
		{"zero value", xsk.UMEMConfig{}, true},
		{"small chunks", xsk.UMEMConfig{ChunkSize: 2048, Chunks: 7}, true},
		{"odd chunks", xsk.UMEMConfig{ChunkSize: 3000}, false},
		{"tiny chunks", xsk.UMEMConfig{ChunkSize: 1024}, false},
		{"large chunks", xsk.UMEMConfig{ChunkSize: 8192}, false},
		{"negative number", xsk.UMEMConfig{Chunks: -1}, false},
		{"all headroom", xsk.UMEMConfig{ChunkSize: 2048, Headroom: 2048 - 767}, false},
		{"most headroom", xsk.UMEMConfig{ChunkSize: 2048, Headroom: 2048 - 768}, true},
		{"negative headroom", xsk.UMEMConfig{Headroom: -1}, false},
		{"own memory", xsk.UMEMConfig{Memory: mem}, true},
		{"own memory, not aligned", xsk.UMEMConfig{Memory: mem[2048:], ChunkSize: 2048}, false},
		{"own memory, no whole chunk", xsk.UMEMConfig{Memory: mem[:page+1]}, false},
		{"own memory, empty", xsk.UMEMConfig{Memory: mem[:0]}, false},
		{"own memory, other number", xsk.UMEMConfig{Memory: mem, Chunks: 1}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := xsk.NewUMEM(tt.cfg)
			if (err == nil) != tt.ok {
				t.Fatalf("got error %v, want ok %t", err, tt.ok)
			}
			if err != nil {
				return
			}
			for range 2 {
				if err := u.Close(); err != nil {
					t.Error("close: ", err)
				}
			}
		})
	}
}

func TestAddressesAndChunks(t *testing.T) {
	u, err := xsk.NewUMEM(xsk.UMEMConfig{Chunks: 4, ChunkSize: 2048})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for i := range u.Chunks() {
		a := u.Addr(i)
		if got := u.Chunk(a + 2047); got != i {
			t.Errorf("chunk of %#x: got %d, want %d", a+2047, got, i)
		}
		for _, off := range []uint64{0, 1, 2047} {
			if f := u.Frame(a + off); len(f) != 2048-int(off) || cap(f) != len(f) {
				t.Errorf("frame at %#x: got %d bytes, capacity %d, want %d", a+off, len(f), cap(f), 2048-off)
			}
		}
		if d := u.Data(xsk.Desc{Addr: a + 100, Len: 1000}); len(d) != 1000 || &d[0] != &u.Frame(a)[100] {
			t.Errorf("data at %#x: got %d bytes", a+100, len(d))
		}
	}
	outside := []xsk.Desc{
		{Addr: 4 * 2048}, {Addr: 1 << 40}, {Addr: 1<<64 - 1}, {Addr: 100, Len: 2000}, {Addr: 0, Len: 1<<32 - 1},
	}
	for _, d := range outside {
		if !panics(func() { u.Data(d) }) {
			t.Errorf("%+v: got data outside of a chunk", d)
		}
		if d.Len == 0 && !panics(func() { u.Frame(d.Addr) }) {
			t.Errorf("%+v: got a frame outside of the UMEM", d)
		}
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

func TestHugePagesOrTheReason(t *testing.T) {
	u, err := xsk.NewUMEM(xsk.UMEMConfig{Chunks: 16, HugePages: true})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if u.HugePages() != nil {
		t.Log(u.HugePages())
	}
	u.Frame(u.Addr(15))[4095] = 1
	plain, err := xsk.NewUMEM(xsk.UMEMConfig{Chunks: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if plain.HugePages() == nil {
		t.Error("got huge pages that nobody asked for")
	}
}

// Frames are received into memory of the caller's, mapped and from Go's heap.
func TestCallersMemory(t *testing.T) {
	const size = 64 * 4096
	heap := make([]byte, size+4096)
	skew := int(-uintptr(unsafe.Pointer(&heap[0])) & 4095)
	mapped, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	p := lab(t, veth.Config{})
	a := open(t, &p.Ends[0], xsk.Config{Memory: xsk.UMEMConfig{Memory: mapped}})
	b := open(t, &p.Ends[1], xsk.Config{Memory: xsk.UMEMConfig{Memory: heap[skew : skew+size]}})
	free := halves(t, a)
	halves(t, b)
	head := header(&p.Ends[0], &p.Ends[1])
	transmit(t, a.Sockets[0], head, free[:8], 0, 100)
	for i, d := range receive(t, b.Sockets[0], 8) {
		checkFrame(t, heap[skew:][d.Addr:][:d.Len], head, i, 100)
	}
}

func TestUMEMInUseIsNotUnmapped(t *testing.T) {
	p := lab(t, veth.Config{})
	u, err := xsk.NewUMEM(xsk.UMEMConfig{Chunks: 16})
	if err != nil {
		t.Fatal(err)
	}
	d, err := tryOpen(&p.Ends[0], xsk.Config{UMEM: u})
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Close(); err == nil {
		t.Error("closed under a socket")
	}
	u.Frame(0)[0] = 1 // still there
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	if _, err := tryOpen(&p.Ends[0], xsk.Config{UMEM: u}); err == nil {
		t.Error("opened over a UMEM that is closed")
	}
}
