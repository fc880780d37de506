//go:build linux

package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
)

// oneSided holds a case of put, get or an atomic: a target, which the other side accesses, and slots with the local
// memory.
type oneSided struct {
	c        bench.Case
	put, get bool // else an atomic
	inst     driver.OneSided
	stop     *bench.Stopper
	target   []byte
	region   driver.Region // the target
	local    driver.Region // around the slots
	slots    ring          // one slot in tests of latency
	head     driver.Op     // all but the last word, in put-lat
	remote   driver.RemoteRegion
	value    uint64 // of the atomics' target; messages so far, in put-lat
}

// oneSidedTrack returns the track whose context has one-sided access.
func (l *link) oneSidedTrack() (driver.Registrar, driver.OneSided, *driver.OneSidedCapabilities) {
	for _, t := range []struct {
		context driver.Context
		inst    driver.Instance
		caps    *driver.OneSidedCapabilities
	}{{l.large, l.li, l.lcaps.OneSided}, {l.small, l.si, l.scaps.OneSided}} {
		r, ok1 := t.context.(driver.Registrar)
		o, ok2 := t.inst.(driver.OneSided)
		if t.caps != nil && ok1 && ok2 {
			return r, o, t.caps
		}
	}
	return nil, nil, nil
}

func (l *link) checkOneSided(c *bench.Case) error {
	_, _, caps := l.oneSidedTrack()
	if caps == nil {
		return bench.Skipf("%s has no one-sided access", l.s.Driver)
	}
	align, most, has := 1, c.Size, true
	switch c.Test {
	case bench.PutLat, bench.PutBW:
		align, most, has = caps.PutAlignment, caps.MaxPut, caps.Put
	case bench.GetLat, bench.GetBW:
		align, most, has = caps.GetAlignment, caps.MaxGet, caps.Get
	case bench.FaddLat:
		has = caps.Atomics64.Has(driver.Add) && caps.Fetch64.Has(driver.Add)
	case bench.CswapLat:
		has = caps.Atomics64.Has(driver.CompareSwap) && caps.Fetch64.Has(driver.CompareSwap)
	}
	atomics := c.Test == bench.FaddLat || c.Test == bench.CswapLat
	switch {
	case !has:
		return bench.Skipf("%s cannot do %s", l.s.Driver, c.Test)
	case c.Size > most:
		return bench.Skipf("%s: at most %d bytes an operation", l.s.Driver, most)
	case align > 1 && c.Size%align != 0:
		return bench.Skipf("%s: sizes must be multiples of %d", l.s.Driver, align)
	case atomics && caps.AtomicArenaOnly && !c.Arena():
		return bench.Skipf("%s does remote atomics in arenas only: use --mem arena", l.s.Driver)
	}
	return nil
}

func (l *link) prepareOneSided() (key []byte, err error) {
	reg, inst, caps := l.oneSidedTrack()
	x := &oneSided{c: l.c, inst: inst, put: l.c.Test == bench.PutLat || l.c.Test == bench.PutBW}
	x.get = l.c.Test == bench.GetLat || l.c.Test == bench.GetBW
	w := 1
	if !bench.InfoOf(l.c.Test).Latency {
		w = bench.Window(l.c.Size, caps.Depth)
	}
	near, area, err := l.alloc(1, w*lines(l.c.Size))
	if err != nil {
		return nil, err
	}
	x.stop, x.target = l.s.Stop, area[0]
	access := driver.RemoteRead | driver.RemoteWrite
	if !x.put && !x.get {
		access |= driver.RemoteAtomic
	}
	if x.region, err = reg.Register(x.target, access); err != nil {
		return nil, err
	}
	l.one = x // from here on finish cleans up
	if x.local, err = reg.Register(near[0], 0); err != nil {
		return nil, err
	}
	clear(x.target)
	if x.get {
		for i, b := range carve(x.target, w, l.c.Size) {
			bench.Fill(b, uint64(i))
		}
	}
	x.slots = slots(carve(near[0], w, l.c.Size))
	return x.region.Key(), nil
}

func (x *oneSided) start(key []byte) error {
	var err error
	if x.remote, err = x.inst.Import(key); err != nil {
		return err
	}
	for i := range x.slots {
		s := &x.slots[i]
		s.op = driver.Op{Local: s.buf, LocalRegion: x.local, Remote: x.remote, Offset: i * lines(x.c.Size)}
	}
	op, n := &x.slots[0].op, x.c.Size
	switch x.c.Test {
	case bench.FaddLat:
		op.Size, op.Fetch, op.Atomic, op.Operand = 8, true, driver.Add, 1
	case bench.CswapLat:
		op.Size, op.Fetch, op.Atomic = 8, true, driver.CompareSwap
	case bench.PutLat:
		cut := max(0, n-8)
		if cut == 0 && n&(n-1) != 0 {
			cut = n - 1
		}
		x.head = *op
		x.head.Local, op.Local, op.Offset = op.Local[:cut], op.Local[cut:], cut
	}
	return nil
}

func (x *oneSided) finish() error {
	var err error
	for _, r := range []driver.Region{x.local, x.region} {
		if r != nil {
			err = errors.Join(err, x.stop.RetryBusy(r.Deregister))
		}
	}
	return err
}

func (x *oneSided) run(j *bench.Round) error {
	begin := time.Now()
	switch {
	case j.Test == bench.PutLat:
		err := x.pingPong(j)
		x.value += uint64(j.N)
		return err
	case !j.Lead:
		return nil // passive
	case bench.InfoOf(j.Test).Latency:
		err := j.Batches(func(from, to uint64) error { return x.single(j, from, to) })
		if err != nil || !j.Validate || x.get {
			return err
		}
		return j.Inspect(x.value, 0)
	}
	err := x.stream(j)
	j.Elapsed = time.Since(begin)
	return err
}

