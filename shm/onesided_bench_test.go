package shm

import (
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// BenchmarkPut1M writes 1 MiB into a peer's arena, against one core's memcpy.
func BenchmarkPut1M(b *testing.B) {
	needCores(b)
	const size, n = 1 << 20, 256
	cx, cy := open(b, driver.Small, nil), open(b, driver.Small, nil)
	x, _ := join(b, cx, cy)
	a, err := driver.NewArena(32 * size)
	if err != nil {
		b.Fatal(err)
	}
	region, err := cy.(driver.Registrar).Register(a.Alloc(size), driver.RemoteWrite)
	if err != nil {
		b.Fatal(err)
	}
	one := x.(driver.OneSided)
	remote, err := one.Import(region.Key())
	if err != nil {
		b.Fatal(err)
	}
	op := &driver.Op{Local: a.Alloc(size), Remote: remote}
	copy(op.Local, random(size))
	put := func() (speed float64) {
		<-pinned(0, func() {
			start := time.Now()
			for range n {
				err := one.PutPost(op)
				for done := false; err == nil && !done; {
					done, err = one.OpPoll(op)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
			speed = n * size / time.Since(start).Seconds()
		})
		return speed
	}
	put()
	var ratios, speeds []float64
	for range 9 {
		before := memcpyLimit(size, n)
		v := put()
		after := memcpyLimit(size, n)
		speeds = append(speeds, v/1e9)
		ratios = append(ratios, 2*v/(before+after))
	}
	b.ReportMetric(median(speeds), "GB/s")
	b.ReportMetric(median(ratios), "×memcpy")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkIdlePeers compares probing with 64 idle peers to probing with none.
func BenchmarkIdlePeers(b *testing.B) {
	needCores(b)
	const trips = 10000
	active, crowded := probed(b, 0), probed(b, 64)
	active(trips)
	crowded(trips)
	var ratios, times []float64
	for range 15 {
		alone := active(trips)
		many := crowded(trips)
		again := active(trips)
		times = append(times, float64(many))
		ratios = append(ratios, 2*float64(many)/float64(alone+again))
	}
	b.ReportMetric(median(times), "ns/half")
	b.ReportMetric(median(ratios), "×alone")
	b.ReportMetric(0, "ns/op")
}

// probed returns a ping-pong in which one side finds its messages by probing a
// context that has so many idle peers, too.
func probed(b *testing.B, idle int) func(n int) time.Duration {
	cx, cy := open(b, driver.Small, nil), open(b, driver.Small, nil)
	for range idle {
		join(b, cx, open(b, driver.Small, nil))
	}
	x, y := join(b, cx, cy)
	prober := cx.(driver.Prober)
	packet := func() *driver.Packet { return &driver.Packet{IOV: [][]byte{make([]byte, 8)}} }
	sx, rx, sy, ry := packet(), packet(), packet(), packet()
	return func(n int) (half time.Duration) {
		other := pinned(1, func() {
			for range n {
				receive1(b, y, ry)
				send1(b, y, sy)
			}
		})
		<-pinned(0, func() {
			start := time.Now()
			for range n {
				send1(b, x, sx)
				for {
					if i, _ := prober.RecvProbeAny(); i != nil {
						receive1(b, i, rx)
						break
					}
				}
			}
			half = time.Since(start) / time.Duration(2*n)
		})
		<-other
		return half
	}
}
