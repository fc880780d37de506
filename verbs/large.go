//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
	"github.com/bywash/bywash/verbs/internal/connect"
)

// transferDepth is how many packets can be posted in each direction on the large track. maxTransfers is the largest
// transferDepth that a peer can have.
const (
	transferDepth = kit.LargeDepth
	maxTransfers  = 1 << slotBits
)

// large is an instance of the large track. The receiver's rdv data names its memory; the sender writes there; the last
// write, or a message after it, reports that the transfer is complete.
//
// Two queue pairs connect two processes, one for each direction of data, so that the receiver's requests (to ask
// whether a send has begun, to bind windows) do not wait behind its own data.
//
// # Cancelling
//
// A receive can be cancelled without the peer's help, so that a peer that computes or is stopped delays no receive. The
// sender has a table of claims with one entry for each receive slot of the peer, which the peer can read and write.
// Before it writes, the sender stores the transfer's generation in "claimed" and then reads "cancelled". The receiver
// writes "cancelled" and then reads "claimed". So at least one of them sees the other's store. If the receiver sees no
// claim, the sender will withdraw, and the receive is cancelled. If it sees one, it waits for the message or for the
// sender's withdrawal.
type large struct {
	conn
	kit.Large
	kit.Prefetcher

	pool    *pool // receives for announcements
	mem     *slab // the pool's buffers, then scratch
	tag     uint64
	bounce  *slab       // for short messages in memory that is not registered; allocated at the first
	claim   *claimTable // this side's table, as a sender
	claimMR *ibv.MR     // of the table alone: the peer may access nothing else
	asks    []byte      // destination of reads of the peer's claims
	slots   [transferDepth]slot
	out     [transferDepth]transfer
	ahead   regcache.Ahead[*ibv.MR]
	queue   []*transfer // transfers whose writes are not all posted

	reads     int  // of the peer's claims under way
	noWindows bool // the device has refused one: keys of receives are those of registrations
}

// claimTable is the table that the peer reads and writes to cancel a receive.
type claimTable [transferDepth]struct{ claimed, cancelled uint64 }

const claimBytes = int(unsafe.Sizeof(claimTable{}))

// slot is a posted receive.
type slot struct {
	k        int // its number
	gen      uint32
	length   int
	memory   memory
	windows  windows
	asking   bool // cancelled, and the claim is being read
	keysSent int  // pieces whose keys were sent to the peer
	rdv      [rdvBytes]byte
	update   [rdvBytes]byte
}

// transfer is a posted send.
type transfer struct {
	k          int // its slot
	rdv        rdvData
	total      int // bytes of the message
	length     int // bytes that fit into the receive
	memory     memory
	posted     int  // bytes whose writes are posted
	lastPosted bool // the last request is posted
	err        error
}

var (
	_ driver.SendWaiter = (*large)(nil)
	_ driver.RecvWaiter = (*large)(nil)
	_ driver.Prefetcher = (*large)(nil)
	_ driver.RdvUpdater = (*large)(nil)
	_ driver.OneSided   = (*large)(nil)
)

// queues implements track. The queue pair that one side sends on is the other's for receiving.
func (l *large) queues() []connect.QP {
	switch a := l.ctx.adapt; {
	case len(l.qps) == 1:
		return []connect.QP{a(l.qps[0])}
	case l.ctx.Incarnation < l.peerInc:
		return []connect.QP{a(l.qps[0]), a(l.qps[1])}
	default:
		return []connect.QP{a(l.qps[1]), a(l.qps[0])}
	}
}

func (l *large) hello() *hello {
	return &hello{
		large: true, tag: l.tag, depth: transferDepth,
		addr: uint64(uintptr(unsafe.Pointer(l.claim))), rkey: l.claimMR.RKey(),
	}
}

func (l *large) prepare() error {
	if l.theirs.depth != transferDepth {
		return fmt.Errorf("%w: the peer's context has %d transfers, this one %d", driver.ErrVersion, l.theirs.depth, transferDepth)
	}
	return l.pool.fill()
}

func (l *large) Settle() {
	if l.inbox.empty() {
		l.ctx.Drain()
	}
	l.take()
	if l.State() == kit.StateUp {
		l.push()
		if l.waiting > 0 {
			l.pushOps()
		}
	} else if (l.Receives.Len()+l.Sends.Len()+l.ops > 0) && (l.Sends.Len()+l.ops == 0 || l.cannotComplete()) {
		if !l.resetQPs() {
			return
		}
		l.take() // events from before the connection ended
		l.fail()
	}
}

func (l *large) take() {
	var e event
	for l.inbox.pop(&e) {
		q := &l.sq
		if e.queue == 1 {
			q = l.rx
		}
		switch e.kind {
		case eventRecv:
			if !l.closing {
				l.announced(&e)
			}
		case eventSent:
			l.complete(q, e.id, ibv.WCSuccess)
		case eventUnused:
		default:
			l.complete(q, e.id, ibv.WCStatus(e.code))
		}
	}
}

// complete handles the completion of a queue's requests up to number id.
func (l *large) complete(q *sendQueue, id uint32, status ibv.WCStatus) {
	for {
		r, status := q.complete(id, status)
		if r == nil {
			return
		}
		if r.kind == requestCancel {
			l.reads--
		}
		switch {
		case l.closing:
		case r.kind == requestPart || r.kind == requestOp:
			l.finishPart(r, status)
		case status != ibv.WCSuccess:
		case r.last != nil:
			l.sent(r.last)
		case r.ended != nil:
			l.giveBack(r.ended, r.ended.windows.err)
		case r.kind == requestCancel:
			l.asked(r.slot, r.gen)
		}
	}
}

