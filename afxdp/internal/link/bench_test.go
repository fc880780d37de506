package link

import (
	"fmt"
	"testing"
)

// wire connects two endpoints directly, so that a benchmark measures the state machine alone.
type wire struct {
	ends  [2]*wireEnd
	now   Time
	drops int
}

// wireEnd is one end: its frames, and what was sent to it.
type wireEnd struct {
	w     *wire
	n     int
	e     *Endpoint
	mem   [][]byte
	free  []uint64
	rx    [][]byte // packets that arrived, in a ring of the receiver's frames
	rxOf  []uint64
	conns []*Conn

	pieces [][]byte

	delivered int
	bytes     uint64
	placed    int
	dst, src  []byte
}

func newWire(tb testing.TB, conns int, cfg Config) *wire {
	w := &wire{now: 1 << 20}
	for n := range w.ends {
		x := &wireEnd{w: w, n: n}
		cfg.ID, cfg.Secret = uint64(n+1), []byte("the secret of all")
		if cfg.MTU == 0 {
			cfg.MTU = 1500
		}
		var err error
		if x.e, err = NewEndpoint(cfg, x, x); err != nil {
			tb.Fatal(err)
		}
		for k := range 8192 {
			x.mem = append(x.mem, make([]byte, cfg.MTU))
			x.free = append(x.free, uint64(k))
		}
		w.ends[n] = x
	}
	for range conns {
		if _, err := w.ends[0].e.Dial(w.now, 1, 2, nil, nil); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.ends[1].e.Listen(w.now, 1, 1, nil, nil); err != nil {
			tb.Fatal(err)
		}
	}
	for k := 0; len(w.ends[0].conns) < conns || len(w.ends[1].conns) < conns; k++ {
		if k > 1000*(conns+1) {
			tb.Fatal("the connections do not come up")
		}
		w.step(1e6)
	}
	return w
}

// step lets time pass and runs both ends.
func (w *wire) step(d Time) {
	w.now += d
	for _, x := range w.ends {
		x.poll()
	}
}

func (x *wireEnd) poll() {
	for k := 0; k < len(x.rx); k++ {
		id := x.rxOf[k]
		if b, unit := x.rx[k], x.e.cfg.Unit; len(b) > unit {
			x.pieces = x.pieces[:0]
			for ; len(b) > unit; b = b[unit:] {
				x.pieces = append(x.pieces, b[:unit:unit])
			}
			x.pieces = append(x.pieces, b)
			x.e.InputPieces(x.w.now, x.pieces[0], x.pieces[1:])
			x.free = append(x.free, id)
		} else if !x.e.Input(x.w.now, nil, Frame{ID: id, Data: b}) {
			x.free = append(x.free, id)
		}
	}
	x.rx, x.rxOf = x.rx[:0], x.rxOf[:0]
	x.e.Flush(x.w.now)
	if x.e.Next() <= x.w.now {
		x.e.Tick(x.w.now)
	}
}

func (x *wireEnd) Get() (Frame, bool) {
	if len(x.free) == 0 {
		return Frame{}, false
	}
	id := x.free[len(x.free)-1]
	x.free = x.free[:len(x.free)-1]
	return Frame{ID: id, Data: x.mem[id]}, true
}

func (x *wireEnd) GetLong() (Frame, bool) { return x.Get() }

func (x *wireEnd) Put(id uint64)        { x.free = append(x.free, id) }
func (x *wireEnd) Sending(uint64) bool  { return false }
func (x *wireEnd) Address(Route) []byte { return nil }

func (x *wireEnd) Send(_ Route, f Frame, n int) bool {
	y := x.w.ends[1-x.n]
	if len(y.free) == 0 {
		x.w.drops++
		return true
	}
	id := y.free[len(y.free)-1]
	y.free = y.free[:len(y.free)-1]
	copy(y.mem[id], f.Data[:n])
	y.rx, y.rxOf = append(y.rx, y.mem[id][:n]), append(y.rxOf, id)
	return true
}

func (x *wireEnd) Up(c *Conn)              { x.conns = append(x.conns, c) }
func (x *wireEnd) Down(*Conn, error)       {}
func (x *wireEnd) Gone(*Conn)              {}
func (x *wireEnd) Placed(*Conn, *Transfer) { x.placed++ }

