package match

import (
	"math/bits"
	"unsafe"
)

// Arrival is a message that arrived before its receive. It belongs to the caller, and must not be changed or moved
// while it is in the table.
type Arrival struct {
	From uint32
	Tag  uint64
	User any

	Order uint64 // its place among the arrivals: Keep sets it

	kept         bool
	at           int      // its slot
	below, above *Arrival // in the bucket
}

// slot names an arrival, in the order of arrival. The fields that a search compares lie here, side by side: a search of
// ten thousand arrivals reads a quarter of a megabyte in order, instead of ten thousand cache lines here and there.
type slot struct {
	tag  uint64
	from uint32
	a    *Arrival // nil: taken
}

// arrivalBucket is a list by arrival.
type arrivalBucket struct{ first, last *Arrival }

// ArrivalCost is how many bytes the table needs for an arrival at most, beside the Arrival.
const ArrivalCost = 4*int(unsafe.Sizeof(slot{})) + int(unsafe.Sizeof(arrivalBucket{}))

// bucket hashes with secret numbers of this table. Otherwise a sender could choose tags that all fall into one list.
func (t *Table) bucket(from uint32, tag uint64) *arrivalBucket {
	hi, lo := bits.Mul64(tag^t.seed[0], uint64(from)^t.seed[1])
	return &t.buckets[(hi^lo)&uint64(len(t.buckets)-1)]
}

// NextOrder returns the order of an arrival that has just come, and is not kept yet: see KeepAgain.
func (t *Table) NextOrder() uint64 {
	t.arrivals++
	return t.arrivals
}

// Keep adds a message for which Arrive found nothing.
func (t *Table) Keep(a *Arrival) {
	a.Order = t.NextOrder()
	t.keep(a)
}

// KeepAgain adds a message that a receive has given back. It is older than those of its source that have a higher Order.
func (t *Table) KeepAgain(a *Arrival) {
	var later []*Arrival
	t.Each(a.From, func(b *Arrival) {
		if b.Order > a.Order {
			t.Take(b)
			later = append(later, b)
		}
	})
	t.keep(a)
	for _, b := range later {
		t.keep(b)
	}
}

func (t *Table) keep(a *Arrival) {
	if t.waiting >= 2*len(t.buckets) {
		t.growArrivals()
	}
	t.waiting++
	a.kept = true
	if len(t.slots) == cap(t.slots) && len(t.slots) >= 2*t.waiting && !t.visiting {
		t.compact()
	}
	a.at = len(t.slots)
	t.slots = append(t.slots, slot{a.Tag, a.From, a})
	t.bucket(a.From, a.Tag).push(a)
}

func (b *arrivalBucket) push(a *Arrival) {
	a.above, a.below = b.last, nil
	if a.above != nil {
		a.above.below = a
	} else {
		b.first = a
	}
	b.last = a
}

func (t *Table) growArrivals() {
	t.buckets = make([]arrivalBucket, 2*len(t.buckets))
	for i := t.first; i < len(t.slots); i++ {
		if a := t.slots[i].a; a != nil {
			t.bucket(a.From, a.Tag).push(a)
		}
	}
}

// minCompact is how many slots there are at least when compact is called for the sake of searches.
const minCompact = 64

// compact gives the slots back of arrivals that were taken.
func (t *Table) compact() {
	n := 0
	for i := t.first; i < len(t.slots); i++ {
		if a := t.slots[i].a; a != nil {
			t.slots[n] = t.slots[i]
			a.at = n
			n++
		}
	}
	clear(t.slots[n:])
	t.slots, t.first = t.slots[:n], 0
}

// Take removes a from the table. It returns false if a is not in the table.
func (t *Table) Take(a *Arrival) bool {
	if !a.kept {
		return false
	}
	a.kept = false
	t.waiting--
	b := t.bucket(a.From, a.Tag)
	if a.above != nil {
		a.above.below = a.below
	} else {
		b.first = a.below
	}
	if a.below != nil {
		a.below.above = a.above
	} else {
		b.last = a.above
	}
	a.below, a.above = nil, nil
	t.slots[a.at].a = nil
	for t.first < len(t.slots) && t.slots[t.first].a == nil {
		t.first++
	}
	switch left := len(t.slots) - t.first; {
	case t.visiting:
	case t.waiting == 0:
		t.slots, t.first = t.slots[:0], 0
	case left > minCompact && left >= 4*t.waiting: // searches would read all slots of messages that were taken
		t.compact()
	}
	return true
}

// Peek returns the oldest arrival that matches, and keeps it.
func (t *Table) Peek(p *Pattern) *Arrival {
	if t.waiting == 0 {
		return nil
	}
	if p.From != Any && p.Mask == Exact {
		for a := t.bucket(p.From, p.Tag).first; a != nil; a = a.below {
			if a.From == p.From && a.Tag == p.Tag {
				return a
			}
		}
		return nil
	}
	for i := t.first; i < len(t.slots); i++ {
		if s := &t.slots[i]; s.a != nil && p.Matches(s.from, s.tag) {
			return s.a
		}
	}
	return nil
}

// Each calls f with every arrival of a source, or of Any, by arrival. f may
// take the one that it is called with, and keep others.
func (t *Table) Each(from uint32, f func(*Arrival)) {
	nested := t.visiting
	t.visiting = true // slots stay where they are
	for i := t.first; i < len(t.slots); i++ {
		if s := &t.slots[i]; s.a != nil && (from == Any || s.from == from) {
			f(s.a)
		}
	}
	if t.visiting = nested; t.waiting == 0 && !nested {
		t.slots, t.first = t.slots[:0], 0
	}
}
