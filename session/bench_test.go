//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

// The benchmarks put both ranks into one process, on two threads that are pinned to two cores, as those of shm do, and
// measure the driver alone in the same run: only the ratio counts.

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

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// driverPair is the driver alone, connected.
func driverPair(b *testing.B) (x, y driver.Instance) {
	var c [2]driver.Context
	d, err := driver.Lookup("shm")
	if err != nil {
		b.Fatal(err)
	}
	for i := range c {
		q, err := d.Query(driver.Hints{})
		if err != nil {
			b.Fatal(err)
		}
		if c[i], err = q.Open(driver.Attributes{}); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c[i].Close() })
	}
	x, err = c[0].Connect(c[1].URL())
	if err != nil {
		b.Fatal(err)
	}
	if y, err = c[1].Connect(c[0].URL()); err != nil {
		b.Fatal(err)
	}
	for _, i := range []driver.Instance{x, y} {
		if err := i.ConnectWait(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	return x, y
}

func pingPong(n int, ping, pong func()) time.Duration {
	other := pinned(1, func() {
		for range n {
			pong()
		}
	})
	var d time.Duration
	<-pinned(0, func() {
		start := time.Now()
		for range n {
			ping()
		}
		d = time.Since(start)
	})
	<-other
	return d / time.Duration(2*n)
}

func driverTrip(b *testing.B, i driver.Instance, size int, first bool) func() {
	s, r := &driver.Packet{IOV: [][]byte{make([]byte, size)}}, &driver.Packet{IOV: [][]byte{make([]byte, size)}}
	send := func() {
		if err := i.SendPost(s); err != nil {
			b.Error(err)
		}
		for {
			if done, _ := i.SendPoll(s); done {
				return
			}
		}
	}
	receive := func() {
		if err := i.RecvPost(r); err != nil {
			b.Error(err)
		}
		for {
			if done, _ := i.RecvPoll(r); done {
				return
			}
		}
	}
	if first {
		return func() { send(); receive() }
	}
	return func() { receive(); send() }
}

func sessionTrip(b *testing.B, g *session.Gate, size int, first bool) func() {
	ctx := context.Background()
	buf, in := make([]byte, size), make([]byte, size)
	send := func() {
		if err := g.Send(ctx, 1, buf); err != nil {
			b.Error(err)
		}
	}
	receive := func() {
		if _, err := g.Recv(ctx, 1, in); err != nil {
			b.Error(err)
		}
	}
	if first {
		return func() { send(); receive() }
	}
	return func() { receive(); send() }
}

func benchmarkLatency(b *testing.B, size int) {
	if runtime.NumCPU() < 2 {
		b.Skip("needs two cores")
	}
	s := joinAll(b, 2, nil)
	x, y := driverPair(b)
	dx, dy := driverTrip(b, x, size, true), driverTrip(b, y, size, false)
	sx, sy := sessionTrip(b, s[0].Gate(1), size, true), sessionTrip(b, s[1].Gate(0), size, false)
	const trips = 20000
	pingPong(trips, sx, sy)
	var times, ratios, below []float64
	for range 15 {
		before := pingPong(trips, dx, dy)
		t := pingPong(trips, sx, sy)
		after := pingPong(trips, dx, dy)
		below = append(below, float64(before+after)/2)
		times = append(times, float64(t))
		ratios = append(ratios, 2*float64(t)/float64(before+after))
	}
	for b.Loop() {
		pingPong(1000, sx, sy)
	}
	b.ReportMetric(median(times), "ns/half")
	b.ReportMetric(median(below), "driver-ns/half")
	b.ReportMetric(median(ratios), "×driver")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkLatency8(b *testing.B)    { benchmarkLatency(b, 8) }
func BenchmarkLatency1024(b *testing.B) { benchmarkLatency(b, 1024) }
func BenchmarkLatency4096(b *testing.B) { benchmarkLatency(b, 4096) }

// BenchmarkOverhead is what a message costs beside its way between cores: a rank
// sends to itself.
func BenchmarkOverhead(b *testing.B) {
	s := joinAll(b, 1, nil)
	trip := sessionTrip(b, s[0].Gate(0), 8, true)
	for range 1000 {
		trip()
	}
	b.ReportAllocs()
	for b.Loop() {
		trip()
	}
}
