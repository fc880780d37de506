//go:build linux && !(386 || arm || mips || mipsle)

package xsk_test

import (
	"testing"
	"time"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

// These tests do what the kernel's own do (tools/testing/selftests/bpf,
// xskxceiver), case by case, in both modes.

// A run is two devices, with half of the chunks of each in its fill rings.
type run struct {
	testing.TB
	lab  *veth.Pair
	a, b *xsk.Device
	free []uint64 // chunks of a that nothing is in
	back []uint64 // the same for b
	head []byte   // from a to b
}

func inBothModes(t *testing.T, link veth.Config, a, b xsk.Config, f func(*testing.T, *run)) {
	t.Helper()
	needLab(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			r := &run{TB: t, lab: lab(t, link)}
			a.Attach, b.Attach = mode.attach, mode.attach
			r.a, r.b = open(t, &r.lab.Ends[0], a), open(t, &r.lab.Ends[1], b)
			if got := r.a.Mode(); got != mode.want {
				t.Errorf("got mode %s, want %s", got, mode.want)
			}
			r.free, r.back = halves(t, r.a), halves(t, r.b)
			r.head = header(&r.lab.Ends[0], &r.lab.Ends[1])
			f(t, r)
		})
	}
}

func stats(t testing.TB, s *xsk.Socket) xsk.Stats {
	t.Helper()
	st, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func refill(t testing.TB, s *xsk.Socket, descs []xsk.Desc) {
	t.Helper()
	addrs := make([]uint64, len(descs))
	for i, d := range descs {
		addrs[i] = d.Addr
	}
	if n := s.Fill(addrs); n != len(addrs) {
		t.Fatalf("filled %d, want %d", n, len(addrs))
	}
}

// SEND_RECEIVE, SEND_RECEIVE_2K_FRAME
func TestFramesArriveInOrder(t *testing.T) {
	for _, chunk := range []int{2048, 4096} {
		cfg := xsk.Config{Memory: xsk.UMEMConfig{ChunkSize: chunk, Chunks: 1024}}
		inBothModes(t, veth.Config{}, cfg, cfg, func(t *testing.T, r *run) {
			const rounds, batch, size = 20, 256, 64
			for round := range rounds {
				transmit(t, r.a.Sockets[0], r.head, r.free[:batch], round*batch, size)
				descs := receive(t, r.b.Sockets[0], batch)
				for i, d := range descs {
					checkFrame(t, r.b.UMEM.Data(d), r.head, round*batch+i, size)
				}
				refill(t, r.b.Sockets[0], descs)
				complete(t, r.a.Sockets[0], batch)
			}
		})
	}
}

// SEND_RECEIVE_SINGLE_PKT
func TestSingleFrame(t *testing.T) {
	cfg := xsk.Config{Memory: xsk.UMEMConfig{Chunks: 4}}
	inBothModes(t, veth.Config{}, cfg, cfg, func(t *testing.T, r *run) {
		transmit(t, r.a.Sockets[0], r.head, r.free[:1], 7, 1514)
		checkFrame(t, r.b.UMEM.Data(receive(t, r.b.Sockets[0], 1)[0]), r.head, 7, 1514)
		if got := complete(t, r.a.Sockets[0], 1)[0]; got != r.free[0] {
			t.Errorf("completed %#x, want %#x", got, r.free[0])
		}
	})
}

// RX_DROP_HALF has no counterpart: the program decides which frames are this socket's.

// UMEM_HEADROOM
func TestHeadroomLiesBeforeEachFrame(t *testing.T) {
	const headroom = 128
	b := xsk.Config{Memory: xsk.UMEMConfig{Headroom: headroom, Chunks: 64}}
	inBothModes(t, veth.Config{}, xsk.Config{}, b, func(t *testing.T, r *run) {
		transmit(t, r.a.Sockets[0], r.head, r.free[:16], 0, 64)
		for i, d := range receive(t, r.b.Sockets[0], 16) {
			if got, want := d.Addr%4096, uint64(xsk.RxReserve+headroom); got != want {
				t.Errorf("frame %d starts at %d in its chunk, want %d", i, got, want)
			}
			checkFrame(t, r.b.UMEM.Data(d), r.head, i, 64)
		}
	})
}

// POLL_RX, POLL_RXQ_FULL
func TestWaitForReceive(t *testing.T) {
	inBothModes(t, veth.Config{}, xsk.Config{}, xsk.Config{}, func(t *testing.T, r *run) {
		s := r.b.Sockets[0]
		if got, err := s.Wait(xsk.EventRx, 20*time.Millisecond); got != 0 || err != nil {
			t.Fatalf("nothing was sent: got event %v, %v, want a timeout", got, err)
		}
		got := make(chan xsk.Event)
		go func() {
			e, err := s.Wait(xsk.EventRx, -1)
			if err != nil {
				t.Error(err)
			}
			got <- e
		}()
		transmit(t, r.a.Sockets[0], r.head, r.free[:1], 0, 64)
		if e := <-got; e != xsk.EventRx {
			t.Errorf("got event %v, want EventRx", e)
		}
		if e, err := s.Wait(xsk.EventRx, 0); e != xsk.EventRx || err != nil {
			t.Errorf("a frame is there: got event %v, %v, want EventRx", e, err)
		}
	})
}

// POLL_TX, POLL_TXQ_FULL
func TestWaitForTransmit(t *testing.T) {
	a := xsk.Config{Socket: xsk.SocketConfig{Tx: 64, Completion: 64}, Memory: xsk.UMEMConfig{Chunks: 512}}
	inBothModes(t, veth.Config{}, a, xsk.Config{}, func(t *testing.T, r *run) {
		s := r.a.Sockets[0]
		if e, err := s.Wait(xsk.EventTx, -1); e != xsk.EventTx || err != nil {
			t.Fatalf("the ring is empty: got event %v, %v, want EventTx", e, err)
		}
		// Nothing is completed, so the completion ring fills, then the transmit ring.
		var queued int
		for queued < len(r.free) {
			descs := make([]xsk.Desc, 0, 32)
			for _, addr := range r.free[queued:min(queued+32, len(r.free))] {
				copy(r.a.UMEM.Frame(addr), r.head)
				descs = append(descs, xsk.Desc{Addr: addr, Len: 64})
			}
			n := s.Transmit(descs)
			queued += n
			if err := s.Kick(); err != nil && err != xsk.ErrAgain {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
		}
		if queued != 128 {
			t.Errorf("queued %d frames, want 64 of one ring and 64 of the other", queued)
		}
		if err := s.Kick(); err != xsk.ErrAgain {
			t.Errorf("both rings are full: got %v, want ErrAgain", err)
		}
		if e, err := s.Wait(xsk.EventTx, 20*time.Millisecond); e != 0 || err != nil {
			t.Errorf("both rings are full: got event %v, %v, want a timeout", e, err)
		}
		complete(t, s, queued)
		if e, err := s.Wait(xsk.EventTx, -1); e != xsk.EventTx || err != nil {
			t.Errorf("all is completed: got event %v, %v, want EventTx", e, err)
		}
	})
}

// ALIGNED_INV_DESC, ALIGNED_INV_DESC_2K_FRAME
func TestInvalidDescriptorsAreDroppedAndCounted(t *testing.T) {
	for _, chunk := range []uint64{2048, 4096} {
		cfg := xsk.Config{Memory: xsk.UMEMConfig{ChunkSize: int(chunk), Chunks: 64}}
		inBothModes(t, veth.Config{}, cfg, cfg, func(t *testing.T, r *run) {
			end := 64 * chunk
			descs := []struct {
				name string
				desc xsk.Desc
				ok   bool
			}{
				{"a frame", xsk.Desc{Addr: end - 7*chunk, Len: 64}, true},
				{"no start", xsk.Desc{Addr: end, Len: 64}, false},
				{"far away", xsk.Desc{Addr: 1 << 50, Len: 64}, false},
				{"wraps", xsk.Desc{Addr: 1<<64 - 64, Len: 64}, false},
				{"into the next chunk", xsk.Desc{Addr: end - 2*chunk - 32, Len: 64}, false},
				{"beyond the end", xsk.Desc{Addr: end - 32, Len: 64}, false},
				{"too long", xsk.Desc{Addr: end - 4*chunk, Len: 1<<32 - 1}, false},
				{"unknown options", xsk.Desc{Addr: end - 5*chunk, Len: 64, Options: 1 << 15}, false},
				{"the last one", xsk.Desc{Addr: end - 6*chunk, Len: 64}, true},
			}
			s := r.a.Sockets[0]
			var want []int
			var invalid uint64
			for i, d := range descs {
				if d.ok {
					writeFrame(r.a.UMEM.Data(d.desc), r.head, i)
					want = append(want, i)
				} else {
					invalid++
				}
				if n := s.Transmit([]xsk.Desc{d.desc}); n != 1 {
					t.Fatalf("%s: queued %d", d.name, n)
				}
			}
			kick(t, s)
			for i, d := range receive(t, r.b.Sockets[0], len(want)) {
				checkFrame(t, r.b.UMEM.Data(d), r.head, want[i], 64)
			}
			if got := stats(t, s).TxInvalid; got != invalid {
				t.Errorf("got %d invalid descriptors, want %d", got, invalid)
			}
			// Recent kernels complete all of them, earlier ones the valid alone.
			done := make([]uint64, len(descs)+1)
			switch n := s.Complete(done); n {
			case len(descs):
				for i, d := range descs {
					if done[i] != d.desc.Addr {
						t.Errorf("%s: completed %#x, want %#x", d.name, done[i], d.desc.Addr)
					}
				}
			case len(want):
			default:
				t.Errorf("completed %d descriptors, want %d or %d", n, len(descs), len(want))
			}
		})
	}
}

// A descriptor that is dropped must not look like one that cannot be sent.
func TestInvalidDescriptorAloneIsTaken(t *testing.T) {
	cfg := xsk.Config{Memory: xsk.UMEMConfig{Chunks: 64}}
	inBothModes(t, veth.Config{}, cfg, cfg, func(t *testing.T, r *run) {
		s := r.a.Sockets[0]
		s.Transmit([]xsk.Desc{{Addr: 1 << 50, Len: 64}})
		if err := s.Kick(); err != nil {
			t.Errorf("got %v, want it dropped", err)
		}
		if n := s.TxPending(); n != 0 {
			t.Errorf("%d descriptors pending, want 0", n)
		}
	})
}

// BIDIRECTIONAL
func TestBothDirectionsAtOnce(t *testing.T) {
	cfg := xsk.Config{Memory: xsk.UMEMConfig{Chunks: 1024}}
	inBothModes(t, veth.Config{}, cfg, cfg, func(t *testing.T, r *run) {
		back := header(&r.lab.Ends[1], &r.lab.Ends[0])
		a, b := r.a.Sockets[0], r.b.Sockets[0]
		for round := range 10 {
			transmit(t, a, r.head, r.free[:128], round, 64)
			transmit(t, b, back, r.back[:128], round, 200)
			ab, ba := receive(t, b, 128), receive(t, a, 128)
			for i := range 128 {
				checkFrame(t, r.b.UMEM.Data(ab[i]), r.head, round+i, 64)
				checkFrame(t, r.a.UMEM.Data(ba[i]), back, round+i, 200)
			}
			refill(t, a, ba)
			refill(t, b, ab)
			complete(t, a, 128)
			complete(t, b, 128)
		}
	})
}

// STAT_RX_DROPPED
func TestTooLongFramesAreCounted(t *testing.T) {
	a := xsk.Config{Memory: xsk.UMEMConfig{Chunks: 64}}
	b := xsk.Config{Memory: xsk.UMEMConfig{Chunks: 64, ChunkSize: 2048, Headroom: 2048 - 768}}
	inBothModes(t, veth.Config{}, a, b, func(t *testing.T, r *run) {
		if got := r.b.UMEM.MaxRx(); got != 512 {
			t.Errorf("got room for %d bytes, want 512", got)
		}
		transmit(t, r.a.Sockets[0], r.head, r.free[:8], 0, 513)
		transmit(t, r.a.Sockets[0], r.head, r.free[8:16], 0, 512)
		for i, d := range receive(t, r.b.Sockets[0], 8) {
			checkFrame(t, r.b.UMEM.Data(d), r.head, i, 512)
		}
		if got := stats(t, r.b.Sockets[0]); got.RxDropped != 8 {
			t.Errorf("got %+v, want 8 dropped", got)
		}
	})
}

// STAT_RX_FULL
func TestFullReceiveRingIsCounted(t *testing.T) {
	b := xsk.Config{Socket: xsk.SocketConfig{Rx: 16}}
	inBothModes(t, veth.Config{}, xsk.Config{}, b, func(t *testing.T, r *run) {
		s := r.b.Sockets[0]
		transmit(t, r.a.Sockets[0], r.head, r.free[:48], 0, 64)
		until(t, "all frames have arrived", func() bool { return stats(t, s).RxRingFull == 32 })
		if got := len(receive(t, s, 16)); got != 16 || s.RxPending() != 0 {
			t.Errorf("got %d and %d more, want 16", got, s.RxPending())
		}
	})
}

// STAT_RX_FILL_EMPTY
func TestEmptyFillRingIsCounted(t *testing.T) {
	needLab(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			p := lab(t, veth.Config{})
			cfg := xsk.Config{Attach: mode.attach}
			a, b := open(t, &p.Ends[0], cfg), open(t, &p.Ends[1], cfg)
			free := halves(t, a)
			transmit(t, a.Sockets[0], header(&p.Ends[0], &p.Ends[1]), free[:10], 0, 64)
			until(t, "all frames have arrived", func() bool { return stats(t, b.Sockets[0]).FillRingEmpty == 10 })
		})
	}
}

// STAT_TX_INVALID is TestInvalidDescriptorsAreDroppedAndCounted.

// The kernel skips addresses outside of the UMEM. (Its counter of them, RxInvalid,
// is that of another ring and stays 0.)
func TestInvalidFillAddressesAreSkipped(t *testing.T) {
	needLab(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			p := lab(t, veth.Config{})
			cfg := xsk.Config{Attach: mode.attach}
			a, b := open(t, &p.Ends[0], cfg), open(t, &p.Ends[1], cfg)
			free := halves(t, a)
			head := header(&p.Ends[0], &p.Ends[1])
			end := b.UMEM.Addr(b.UMEM.Chunks())
			b.Sockets[0].Fill([]uint64{end, 1 << 50, 12345})
			transmit(t, a.Sockets[0], head, free[:1], 3, 64)
			d := receive(t, b.Sockets[0], 1)[0]
			checkFrame(t, b.UMEM.Data(d), head, 3, 64)
			if got, want := b.UMEM.Chunk(d.Addr), b.UMEM.Chunk(12345); got != want {
				t.Errorf("received into chunk %d, want %d, the only one", got, want)
			}
		})
	}
}

// until waits for a condition that nothing announces.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timed out waiting until ", what)
		}
	}
}
