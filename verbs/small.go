//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
	"github.com/bywash/bywash/verbs/internal/connect"
)

// small is an instance of the small track: messages are sends into receives that were posted ahead.
//
// # Credits
//
// A sender counts its messages and stops at the limit that the peer has sent: the number of receives that the peer has
// posted for messages since the beginning. The limit travels in the immediate of every message. It also travels alone,
// when half of the last limit is used up. At most two such updates can be under way; receives for them and for the
// close message are posted beyond the limit. A receive is therefore always posted, and no receiver-not-ready slows the
// sender down. The pool decides where receives come from and how many there are.
type small struct {
	conn
	kit.Small

	mem    *slab // this connection's buffers
	pool   *pool // where receives are posted
	joined bool  // uses the context's shared receives

	got     []message // arrived and not received; a ring whose length is a power of two
	gotHead uint32    // number of messages received
	gotTail uint32    // number of messages that have arrived

	sendSlot    int    // the next send buffer
	slotsOut    int    // send buffers in use by the device
	sentCount   uint32 // number of messages sent
	limit       uint32 // the most that sentCount may be
	limitSent   uint32 // the last limit sent to the peer
	limitSentAt uint32 // gotHead when limitSent was sent
	grant       uint32 // the limit that can be sent
}

// message is a message in a receive buffer.
type message struct {
	buffer uint32
	n      uint32
}

var (
	_ driver.BufferSender   = (*small)(nil)
	_ driver.BufferReceiver = (*small)(nil)
	_ driver.SendWaiter     = (*small)(nil)
	_ driver.RecvWaiter     = (*small)(nil)
	_ driver.OneSided       = (*small)(nil)
	_ kit.Starter           = (*small)(nil)
)

func (s *small) queues() []connect.QP { return []connect.QP{s.ctx.adapt(s.qps[0])} }

func (s *small) hello() *hello {
	return &hello{buffer: uint32(s.ctx.opts.buffer), limit: s.pool.first()}
}

func (s *small) prepare() error {
	s.limit = s.theirs.limit
	s.limitSent, s.grant = s.pool.first(), s.pool.first()
	return s.pool.fill()
}

// Settle implements track and kit.SmallHooks: it handles the events in the inbox, and posts messages that can be sent
// now.
func (s *small) Settle() {
	if s.inbox.empty() {
		s.ctx.Drain()
	}
	s.take()
	s.Push()
	if s.State() == kit.StateUp {
		if s.waiting > 0 {
			s.pushOps()
		}
		s.sendCredit()
	} else if s.ops > 0 && s.cannotComplete() {
		if !s.resetQPs() {
			return
		}
		s.take() // events from before the connection ended
		s.failOps(s.Failure("operation"))
	}
}

func (s *small) take() {
	var e event
	for s.inbox.pop(&e) {
		switch e.kind {
		case eventRecv:
			s.came(&e)
		case eventSent:
			s.complete(e.id, ibv.WCSuccess)
		case eventUnused:
			s.pool.put(e.id)
		default:
			s.complete(e.id, ibv.WCStatus(e.code))
		}
	}
}

// came handles a receive that is complete.
func (s *small) came(e *event) {
	low := e.imm & limitMask
	switch e.code {
	case codeData:
		if int(e.n) > s.ctx.opts.buffer || int32(s.gotTail-s.limitSent) >= 0 {
			s.pool.put(e.id)
			s.Dropped()
			s.Misbehaved("a message beyond its limits")
			return
		}
		s.got[int(s.gotTail)&(len(s.got)-1)] = message{buffer: e.id, n: e.n}
		s.gotTail++
	case codeCredit:
		s.pool.put(e.id)
		if s.pool.control++; s.pool.control > sharedControl { // more than this side has caused
			s.Misbehaved("credits without end")
			return
		}
	case codeClose:
		s.pool.put(e.id)
		return
	default:
		s.pool.put(e.id)
		s.Misbehaved(fmt.Sprintf("a message with code %d", e.code))
		return
	}
	limit := expand(low, s.limit)
	switch ahead := int32(limit - s.limit); {
	case ahead < 0:
	case ahead > maxDepth:
		s.Misbehaved("credits that cannot be")
	default:
		s.limit = limit
	}
}

// complete frees send buffers and finishes operations up to request id.
func (s *small) complete(id uint32, status ibv.WCStatus) {
	for {
		r, status := s.sq.complete(id, status)
		switch {
		case r == nil:
			return
		case r.kind == requestData:
			s.slotsOut--
		case (r.kind == requestPart || r.kind == requestOp) && !s.closing:
			s.finishPart(r, status)
		}
	}
}

// sendCredit sends the limit when the peer has used half of the last one. The last place in the queue is left to
// sendClose.
func (s *small) sendCredit() {
	if s.grant == s.limitSent || s.gotHead-s.limitSentAt < (s.limitSent-s.limitSentAt+1)/2 || s.sq.room() <= 1 {
		return
	}
	wr, _ := s.sq.add(requestControl, false)
	wr.SendImm(immediate(codeCredit, s.grant))
	s.limitSent, s.limitSentAt = s.grant, s.gotHead
	s.flush(true)
}

// flush posts the chains. Receives go first, so that a limit in a message is never ahead of them; a few receives
// without messages wait for more.
func (s *small) flush(receives bool) {
	var err error
	if receives || s.ripe() {
		err = s.pool.post(s.cq, &s.sq)
	} else {
		err = s.sq.post()
	}
	if err != nil {
		s.broke(err)
	}
}

// sendClose implements track. Messages that wait for credit are not sent any more.
func (s *small) sendClose() bool {
	if s.sq.room() == 0 || s.firstBad.Load() != 0 || s.qpsReset {
		return false
	}
	s.sq.chain.Reset()
	wr, _ := s.sq.add(requestControl, true)
	wr.SendImm(immediate(codeClose, 0))
	s.flush(false)
	return true
}

func (s *small) unbind() {}

func (s *small) drop() {
	s.Drop()
	s.oneSided.close()
	s.sq.free()
	s.mem.close()
	if s.joined {
		s.surrender()
	}
}

// surrender gives back all receives that this connection holds in shared mode. Its queue pair is gone, and its
// completions are in the inbox.
func (s *small) surrender() {
	var e event
	for s.inbox.pop(&e) {
		if e.kind == eventRecv || e.kind == eventUnused {
			s.pool.put(e.id)
		}
	}
	out := int(s.grant - s.gotHead)
	for ; s.gotHead != s.gotTail; s.gotHead++ {
		s.pool.put(s.got[int(s.gotHead)&(len(s.got)-1)].buffer)
	}
	_ = s.pool.post(s.cq, nil)
	s.ctx.shared.leave(max(0, out-sharedBase))
	s.joined = false
}

func (s *small) Pending() bool {
	s.Settle()
	return s.Stalled()
}
