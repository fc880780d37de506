package ibv

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
)

// QPInit configures a queue pair.
type QPInit struct {
	SendCQ, RecvCQ *CQ  // where completions go; may be the same
	SRQ            *SRQ // replaces the queue pair's own receive queue; may be nil

	MaxSendWR  int // outstanding send requests
	MaxRecvWR  int // outstanding receives; 0 with an SRQ
	MaxSendSGE int // gather entries of a send request; 0 means 1
	MaxRecvSGE int // scatter entries of a receive; 0 means 1
	MaxInline  int // bytes of an inline request

	Tag uint32 // returned in WC.Tag

	// Oversubscribe allows completion queues smaller than all completions that their queue pairs could cause; the
	// caller must then make sure that none is overrun.
	Oversubscribe bool
}

// QPCaps are the sizes of a queue pair, which are at least the requested ones.
type QPCaps struct {
	MaxSendWR, MaxRecvWR   int
	MaxSendSGE, MaxRecvSGE int
	MaxInline              int // bytes
}

// QP is a reliable connected queue pair.
type QP struct {
	object
	pd   *PD
	init QPInit
	caps QPCaps
	num  uint32
	q    handle // of the shim; valid while qp is reachable
	key  handle

	stepping sync.Mutex // one state step at a time
	port     PortAttr   // since ToInit
	portNum  uint32
	state    atomic.Uint32 // as far as this side has set it
	limits   atomic.Pointer[limits]

	sendFull, recvFull Error
}

// CreateQP makes a queue pair, in state RESET. Errors: EINVAL beyond the
// device's limits, or for a CQ too small for the completions that could come;
// ENOMEM.
func (pd *PD) CreateQP(init QPInit) (*QP, error) {
	if err := pd.checkInit(&init); err != nil {
		return nil, err
	}
	qp := &QP{pd: pd, init: init}
	qp.kind, qp.label = "queue pair", func() string { return fmt.Sprintf("%#x", qp.num) }
	parents := []*object{&pd.object, &init.SendCQ.object}
	if init.RecvCQ != init.SendCQ {
		parents = append(parents, &init.RecvCQ.object)
	}
	var srq handle
	if init.SRQ != nil {
		parents = append(parents, &init.SRQ.object)
		srq = init.SRQ.q
	}
	if err := qp.reserve(); err != nil {
		return nil, err
	}
	err := qp.make("create_qp", func() (handle, int) {
		var r int
		qp.q, qp.key, qp.num, qp.caps, r = rawCreateQP(pd.h, init.SendCQ.q, init.RecvCQ.q, srq, &init)
		return qp.q, r
	}, parents...)
	if err != nil {
		qp.release()
		return nil, err
	}
	runtime.AddCleanup(qp, rawFree, qp.q)
	qp.sendFull, qp.recvFull = queueFull("post_send", qp.device), queueFull("post_recv", qp.device)
	qp.limits.Store(&limits{})
	pd.c.remember(qp.key, qp)
	return qp, nil
}

// queueFull returns the error of a full queue. It is made once, because a full queue is normal.
func queueFull(verb, device string) Error {
	return Error{Verb: verb, Device: device, Errno: syscall.ENOMEM, Detail: remedy(verb, syscall.ENOMEM)}
}

