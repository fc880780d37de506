package match

// Arrival is a message that came before its receive. It belongs to the caller,
// and must not be changed or moved while kept.
type Arrival struct {
	From uint32
	Tag  uint64
	User any

	kept         bool
	next, prev   *Arrival // by arrival
	below, above *Arrival // in the bucket
}

// arrivals is a list by arrival.
type arrivals struct{ first, last *Arrival }

// arrivalBucket is a list by arrival, too.
type arrivalBucket struct{ first, last *Arrival }

func (t *Table) bucket(from uint32, tag uint64) *arrivalBucket {
	return &t.buckets[hash(from, tag)&uint64(len(t.buckets)-1)]
}

// Keep adds a message for which Arrive found nothing.
func (t *Table) Keep(a *Arrival) {
	if t.waiting >= 2*len(t.buckets) {
		t.growArrivals()
	}
	t.waiting++
	a.kept = true
	a.prev, a.next = t.arrived.last, nil
	if a.prev != nil {
		a.prev.next = a
	} else {
		t.arrived.first = a
	}
	t.arrived.last = a
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
	for a := t.arrived.first; a != nil; a = a.next {
		t.bucket(a.From, a.Tag).push(a)
	}
}

// Take stops keeping a. False if it is not kept.
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
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		t.arrived.first = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		t.arrived.last = a.prev
	}
	a.next, a.prev, a.below, a.above = nil, nil, nil, nil
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
	for a := t.arrived.first; a != nil; a = a.next {
		if p.Matches(a.From, a.Tag) {
			return a
		}
	}
	return nil
}

// Each calls f with every arrival of a source, or of Any, by arrival. f may
// take the one that it is called with.
func (t *Table) Each(from uint32, f func(*Arrival)) {
	for a := t.arrived.first; a != nil; {
		next := a.next
		if from == Any || a.From == from {
			f(a)
		}
		a = next
	}
}
