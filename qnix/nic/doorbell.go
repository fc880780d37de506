//go:build linux

package nic

import (
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/qnix/internal/abi"
)

// contexts are the Send or the Receive Contexts, with their regions and doorbells.
type contexts struct {
	list      []abi.Context
	regions   []byte
	size      int // bytes of a region
	doorbells []uint64
	room      []uint32 // bytes of the latest post: a valid doorbell reports no more
}

func (l *contexts) region(i int) []byte {
	_ = l.list[i]
	return l.regions[i*l.size : (i+1)*l.size : (i+1)*l.size]
}

// split and join convert a doorbell's word, whose halves lie as in abi.Doorbell on any machine.
func split(word uint64) abi.Doorbell {
	return *(*abi.Doorbell)(unsafe.Pointer(&word))
}

func join(d abi.Doorbell) uint64 { return *(*uint64)(unsafe.Pointer(&d)) }

var pendingWord = join(abi.Doorbell{State: abi.DBPending})

// doorbell returns a doorbell's state with one atomic load. Values that no NIC writes are Garbled.
func (l *contexts) doorbell(i int) (State, int) {
	d := split(atomic.LoadUint64(&l.doorbells[i]))
	switch {
	case d.State == abi.DBFree || d.State == abi.DBPending:
		return State(d.State), 0
	case d.State > abi.DBNoMemory || d.Len > abi.MaxMessage:
		return Garbled, 0
	case d.State != abi.DBTruncated && d.Len > atomic.LoadUint32(&l.room[i]):
		return Garbled, 0
	}
	return State(d.State), int(d.Len)
}

// claim makes a doorbell Pending, or Free if it rings for failures only. It returns the previous word.
func (l *contexts) claim(i int, flags Flags) (old uint64, ok bool) {
	word := pendingWord
	if flags&Doorbell == 0 {
		word = 0
	}
	for {
		old = atomic.LoadUint64(&l.doorbells[i])
		if split(old).State == abi.DBPending {
			return 0, false
		}
		if atomic.CompareAndSwapUint64(&l.doorbells[i], old, word) {
			return old, true
		}
	}
}

// fill claims context i and writes m into it.
func (p *Process) fill(l *contexts, i int, m *Message, short bool) (old uint64, err error) {
	if i < 0 || i >= len(l.list) || m.Len < 0 || m.Len > abi.MaxMessage || m.Tag > abi.MaxTag {
		return 0, ErrInvalid
	}
	flags, count := m.Flags&(Doorbell|Inline|FromPool), len(m.Descriptors)
	if short {
		flags |= Inline
	}
	switch {
	case flags&Inline != 0:
		if m.Len > l.size || count != 0 || flags&FromPool != 0 {
			return 0, ErrInvalid
		}
	case flags&FromPool != 0:
		if m.Pool < 0 || m.PoolCount < 0 || m.Pool > len(p.pool) || m.PoolCount > len(p.pool)-m.Pool || count != 0 {
			return 0, ErrInvalid
		}
		count = m.PoolCount
	case count*int(unsafe.Sizeof(abi.Descriptor{})) > l.size:
		return 0, ErrInvalid
	}
	if p.Gone() {
		return 0, p.over()
	}
	old, ok := l.claim(i, flags)
	if !ok {
		return 0, ErrInUse
	}
	atomic.StoreUint32(&l.room[i], uint32(m.Len))
	c := &l.list[i]
	c.Process, c.Tag, c.Flags = m.Peer, m.Tag, uint16(flags)
	c.Len, c.Descriptors, c.PoolIndex = uint32(m.Len), uint32(count), 0
	c.Pad = [28]byte{}
	if flags&FromPool != 0 {
		c.PoolIndex = uint32(m.Pool)
	} else if count > 0 {
		d := unsafe.Slice((*abi.Descriptor)(unsafe.Pointer(&l.regions[i*l.size])), count)
		for k, x := range m.Descriptors {
			d[k] = abi.Descriptor{Handle: uint32(x.Handle), Len: x.Len, Offset: x.Offset}
		}
	}
	return old, nil
}

// posted ends a post. If the queue was full, it restores the doorbell, whose length fits its earlier room.
func (p *Process) posted(l *contexts, i int, old uint64, next uint32, ok bool) error {
	if ok {
		p.published(next)
		return nil
	}
	atomic.StoreUint32(&l.room[i], split(old).Len)
	atomic.StoreUint64(&l.doorbells[i], old)
	return ErrBusy
}

// SendDoorbell returns the state of Send Context i and, once its doorbell has rung, the number of bytes that were
// moved. It panics if there is no context i.
func (p *Process) SendDoorbell(i int) (State, int) { return p.sends.doorbell(i) }

// ReceiveDoorbell returns the state of Receive Context i and the length of the message in bytes; with Truncated the
// message was longer than the room.
func (p *Process) ReceiveDoorbell(i int) (State, int) { return p.receives.doorbell(i) }

// FreeSend makes the doorbell of Send Context i Free, for programs that read it again. A context whose doorbell has
// rung can also be posted without that.
func (p *Process) FreeSend(i int) { atomic.StoreUint64(&p.sends.doorbells[i], abi.DBFree) }

// Rung returns the entry of the Doorbell Ring after *seen and advances *seen, which begins at 0 and belongs to one
// reader. It returns false if there is no further entry. An entry names a doorbell that has rung; SendDoorbell or
// ReceiveDoorbell returns its state. Rung does not allocate.
func (p *Process) Rung(seen *uint32) (r Ring, ok bool) {
	size := uint32(len(p.ring))
	for {
		n := atomic.LoadUint32(&p.status.RingTail) - *seen
		if n == 0 {
			return Ring{}, false
		}
		e := atomic.LoadUint32(&p.ring[*seen&(size-1)])
		if n = atomic.LoadUint32(&p.status.RingTail) - *seen; n > size {
			*seen += n
			return Ring{Overrun: true}, true
		}
		*seen++
		r = Ring{Receive: e&abi.RingReceive != 0, Index: int(e & abi.RingIndex)}
		if most := p.contextsOf(r.Receive); r.Index < most {
			return r, true
		}
		// Invalid entries are skipped; the ring's size bounds how many.
	}
}

func (p *Process) contextsOf(receive bool) int {
	if receive {
		return len(p.receives.list)
	}
	return len(p.sends.list)
}

// RingTail returns the number of doorbells that have rung, modulo 2^32.
func (p *Process) RingTail() uint32 { return atomic.LoadUint32(&p.status.RingTail) }