func (pd *PD) checkInit(init *QPInit) error {
	a := &pd.c.attr
	if init.SendCQ == nil || init.RecvCQ == nil {
		return invalid("create_qp", pd.device, "SendCQ and RecvCQ are needed")
	}
	if init.SendCQ.c != pd.c || init.RecvCQ.c != pd.c {
		return invalid("create_qp", pd.device, "a completion queue is of another device")
	}
	if init.SRQ != nil && init.SRQ.pd != pd {
		return invalid("create_qp", pd.device, "the SRQ is of another protection domain")
	}
	if init.SRQ != nil && init.MaxRecvWR != 0 {
		return invalid("create_qp", pd.device, "a queue pair with an SRQ has no receives of its own; leave MaxRecvWR 0")
	}
	if init.MaxSendSGE == 0 {
		init.MaxSendSGE = 1
	}
	if init.MaxRecvSGE == 0 && init.SRQ == nil {
		init.MaxRecvSGE = 1
	}
	for _, v := range []struct {
		name       string
		value, max int
	}{
		{"MaxSendWR", init.MaxSendWR, a.MaxQPWR},
		{"MaxRecvWR", init.MaxRecvWR, a.MaxQPWR},
		{"MaxSendSGE", init.MaxSendSGE, a.MaxSGE},
		{"MaxRecvSGE", init.MaxRecvSGE, a.MaxSGE},
		{"MaxInline", init.MaxInline, maxChainInline},
	} {
		if v.value < 0 || v.value > v.max {
			return invalid("create_qp", pd.device, "%s is %d; the limit is %d", v.name, v.value, v.max)
		}
	}
	return nil
}

// reserve reserves room in the completion queues for all requests that can be outstanding.
func (qp *QP) reserve() error {
	i := &qp.init
	if err := i.SendCQ.reserve(i.MaxSendWR, nil, i.Oversubscribe); err != nil {
		return err
	}
	if err := i.RecvCQ.reserve(i.MaxRecvWR, i.SRQ, i.Oversubscribe); err != nil {
		i.SendCQ.unreserve(i.MaxSendWR, nil)
		return err
	}
	return nil
}

func (qp *QP) release() {
	qp.init.SendCQ.unreserve(qp.init.MaxSendWR, nil)
	qp.init.RecvCQ.unreserve(qp.init.MaxRecvWR, qp.init.SRQ)
}

// reserve reserves room for n more completions. It counts the receives of srq once for all its queue pairs.
func (cq *CQ) reserve(n int, srq *SRQ, over bool) error {
	cq.size.Lock()
	defer cq.size.Unlock()
	if srq != nil && cq.srqs[srq] == 0 {
		n += srq.maxWR
	}
	if cq.demand+n > cq.cqe && !over {
		return invalid("create_qp", cq.device, "the completion queue of %d entries could be overrun: its queue pairs would "+
			"cause up to %d completions; make it larger (CQ.Resize) or set Oversubscribe and keep count", cq.cqe, cq.demand+n)
	}
	cq.demand += n
	if srq != nil {
		if cq.srqs == nil {
			cq.srqs = map[*SRQ]int{}
		}
		cq.srqs[srq]++
	}
	return nil
}

func (cq *CQ) unreserve(n int, srq *SRQ) {
	cq.size.Lock()
	defer cq.size.Unlock()
	cq.demand -= n
	if srq == nil {
		return
	}
	if cq.srqs[srq]--; cq.srqs[srq] == 0 {
		cq.demand -= srq.maxWR
		delete(cq.srqs, srq)
	}
}

// Close destroys the queue pair. Outstanding requests are dropped without a completion; earlier completions can still
// be polled. The memory of the requests belongs to the caller again.
func (qp *QP) Close() error {
	return qp.close("destroy_qp", func() int {
		r := rawDestroyQP(qp.q)
		if freed(r) {
			qp.pd.c.forget(qp.key, qp)
			qp.release()
		}
		return r
	})
}

// Num returns the queue pair number, 24 bits; the peer needs it.
func (qp *QP) Num() uint32 { return qp.num }

// Caps returns the sizes of the queue pair.
func (qp *QP) Caps() QPCaps { return qp.caps }

// State returns the state that this side has set last. If a queue pair has failed, only [QP.Query] returns StateErr.
func (qp *QP) State() QPState { return QPState(qp.state.Load()) }

// Query asks the device for the state: StateErr after a failure that this side has not caused.
func (qp *QP) Query() (QPState, error) {
	var s QPState
	err := qp.call("query_qp", func() (r int) {
		s, r = rawQPState(qp.q)
		return r
	})
	return s, err
}
