package ibv

import (
	"fmt"
	"runtime"
	"syscall"
)

// SRQ is a shared receive queue: one pool of receives for many queue pairs.
type SRQ struct {
	object
	pd     *PD
	q      handle // of the shim; valid while srq is reachable
	key    handle
	maxWR  int
	maxSGE int32
	full   Error
}

// CreateSRQ makes a shared receive queue of at least maxWR receives with
// maxSGE entries. Errors: EINVAL beyond the device's limits; ENOMEM.
func (pd *PD) CreateSRQ(maxWR, maxSGE int) (*SRQ, error) {
	a := &pd.c.attr
	if maxWR < 1 || maxWR > a.MaxSRQWR || maxSGE < 1 || maxSGE > a.MaxSRQSGE {
		return nil, invalid("create_srq", pd.device, "%d receives of %d entries; the device has 1 to %d of 1 to %d",
			maxWR, maxSGE, a.MaxSRQWR, a.MaxSRQSGE)
	}
	srq := &SRQ{pd: pd, maxWR: maxWR, maxSGE: int32(maxSGE)}
	srq.kind, srq.label = "shared receive queue", func() string { return fmt.Sprintf("of %d", maxWR) }
	err := srq.make("create_srq", func() (handle, int) {
		var r int
		srq.q, srq.key, r = rawCreateSRQ(pd.h, maxWR, maxSGE)
		return srq.q, r
	}, &pd.object)
	if err != nil {
		return nil, err
	}
	runtime.AddCleanup(srq, rawFree, srq.q)
	srq.full = queueFull("post_srq_recv", srq.device)
	pd.c.remember(srq.key, srq)
	return srq, nil
}

// Close frees the queue and drops its receives. It fails with EBUSY, and names them, while queue pairs use it.
func (srq *SRQ) Close() error {
	return srq.close("destroy_srq", func() int {
		srq.pd.c.forget(srq.key, srq)
		srq.pd.c.dropSRQ(srq.q)
		return rawDestroySRQ(srq.q)
	})
}

// SetLimit arms one EventSRQLimit for when fewer than limit receives are left; 0 disarms it.
func (srq *SRQ) SetLimit(limit int) error {
	if limit < 0 || limit > srq.maxWR {
		return invalid("modify_srq", srq.device, "limit %d; the queue holds %d receives", limit, srq.maxWR)
	}
	return srq.call("modify_srq", func() int { return rawSetSRQLimit(srq.q, limit) })
}

// PostRecv posts the chain in one crossing into C and returns how many
// receives were posted; these leave the chain. Errors as of [QP.PostRecv].
func (srq *SRQ) PostRecv(r *RecvChain) (int, error) {
	if r.Len() == 0 {
		return 0, nil
	}
	if err := srq.admit(r); err != nil {
		return 0, err
	}
	a := workArgs{srq: uintptr(srq.q)}
	last := a.recvs(r)
	rawProgress(&a, nil)
	r.unseal(last, int(a.received))
	runtime.KeepAlive(srq)
	return int(a.received), srq.postError(int(a.recvErr))
}

func (srq *SRQ) admit(r *RecvChain) error {
	if i, f := r.check(srq.maxSGE); f != faultNone {
		return invalid("post_srq_recv", srq.device, "receive %d: %v", i, f)
	}
	return nil
}

func (srq *SRQ) postError(e int) error {
	switch e {
	case 0:
		return nil
	case -int(syscall.EBADF):
		return closed("post_srq_recv", &srq.object)
	case -int(syscall.ENOMEM):
		return &srq.full
	}
	return fail("post_srq_recv", srq.device, e, "")
}
