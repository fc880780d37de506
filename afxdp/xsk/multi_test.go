//go:build linux && !(386 || arm || mips || mipsle)

package xsk_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

// arrivesOn is the queue of a veth on which a frame arrives that was sent on
// queue q. Without a native program at the receiver the device does not note
// the queue, and the number of the transmit queue is taken for that of the
// receive queue plus one, where 0 means none.
func arrivesOn(d *xsk.Device, q int) int {
	if how, _ := d.Program.Attached(); how == xsk.AttachNative {
		return q
	}
	return max(q-1, 0)
}

// SHARED_UMEM: one UMEM over two queues of two devices. Frames are forwarded
// from one device to the other without touching them.
func TestSharedUMEM(t *testing.T) {
	needLab(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			p := lab(t, veth.Config{Router: true, Queues: 2})
			u, err := xsk.NewUMEM(xsk.UMEMConfig{Chunks: 1024})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { u.Close() })
			cfg := xsk.Config{Attach: mode.attach}
			end := [2]*xsk.Device{open(t, &p.Ends[0], cfg), open(t, &p.Ends[1], cfg)}
			cfg.UMEM = u
			middle := [2]*xsk.Device{open(t, &p.Router[0], cfg), open(t, &p.Router[1], cfg)}
			for i, s := range slices.Concat(middle[0].Sockets, middle[1].Sockets) {
				for c := range 256 {
					s.Fill([]uint64{u.Addr(i*256 + c)})
				}
			}
			free := [2][]uint64{halves(t, end[0]), halves(t, end[1])}
			for i := range 2 {
				head := header(&p.Ends[i], &p.Ends[1-i])
				for q := range 2 {
					from, to, forward := end[i], end[1-i], middle[1-i].Sockets[q]
					transmit(t, from.Sockets[q], head, free[i][16*q:16*q+16], 100*q, 64)
					descs := receive(t, middle[i].Sockets[arrivesOn(middle[i], q)], 16)
					if n := forward.Transmit(descs); n != 16 {
						t.Fatalf("forwarded %d frames, want 16", n)
					}
					if err := forward.Kick(); err != nil {
						t.Fatal(err)
					}
					for k, d := range receive(t, to.Sockets[arrivesOn(to, q)], 16) {
						checkFrame(t, to.UMEM.Data(d), head, 100*q+k, 64)
					}
					for k, addr := range complete(t, forward, 16) {
						if addr != descs[k].Addr {
							t.Errorf("completed %#x, want %#x", addr, descs[k].Addr)
						}
					}
				}
			}
			// The first socket, whose descriptor the others share, goes first.
			if err := middle[0].Close(); err != nil {
				t.Fatal(err)
			}
			if got := open(t, &p.Router[0], cfg).Mode(); got != mode.want {
				t.Errorf("got mode %s, want %s", got, mode.want)
			}
		})
	}
}

func TestEveryQueueHasItsSocket(t *testing.T) {
	cfg := xsk.Config{Memory: xsk.UMEMConfig{Chunks: 4 * 64}}
	inBothModes(t, veth.Config{Queues: 4}, cfg, cfg, func(t *testing.T, r *run) {
		if len(r.a.Sockets) != 4 {
			t.Fatalf("got %d sockets, want 4", len(r.a.Sockets))
		}
		for q, s := range r.a.Sockets {
			if s.Queue() != q {
				t.Errorf("socket %d is on queue %d", q, s.Queue())
			}
			transmit(t, s, r.head, r.free[q*4:q*4+4], q, 64)
			for i, d := range receive(t, r.b.Sockets[arrivesOn(r.b, q)], 4) {
				checkFrame(t, r.b.UMEM.Data(d), r.head, q+i, 64)
			}
		}
	})
}

