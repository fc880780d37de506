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
	maxWR  int // as created
	maxSGE int32
	full   Error
}

// SRQAttr are the sizes of a shared receive queue.
type SRQAttr struct {
	MaxWR  int // outstanding receives
	MaxSGE int // entries of a receive
	Limit  int // an event comes when fewer are left; 0: no event
}

// CreateSRQ makes a shared receive queue of at least maxWR receives with
// maxSGE entries. Errors: EINVAL beyond the device's limits; ENOMEM.
func (pd *PD) CreateSRQ(maxWR, maxSGE int) (*SRQ, error) {
	a := &pd.c.attr
	if maxWR < 1 || maxWR > a.MaxSRQWR || maxSGE < 1 || maxSGE > a.MaxSRQSGE {
		return nil, invalid("create_srq", pd.device, "%d receives of %d entries; the device has 1 to %d of 1 to %d",
			maxWR, maxSGE, a.MaxSRQWR, a.MaxSRQSGE)
	}
	srq := &SRQ{pd: pd, maxWR: maxWR}
	srq.kind = "shared receive queue"
	err := srq.make("create_srq", func() (handle, int) {
		var got SRQAttr
		var r int
		srq.q, srq.key, got, r = rawCreateSRQ(pd.h, maxWR, maxSGE)
		srq.maxSGE = int32(got.MaxSGE)
		return srq.q, r
	}, &pd.object)
	if err != nil {
		return nil, err
	}
	runtime.AddCleanup(srq, rawFree, srq.q)
	srq.full = queueFull("post_srq_recv", srq.device)
	srq.label = func() string { return fmt.Sprintf("of %d", maxWR) }
	pd.c.remember(srq.key, srq)
	return srq, nil
}

// Close frees the queue and drops its receives. It fails with EBUSY, and names them, while queue pairs use it.
func (srq *SRQ) Close() error {
	return srq.close("destroy_srq", func() int {
		srq.pd.c.forget(srq.key)
		for _, cq := range srq.pd.c.tracked() {
			rawDropSRQ(cq.q, srq.q)
		}
		return rawDestroySRQ(srq.q)
	})
}

// Query asks for the sizes and the armed limit.
func (srq *SRQ) Query() (SRQAttr, error) {
	var attr SRQAttr
	err := srq.call("query_srq", func() int { return rawQuerySRQ(srq.q, &attr) })
	return attr, err
}

// SetLimit arms one EventSRQLimit for when fewer than limit receives are left; 0 disarms it.
func (srq *SRQ) SetLimit(limit int) error {
	attr, err := srq.Query()
	if err != nil {
		return err
	}
	if limit < 0 || limit > attr.MaxWR {
		return invalid("modify_srq", srq.device, "limit %d; the queue holds %d receives", limit, attr.MaxWR)
	}
	return srq.call("modify_srq", func() int { return rawModifySRQ(srq.q, 0, limit, srqLimit) })
}

// Resize changes the number of receives. It fails with EINVAL beyond the device's limit or below the number of
// outstanding receives, and with EOPNOTSUPP if the device cannot resize.
func (srq *SRQ) Resize(maxWR int) error {
	if maxWR < 1 || maxWR > srq.pd.c.attr.MaxSRQWR {
		return invalid("modify_srq", srq.device, "%d receives; the device has 1 to %d", maxWR, srq.pd.c.attr.MaxSRQWR)
	}
	if !srq.pd.c.attr.SRQResize {
		return fail("modify_srq", srq.device, -int(syscall.EOPNOTSUPP), "the device cannot resize shared receive queues")
	}
	return srq.call("modify_srq", func() int { return rawModifySRQ(srq.q, maxWR, 0, srqMaxWR) })
}

const (
	srqMaxWR = 1
	srqLimit = 2
)

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
