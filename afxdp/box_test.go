//go:build linux && !(386 || arm || mips || mipsle)

package afxdp_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
)

// BenchmarkThroughBox sends long messages one way over a path of 100 MB/s with a round-trip time and loss, beside the
// kernel's TCP over the same path. The box's own figures tell whether it was the bottleneck: frames that it lost for want of memory,
// and frames that it sent late. Its processor time is not in cpu-ns/B, which is that of the ends.
func BenchmarkThroughBox(bm *testing.B) {
	const size = 1 << 20
	for _, rtt := range []time.Duration{40 * time.Microsecond, 400 * time.Microsecond, 2 * time.Millisecond} {
		for _, loss := range []float64{0, 0.01} {
			path := veth.Config{MTU: 1500, Box: &veth.Box{Delay: rtt / 2, Loss: loss, Seed: 1, Rate: 100e6}}
			name := fmt.Sprintf("rtt=%v/loss=%v", rtt, loss)
			for _, block := range []bool{false, true} {
				kind := map[bool]string{false: "afxdp-polling/", true: "afxdp-blocking/"}[block]
				bm.Run(kind+name, func(bm *testing.B) {
					e := connected(bm, path, driver.Large, nil)
					throughBox(bm, e.pair, size, func() { stream(bm, e, size, bm.N, block) })
				})
			}
			bm.Run("tcp/"+name, func(bm *testing.B) {
				p := newPair(bm, path)
				throughBox(bm, p, size, func() { streamTCP(bm, p, size) })
			})
		}
	}
}

// throughBox is counted with what the box did meanwhile. The largest lateness is that since the box began.
func throughBox(bm *testing.B, p *veth.Pair, size int, f func()) {
	before, cpu := p.BoxStats(), p.BoxCPU()
	counted(bm, size, f)
	cpu = p.BoxCPU() - cpu
	var sum veth.BoxStats
	for k, s := range p.BoxStats() {
		sum.Lost += s.Lost - before[k].Lost
		sum.Overrun += s.Overrun - before[k].Overrun
		sum.Late += s.Late - before[k].Late
		sum.MaxLate = max(sum.MaxLate, s.MaxLate)
	}
	bm.ReportMetric(float64(cpu)/float64(size)/float64(bm.N), "box-cpu-ns/B")
	bm.ReportMetric(float64(sum.Lost)/float64(bm.N), "lost/op")
	bm.ReportMetric(float64(sum.Overrun), "overrun")
	bm.ReportMetric(float64(sum.Late)/float64(bm.N), "late/op")
	bm.ReportMetric(float64(sum.MaxLate)/1e3, "max-late-µs")
}