// SEND_RECEIVE_9K_PACKETS
func TestMultiBufferFrames(t *testing.T) {
	for _, chunk := range []int{2048, 4096} {
		cfg := xsk.Config{
			Memory: xsk.UMEMConfig{ChunkSize: chunk, Chunks: 512},
			Socket: xsk.SocketConfig{MultiBuffer: true},
		}
		needFeature(t, xsk.FeatureMultiBuffer)
		inBothModes(t, veth.Config{MTU: 9000}, cfg, cfg, func(t *testing.T, r *run) {
			for round, size := range []int{60, 1514, 2048, 4096, 4097, 9014} {
				sendLong(t, r, round, size, chunk)
				whole, descs := receiveLong(t, r.b.Sockets[0])
				checkFrame(t, whole, r.head, round, size)
				refill(t, r.b.Sockets[0], descs)
				complete(t, r.a.Sockets[0], (size+chunk-1)/chunk)
			}
		})
	}
}

// sendLong sends one frame over as many chunks as it needs.
func sendLong(t *testing.T, r *run, number, size, chunk int) {
	t.Helper()
	whole := make([]byte, size)
	writeFrame(whole, r.head, number)
	var descs []xsk.Desc
	for i := 0; len(whole) > 0; i++ {
		n := copy(r.a.UMEM.Frame(r.free[i])[:chunk], whole)
		whole = whole[n:]
		d := xsk.Desc{Addr: r.free[i], Len: uint32(n)}
		if len(whole) > 0 {
			d.Options = xsk.DescContinued
		}
		descs = append(descs, d)
	}
	if n := r.a.Sockets[0].Transmit(descs); n != len(descs) {
		t.Fatalf("queued %d descriptors, want %d", n, len(descs))
	}
	if err := r.a.Sockets[0].Kick(); err != nil {
		t.Fatal(err)
	}
}

// receiveLong receives one frame from as many chunks as it takes.
func receiveLong(t *testing.T, s *xsk.Socket) (whole []byte, descs []xsk.Desc) {
	t.Helper()
	for {
		d := receive(t, s, 1)[0]
		descs = append(descs, d)
		whole = append(whole, s.UMEM().Data(d)...)
		if d.Options&xsk.DescContinued == 0 {
			return whole, descs
		}
	}
}

// TOO_MANY_FRAGS: a frame of more fragments than the kernel takes
// (MAX_SKB_FRAGS, 17 unless it was built otherwise, and the first) is dropped,
// and the next one arrives.
func TestTooManyFragmentsAreDropped(t *testing.T) {
	needFeature(t, xsk.FeatureMultiBuffer)
	cfg := xsk.Config{Memory: xsk.UMEMConfig{Chunks: 512}, Socket: xsk.SocketConfig{MultiBuffer: true}}
	inBothModes(t, veth.Config{MTU: 9000}, cfg, cfg, func(t *testing.T, r *run) {
		s := r.a.Sockets[0]
		const fragments = 64 // more than the largest configurable 45
		var descs []xsk.Desc
		for i := range fragments {
			b := r.a.UMEM.Frame(r.free[i])[:100]
			clear(b)
			copy(b, r.head)
			descs = append(descs, xsk.Desc{Addr: r.free[i], Len: 100, Options: xsk.DescContinued})
		}
		descs[fragments-1].Options = 0
		last := r.free[fragments]
		writeFrame(r.a.UMEM.Frame(last)[:64], r.head, 5)
		descs = append(descs, xsk.Desc{Addr: last, Len: 64})
		if n := s.Transmit(descs); n != len(descs) {
			t.Fatalf("queued %d descriptors, want %d", n, len(descs))
		}
		kick(t, s)
		// Some kernels (seen on 6.12) take what is left of it for a frame.
		for {
			whole, _ := receiveLong(t, r.b.Sockets[0])
			if len(whole) == 64 {
				checkFrame(t, whole, r.head, 5, 64)
				break
			}
			if len(whole) > (fragments-17)*100 {
				t.Fatalf("a frame of %d bytes arrived", len(whole))
			}
		}
		if got := stats(t, s).TxInvalid; got == 0 {
			t.Error("no invalid descriptor counted")
		}
	})
}

