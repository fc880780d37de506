package ibv

import (
	"runtime"
	"syscall"
	"unsafe"
)

// PostSend posts the chain in one crossing into C, in order, and returns how
// many requests were posted; these leave the chain, what is left can be posted
// again. It does not block and does not allocate.
//
// Errors: EINVAL for a request beyond the queue pair's limits, with nothing
// posted; ENOMEM when the send queue is too full for the chain, with nothing posted;
// EINVAL unless in RTS or ERR; os.ErrClosed; the device's.
//
// In ERR everything is flushed; Soft-RoCE of Linux 6.1 does so reliably only
// with what was posted before.
func (qp *QP) PostSend(s *SendChain) (int, error) {
	if s.Len() == 0 {
		return 0, nil
	}
	if err := qp.admit(s); err != nil {
		return 0, err
	}
	var a workArgs
	last := a.sends(qp, s)
	rawProgress(&a, nil)
	s.settle(last, int(a.sent))
	runtime.KeepAlive(qp)
	return int(a.sent), qp.postError("post_send", int(a.sendErr))
}

// PostRecv posts the chain in one crossing into C, in order, and returns how
// many receives were posted; these leave the chain. It does not block and does not allocate.
//
// Errors: EINVAL for too many entries, in RESET, and on a queue pair with an
// SRQ, with nothing posted; ENOMEM when the receive queue is too full for the
// chain, with nothing posted; os.ErrClosed; the device's.
func (qp *QP) PostRecv(r *RecvChain) (int, error) {
	if r.Len() == 0 {
		return 0, nil
	}
	if err := qp.admitRecv(r); err != nil {
		return 0, err
	}
	a := workArgs{rqp: uintptr(qp.q)}
	last := a.recvs(r)
	rawProgress(&a, nil)
	r.unseal(last, int(a.received))
	runtime.KeepAlive(qp)
	return int(a.received), qp.postError("post_recv", int(a.recvErr))
}

// Work is the work that [CQ.Progress] posts. Every part may be left out.
type Work struct {
	SendQP *QP
	Sends  *SendChain
	RecvQP *QP // takes Recvs, unless SRQ does
	SRQ    *SRQ
	Recvs  *RecvChain
}

// Progress posts w.Recvs, then w.Sends, and polls up to len(wcs) completions, all in one crossing into C. It returns
// the number of completions, which are valid beside an error, too. The error is that of the receives, else of the
// sends, else of the poll. Posted requests have left their chain. It neither blocks nor allocates.
func (cq *CQ) Progress(w *Work, wcs []WC) (int, error) {
	if w.Recvs != nil && w.Recvs.Len() > 0 {
		if err := w.admitRecv(); err != nil {
			return 0, err
		}
	}
	sends := w.Sends != nil && w.Sends.Len() > 0
	if sends {
		if err := w.SendQP.admit(w.Sends); err != nil {
			return 0, err
		}
	}
	a := workArgs{cq: uintptr(cq.q), nwc: int32(len(wcs))}
	var lastR *RecvWR
	var lastS *SendWR
	if w.Recvs != nil && w.Recvs.Len() > 0 {
		lastR = a.recvs(w.Recvs)
		if w.SRQ != nil {
			a.srq = uintptr(w.SRQ.q)
		} else {
			a.rqp = uintptr(w.RecvQP.q)
		}
	}
	if sends {
		lastS = a.sends(w.SendQP, w.Sends)
	}
	rawProgress(&a, unsafe.SliceData(wcs))
	if lastR != nil {
		w.Recvs.unseal(lastR, int(a.received))
	}
	if lastS != nil {
		w.Sends.settle(lastS, int(a.sent))
	}
	runtime.KeepAlive(w)
	runtime.KeepAlive(cq)
	if a.recvErr|a.sendErr|min(a.polled, 0) == 0 {
		return int(a.polled), nil
	}
	return w.failed(cq, &a)
}

// workArgs are the arguments and results of bw_progress (struct bw_work): addresses of C's memory as integers.
type workArgs struct {
	sqp, swr, rqp, srq, rwr, cq uintptr
	ns, nr                      uint32
	nwc                         int32
	recvErr, sendErr, polled    int32
	received, sent              uint32
}

func (a *workArgs) sends(qp *QP, s *SendChain) (last *SendWR) {
	last = s.seal()
	a.sqp, a.swr, a.ns = uintptr(qp.q), uintptr(unsafe.Pointer(&s.wrs[s.head])), uint32(s.Len())
	return last
}

func (a *workArgs) recvs(r *RecvChain) (last *RecvWR) {
	last = r.seal()
	a.rwr, a.nr = uintptr(unsafe.Pointer(&r.wrs[r.head])), uint32(r.Len())
	return last
}

func (w *Work) failed(cq *CQ, res *workArgs) (int, error) {
	n := max(int(res.polled), 0)
	switch {
	case res.recvErr != 0 && w.SRQ != nil:
		return n, w.SRQ.postError(int(res.recvErr))
	case res.recvErr != 0:
		return n, w.RecvQP.postError("post_recv", int(res.recvErr))
	case res.sendErr != 0:
		return n, w.SendQP.postError("post_send", int(res.sendErr))
	}
	return n, cq.pollError("poll_cq", int(res.polled))
}

// admit returns an error for requests that the queue pair does not accept, and keeps the objects of bind requests open.
func (qp *QP) admit(s *SendChain) error {
	if st := qp.State(); st < StateRTS {
		return qp.notReady("post_send", st)
	}
	if i, f := s.check(qp.limits.Load()); f != faultNone {
		return invalid("post_send", qp.device, "queue pair %#x: request %d: %v", qp.num, i, f)
	}
	if len(s.bind) > 0 {
		return s.lockBindings(qp)
	}
	return nil
}

// settle ends a post that admit has begun.
func (c *SendChain) settle(last *SendWR, done int) {
	if len(c.bind) > 0 {
		for _, b := range c.bind {
			if b.at < c.head+done {
				b.mw.rkey.Store(c.wrs[b.at].mwKey)
				rawSetKey(b.mw.h, c.wrs[b.at].mwKey)
			}
		}
		c.unlockBindings(len(c.bind))
	}
	c.unseal(last, done)
}

func (qp *QP) admitRecv(r *RecvChain) error {
	if qp.init.SRQ != nil {
		return invalid("post_recv", qp.device, "queue pair %#x takes its receives from an SRQ; post them there", qp.num)
	}
	if st := qp.State(); st == StateReset {
		return qp.notReady("post_recv", st)
	}
	if i, f := r.check(qp.limits.Load().recvSGE); f != faultNone {
		return invalid("post_recv", qp.device, "queue pair %#x: receive %d: %v", qp.num, i, f)
	}
	return nil
}

func (w *Work) admitRecv() error {
	if w.SRQ == nil {
		return w.RecvQP.admitRecv(w.Recvs)
	}
	return w.SRQ.admit(w.Recvs)
}

func (qp *QP) notReady(verb string, s QPState) error {
	return invalid(verb, qp.device, "queue pair %#x is in %v%s", qp.num, s, missing(s, StateRTS))
}

// postError returns nil for 0, and does not allocate for a full queue.
func (qp *QP) postError(verb string, r int) error {
	switch {
	case r == 0:
		return nil
	case r == -int(syscall.ENOMEM) && verb == "post_send":
		return &qp.sendFull
	case r == -int(syscall.ENOMEM) && verb == "post_recv":
		return &qp.recvFull
	case r == -int(syscall.EBADF):
		return closed(verb, &qp.object)
	}
	return fail(verb, qp.device, r, "")
}