// await waits until an operation is done.
func (x *oneSided) await(j *bench.Round, op *driver.Op, sp *bench.Spinner) error {
	for {
		done, err := x.inst.OpPoll(op)
		if done || err != nil {
			return err
		}
		if j.Blocking() {
			if err := x.inst.Flush(j.Stop.Ctx); err != nil {
				return j.Stop.Why(err)
			}
			continue
		}
		if err := sp.Miss(); err != nil {
			return err
		}
	}
}

// single does one operation after the other.
func (x *oneSided) single(j *bench.Round, from, to uint64) error {
	s, sp := &x.slots[0], j.Spinner()
	for i := from; i < to; i++ {
		if err := x.post(j, s, int(i)); err != nil {
			return err
		}
		if err := x.await(j, &s.op, &sp); err != nil {
			return err
		}
		if err := x.check(j, s, int(i)); err != nil {
			return err
		}
	}
	return nil
}

// stream keeps a window of operations on their way.
func (x *oneSided) stream(j *bench.Round) error {
	sp := j.Spinner()
	w, checks := len(x.slots), x.put && j.Validate
	for sent, tail := 0, 0; tail < j.N; {
		// Puts must not be overwritten before they are checked.
		if sent < j.N && sent-tail < w && (!checks || sent < (tail/w+1)*w) {
			err := x.post(j, &x.slots[sent%w], sent)
			if err == nil {
				sent++
				continue
			}
			if err != driver.ErrBusy || sent == tail {
				return err
			}
		}
		s := &x.slots[tail%w]
		if err := x.await(j, &s.op, &sp); err != nil {
			return err
		}
		if err := x.check(j, s, tail); err != nil {
			return err
		}
		tail++
		if checks && (tail%w == 0 || tail == j.N) {
			first := (tail - 1) / w * w
			if err := j.Inspect(uint64(first), tail-first); err != nil {
				return err
			}
		}
	}
	return nil
}

// post posts operation i.
func (x *oneSided) post(j *bench.Round, s *slot, i int) error {
	switch {
	case x.put:
		if j.Validate {
			bench.Fill(s.buf, uint64(i))
		}
		return x.inst.PutPost(&s.op)
	case x.get:
		if j.Validate {
			clear(s.buf)
		}
		return x.inst.GetPost(&s.op)
	case j.Test == bench.CswapLat:
		s.op.Compare, s.op.Operand = x.value, x.value+1
	}
	return x.inst.AtomicPost(&s.op)
}

// check checks the result of operation i, which is done.
func (x *oneSided) check(j *bench.Round, s *slot, i int) error {
	switch {
	case x.get && j.Validate:
		return bench.Verify(s.buf, uint64(i%len(x.slots)))
	case x.get || x.put:
		return nil
	case s.op.Result != x.value:
		return fmt.Errorf("atomic %d returned %d: the operation was lost or done twice", x.value, s.op.Result)
	}
	x.value++
	return nil
}

// inspect checks that the target holds messages seq to seq+n-1.
func (x *oneSided) inspect(seq uint64, n int) error {
	if !x.put && !x.get {
		if got := binary.NativeEndian.Uint64(x.target); got != seq {
			return fmt.Errorf("validation failed: the target of the atomics is %d, want %d", got, seq)
		}
		return nil
	}
	return inspect(carve(x.target, len(x.slots), x.c.Size), seq, n)
}

// pingPong bounces a put: each side sees the other's in its own memory. The last byte is the flag; if a message is
// longer than a word, a fence orders its last word after the rest.
func (x *oneSided) pingPong(j *bench.Round) error {
	sp := j.Spinner()
	return j.Batches(func(from, to uint64) error {
		for i := 2 * from; i < 2*to; i++ {
			var err error
			if (i%2 == 0) == j.Lead {
				err = x.throw(j, i/2, &sp)
			} else {
				err = x.watch(j, i/2, &sp)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// flag returns the flag of message seq, which differs from that of the message before and from cleared memory. Rounds
// use the same memory, so the numbers go on.
func (x *oneSided) flag(seq uint64) byte { return byte((x.value+seq)%255) + 1 }

// throw puts message seq.
func (x *oneSided) throw(j *bench.Round, seq uint64, sp *bench.Spinner) error {
	s := &x.slots[0]
	if j.Validate {
		bench.Fill(s.buf, seq)
	}
	s.buf[len(s.buf)-1] = x.flag(seq)
	split := len(x.head.Local) > 0
	if split {
		if err := x.inst.PutPost(&x.head); err != nil {
			return err
		}
		if err := x.inst.Fence(); err != nil {
			return err
		}
	}
	if err := x.inst.PutPost(&s.op); err != nil {
		return err
	}
	if split {
		if err := x.await(j, &x.head, sp); err != nil {
			return err
		}
	}
	return x.await(j, &s.op, sp)
}

// watch waits for message seq.
func (x *oneSided) watch(j *bench.Round, seq uint64, sp *bench.Spinner) error {
	at := x.c.Size - 1
	word := (*uint64)(unsafe.Pointer(&x.target[at&^7]))
	var probe [8]byte
	for {
		binary.NativeEndian.PutUint64(probe[:], atomic.LoadUint64(word))
		if probe[at&7] == x.flag(seq) {
			break
		}
		if err := sp.Miss(); err != nil {
			return err
		}
	}
	if j.Validate {
		return bench.VerifyFlagged(x.target[:x.c.Size], seq, x.flag(seq))
	}
	return nil
}
