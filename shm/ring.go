package shm

import (
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// A ring carries messages one way. It has one producer and one consumer, in two
// processes (or in one: a connection to oneself).
//
// Every message takes a slot of one cache line, whose first word is header and
// flag at once: it names the lap, so that what the slot held before is never
// taken for new and nothing needs to be cleared. A message of at most
// inlineMax bytes lies in the slot: one cache line crosses. A longer one
// lies in the data area, which is mapped twice in a row, so that it is in one
// piece at the end of the area too. Both sides count positions by themselves;
// no index is read from the peer but the consumer's progress, which is checked.
const (
	slotBytes = 64
	inlineMax = slotBytes - 8

	ringSlots = 256      // power of two
	ringData  = 32 << 10 // bytes, power of two, whole pages
	maxSmall  = ringData / 4

	// The consumer publishes its progress once in so many slots or bytes,
	// because each time costs the producer a cache miss.
	publishSlots = ringSlots / 4
	publishData  = ringData / 4

	// A longer message is published when its first step lies there, so that
	// the consumer copies out while the producer copies in.
	progressiveMin = 2048
	progressStep   = 1024
)

// Header word: lap in the upper half, then kind, then length.
const (
	kindShift = 24
	lapShift  = 32
	lenMask   = 1<<kindShift - 1

	kindInline      = 1
	kindData        = 2
	kindProgressive = 3 // word 1 of the slot counts the bytes that are there
)

// consumerLine is written by the consumer, read by the producer.
type consumerLine struct {
	slots uint64 // consumed, published seldom
	data  uint64 // bytes of the data area consumed, likewise
	armed uint32 // the consumer sleeps or is about to: wake it
	_     [44]byte
}

// ringMemory is where a ring lies.
type ringMemory struct {
	slots unsafe.Pointer // ringSlots × slotBytes
	data  unsafe.Pointer // 2 × ringData: the same memory twice
	cons  *consumerLine
}

// producer is the sending end of a ring; process-private.
type producer struct {
	ringMemory
	tail      uint64 // slots produced
	dataTail  uint64
	slotLimit uint64 // tail may go up to this
	dataLimit uint64
}

func newProducer(m ringMemory) producer {
	return producer{ringMemory: m, slotLimit: ringSlots, dataLimit: ringData}
}

func dataRoom(n int) uint64 { return (uint64(n) + slotBytes - 1) &^ (slotBytes - 1) }

func lap(pos uint64) uint64 { return (pos/ringSlots + 1) << lapShift }

func (w *producer) slot() unsafe.Pointer {
	return unsafe.Add(w.slots, (w.tail&(ringSlots-1))*slotBytes)
}

func (w *producer) dataAt() unsafe.Pointer {
	return unsafe.Add(w.data, w.dataTail&(ringData-1))
}

// room tells whether a message of n bytes fits now. bad means that the
// consumer's progress makes no sense.
func (w *producer) room(n int) (ok, bad bool) {
	need := w.dataTail
	if n > inlineMax {
		need += dataRoom(n)
	}
	if w.tail < w.slotLimit && need <= w.dataLimit {
		return true, false
	}
	slots, data := load64(&w.cons.slots), load64(&w.cons.data)
	if w.tail-slots > ringSlots || w.dataTail-data > ringData {
		return false, true
	}
	w.slotLimit, w.dataLimit = slots+ringSlots, data+ringData
	return w.tail < w.slotLimit && need <= w.dataLimit, false
}

// sendInline sends at most inlineMax bytes that lie in one piece. Room was
// checked.
func (w *producer) sendInline(b []byte) {
	s := w.slot()
	if len(b) == 8 {
		*(*[8]byte)(unsafe.Add(s, 8)) = [8]byte(b)
	} else {
		copy(unsafe.Slice((*byte)(unsafe.Add(s, 8)), inlineMax), b)
	}
	store64((*uint64)(s), lap(w.tail)|kindInline<<kindShift|uint64(len(b)))
	w.tail++
}

// sendGather sends the n bytes of a cursor. Room was checked.
func (w *producer) sendGather(c *driver.Cursor, n int) {
	s := w.slot()
	switch {
	case n <= inlineMax:
		c.Gather(unsafe.Slice((*byte)(unsafe.Add(s, 8)), n))
		store64((*uint64)(s), lap(w.tail)|kindInline<<kindShift|uint64(n))
		w.tail++
	case n < progressiveMin:
		c.Gather(unsafe.Slice((*byte)(w.dataAt()), n))
		w.publishData(n)
	default:
		w.sendProgressive(c, n)
	}
}

// publishData sends n bytes that lie at dataAt already.
func (w *producer) publishData(n int) {
	store64((*uint64)(w.slot()), lap(w.tail)|kindData<<kindShift|uint64(n))
	w.tail++
	w.dataTail += dataRoom(n)
}

func (w *producer) sendProgressive(c *driver.Cursor, n int) {
	s := w.slot()
	there := (*uint64)(unsafe.Add(s, 8))
	dst := unsafe.Slice((*byte)(w.dataAt()), n)
	done := c.Gather(dst[:progressStep])
	store64(there, uint64(done))
	store64((*uint64)(s), lap(w.tail)|kindProgressive<<kindShift|uint64(n))
	for done < n {
		done += c.Gather(dst[done:min(n, done+progressStep)])
		store64(there, uint64(done))
	}
	w.tail++
	w.dataTail += dataRoom(n)
}

// consumer is the receiving end of a ring; process-private.
type consumer struct {
	ringMemory
	head      uint64 // slots consumed
	dataHead  uint64
	published uint64 // the head that was published
	pubData   uint64
}

func newConsumer(m ringMemory) consumer { return consumer{ringMemory: m} }

func (r *consumer) slot() unsafe.Pointer {
	return unsafe.Add(r.slots, (r.head&(ringSlots-1))*slotBytes)
}

// arrival is a message at the head of the ring.
type arrival struct {
	n     int            // length
	there int            // bytes that can be read by now
	at    unsafe.Pointer // the first of them
	kind  uint8
}

// peek looks at the head. bad means that the header makes no sense.
func (r *consumer) peek(a *arrival) (ok, bad bool) {
	s := r.slot()
	h := load64((*uint64)(s))
	if (h^lap(r.head))>>lapShift != 0 {
		return false, false
	}
	n := int(h & lenMask)
	a.n, a.there, a.kind = n, n, uint8(h>>kindShift)
	switch a.kind {
	case kindInline:
		a.at = unsafe.Add(s, 8)
		return n <= inlineMax, n > inlineMax
	case kindProgressive:
		there := load64((*uint64)(unsafe.Add(s, 8)))
		if there > uint64(n) {
			return false, true
		}
		a.there = int(there)
		fallthrough
	case kindData:
		a.at = unsafe.Add(r.data, r.dataHead&(ringData-1))
		return n <= maxSmall, n > maxSmall
	}
	return false, true
}

// pop moves past the head. It tells whether progress was published, upon
// which a producer that waits for room must be woken.
func (r *consumer) pop(a *arrival) (published bool) {
	store64(&r.head, r.head+1) // probes read it
	if a.kind != kindInline {
		r.dataHead += dataRoom(a.n)
	}
	if r.head-r.published < publishSlots && r.dataHead-r.pubData < publishData {
		return false
	}
	r.publish()
	return true
}

func (r *consumer) publish() {
	store64(&r.cons.data, r.dataHead)
	store64(&r.cons.slots, r.head)
	r.published, r.pubData = r.head, r.dataHead
}
