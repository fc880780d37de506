//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"runtime"
	"testing"
	"unsafe"
)

var global [2 * 4096]byte

// grow makes the goroutine's stack grow, which moves it.
//
//go:noinline
func grow(depth int) byte {
	var frame [1024]byte
	frame[depth%len(frame)] = 1
	if depth == 0 {
		return frame[0]
	}
	return grow(depth-1) + frame[depth%len(frame)]
}

// onFreshStack runs f on a goroutine whose stack is as small as it can be.
func onFreshStack(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// Memory stays at its address from Acquire to Release wherever the program has it: the device writes into what the
// program reads, after the stack has moved and the heap has been collected.
func TestPinnedMemoryStays(t *testing.T) {
	d := newDMA(t)
	c := New(d, Config{})
	defer closeCache(t, c)
	check := func(t *testing.T, b []byte) {
		t.Helper()
		r := mustAcquire(t, c, b, 1)
		defer r.Release()
		grow(1000)
		collect()
		if err := d.check(r, b, 3); err != nil {
			t.Error(err)
		}
	}
	for name, f := range map[string]func(t *testing.T){
		"local variable": func(t *testing.T) {
			var local [512]byte
			check(t, local[:])
		},
		"small object":      func(t *testing.T) { check(t, make([]byte, 3)) },
		"inside of a slice": func(t *testing.T) { check(t, make([]byte, 3*page)[page+5:][:page]) },
		"field":             func(t *testing.T) { check(t, new(struct{ a, b [100]byte }).b[:]) },
		"global":            func(t *testing.T) { check(t, global[100:][:page]) },
		"mapping":           func(t *testing.T) { check(t, mapping(t, 2*page)[7:][:page]) },
	} {
		t.Run(name, func(t *testing.T) { onFreshStack(func() { f(t) }) })
	}
}

// runtime.Pinner accepts a pointer into a stack without a word, and the stack moves all the same: escape analysis alone
// keeps stack memory out of a cache, and uintptr deceives it. doc.go warns of that.
func TestPinnerDoesNotHoldStacks(t *testing.T) {
	onFreshStack(func() {
		var local [64]byte
		before := uintptr(unsafe.Pointer(&local))
		var pin runtime.Pinner
		pin.Pin(*(*unsafe.Pointer)(unsafe.Pointer(&before))) // no error, no panic
		grow(1000)
		if after := uintptr(unsafe.Pointer(&local)); after == before {
			t.Errorf("the variable is at %#x as before: the stack did not move, or the variable is not on it", after)
		}
		pin.Unpin()
	})
}

// A region of a few bytes keeps the whole object, and two regions of one object keep it until both are released.
func TestInteriorPointerKeepsTheObject(t *testing.T) {
	c := newCache(t, newDevice(), Config{})
	first, second, freed := acquireInside(t, c)
	for _, r := range []*Region[int]{first, second} {
		collect()
		collect()
		select {
		case <-freed:
			t.Fatal("the object was freed while a part of it was registered")
		default:
		}
		r.Release()
	}
	waitFreed(t, freed)
}

//go:noinline
func acquireInside(t *testing.T, c *Cache[int]) (first, second *Region[int], freed chan struct{}) {
	b := make([]byte, heapBuffer)
	freed = make(chan struct{})
	runtime.AddCleanup(&b[0], func(freed chan struct{}) { close(freed) }, freed)
	return mustAcquire(t, c, b[heapBuffer-1:], 1), mustAcquire(t, c, b[1000:][:10], 1), freed
}
