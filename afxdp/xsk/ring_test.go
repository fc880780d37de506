//go:build linux && !(386 || arm || mips || mipsle)

package xsk

import (
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// ringOffsets are of a ring in plain memory: each word on a line of its own.
var ringOffsets = unix.XDPRingOffset{Producer: 0, Consumer: 64, Flags: 128, Desc: 192}

// pair makes the two ends of one ring whose indexes start at start: ours, and
// the one that acts as the kernel.
func pair[S slot](size, start uint32) (ours, kernel ring, slots []S) {
	var s S
	words := make([]uint64, (uintptr(ringOffsets.Desc)+uintptr(size)*unsafe.Sizeof(s))/8)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	*(*uint32)(unsafe.Pointer(&mem[ringOffsets.Producer])) = start
	*(*uint32)(unsafe.Pointer(&mem[ringOffsets.Consumer])) = start
	slots = unsafe.Slice((*S)(unsafe.Pointer(&mem[ringOffsets.Desc])), size)
	return overlay(mem, &ringOffsets, size), overlay(mem, &ringOffsets, size), slots
}

// starts are indexes from which a test passes the places where they wrap.
var starts = []uint32{0, 1, math.MaxUint32 - 8, math.MaxUint32, 1<<31 - 4, 1 << 31}

func TestRingIsAQueueAcrossTheWrapOfItsIndexes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		size := uint32(1) << rapid.IntRange(0, 6).Draw(r, "log size")
		a, b, slots := pair[uint64](size, rapid.SampledFrom(starts).Draw(r, "start"))
		in, out := queue[uint64]{a, slots}, queue[uint64]{b, slots}
		var model []uint64
		next := uint64(0)
		for range rapid.IntRange(1, 200).Draw(r, "steps") {
			n := rapid.IntRange(0, int(size)+2).Draw(r, "batch")
			batch := make([]uint64, n)
			if rapid.Bool().Draw(r, "put") {
				for i := range batch {
					batch[i] = next + uint64(i)
				}
				if got, want := int(in.free(size)), int(size)-len(model); got != want {
					r.Fatalf("got %d free slots, want %d", got, want)
				}
				got := in.put(batch)
				if want := min(n, int(size)-len(model)); got != want {
					r.Fatalf("put %d of %d, want %d", got, n, want)
				}
				model = append(model, batch[:got]...)
				next += uint64(got)
				continue
			}
			if got := int(out.pending(size)); got != len(model) {
				r.Fatalf("got %d pending, want %d", got, len(model))
			}
			got := out.get(batch)
			if want := min(n, len(model)); got != want {
				r.Fatalf("got %d of %d, want %d", got, n, want)
			}
			for i := range got {
				if batch[i] != model[i] {
					r.Fatalf("slot %d: got %d, want %d", i, batch[i], model[i])
				}
			}
			model = model[got:]
		}
	})
}

func TestRingCarriesEverythingBetweenTwoCores(t *testing.T) {
	for _, start := range starts {
		a, b, slots := pair[Desc](64, start)
		in, out := queue[Desc]{a, slots}, queue[Desc]{b, slots}
		const total = 200_000
		go func() {
			var batch [7]Desc
			for sent := 0; sent < total; {
				n := min(len(batch), total-sent)
				for i := range n {
					batch[i] = Desc{Addr: uint64(sent + i), Len: uint32(sent + i), Options: ^uint32(sent + i)}
				}
				if n = in.put(batch[:n]); n == 0 {
					runtime.Gosched()
				}
				sent += n
			}
		}()
		var batch [5]Desc
		for got := 0; got < total; {
			n := out.get(batch[:])
			if n == 0 {
				runtime.Gosched()
			}
			for i, d := range batch[:n] {
				if want := (Desc{uint64(got + i), uint32(got + i), ^uint32(got + i)}); d != want {
					t.Fatalf("start %#x: got %+v, want %+v", start, d, want)
				}
			}
			got += n
		}
	}
}

func TestClosedRingIsEmptyAndFull(t *testing.T) {
	fill, rx := queue[uint64]{ring: noRing()}, queue[Desc]{ring: noRing()}
	if n := fill.put(make([]uint64, 3)); n != 0 {
		t.Errorf("put %d, want 0", n)
	}
	if n := rx.get(make([]Desc, 3)); n != 0 {
		t.Errorf("got %d, want 0", n)
	}
	if err := rx.unmap(); err != nil {
		t.Error(err)
	}
}

func TestNeedWakeupIsTheKernelsFlag(t *testing.T) {
	r, _, _ := pair[Desc](4, 0)
	if r.needWakeup(true) {
		t.Error("got true, want false")
	}
	atomic.StoreUint32(r.flags, unix.XDP_RING_NEED_WAKEUP)
	if !r.needWakeup(true) {
		t.Error("got false, want true")
	}
}

// A driver that waits for more chunks all the time is called once for each time that it has got some.
func TestDriverIsWokenForNewChunksOnly(t *testing.T) {
	r, _, slots := pair[uint64](64, 0)
	atomic.StoreUint32(r.flags, unix.XDP_RING_NEED_WAKEUP)
	u := &UMEM{chunkSize: 4096, own: newOwnership(3)}
	s := &Socket{umem: u, fd: -1, zc: true, fill: queue[uint64]{r, slots}} // a call fails
	for round := range 3 {
		if err := s.WakeRx(); err != nil {
			t.Errorf("round %d: called without new chunks: %v", round, err)
		}
		s.Fill([]uint64{uint64(round) * 4096})
		if err := s.WakeRx(); err == nil {
			t.Errorf("round %d: not called for a new chunk", round)
		}
	}
}

func BenchmarkRingBatch32(b *testing.B) {
	p, c, slots := pair[Desc](2048, 0)
	in, out := queue[Desc]{p, slots}, queue[Desc]{c, slots}
	var batch [32]Desc
	for b.Loop() {
		in.put(batch[:])
		out.get(batch[:])
	}
}
