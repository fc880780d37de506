package verbs

import "sync/atomic"

// What a completion is about.
type eventKind uint8

const (
	eventRecv   eventKind = iota // a receive, of the small track or an announcement of the large one
	eventSent                    // the work request with this sequence number, and all before it
	eventFailed                  // the work request, and with it the connection
	eventUnused                  // a receive that has failed, and with it the connection
)

// event is a completion on its way to the instance that it belongs to.
type event struct {
	kind  eventKind
	queue uint8 // which queue pair of the connection
	code  uint8 // of the wire: what was received; of a failure: the status
	id    uint32
	n     uint32 // bytes received
	imm   uint32
}

// inbox carries events from whoever drains the completion queue, one goroutine
// at a time, to the instance's owner. It cannot overflow: it has room for every
// work request that the connection can have.
type inbox struct {
	ring []event // a power of two
	_    [40]byte
	tail atomic.Uint32 // next to write
	_    [60]byte
	head atomic.Uint32 // next to read
}

func newInbox(room int) inbox {
	n := 1
	for n < room {
		n *= 2
	}
	return inbox{ring: make([]event, n)}
}

// push adds an event. What a device would complete beyond what was posted is
// dropped.
func (b *inbox) push(e event) {
	t := b.tail.Load()
	if int(t-b.head.Load()) == len(b.ring) {
		return
	}
	b.ring[int(t)&(len(b.ring)-1)] = e
	b.tail.Store(t + 1)
}

func (b *inbox) empty() bool { return b.head.Load() == b.tail.Load() }

// pop takes the oldest event.
func (b *inbox) pop(e *event) bool {
	h := b.head.Load()
	if h == b.tail.Load() {
		return false
	}
	*e = b.ring[int(h)&(len(b.ring)-1)]
	b.head.Store(h + 1)
	return true
}
