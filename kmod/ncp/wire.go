package ncp

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra
#include <stdlib.h>
#include <sys/random.h>
#include "siphash.h"
#include "wire.h"

// Host functions for the C side: memory, counted, and random numbers, which a simulator seeds.
struct wire_host {
	uint64_t seed;
	uint64_t bytes, most, limit;
};

static void *wire_host_alloc(void *host, size_t size)
{
	struct wire_host *h = host;
	void *p;

	if (h->limit && h->bytes + size > h->limit)
		return NULL;
	p = calloc(1, size);
	if (p)
		h->bytes += size;
	if (h->bytes > h->most)
		h->most = h->bytes;
	return p;
}

static void wire_host_free(void *host, void *memory, size_t size)
{
	struct wire_host *h = host;

	h->bytes -= size;
	free(memory);
}

static uint64_t wire_host_random(void *host)
{
	struct wire_host *h = host;
	uint64_t x;

	if (!h->seed) {
		while (getrandom(&x, sizeof(x), 0) != sizeof(x))
			;
		return x;
	}
	h->seed += 0x9e3779b97f4a7c15ull; // splitmix64
	x = h->seed;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static const struct wire_ops wire_host_ops = {
	.alloc = wire_host_alloc, .free = wire_host_free, .random = wire_host_random,
};

static struct wire *wire_host_create(struct wire_host *h, const struct wire_config *c, uint64_t now)
{
	return wire_create(&wire_host_ops, h, c, now);
}

#cgo noescape wire_input
#cgo nocallback wire_input
#cgo noescape wire_output
#cgo nocallback wire_output
#cgo noescape wire_event
#cgo nocallback wire_event
#cgo noescape wire_peek
#cgo nocallback wire_peek
#cgo noescape wire_counters
#cgo nocallback wire_counters
#cgo noescape wire_link_info
#cgo nocallback wire_link_info
*/
import "C"

import (
	"errors"
	"math"
	"time"
	"unsafe"
)

// A wireAddress is the source or destination of datagrams, in a form that the host chooses.
type wireAddress [32]byte

// wireConfig configures a wire. A zero means the default that wire.h names.
type wireConfig struct {
	nic       uint16 // 1 to 65535
	key       [16]byte
	links     int           // at most
	addresses int           // at most
	frame     int           // bytes of the longest frame
	datagram  int           // bytes of the longest UDP payload
	buffer    int           // bytes of each of a link's buffers, for sending and for receiving
	dead      time.Duration // silence after which a peer is down

	seed   uint64 // of random numbers, in a simulation; 0: from the kernel
	memory uint64 // bytes that may be allocated; 0: no limit
}

// A wire is one NIC's end of all its links, as wire.h describes it: a state machine for one goroutine at a time. Times
// are those of any clock that never goes back.
type wire struct {
	w    *C.struct_wire
	host *C.struct_wire_host
}

// newWire makes a wire; close frees it.
func newWire(c wireConfig, now time.Duration) (*wire, error) {
	host := (*C.struct_wire_host)(C.calloc(1, C.sizeof_struct_wire_host))
	host.seed = C.uint64_t(c.seed)
	host.limit = C.uint64_t(c.memory)
	config := C.struct_wire_config{
		nic: C.uint16_t(c.nic), links: C.uint32_t(c.links), addresses: C.uint32_t(c.addresses),
		frame: C.uint32_t(c.frame), datagram: C.uint32_t(c.datagram), buffer: C.uint32_t(c.buffer),
		dead_ns: C.uint64_t(c.dead),
	}
	for i, b := range c.key {
		config.key[i] = C.uint8_t(b)
	}
	w := C.wire_host_create(host, &config, C.uint64_t(now))
	if w == nil {
		C.free(unsafe.Pointer(host))
		return nil, errors.New("ncp: wire: no memory, or a configuration that is not allowed")
	}
	return &wire{w, host}, nil
}

// close frees everything and returns how many bytes the C code has not freed. Peeked frames become invalid.
func (w *wire) close() (leaked uint64) {
	C.wire_destroy(w.w)
	leaked = uint64(w.host.bytes)
	C.free(unsafe.Pointer(w.host))
	w.w, w.host = nil, nil
	return leaked
}

// restart takes the link to a NIC down, for both ends to make a new one.
func (w *wire) restart(now time.Duration, nic uint16) {
	C.wire_restart(w.w, C.uint64_t(now), C.uint16_t(nic))
}

// goodbye closes all links; the next calls of output tell the peers.
func (w *wire) closeAll(now time.Duration) { C.wire_close_all(w.w, C.uint64_t(now)) }

// addAddress adds an address at which the wire asks for NICs. It returns false if there are too many addresses.
func (w *wire) addAddress(now time.Duration, a wireAddress) bool {
	c := address(&a)
	return C.wire_add_address(w.w, C.uint64_t(now), &c) == 0
}

// removeAddress stops asking at an address. Links that are up stay up.
func (w *wire) removeAddress(a wireAddress) {
	c := address(&a)
	C.wire_remove_address(w.w, &c)
}

func address(a *wireAddress) (c C.struct_wire_address) {
	return *(*C.struct_wire_address)(unsafe.Pointer(a))
}

// A wireReason is the reason for which a link went down.
type wireReason uint8

// Reasons for which a link goes down.
const (
	wireSilent    wireReason = C.WIRE_SILENT    // nothing heard for the dead time
	wireRestarted wireReason = C.WIRE_RESTARTED // the peer has begun a new link
	wireClosed    wireReason = C.WIRE_CLOSED    // the peer has said goodbye
	wireNonsense  wireReason = C.WIRE_NONSENSE  // the peer breaks the protocol
)

// A wireEvent reports that a link came up or went down.
type wireEvent struct {
	nic    uint16
	up     bool
	reason wireReason // of going down
}

// event takes the next event.
func (w *wire) event() (wireEvent, bool) {
	var e C.struct_wire_event
	if !C.wire_event(w.w, &e) {
		return wireEvent{}, false
	}
	return wireEvent{uint16(e.nic), e.event == C.WIRE_UP, wireReason(e.reason)}, true
}

// reserve returns room for a frame, valid until the next commit, input or tick, or nil if there is none now.
func (w *wire) reserve(nic uint16, size int) []byte {
	p := C.wire_reserve(w.w, C.uint16_t(nic), C.uint32_t(size))
	if p == nil {
		return nil
	}
	return unsafe.Slice((*byte)(p), size)
}

// commit sends the first size bytes of the reserved room; 0 gives it back.
func (w *wire) commit(now time.Duration, nic uint16, size int) {
	C.wire_commit(w.w, C.uint64_t(now), C.uint16_t(nic), C.uint32_t(size))
}

// peek returns the next received frame, valid until consume or until the event that its link went down, or nil.
func (w *wire) peek(now time.Duration) (nic uint16, frame []byte) {
	var from C.uint16_t
	var size C.uint32_t
	p := C.wire_peek(w.w, C.uint64_t(now), &from, &size)
	if p == nil {
		return 0, nil
	}
	return uint16(from), unsafe.Slice((*byte)(p), int(size))
}

// consume gives back the frame that was peeked.
func (w *wire) consume(now time.Duration) { C.wire_consume(w.w, C.uint64_t(now)) }

// wireDestination returns the NIC that a datagram is for; 0: a question for answerWire; -1: no datagram of the wire.
func wireDestination(datagram []byte) int {
	if len(datagram) == 0 {
		return -1
	}
	return int(C.wire_destination(unsafe.Pointer(&datagram[0]), C.uint32_t(len(datagram))))
}

// input handles a received datagram.
func (w *wire) input(now time.Duration, from *wireAddress, datagram []byte) {
	if len(datagram) == 0 {
		datagram = []byte{0}
	}
	a := (*C.struct_wire_address)(unsafe.Pointer(from))
	C.wire_input(w.w, C.uint64_t(now), a, unsafe.Pointer(&datagram[0]), C.uint32_t(len(datagram)))
}

// output writes the next datagram to send into b, which has room for the longest. It returns 0 if there is none now.
func (w *wire) output(now time.Duration, to *wireAddress, b []byte) int {
	a := (*C.struct_wire_address)(unsafe.Pointer(to))
	if len(b) == 0 {
		return 0
	}
	return int(C.wire_output(w.w, C.uint64_t(now), a, unsafe.Pointer(&b[0]), C.uint32_t(len(b))))
}

// timer returns when tick must be called at the latest.
func (w *wire) timer() time.Duration {
	return time.Duration(min(uint64(C.wire_timer(w.w)), math.MaxInt64))
}

// tick does all that is due.
func (w *wire) tick(now time.Duration) { C.wire_tick(w.w, C.uint64_t(now)) }

// answerWire answers a question for the NICs of a host, which are given in ascending order. It returns nil if no answer
// is due.
func answerWire(key [16]byte, nics []uint16, question []byte) []byte {
	if len(question) == 0 || len(nics) == 0 {
		return nil
	}
	answer := make([]byte, C.WIRE_ANSWER)
	n := C.wire_answer((*C.uint8_t)(unsafe.Pointer(&key[0])), (*C.uint16_t)(unsafe.Pointer(&nics[0])),
		C.uint32_t(len(nics)), unsafe.Pointer(&question[0]), C.uint32_t(len(question)), unsafe.Pointer(&answer[0]))
	if n == 0 {
		return nil
	}
	return answer[:n]
}

// wireCounters count what went over a wire, and what was dropped and why; wire.h describes them.
type wireCounters struct {
	DatagramsOut, DatagramsIn, BytesOut, BytesIn, FramesOut, FramesIn  uint64
	Unauthenticated, WrongVersion, WrongLimits, Misdirected, Malformed uint64
	Stale, Replayed, Overrun, Refused, Unanswered                      uint64
	Retransmitted, Duplicates, Timeouts, Ups, Downs, Hashed            uint64
}

var _ [unsafe.Sizeof(wireCounters{})]byte = [C.sizeof_struct_wire_counters]byte{}

// counters returns the counters since newWire.
func (w *wire) counters() (c wireCounters) {
	C.wire_counters(w.w, (*C.struct_wire_counters)(unsafe.Pointer(&c)))
	return c
}

// memory returns how many bytes are allocated, and the most that ever were.
func (w *wire) memory() (now, most uint64) {
	return uint64(w.host.bytes), uint64(w.host.most)
}

// wireLink describes a link.
type wireLink struct {
	nic                    uint16
	up                     bool
	address                wireAddress
	since, rtt, leastRTT   time.Duration
	window, flight, queued int // bytes
	datagram               int // bytes of the longest
}

// links describes all links, in any order.
func (w *wire) links() (all []wireLink) {
	var i C.struct_wire_link_info
	for n := 0; bool(C.wire_link_info(w.w, C.uint32_t(n), &i)); n++ {
		all = append(all, wireLink{
			nic: uint16(i.nic), up: bool(i.up), address: *(*wireAddress)(unsafe.Pointer(&i.address)),
			since: time.Duration(i.since_ns), rtt: time.Duration(i.rtt_ns), leastRTT: time.Duration(i.least_rtt_ns),
			window: int(i.window), flight: int(i.flight), queued: int(i.queued), datagram: int(i.datagram),
		})
	}
	return all
}

// siphash is the MAC of all datagrams.
func siphash(key [16]byte, data []byte) (tag [16]byte) {
	b := append(data[:len(data):len(data)], 0) // for &b[0]
	C.wire_siphash((*C.uint8_t)(unsafe.Pointer(&key[0])), unsafe.Pointer(&b[0]), C.size_t(len(data)),
		(*C.uint8_t)(unsafe.Pointer(&tag[0])))
	return tag
}
