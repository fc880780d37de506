package match

// Any, as the source of a pattern, matches every source.
const Any = ^uint32(0)

// Exact is the mask with which all bits of a tag count.
const Exact = ^uint64(0)

// Pattern selects the messages that a receive, or a probe, takes.
type Pattern struct {
	From uint32 // a source, or Any
	Tag  uint64
	Mask uint64 // the bits of Tag that count
}

// Matches reports whether the pattern takes a message.
func (p *Pattern) Matches(from uint32, tag uint64) bool {
	return (p.From == from || p.From == Any) && (p.Tag^tag)&p.Mask == 0
}

// Receive is a posted receive. It is embedded in, or belongs to, whatever the
// caller keeps of a receive, and must not be changed or moved while posted.
type Receive struct {
	Pattern
	User any

	order      uint64
	alone      bool      // the only one posted: it lies in no list
	list       *receives // it is in
	class      *class    // nil: in the table's rest
	next, prev *Receive
}

// Posted reports whether the receive waits in a table.
func (r *Receive) Posted() bool { return r.alone || r.list != nil }

// receives is a list in the order of posting.
type receives struct{ first, last *Receive }

func (l *receives) push(r *Receive) {
	before := l.last
	for before != nil && before.order > r.order { // only of a receive that is posted again
		before = before.prev
	}
	r.list, r.prev, r.next = l, before, l.first
	if before != nil {
		r.next = before.next
		before.next = r
	} else {
		l.first = r
	}
	if r.next != nil {
		r.next.prev = r
	} else {
		l.last = r
	}
}

func (l *receives) remove(r *Receive) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		l.first = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		l.last = r.prev
	}
	r.list, r.next, r.prev = nil, nil, nil
}

// class holds the receives of one mask, with or without a source.
type class struct {
	any     bool
	mask    uint64
	n       int
	buckets []receives // a power of two
}

const (
	maxClasses = 8
	minBuckets = 64
)

func (c *class) from(source uint32) uint32 {
	if c.any {
		return Any
	}
	return source
}

func hash(from uint32, tag uint64) uint64 {
	h := (tag ^ uint64(from)*0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

func (c *class) bucket(from uint32, tag uint64) *receives {
	return &c.buckets[hash(from, tag)&uint64(len(c.buckets)-1)]
}

func (c *class) push(r *Receive) {
	if c.n >= 2*len(c.buckets) {
		c.grow()
	}
	r.class = c
	c.n++
	c.bucket(r.From, r.Tag&c.mask).push(r)
}

// grow doubles the table. A list goes to two new ones, which get nothing from
// any other, so the order of posting stays.
func (c *class) grow() {
	old := c.buckets
	c.buckets = make([]receives, 2*len(old))
	for i := range old {
		for r := old[i].first; r != nil; {
			next := r.next
			c.bucket(r.From, r.Tag&c.mask).push(r)
			r = next
		}
	}
}

// find returns the oldest receive of the class that takes a message.
func (c *class) find(from uint32, tag uint64) *Receive {
	from, tag = c.from(from), tag&c.mask
	for r := c.bucket(from, tag).first; r != nil; r = r.next {
		if r.From == from && r.Tag&c.mask == tag {
			return r
		}
	}
	return nil
}
