//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import "sync/atomic"

// Kinds of events.
type eventKind uint8

const (
	eventRecv   eventKind = iota // a receive: a message of the small track or an announcement of the large one
	eventSent                    // the work request with this number, and all before it, are complete
	eventFailed                  // a work request has failed, and with it the connection
	eventUnused                  // a receive has failed, and with it the connection
)

// event is a completion on its way to the instance that it belongs to.
type event struct {
	kind  eventKind
	queue uint8 // number of the connection's queue pair
	code  uint8 // of a receive: the wire's code; of a failure: the status
	id    uint32
	n     uint32 // bytes received
	imm   uint32
}

// inbox carries events from the goroutine that drains the completion queue to the connection's owner. It
// has room for every work request that the connection can have. In shared mode a peer can take receives of others: what
// it sends beyond the room ends its connection.
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

// push adds an event. It returns false if there is no room.
func (b *inbox) push(e event) bool {
	t := b.tail.Load()
	if int(t-b.head.Load()) == len(b.ring) {
		return false
	}
	b.ring[int(t)&(len(b.ring)-1)] = e
	b.tail.Store(t + 1)
	return true
}

func (b *inbox) empty() bool { return b.head.Load() == b.tail.Load() }

// pop removes the oldest event.
func (b *inbox) pop(e *event) bool {
	h := b.head.Load()
	if h == b.tail.Load() {
		return false
	}
	*e = b.ring[int(h)&(len(b.ring)-1)]
	b.head.Store(h + 1)
	return true
}
