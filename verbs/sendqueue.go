//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// Kinds of work requests in a send queue.
type requestKind uint8

const (
	requestControl requestKind = iota
	requestData                // a message from a send buffer
	requestWrite               // a piece of a long message
	requestPart                // part of a one-sided operation, but not the last
	requestOp                  // the last part of a one-sided operation
	requestCancel              // reads the peer's claim table
	requestWindow              // binds or invalidates a memory window
)

// request describes a posted work request.
type request struct {
	kind  requestKind
	op    int // slot of a one-sided operation
	slot  int // receive slot that is cancelled
	gen   uint32
	last  *transfer // transfer that this request completes
	ended *slot     // slot whose windows this request revokes
}

// sendQueue is the send side of a queue pair. Its work requests are numbered and complete in that order. Only the
// connection's owner uses it.
type sendQueue struct {
	qp         *ibv.QP
	chain      *ibv.SendChain
	ring       []request // a power of two
	next       uint32    // number of the next request
	done       uint32    // all requests below it are complete
	checked    uint32    // next at the last keep-alive check
	probed     bool      // a sign of life was posted
	probe      uint32    // its number, the last one's
	unsignaled int       // requests since the last one that causes a completion
	silentData int       // messages from send buffers among them
	slots      int       // send buffers
	inline     int       // bytes that a request carries itself, as far as the device allows
	words      *slab     // a place of wordSize bytes for each request; nil if requests carry as many
	crossings  kit.Tally // calls into C to post
}

// wordSize is the size in bytes of what control messages contain.
const wordSize = 8

// controlReserve is the room in a send queue that messages leave for credits, the close message and signs of life.
const controlReserve = 4

func (q *sendQueue) init(qp *ibv.QP, depth, slots, inline int) (err error) {
	const sges = 1
	q.qp, q.ring, q.slots, q.inline = qp, make([]request, depth), slots, inline
	q.chain, err = ibv.NewSendChain(depth, sges, inline)
	return err
}

// initSends prepares the sends of a queue pair, of which depth, a power of two, can be under way.
func (c *opened) initSends(q *sendQueue, qp *ibv.QP, depth, slots int) (err error) {
	inline := min(c.inline, qp.Caps().MaxInline)
	if inline < wordSize {
		if q.words, err = newSlab(c.pd, wordSize, 0, depth, 0, ibv.AccessLocalWrite); err != nil {
			return err
		}
	}
	return q.init(qp, depth, slots, inline)
}

// inlines reports whether a request itself carries n bytes. Where it carries none, an empty message has no inline flag
// either: some devices do not know it.
func (q *sendQueue) inlines(n int) bool { return q.inline > 0 && n <= q.inline }

// carry makes the request that was just added carry the bytes of word.
func (q *sendQueue) carry(wr *ibv.SendWR, word *[wordSize]byte) {
	if q.words == nil {
		wr.Inline(word[:])
		return
	}
	place := q.words.send(int(q.next-1) & (len(q.ring) - 1))
	copy(place, word[:])
	wr.AddSGE(address(place), wordSize, q.words.lkey)
}

// free frees the queue's memory. Its queue pair is gone.
func (q *sendQueue) free() { q.words.close() }

// post posts the chain in one call into C.
func (q *sendQueue) post() error {
	if q.chain.Len() == 0 {
		return nil
	}
	q.crossings.Add(1)
	_, err := q.qp.PostSend(q.chain)
	return err
}

func (q *sendQueue) room() int  { return len(q.ring) - int(q.next-q.done) }
func (q *sendQueue) idle() bool { return q.next == q.done }

// add appends a work request to the chain. The caller has checked that there is room.
func (q *sendQueue) add(kind requestKind, signal bool) (*ibv.SendWR, *request) {
	wr := q.chain.Next()
	return wr, q.number(wr, kind, signal)
}

// number gives the request that was just appended the next number.
func (q *sendQueue) number(wr *ibv.SendWR, kind requestKind, signal bool) *request {
	q.unsignaled++
	if kind == requestData {
		q.silentData++
	}
	// Each completion may cost a call into C: ask for few, but before the queue or the send buffers run out.
	if signal || q.unsignaled >= len(q.ring)/2 || q.silentData > q.slots/2 {
		wr.Flags |= ibv.SendSignaled
		q.unsignaled, q.silentData = 0, 0
	}
	wr.ID = requestID(eventSent, q.next)
	r := &q.ring[int(q.next)&(len(q.ring)-1)]
	*r = request{kind: kind}
	q.next++
	return r
}

// retract takes back the requests that the device has refused and those after them, and returns their number. The
// caller's were the only ones in the chain, and before them unsignaled had the given value.
func (q *sendQueue) retract(unsignaled int) (n int) {
	n = q.chain.Len()
	q.chain.Reset()
	q.next -= uint32(n)
	q.unsignaled = unsignaled
	return n
}

// complete removes the oldest request if the completion of request id completes it, and returns it with its status:
// those before id have succeeded.
func (q *sendQueue) complete(id uint32, status ibv.WCStatus) (*request, ibv.WCStatus) {
	if !q.holds(id) {
		return nil, status
	}
	if q.done != id {
		status = ibv.WCSuccess
	}
	r := &q.ring[int(q.done)&(len(q.ring)-1)]
	q.done++
	return r, status
}

// forget counts all requests as complete: completions that the device reports later have no effect.
func (q *sendQueue) forget() { q.done = q.next }

// probing reports whether a sign of life is under way.
func (q *sendQueue) probing() bool { return q.probed && q.holds(q.probe) }

// holds reports whether id is a number that the device may report.
func (q *sendQueue) holds(id uint32) bool { return id-q.done < q.next-q.done }