// announced handles the peer's message that a transfer is complete or withdrawn.
func (l *large) announced(e *event) {
	name := e.imm & immMask
	k, gen := int(name&(maxTransfers-1)), name>>slotBits
	total := uint64(e.n)
	if e.code == codeDoneLong && e.n == 8 {
		total = *(*uint64)(unsafe.Pointer(unsafe.SliceData(l.mem.recv(e.id))))
	}
	l.pool.put(e.id)
	if l.State() == kit.StateUp {
		if err := l.pool.post(l.cq, nil); err != nil {
			l.broke(err)
			return
		}
	}
	if e.code == codeClose {
		return
	}
	if k >= transferDepth || l.Receives.At(k) == nil || l.slots[k].windows.over || l.slots[k].gen&genMask != gen {
		// A withdrawal may be late: the receive was cancelled, and its sender has only seen it now.
		if e.code != codeWithdrawn {
			l.Misbehaved("word of a transfer that is not under way")
		}
		return
	}
	s := &l.slots[k]
	switch {
	case e.code == codeWithdrawn && l.Receives.At(k).Driver.Phase == driver.Canceling:
		l.end(s, driver.ErrCanceled)
	case e.code == codeDone && int(e.n) <= s.length, e.code == codeDoneLong && e.n == 8 && total <= maxMessage:
		l.arrivedAll(s, int(total))
	default:
		l.Misbehaved(fmt.Sprintf("an announcement with code %d", e.code))
	}
}

// arrivedAll finishes a receive.
func (l *large) arrivedAll(s *slot, total int) {
	err := l.Received(s.k, total, s.length)
	if s.memory.copied != nil {
		p := l.Receives.At(s.k)
		c := p.Cursor()
		c.Scatter(s.memory.copied[:p.N])
	}
	l.path = pathWrite
	l.end(s, err)
}

// end revokes the keys of a receive and then gives it back.
func (l *large) end(s *slot, err error) {
	if !l.invalidate(s, err) {
		l.giveBack(s, err)
	}
}

// giveBack completes a receive. The peer cannot reach its memory any more.
func (l *large) giveBack(s *slot, err error) {
	s.windows.bound, s.windows.over = 0, false
	l.release(&s.memory)
	s.asking = false
	l.EndRecv(s.k, err)
}

// claims stores the claim of a transfer and reports whether the transfer may begin: the receive is over if it, or a
// later one in its slot, was cancelled.
func (l *large) claims(r *rdvData) bool {
	c := &l.claim[r.slot]
	atomic.StoreUint64(&c.claimed, uint64(r.gen)) // a full barrier
	cancelled := atomic.LoadUint64(&c.cancelled)
	ahead := r.gen - uint32(cancelled)
	if ahead > 1<<30 && int32(ahead) > 0 {
		// A generation that is 2³¹ ahead would seem to be behind. If the peer cancels meanwhile, it sees the claim.
		atomic.CompareAndSwapUint64(&c.cancelled, cancelled, uint64(r.gen-1))
	}
	return int32(ahead) > 0
}

// fail completes all posted packets after the connection has ended and the device has released the memory.
func (l *large) fail() {
	err := l.Failure("transfer")
	for k := range l.slots {
		if l.Receives.At(k) == nil {
			continue
		}
		e := err
		if w := &l.slots[k].windows; w.over { // it was whole, or cancelled, before the end; only its keys were still valid
			e = w.err
		}
		l.giveBack(&l.slots[k], e)
	}
	for k := range l.out {
		if t := &l.out[k]; l.Sends.At(k) != nil {
			t.err = err
			l.sent(t)
		}
	}
	l.failOps(err)
	l.queue = l.queue[:0]
	l.sq.forget()
	l.rx.forget()
	l.reads = 0
}

// InFlight implements kit.ClosingHooks.
func (l *large) InFlight(*driver.Packet, bool) bool { return !l.gone.Load() }

func (l *large) sendClose() bool {
	if l.firstBad.Load() != 0 || l.qpsReset || l.sq.room() == 0 {
		return false
	}
	l.sq.chain.Reset()
	wr, _ := l.sq.add(requestControl, true)
	wr.SendImm(immediate(codeClose, 0))
	if l.Receives.Len() > 0 && len(l.qps) == 2 {
		l.unbind()
		_ = l.ctx.reset(l.qps[1]) // the peer cannot write any more
	}
	return l.sq.post() == nil
}

func (l *large) unbind() {
	for k := range l.slots {
		l.slots[k].closeWindows()
	}
}

func (l *large) drop() {
	for k := range l.slots {
		l.release(&l.slots[k].memory)
	}
	for k := range l.out {
		l.release(&l.out[k].memory)
	}
	l.sq.free()
	if l.rx != nil && l.rx != &l.sq {
		l.rx.free()
	}
	l.bounce.close()
	l.oneSided.close()
	if l.claimMR != nil {
		_ = l.claimMR.Close()
	}
	l.mem.close()
}

func (l *large) Pending() bool {
	l.Settle()
	return l.Sends.Len() > 0
}
