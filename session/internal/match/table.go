package match

import "math/rand/v2"

// Table pairs receives with arrivals. The zero value is not usable: see New.
// It belongs to one goroutine at a time.
type Table struct {
	order   uint64
	posted  int
	only    *Receive // a single receive, the usual case, needs no table
	classes []class
	rest    receives // of masks for which there was no class left

	arrivals uint64 // how many have come
	slots    []slot // of arrivals
	first    int    // of the slots in use
	visiting bool   // Each runs
	waiting  int
	buckets  []arrivalBucket
	seed     [2]uint64
}

// New makes an empty table.
func New() *Table {
	return &Table{
		classes: make([]class, 0, maxClasses), buckets: make([]arrivalBucket, minBuckets),
		seed: [2]uint64{rand.Uint64(), rand.Uint64() | 1<<63}, // never the source itself, whose product is 0
	}
}

// Posted is how many receives wait.
func (t *Table) Posted() int { return t.posted }

// Waiting returns how many arrivals the table has.
func (t *Table) Waiting() int { return t.waiting }

// Post gives the oldest arrival that matches r, and removes it from the table; or nil, and r waits until Arrive
// returns it or Cancel takes it back. A receive that is posted already must not be posted.
func (t *Table) Post(r *Receive) *Arrival {
	t.order++
	r.order = t.order
	return t.PostAgain(r)
}

// PostAgain is Post for a receive that Arrive has returned: it keeps the place that it had among the posted ones.
func (t *Table) PostAgain(r *Receive) *Arrival {
	if t.waiting > 0 {
		if a := t.Peek(&r.Pattern); a != nil {
			t.Take(a)
			return a
		}
	}
	t.posted++
	if t.posted == 1 {
		t.only, r.alone = r, true
		return nil
	}
	if first := t.only; first != nil {
		t.only, first.alone = nil, false
		t.insert(first)
	}
	t.insert(r)
	return nil
}

// insert puts a receive into its class.
func (t *Table) insert(r *Receive) {
	if c := t.class(r); c != nil {
		c.push(r)
	} else {
		r.class = nil
		t.rest.push(r)
	}
}

// class finds the class of a receive, or makes one; nil if there are too many.
func (t *Table) class(r *Receive) *class {
	wild := r.From == Any
	var empty *class
	for i := range t.classes {
		c := &t.classes[i]
		if c.mask == r.Mask && c.any == wild {
			return c
		}
		if c.n == 0 {
			empty = c
		}
	}
	if empty == nil || len(t.classes) < maxClasses/2 {
		if len(t.classes) == maxClasses {
			return nil
		}
		t.classes = append(t.classes, class{buckets: make([]receives, minBuckets)})
		empty = &t.classes[len(t.classes)-1]
	}
	empty.mask, empty.any = r.Mask, wild
	return empty
}

// Arrive gives the oldest receive that takes a message, which is then not posted
// any more; nil if there is none.
func (t *Table) Arrive(from uint32, tag uint64) *Receive {
	if r := t.only; r != nil {
		if !r.Matches(from, tag) {
			return nil
		}
		t.only, r.alone = nil, false
		t.posted--
		return r
	}
	r := t.find(from, tag)
	if r != nil {
		t.unpost(r)
	}
	return r
}

func (t *Table) find(from uint32, tag uint64) *Receive {
	if t.posted == 0 {
		return nil
	}
	var first *Receive
	for i := range t.classes {
		c := &t.classes[i]
		if c.n == 0 {
			continue
		}
		if r := c.find(from, tag); r != nil && (first == nil || r.order < first.order) {
			first = r
		}
	}
	for r := t.rest.first; r != nil; r = r.next {
		if r.Matches(from, tag) {
			if first == nil || r.order < first.order {
				first = r
			}
			break
		}
	}
	return first
}

func (t *Table) unpost(r *Receive) {
	if t.only == r {
		t.only, r.alone = nil, false
		t.posted--
		return
	}
	r.list.remove(r)
	if r.class != nil {
		r.class.n--
		r.class = nil
	}
	t.posted--
}

// Cancel takes a receive back. False if it is not posted.
func (t *Table) Cancel(r *Receive) bool {
	if !r.Posted() {
		return false
	}
	t.unpost(r)
	return true
}

// Awaits reports whether a receive names the source.
func (t *Table) Awaits(from uint32) (found bool) {
	t.each(func(r *Receive) { found = found || r.From == from })
	return found
}

// CancelFrom takes back all receives that name the source, or any source if from is Any, in no order, and calls f with
// each.
func (t *Table) CancelFrom(from uint32, f func(*Receive)) {
	t.each(func(r *Receive) {
		if r.From == from {
			t.unpost(r)
			f(r)
		}
	})
}

// CancelAll takes back every receive, in no order, and calls f with each.
func (t *Table) CancelAll(f func(*Receive)) {
	t.each(func(r *Receive) {
		t.unpost(r)
		f(r)
	})
}

// each calls f with every posted receive, in no order; f may take it back.
func (t *Table) each(f func(*Receive)) {
	if t.only != nil {
		f(t.only)
	}
	list := func(l *receives) {
		for r := l.first; r != nil; {
			next := r.next
			f(r)
			r = next
		}
	}
	list(&t.rest)
	for i := range t.classes {
		if c := &t.classes[i]; c.n > 0 {
			for k := range c.buckets {
				list(&c.buckets[k])
			}
		}
	}
}
