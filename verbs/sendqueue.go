package verbs

import (
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// What a work request in a send queue is for.
type requestKind uint8

const (
	requestControl requestKind = iota
	requestData                // a message from a send buffer
	requestWrite               // a piece of a long message
	requestPart                // of a one-sided operation, but not its end
	requestOp                  // the end of a one-sided operation
	requestCancel              // asks the peer's claim table
	requestWindow              // binds or invalidates a memory window
)

// request is a work request that the device has.
type request struct {
	kind  requestKind
	op    int // slot of a one-sided operation
	slot  int // receive slot that is asked about
	gen   uint32
	last  *transfer // which this request completes
	ended *slot     // whose windows it revokes
}

// sendQueue is the send side of a queue pair: work requests are numbered, and
// complete in that order. Only the connection's owner touches it.
type sendQueue struct {
	qp         *ibv.QP
	chain      *ibv.SendChain
	ring       []request // a power of two
	next       uint32    // the number of the next one
	done       uint32    // all before this one are complete
	looked     uint32    // next when the keeper last looked
	unsignaled int       // since the last that will report
	silentData int       // of those, messages from send buffers
	slots      int       // send buffers
	crossings  kit.Tally // into C, to post
}

// controlReserve is room in a send queue that messages leave: for credits, a
// goodbye, and signs of life.
const controlReserve = 4

func (q *sendQueue) init(qp *ibv.QP, depth, slots, inline int) (err error) {
	const sges = 1
	q.qp, q.ring, q.slots = qp, make([]request, depth), slots
	q.chain, err = ibv.NewSendChain(depth, sges, inline)
	return err
}

// post hands what was added to the device, in one crossing.
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

// add appends a work request to the chain that is to be posted. The caller has
// seen that there is room.
func (q *sendQueue) add(kind requestKind, signal bool) (*ibv.SendWR, *request) {
	wr := q.chain.Next()
	return wr, q.number(wr, kind, signal)
}

// number makes a request that was just appended the next one.
func (q *sendQueue) number(wr *ibv.SendWR, kind requestKind, signal bool) *request {
	q.unsignaled++
	if kind == requestData {
		q.silentData++
	}
	// Each report may cost a crossing of its own: so few, but in time.
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

// complete gives the oldest request that is complete when the one with number
// id is.
func (q *sendQueue) complete(id uint32) (*request, bool) {
	if int32(id-q.done) < 0 || int32(q.next-q.done) <= 0 {
		return nil, false
	}
	r := &q.ring[int(q.done)&(len(q.ring)-1)]
	q.done++
	return r, true
}

// holds reports whether id is a number that the device may report.
func (q *sendQueue) holds(id uint32) bool { return id-q.done < q.next-q.done }
