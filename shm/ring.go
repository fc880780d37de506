//go:build linux && !(386 || arm || mips || mipsle)

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

	ringSlots = 128          // power of two
	maxSmall  = 16<<10 + 512 // 16 KiB and the header of a layer above

	// Bytes of the data area, a power of two, whole pages. The large track
	// only uses its ring where nothing else works.
	smallData = 64 << 10
	largeData = 32 << 10

	// A message that is longer than a step is published when its first step
	// lies there, and each further step takes a slot of its own: so the
	// consumer copies out while the producer copies in, and each flag has a
	// line that neither side reads before its turn.
	stepBytes = 2048

	// A message of this size makes the producer ask for the lines of the next
	// one of the kind, which the consumer's cache holds, while it waits for an
	// answer anyway.
	ownMin = 512

	// A short message asks for the slot that is so many further on: without
	// that a stream of them keeps few misses in flight (+15 % messages a second
	// between distant cores).
	ownAhead = 8
)

// Header word: lap in the upper half, then kind, then length.
const (
	kindShift = 24
	lapShift  = 32
	lenMask   = 1<<kindShift - 1

	kindInline = 1
	kindData   = 2
	kindSteps  = 3 // like kindData, but only the first step is there
	kindStep   = 4 // a further step of the message before
)

// consumerLine is written by the consumer, read by the producer.
type consumerLine struct {
	slots uint64 // consumed, published seldom
	data  uint64 // bytes of the data area consumed, likewise
	armed uint32 // the consumer sleeps or is about to: wake it
	_     [44]byte
}

// ringMemory is the memory of a ring.
type ringMemory struct {
	slots unsafe.Pointer // ringSlots × slotBytes
	data  unsafe.Pointer // the same size bytes twice
	size  uint64         // of the data area
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
	return producer{ringMemory: m, slotLimit: ringSlots, dataLimit: m.size}
}

func dataRoom(n int) uint64 { return (uint64(n) + slotBytes - 1) &^ (slotBytes - 1) }

// slotsOf returns the number of slots that a message of n bytes takes.
func slotsOf(n int) uint64 {
	if n <= stepBytes {
		return 1
	}
	return (uint64(n) + stepBytes - 1) / stepBytes
}

func lap(pos uint64) uint64 { return (pos/ringSlots + 1) << lapShift }

func (w *producer) slot() unsafe.Pointer {
	return unsafe.Add(w.slots, (w.tail&(ringSlots-1))*slotBytes)
}

func (w *producer) dataAt() unsafe.Pointer {
	return unsafe.Add(w.data, w.dataTail&(w.size-1))
}

// room reports whether a message of n bytes fits now. bad means that the
// consumer's progress makes no sense.
func (w *producer) room(n int) (ok, bad bool) {
	if n <= inlineMax && w.tail < w.slotLimit || n > inlineMax && w.fits(n) {
		return true, false
	}
	if !w.refresh() {
		return false, true
	}
	return n <= inlineMax && w.tail < w.slotLimit || n > inlineMax && w.fits(n), false
}

func (w *producer) fits(n int) bool {
	return w.tail+slotsOf(n) <= w.slotLimit && w.dataTail+dataRoom(n) <= w.dataLimit
}

// refresh reads the consumer's progress. False if it makes no sense.
func (w *producer) refresh() bool {
	slots, data := load64(&w.cons.slots), load64(&w.cons.data)
	if w.tail-slots > ringSlots || w.dataTail-data > w.size {
		return false
	}
	w.slotLimit, w.dataLimit = slots+ringSlots, data+w.size
	return true
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
	if next := w.tail + ownAhead; next < w.slotLimit {
		own(unsafe.Add(w.slots, (next&(ringSlots-1))*slotBytes), slotBytes)
	}
}

// sendGather sends the n bytes of a cursor. Room was checked.
func (w *producer) sendGather(c *driver.Cursor, n int) {
	s := w.slot()
	switch {
	case n <= inlineMax:
		c.Gather(unsafe.Slice((*byte)(unsafe.Add(s, 8)), n))
		store64((*uint64)(s), lap(w.tail)|kindInline<<kindShift|uint64(n))
		w.tail++
	case n <= stepBytes:
		gather(c, unsafe.Slice((*byte)(w.dataAt()), n))
		w.publishData(n)
	default:
		w.sendSteps(c, n)
	}
}

// gather is c.Gather; a contiguous packet is one move.
func gather(c *driver.Cursor, dst []byte) {
	for n := 0; n < len(dst); {
		run := c.Next(len(dst) - n)
		if len(run) == 0 {
			return
		}
		n += move(dst[n:], run)
	}
}

// publishData sends n bytes that lie at dataAt already.
func (w *producer) publishData(n int) {
	store64((*uint64)(w.slot()), lap(w.tail)|kindData<<kindShift|uint64(n))
	w.tail++
	w.advance(n)
}

// advance moves past n bytes of data, and prepares for as many.
func (w *producer) advance(n int) {
	w.dataTail += dataRoom(n)
	if n >= ownMin && w.dataTail+dataRoom(n) <= w.dataLimit { // free, and not being read
		own(w.dataAt(), uintptr(n))
	}
}

func (w *producer) sendSteps(c *driver.Cursor, n int) {
	dst := unsafe.Slice((*byte)(w.dataAt()), n)
	header := kindSteps<<kindShift | uint64(n)
	for done := 0; done < n; done += stepBytes {
		gather(c, dst[done:min(n, done+stepBytes)])
		store64((*uint64)(w.slot()), lap(w.tail)|header)
		w.tail++
		header = kindStep << kindShift
	}
	w.advance(n)
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
	case kindSteps:
		if n <= stepBytes || n > maxSmall {
			return false, true
		}
		a.there = r.steps(n)
		fallthrough
	case kindData:
		a.at = unsafe.Add(r.data, r.dataHead&(r.size-1))
		return n <= maxSmall, n > maxSmall
	}
	return false, true
}

// steps returns how many of n bytes are there.
func (r *consumer) steps(n int) int {
	there := stepBytes
	for pos := r.head + 1; there < n; pos++ {
		h := load64((*uint64)(unsafe.Add(r.slots, (pos&(ringSlots-1))*slotBytes)))
		if (h^lap(pos))>>lapShift != 0 {
			return there
		}
		there += stepBytes
	}
	return n
}

// pop moves past the head. It reports whether progress was published, upon
// which a producer that waits for room must be woken. That is done once in half
// a ring, because each time costs both sides a cache miss.
func (r *consumer) pop(a *arrival) (published bool) {
	n := uint64(1)
	if a.kind == kindSteps {
		n = slotsOf(a.n)
	}
	store64(&r.head, r.head+n) // probes read it
	if a.kind != kindInline {
		r.dataHead += dataRoom(a.n)
	}
	if r.head-r.published < ringSlots/2 && r.dataHead-r.pubData < r.size/4 {
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
