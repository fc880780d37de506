//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/internal/lab/veth"
	"github.com/bywash/bywash/session"
)

// shapedRate is what a rail of BenchmarkTwoRails carries at most, in bytes of frames a second: so little that both
// rails together leave processors idle.
const shapedRate = 20e6

// BenchmarkTwoRails measures long messages over one rail and over two of its kind, in turn: afxdp over paths of a
// limited rate. It also reports how busy the processors were, because they limit the speed of two rails.
func BenchmarkTwoRails(b *testing.B) {
	const queue = 450 // frames, of a fifth of a second
	shape := veth.Config{Box: &veth.Box{Rate: shapedRate, Queue: queue}, MTU: 9000, NoIPv6: true}
	one, other := vethRails(b, shape), vethRails(b, shape)
	alone := vethRails(b, shape)
	join := func(rails [2][]session.Rail) []*session.Session {
		s := joinAll(b, 2, func(rank int, c *session.Config) { c.Rails = rails[rank] })
		stream(b, s) // connects, and fills buckets and caches
		return s
	}
	single := join(alone)
	double := join([2][]session.Rail{append(one[0], other[0]...), append(one[1], other[1]...)})
	var rate [2][]float64
	var busy [2][]float64
	var ratio []float64
	for range 7 {
		for k, s := range [][]*session.Session{single, double} {
			busyBefore, allBefore := processors(b)
			d := stream(b, s)
			busyAfter, all := processors(b)
			rate[k] = append(rate[k], streamBytes/d.Seconds()/1e6)
			busy[k] = append(busy[k], 100*(busyAfter-busyBefore)/max(1, all-allBefore))
		}
		last := len(rate[0]) - 1
		ratio = append(ratio, rate[1][last]/rate[0][last])
	}
	for b.Loop() { // it is the rounds above that count
	}
	b.ReportMetric(median(rate[0]), "MB/s-one")
	b.ReportMetric(median(rate[1]), "MB/s-two")
	b.ReportMetric(median(ratio), "×one")
	b.ReportMetric(median(busy[0]), "%CPU-one")
	b.ReportMetric(median(busy[1]), "%CPU-two")
	b.ReportMetric(0, "ns/op")
}

const (
	streamMessages = 8
	streamSize     = 4 << 20
	streamBytes    = streamMessages * streamSize
)

// stream sends long messages from rank 0 to rank 1, all at once, and returns how long they took.
func stream(b *testing.B, s []*session.Session) time.Duration {
	ctx := deadline(b)
	start := time.Now()
	var wg sync.WaitGroup
	all := func(begin func(tag uint64, buf []byte) (*session.Request, error)) {
		var requests [streamMessages]*session.Request
		for k := range requests {
			var err error
			if requests[k], err = begin(uint64(k), make([]byte, streamSize)); err != nil {
				b.Error(err)
			}
		}
		for _, r := range requests {
			if r == nil {
				continue
			}
			if _, err := r.Wait(ctx); err != nil {
				b.Error(err)
			}
		}
	}
	wg.Go(func() { all(s[0].Gate(1).Isend) })
	wg.Go(func() { all(s[1].Gate(0).Irecv) })
	wg.Wait()
	return time.Since(start)
}

// processors is how long this machine's processors have been busy, and have been at all, in ticks. Frames
// travel at the kernel's expense, so what this process has used is not all of it.
func processors(b *testing.B) (busy, all float64) {
	b.Helper()
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.Fatal(err)
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	for k, f := range strings.Fields(line)[1:] {
		n, err := strconv.ParseFloat(f, 64)
		if err != nil || k >= 8 { // guests are counted before
			break
		}
		all += n
		if k != 3 && k != 4 { // idle, and idle with I/O under way
			busy += n
		}
	}
	return busy, all
}
