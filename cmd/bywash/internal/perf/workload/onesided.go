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
	c      bench.Case
	inst   driver.OneSided
	stop   *bench.Stopper
	target []byte
	region driver.Region // the target
	local  driver.Region // around the slots
	slots  []slot
	head   driver.Op // all but the last word, in put-lat
	remote driver.RemoteRegion
	value  uint64 // of the atomics' target; messages so far, in put-lat
}

// oneSidedTrack returns the track whose context has one-sided access.
func (l *link) oneSidedTrack() (driver.Registrar, driver.OneSided, *driver.OneSidedCapabilities) {
	if l.li != nil && l.lcaps.OneSided != nil {
		r, ok1 := l.large.(driver.Registrar)
		o, ok2 := l.li.(driver.OneSided)
		if ok1 && ok2 {
			return r, o, l.lcaps.OneSided
		}
	}
	if l.scaps.OneSided != nil {
		r, ok1 := l.small.(driver.Registrar)
		o, ok2 := l.si.(driver.OneSided)
		if ok1 && ok2 {
			return r, o, l.scaps.OneSided
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
	w := bench.Window(l.c.Size, caps.Depth)
	stride := max(bench.Line, (l.c.Size+bench.Line-1)&^(bench.Line-1))
	area, err := l.alloc(1, w*stride)
	if err != nil {
		return nil, err
	}
	near, err := l.alloc(1, w*stride)
	if err != nil {
		return nil, err
	}
	x := &oneSided{c: l.c, inst: inst, stop: l.s.Stop, target: area[0]}
	access := driver.RemoteRead | driver.RemoteWrite
	if l.c.Test == bench.FaddLat || l.c.Test == bench.CswapLat {
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
	bufs := make([][]byte, w)
	for i := range bufs {
		bufs[i] = near[0][i*stride:][:l.c.Size:l.c.Size]
		if l.c.Test == bench.GetLat || l.c.Test == bench.GetBW {
			bench.Fill(x.target[i*stride:][:l.c.Size], uint64(i))
		}
	}
	x.slots = slots(bufs)
	return x.region.Key(), nil
}

func (x *oneSided) start(key []byte) error {
	var err error
	if x.remote, err = x.inst.Import(key); err != nil {
		return err
	}
	for i := range x.slots {
		s := &x.slots[i]
		s.op = driver.Op{Local: s.buf, LocalRegion: x.local, Remote: x.remote, Offset: i * x.stride()}
	}
	return nil
}

func (x *oneSided) stride() int { return max(bench.Line, (x.c.Size+bench.Line-1)&^(bench.Line-1)) }

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
	switch {
	case j.Test == bench.PutLat:
		err := x.pingPong(j)
		x.value += uint64(j.N)
		return err
	case !j.Lead:
		return nil // passive
	case j.Test == bench.PutBW || j.Test == bench.GetBW:
		return x.stream(j)
	}
	return x.latency(j)
}

// finishOp waits until an operation is done.
func (x *oneSided) finishOp(j *bench.Round, op *driver.Op, sp *bench.Spinner) error {
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

func (x *oneSided) postGet(j *bench.Round, s *slot) error {
	if j.Validate {
		clear(s.buf)
	}
	return x.inst.GetPost(&s.op)
}

// stream keeps a window of puts or gets in flight.
func (x *oneSided) stream(j *bench.Round) error {
	sp := j.Spinner()
	put := j.Test == bench.PutBW
	begin := time.Now()
	sent, tail := 0, 0
	w := len(x.slots)
	for tail < j.N {
		// Puts must not be overwritten before they are checked.
		free := !put || !j.Validate || sent < (tail/w+1)*w
		if sent < j.N && sent-tail < w && free {
			s := &x.slots[sent%w]
			err := x.postOne(j, s, put, sent)
			if err == nil {
				sent++
				continue
			}
			if err != driver.ErrBusy || sent == tail {
				return err
			}
		}
		s := &x.slots[tail%w]
		if err := x.finishOp(j, &s.op, &sp); err != nil {
			return err
		}
		if !put && j.Validate {
			if err := bench.Verify(s.buf, uint64(tail%w)); err != nil {
				return err
			}
		}
		tail++
		if put && j.Validate && (tail%w == 0 || tail == j.N) {
			first := (tail - 1) / w * w
			if err := j.Inspect(uint64(first), tail-first); err != nil {
				return err
			}
		}
	}
	j.Elapsed = time.Since(begin)
	return nil
}

// postOne posts operation i.
func (x *oneSided) postOne(j *bench.Round, s *slot, put bool, i int) error {
	if !put {
		return x.postGet(j, s)
	}
	if j.Validate {
		bench.Fill(s.buf, uint64(i))
	}
	return x.inst.PutPost(&s.op)
}

// inspect checks that the target holds messages seq to seq+n-1.
func (x *oneSided) inspect(seq uint64, n int) error {
	w := uint64(len(x.slots))
	if n < 0 || uint64(n) > w {
		return fmt.Errorf("inspect %d slots of %d", n, w)
	}
	if x.c.Test == bench.FaddLat || x.c.Test == bench.CswapLat {
		if got := binary.NativeEndian.Uint64(x.target); got != seq {
			return fmt.Errorf("validation failed: the target of the atomics is %d, want %d", got, seq)
		}
		return nil
	}
	for i := range uint64(n) {
		at := int((seq + i) % w)
		if err := bench.Verify(x.target[at*x.stride():][:x.c.Size], seq+i); err != nil {
			return err
		}
	}
	return nil
}

// latency times single gets and atomics.
func (x *oneSided) latency(j *bench.Round) error {
	sp := j.Spinner()
	err := j.Batches(func(from, to uint64) error {
		for range to - from {
			if err := x.once(j, &sp); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if j.Validate && j.Test != bench.GetLat {
		return j.Inspect(x.value, 0)
	}
	return nil
}

func (x *oneSided) once(j *bench.Round, sp *bench.Spinner) error {
	s := &x.slots[0]
	if j.Test == bench.GetLat {
		if err := x.postGet(j, s); err != nil {
			return err
		}
		if err := x.finishOp(j, &s.op, sp); err != nil || !j.Validate {
			return err
		}
		return bench.Verify(s.buf, 0)
	}
	op := &s.op
	op.Size, op.Fetch = 8, true
	if j.Test == bench.FaddLat {
		op.Atomic, op.Operand = driver.Add, 1
	} else {
		op.Atomic, op.Compare, op.Operand = driver.CompareSwap, x.value, x.value+1
	}
	if err := x.inst.AtomicPost(op); err != nil {
		return err
	}
	if err := x.finishOp(j, op, sp); err != nil {
		return err
	}
	if op.Result != x.value {
		return fmt.Errorf("atomic %d returned %d: the operation was lost or done twice", x.value, op.Result)
	}
	x.value++
	return nil
}

// pingPong bounces a put: each side sees the other's in its own memory. The last byte is the flag; if a message is
// longer than a word, a fence orders its last word after the rest.
func (x *oneSided) pingPong(j *bench.Round) error {
	sp := j.Spinner()
	return j.Batches(func(from, to uint64) error {
		for i := from; i < to; i++ {
			if j.Lead {
				if err := x.put(j, i, &sp); err != nil {
					return err
				}
			}
			if err := x.await(j, i, &sp); err != nil {
				return err
			}
			if !j.Lead {
				if err := x.put(j, i, &sp); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// flag returns the flag of message seq, which differs from that of the message before and from cleared memory. Rounds
// use the same memory, so the numbers go on.
func (x *oneSided) flag(seq uint64) byte { return byte((x.value+seq)%255) + 1 }

func (x *oneSided) put(j *bench.Round, seq uint64, sp *bench.Spinner) error {
	s := &x.slots[0]
	n := len(s.buf)
	if j.Validate {
		bench.Fill(s.buf, seq)
	}
	s.buf[n-1] = x.flag(seq)
	if n > 8 || n&(n-1) != 0 {
		head := &x.head
		cut := max(0, n-8)
		if cut == 0 {
			cut = n - 1
		}
		*head = driver.Op{Local: s.buf[:cut], LocalRegion: x.local, Remote: x.remote}
		s.op = driver.Op{Local: s.buf[cut:], LocalRegion: x.local, Remote: x.remote, Offset: cut}
		if err := x.inst.PutPost(head); err != nil {
			return err
		}
		if err := x.inst.Fence(); err != nil {
			return err
		}
		if err := x.inst.PutPost(&s.op); err != nil {
			return err
		}
		if err := x.finishOp(j, head, sp); err != nil {
			return err
		}
		return x.finishOp(j, &s.op, sp)
	}
	if err := x.inst.PutPost(&s.op); err != nil {
		return err
	}
	return x.finishOp(j, &s.op, sp)
}

func (x *oneSided) await(j *bench.Round, seq uint64, sp *bench.Spinner) error {
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
