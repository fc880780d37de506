//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// The benchmarks put both ends into one process, on two threads that are pinned to two cores, so that Go's allocation
// counts cover both. The limits of the machine are measured in the same run, around each measurement, because the cores
// of a virtual machine change distance within seconds; the result is the median of the ratios. bywash perf and
// hack/peers measure between processes.

// pinned runs f on a thread of its own that stays on one core.
func pinned(cpu int, f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		var set unix.CPUSet
		set.Set(cpu)
		_ = unix.SchedSetaffinity(0, &set)
		f()
	}()
	return done
}

func needCores(b *testing.B) {
	if runtime.NumCPU() < 2 {
		b.Skip("needs two cores")
	}
}

// lineLimit is half the time in which one cache line goes there and back.
func lineLimit(n uint64) time.Duration {
	lines := new([4][64]byte)
	x, y := (*uint64)(unsafe.Pointer(&lines[0])), (*uint64)(unsafe.Pointer(&lines[2]))
	other := pinned(1, func() {
		for i := uint64(1); i <= n; i++ {
			for load64(x) != i {
			}
			atomicStore(y, i)
		}
	})
	var d time.Duration
	<-pinned(0, func() {
		start := time.Now()
		for i := uint64(1); i <= n; i++ {
			atomicStore(x, i)
			for load64(y) != i {
			}
		}
		d = time.Since(start)
	})
	<-other
	return d / time.Duration(2*n)
}

func atomicStore(p *uint64, v uint64) { store64(p, v) }

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// pingPong does n round trips and returns half of one.
func pingPong(b *testing.B, x, y driver.Instance, size, n int) time.Duration {
	buf := func() [][]byte { return [][]byte{make([]byte, size)} }
	sx, rx := &driver.Packet{IOV: buf()}, &driver.Packet{IOV: buf()}
	sy, ry := &driver.Packet{IOV: buf()}, &driver.Packet{IOV: buf()}
	other := pinned(1, func() {
		for range n {
			receive1(b, y, ry)
			send1(b, y, sy)
		}
	})
	var d time.Duration
	<-pinned(0, func() {
		start := time.Now()
		for range n {
			send1(b, x, sx)
			receive1(b, x, rx)
		}
		d = time.Since(start)
	})
	<-other
	return d / time.Duration(2*n)
}

func send1(b *testing.B, i driver.Instance, p *driver.Packet) {
	for {
		err := i.SendPost(p)
		if err == nil {
			break
		}
		if err != driver.ErrBusy {
			b.Error(err)
			return
		}
	}
	for {
		if done, err := i.SendPoll(p); done {
			if err != nil {
				b.Error(err)
			}
			return
		}
	}
}

func receive1(b *testing.B, i driver.Instance, p *driver.Packet) {
	if err := i.RecvPost(p); err != nil {
		b.Error(err)
		return
	}
	for {
		if done, err := i.RecvPoll(p); done {
			if err != nil {
				b.Error(err)
			}
			return
		}
	}
}

func benchmarkLatency(b *testing.B, size int) {
	needCores(b)
	x, y := pair(b, driver.Small, nil)
	const trips, rounds = 20000, 15
	var ratios, times []float64
	pingPong(b, x, y, size, trips)
	for range rounds {
		before := lineLimit(trips)
		t := pingPong(b, x, y, size, trips)
		after := lineLimit(trips)
		ratios = append(ratios, 2*float64(t)/float64(before+after))
		times = append(times, float64(t))
	}
	for b.Loop() {
		pingPong(b, x, y, size, 1000)
	}
	b.ReportMetric(median(times), "ns/half")
	b.ReportMetric(median(ratios), "×line")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkLatency8(b *testing.B)    { benchmarkLatency(b, 8) }
func BenchmarkLatency64(b *testing.B)   { benchmarkLatency(b, 64) }
func BenchmarkLatency1024(b *testing.B) { benchmarkLatency(b, 1024) }
func BenchmarkLatency4096(b *testing.B) { benchmarkLatency(b, 4096) }

func BenchmarkRate8(b *testing.B) {
	needCores(b)
	x, y := pair(b, driver.Small, nil)
	const n = 1 << 20
	run := func() float64 {
		other := pinned(1, func() {
			p := &driver.Packet{IOV: [][]byte{make([]byte, 8)}}
			for range n {
				send1(b, x, p)
			}
		})
		var d time.Duration
		<-pinned(0, func() {
			p := &driver.Packet{IOV: [][]byte{make([]byte, 8)}}
			start := time.Now()
			for range n {
				receive1(b, y, p)
			}
			d = time.Since(start)
		})
		<-other
		return n / d.Seconds() / 1e6
	}
	var rates []float64
	for range 9 {
		rates = append(rates, run())
	}
	b.ReportMetric(median(rates), "M/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkOverhead is what a message costs beside its way between cores: one
// thread sends to itself.
func BenchmarkOverhead(b *testing.B) {
	c := open(b, driver.Small, nil)
	i, err := c.Connect(c.URL())
	if err != nil {
		b.Fatal(err)
	}
	if err := i.ConnectWait(b.Context()); err != nil {
		b.Fatal(err)
	}
	s := &driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	r := &driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	b.ReportAllocs()
	for b.Loop() {
		send1(b, i, s)
		receive1(b, i, r)
	}
}
