//go:build linux

package attack

import (
	"bytes"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Holdings are the resources that a process has from the kernel and the runtime.
type Holdings struct {
	FDs, Maps, Goroutines, Threads int
	Heap                           int // MiB in use
}

func held() (h Holdings) {
	fds, _ := os.ReadDir("/proc/self/fd")
	maps, _ := os.ReadFile("/proc/self/maps")
	threads, _ := os.ReadDir("/proc/self/task")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h = Holdings{len(fds), bytes.Count(maps, []byte("memfd:")), runtime.NumGoroutine(), len(threads), int(m.HeapAlloc >> 20)}
	return h
}

// Settled returns the holdings of this process after a garbage collection.
func Settled() Holdings {
	runtime.GC()
	return held()
}

// Left checks that descriptors, mappings, goroutines and heap are back at their numbers before.
func Left(tb testing.TB, when string, before Holdings) {
	tb.Helper()
	const heapSlack, goSlack = 16, 2 // kept by timers and pools
	var now Holdings
	for end := time.Now().Add(MaxWait); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		now = Settled()
		if now.FDs <= before.FDs && now.Maps <= before.Maps && now.Goroutines <= before.Goroutines+goSlack && now.Heap <= before.Heap+heapSlack {
			return
		}
	}
	b := make([]byte, 1<<16)
	tb.Errorf("%s there are %+v, want at most %+v\n%s", when, now, before, b[:runtime.Stack(b, true)])
}

// Await waits until f returns true, and fails the test after MaxWait.
func Await(tb testing.TB, what string, f func() bool) {
	tb.Helper()
	for end := time.Now().Add(MaxWait); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if f() {
			return
		}
	}
	b := make([]byte, 1<<18)
	tb.Fatalf("not within %v: %s\n%s", MaxWait, what, b[:runtime.Stack(b, true)])
}

// Peak returns the most that this process holds while f runs.
func Peak(f func()) (most Holdings) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			now := held()
			most.FDs, most.Maps = max(most.FDs, now.FDs), max(most.Maps, now.Maps)
			most.Goroutines, most.Threads = max(most.Goroutines, now.Goroutines), max(most.Threads, now.Threads)
			most.Heap = max(most.Heap, now.Heap)
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	f()
	close(stop)
	wg.Wait()
	return most
}

// Within checks that h is at most more than before; a bound of 0 is none.
func (h Holdings) Within(tb testing.TB, before, more Holdings) {
	tb.Helper()
	for _, x := range []struct {
		what            string
		got, was, bound int
	}{
		{"descriptors", h.FDs, before.FDs, more.FDs}, {"mappings", h.Maps, before.Maps, more.Maps},
		{"goroutines", h.Goroutines, before.Goroutines, more.Goroutines}, {"threads", h.Threads, before.Threads, more.Threads},
		{"MiB of heap", h.Heap, before.Heap, more.Heap},
	} {
		if x.bound > 0 && x.got > x.was+x.bound {
			tb.Errorf("during the attack there were %d %s, before it %d: want at most %d more", x.got, x.what, x.was, x.bound)
		}
	}
}