// With busy-poll the receiver drives the driver by its calls.
func TestBusyPoll(t *testing.T) {
	needFeature(t, xsk.FeatureBusyPoll)
	busy := xsk.Config{Socket: xsk.SocketConfig{BusyPoll: xsk.BusyPoll{Time: 20 * time.Microsecond, Budget: 32}}}
	inBothModes(t, veth.Config{}, busy, busy, func(t *testing.T, r *run) {
		s := r.b.Sockets[0]
		transmit(t, r.a.Sockets[0], r.head, r.free[:64], 0, 64)
		until(t, "all have arrived", func() bool {
			if err := s.WakeRx(); err != nil {
				t.Fatal(err)
			}
			return s.RxPending() == 64
		})
		for i, d := range receive(t, s, 64) {
			checkFrame(t, r.b.UMEM.Data(d), r.head, i, 64)
		}
	})
}

func TestTransmitBudget(t *testing.T) {
	needFeature(t, xsk.FeatureTxBudget)
	cfg := xsk.Config{Socket: xsk.SocketConfig{TxBudget: 512}}
	inBothModes(t, veth.Config{}, cfg, cfg, func(t *testing.T, r *run) {
		transmit(t, r.a.Sockets[0], r.head, r.free[:500], 0, 64)
		for i, d := range receive(t, r.b.Sockets[0], 500) {
			checkFrame(t, r.b.UMEM.Data(d), r.head, i, 64)
		}
	})
	p := lab(t, veth.Config{})
	cfg.Socket.TxBudget = 5000
	if d, err := tryOpen(&p.Ends[0], cfg); err == nil {
		d.Close()
		t.Error("a budget larger than the ring was accepted")
	}
}

func TestTransmitMetadata(t *testing.T) {
	needFeature(t, xsk.FeatureTxMetadata)
	a := xsk.Config{Memory: xsk.UMEMConfig{TxMetadata: true, SoftwareChecksum: true}}
	inBothModes(t, veth.Config{}, a, xsk.Config{}, func(t *testing.T, r *run) {
		const size, start, offset = 100, 14, 6
		addr := r.free[0] + uint64(xsk.TxMetadataLen)
		frame := r.a.UMEM.Frame(addr)[:size]
		writeFrame(frame, r.head, 0)
		frame[start+offset], frame[start+offset+1] = 0, 0
		m := r.a.UMEM.TxMetadata(addr)
		m.Reset()
		m.Checksum(start, offset)
		m.RequestTimestamp()
		s := r.a.Sockets[0]
		s.Transmit([]xsk.Desc{{Addr: addr, Len: size, Options: xsk.DescMetadata}})
		if err := s.Kick(); err != nil {
			t.Fatal(err)
		}
		got := r.b.UMEM.Data(receive(t, r.b.Sockets[0], 1)[0])
		// With its checksum in place the bytes sum up to all ones.
		if sum := onesSum(got[start:]); sum != 0xffff {
			t.Errorf("got %#x as the sum over the checksum, want 0xffff", sum)
		}
		complete(t, s, 1)
		if m.Timestamp() == 0 {
			t.Error("got no time stamp")
		}
		// A frame without the option does not look at what lies there.
		transmit(t, s, r.head, []uint64{addr}, 9, size)
		checkFrame(t, r.b.UMEM.Data(receive(t, r.b.Sockets[0], 1)[0]), r.head, 9, size)

		for _, at := range []uint64{0, 8, 4096 + 16, addr + 4, 1 << 40} {
			if !panics(func() { r.a.UMEM.TxMetadata(at) }) {
				t.Errorf("got metadata before address %#x", at)
			}
		}
		if !panics(func() { r.b.UMEM.TxMetadata(addr) }) {
			t.Error("got metadata in a UMEM without")
		}
	})
}

func onesSum(b []byte) uint32 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return sum
}
