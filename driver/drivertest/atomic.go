package drivertest

import (
	"errors"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

func itoa(n int) string { return strconv.Itoa(n) }

// after is what an atomic makes of a value.
func after(op *driver.Op, old uint64) uint64 {
	v := op.Operand
	switch op.Atomic {
	case driver.Add:
		v = old + op.Operand
	case driver.And:
		v = old & op.Operand
	case driver.Or:
		v = old | op.Operand
	case driver.Xor:
		v = old ^ op.Operand
	case driver.CompareSwap:
		if old != op.Compare {
			v = old
		}
	}
	if op.Size == 4 {
		return uint64(uint32(v))
	}
	return v
}

func (e *end) atomics(size int) (all, fetch driver.AtomicSet) {
	o := e.caps.OneSided
	if size == 4 {
		return o.Atomics32, o.Fetch32
	}
	return o.Atomics64, o.Fetch64
}

func checkAtomics(e *end) {
	r := e.target(shared{4096, allAccess, false}, shared{4096, allAccess, true})
	rnd := e.rand(2)
	for _, size := range []int{4, 8} {
		all, fetch := e.atomics(size)
		for a := driver.Add; a <= driver.CompareSwap; a++ {
			for region := range 2 {
				e.tryAtomic(r, region, size, a, all.Has(a), false, rnd.Uint64())
				e.tryAtomic(r, region, size, a, fetch.Has(a), true, rnd.Uint64())
			}
		}
	}
	bad := &driver.Op{Atomic: driver.CompareSwap + 1, Size: 8, Remote: r.regs[0]}
	e.wantErr("an unknown atomic", r.c.do(r.one.AtomicPost, bad), driver.ErrUnsupported)
	r.end()
}

// tryAtomic does one atomic on the word at 64, whatever is there, and checks
// the words before and after.
func (e *end) tryAtomic(r *remote, region, size int, a driver.AtomicOp, has, fetch bool, x uint64) {
	e.Helper()
	const off = 64
	mask := ^uint64(0)
	if size == 4 {
		mask = 1<<32 - 1
	}
	for _, hit := range []bool{true, false} { // of the comparison
		old, before, next := r.load(region, off), r.load(region, off-8), r.load(region, off+8)
		op := &driver.Op{Atomic: a, Size: size, Operand: x & mask, Compare: old & mask, Fetch: fetch, Remote: r.regs[region], Offset: off}
		if !hit {
			op.Compare ^= 1
		}
		err := r.c.do(r.one.AtomicPost, op)
		if !has {
			e.wantErr(a.String()+" that is not announced", err, driver.ErrUnsupported)
			return
		}
		e.noErr(a.String(), err)
		want := old&^mask | after(op, old&mask)
		if got := r.load(region, off); got != want {
			e.Errorf("%d-bit %s of %#x, operand %#x, compare %#x: got %#x, want %#x", 8*size, a, old, op.Operand, op.Compare, got, want)
		}
		if fetch && op.Result != old&mask {
			e.Errorf("%d-bit fetching %s: old value %#x, want %#x", 8*size, a, op.Result, old&mask)
		}
		if r.load(region, off-8) != before || r.load(region, off+8) != next {
			e.Errorf("%d-bit %s changed a neighbour", 8*size, a)
		}
	}
}

func checkAlignment(e *end) {
	r := e.target(shared{4096, allAccess, true})
	o := e.caps.OneSided
	for _, size := range []int{4, 8} {
		if all, _ := e.atomics(size); !all.Has(driver.Add) {
			continue
		}
		for off := 1; off < size; off++ {
			op := &driver.Op{Atomic: driver.Add, Size: size, Operand: 1, Remote: r.regs[0], Offset: 64 + off}
			e.wantErr("atomic of "+itoa(size)+" bytes at 64+"+itoa(off), r.c.do(r.one.AtomicPost, op), driver.ErrAlignment)
		}
	}
	for _, size := range []int{0, 1, 2, 3, 16, -8} {
		op := &driver.Op{Atomic: driver.Add, Size: size, Operand: 1, Remote: r.regs[0]}
		if err := r.c.do(r.one.AtomicPost, op); !errors.Is(err, driver.ErrInvalid) && !errors.Is(err, driver.ErrUnsupported) {
			e.Errorf("atomic of %d bytes: got %v, want %v", size, err, driver.ErrInvalid)
		}
	}
	if o.Put && o.PutAlignment > 1 {
		e.wantErr("misaligned put", r.put(make([]byte, o.PutAlignment), 0, 1), driver.ErrAlignment)
	}
	r.order(order{Do: "clear"})
	r.end()
}

// roleAdder adds to the test's words.
var roleAdder = role("adder", func(e *end) {
	var n int
	e.args(&n)
	c := e.parent.connectPeer()
	one := c.i.(driver.OneSided)
	var key []byte
	e.parent.recvNote("key", &key)
	reg, err := one.Import(key)
	e.noErr("import", err)
	for k := range n {
		for w, size := range []int{8, 4} {
			all, fetch := e.atomics(size)
			switch {
			case all.Has(driver.Add) && (k%2 == 0 || !all.Has(driver.CompareSwap) || !fetch.Has(driver.CompareSwap)):
				op := &driver.Op{Atomic: driver.Add, Size: size, Operand: 1, Fetch: fetch.Has(driver.Add), Remote: reg, Offset: 8 * w}
				e.noErr("add", c.do(one.AtomicPost, op))
			case fetch.Has(driver.CompareSwap):
				c.addBySwap(one, reg, size, 8*w)
			}
		}
	}
	e.parent.sendNote("added", nil)
})

// addBySwap adds one by compare-and-swap.
func (c *conn) addBySwap(one driver.OneSided, reg driver.RemoteRegion, size, off int) {
	var guess uint64
	for {
		op := &driver.Op{Atomic: driver.CompareSwap, Size: size, Operand: guess + 1, Compare: guess, Fetch: true, Remote: reg, Offset: off}
		c.e.noErr("compare-and-swap", c.do(one.AtomicPost, op))
		if op.Result == guess {
			return
		}
		guess = op.Result
	}
}

func checkAtomicSum(e *end) {
	const adders = 3
	n := e.times(1000, 300)
	if raceEnabled {
		n = 200
	}
	var ps []*peer
	for range adders {
		p, _ := e.pair(roleAdder, n)
		ps = append(ps, p)
	}
	r := e.register(shared{4096, driver.RemoteAtomic, true})
	wide, narrow := (*uint64)(unsafe.Pointer(&r.Bytes()[0])), (*uint32)(unsafe.Pointer(&r.Bytes()[8]))
	atomic.StoreUint64(wide, 0)
	atomic.StoreUint32(narrow, 0)
	for _, p := range ps {
		p.sendNote("key", r.Key())
	}
	want := uint64(adders * n)
	if e.caps.OneSided.AtomicWithCPU {
		want += uint64(n)
		for k := range n {
			atomic.AddUint64(wide, 1)
			atomic.AddUint32(narrow, 1)
			if k%8 == 0 { // spread over the time that the others take
				time.Sleep(50 * time.Microsecond)
			}
			runtime.Gosched()
		}
	}
	for _, p := range ps {
		p.recvNote("added", nil)
		p.join()
	}
	for _, size := range []int{8, 4} {
		got := atomic.LoadUint64(wide)
		if size == 4 {
			got = uint64(atomic.LoadUint32(narrow))
		}
		if all, _ := e.atomics(size); all.Has(driver.Add) && got != want {
			e.Errorf("%d processes added %d to a %d-bit word: sum is %d, want %d", adders+1, n, 8*size, got, want)
		}
	}
	e.deregister(r)
}