func (x *wireEnd) Deliver(c *Conn, f Fragment) {
	x.delivered++
	x.bytes += uint64(len(f.Data))
	c.Release(f.ID)
}

func (x *wireEnd) Place(_ *Conn, p *Placement) { copy(x.dst[p.Offset:], p.Data) }

func (x *wireEnd) Fill(_ *Conn, _ *Transfer, off uint64, b []byte) { copy(b, x.src[off:]) }

// post sends a message of n bytes on each connection that has room, at most burst each.
func (x *wireEnd) post(n, burst int) (posted int) {
	for _, c := range x.conns {
		for k := min(burst, c.Room()); k > 0; k-- {
			if len(x.free) < 1024 { // for what arrives
				return posted
			}
			f, _ := x.Get()
			c.Post(x.w.now, f, n, false)
			posted++
		}
	}
	return posted
}

func each(b *testing.B, f func(b *testing.B, conns int, cfg Config)) {
	for _, conns := range []int{1, 64} {
		for _, encrypt := range []bool{false, true} {
			b.Run(fmt.Sprintf("conns=%d/encrypt=%v", conns, encrypt), func(b *testing.B) {
				f(b, conns, Config{Encrypt: encrypt})
			})
		}
	}
}

// BenchmarkOneWay is the work of both ends for an ordered message of 64 bytes,
// acknowledgements included; ns/end is half of it.
func BenchmarkOneWay(b *testing.B) {
	each(b, func(b *testing.B, conns int, cfg Config) {
		w := newWire(b, conns, cfg)
		from, to := w.ends[0], w.ends[1]
		b.ReportAllocs()
		b.ResetTimer()
		for posted := 0; posted < b.N; {
			posted += from.post(64, 32)
			w.step(2000)
		}
		for to.delivered < b.N {
			w.step(2000)
		}
		b.StopTimer()
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*to.delivered), "ns/end")
		b.ReportMetric(float64(to.e.stats.sent)/float64(to.delivered), "acks/msg")
		if w.drops > 0 || from.e.stats.Retransmits > 0 {
			b.Fatalf("%d drops, %d retransmits", w.drops, from.e.stats.Retransmits)
		}
	})
}

// BenchmarkPingPong is the work of both ends for a message there and one back.
func BenchmarkPingPong(b *testing.B) {
	each(b, func(b *testing.B, conns int, cfg Config) {
		w := newWire(b, conns, cfg)
		from, to := w.ends[0], w.ends[1]
		b.ReportAllocs()
		b.ResetTimer()
		for k := range b.N {
			c := k % conns
			w.pingPong(from.conns[c], to.conns[c])
		}
		b.StopTimer()
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(4*b.N), "ns/end")
	})
}

// pingPong sends a message there and one back.
func (w *wire) pingPong(a, b *Conn) {
	for _, c := range []*Conn{a, b} {
		x := w.ends[0]
		if c == b {
			x = w.ends[1]
		}
		y := w.ends[1-x.n]
		f, _ := x.Get()
		c.Post(w.now, f, 64, false)
		x.e.Flush(w.now)
		w.now += 1000
		for at := y.delivered; y.delivered == at; w.now += 100 {
			y.poll()
		}
	}
}

// BenchmarkPlaced is placed messages of 1 MiB over all connections in turn: the work of both ends,
// with a copy at each and one in the wire.
func BenchmarkPlaced(b *testing.B) {
	for _, mtu := range []int{1500, 9000} {
		b.Run(fmt.Sprintf("mtu=%d", mtu), func(b *testing.B) {
			each(b, func(b *testing.B, conns int, cfg Config) {
				cfg.MTU = mtu
				w := newWire(b, conns, cfg)
				from, to := w.ends[0], w.ends[1]
				from.src, to.dst = make([]byte, 1<<20), make([]byte, 1<<20)
				ts := make([]Transfer, conns)
				b.SetBytes(1 << 20)
				b.ReportAllocs()
				b.ResetTimer()
				for k := 0; k < b.N; {
					n := min(conns, b.N-k)
					for j := range n {
						ts[j].Len, ts[j].Total = 1<<20, 1<<20
						from.conns[j].Start(w.now, &ts[j])
					}
					k += n
					for from.placed < k {
						w.step(5000)
					}
				}
			})
		})
	}
}
