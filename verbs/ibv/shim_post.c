// SPDX-License-Identifier: BSD-2-Clause
/* The data path: post, poll, and the count of what is outstanding. */
#include "lib.h"

#if BW_HEADERS

#include <stddef.h>

#define BW_SAME(theirs, ours, field_theirs, field_ours)                                                                \
	_Static_assert(offsetof(struct theirs, field_theirs) == offsetof(struct ours, field_ours), #ours "." #field_ours)

_Static_assert(sizeof(struct ibv_sge) == sizeof(struct bw_sge), "bw_sge");
_Static_assert(sizeof(struct ibv_recv_wr) == sizeof(struct bw_recv_wr), "bw_recv_wr");
_Static_assert(sizeof(struct ibv_send_wr) == sizeof(struct bw_send_wr), "bw_send_wr");
_Static_assert(sizeof(struct ibv_wc) == sizeof(struct bw_wc), "bw_wc");
BW_SAME(ibv_sge, bw_sge, lkey, lkey);
BW_SAME(ibv_recv_wr, bw_recv_wr, sg_list, sg_list);
BW_SAME(ibv_recv_wr, bw_recv_wr, num_sge, num_sge);
BW_SAME(ibv_send_wr, bw_send_wr, opcode, opcode);
BW_SAME(ibv_send_wr, bw_send_wr, send_flags, send_flags);
BW_SAME(ibv_send_wr, bw_send_wr, imm_data, imm);
BW_SAME(ibv_send_wr, bw_send_wr, wr.rdma.remote_addr, remote_addr);
BW_SAME(ibv_send_wr, bw_send_wr, wr.rdma.rkey, compare_add);
BW_SAME(ibv_send_wr, bw_send_wr, wr.atomic.remote_addr, remote_addr);
BW_SAME(ibv_send_wr, bw_send_wr, wr.atomic.swap, swap);
BW_SAME(ibv_send_wr, bw_send_wr, wr.atomic.rkey, atomic_rkey);
BW_SAME(ibv_send_wr, bw_send_wr, qp_type.xrc.remote_srqn, srqn);
BW_SAME(ibv_send_wr, bw_send_wr, bind_mw.mw, mw);
BW_SAME(ibv_send_wr, bw_send_wr, bind_mw.rkey, mw_rkey);
BW_SAME(ibv_send_wr, bw_send_wr, bind_mw.bind_info.mr, mr);
BW_SAME(ibv_send_wr, bw_send_wr, bind_mw.bind_info.length, mw_length);
BW_SAME(ibv_send_wr, bw_send_wr, bind_mw.bind_info.mw_access_flags, mw_access);
BW_SAME(ibv_wc, bw_wc, byte_len, byte_len);
BW_SAME(ibv_wc, bw_wc, imm_data, imm);
BW_SAME(ibv_wc, bw_wc, src_qp, tag);
BW_SAME(ibv_wc, bw_wc, wc_flags, wc_flags);
BW_SAME(ibv_wc, bw_wc, dlid_path_bits, dlid_path_bits);

static void bw_note_sent(struct bw_qp *qp, uint32_t at, uint64_t wr_id, uint32_t flags)
{
	struct bw_sent *s = &qp->sends.ring[at & qp->sends.mask];

	s->wr_id = wr_id;
	s->signaled = flags & IBV_SEND_SIGNALED;
}

/* How many of a chain's n requests, each of that size, come before bad; all if bad is none of them. */
static uint32_t bw_before(const void *wr, size_t size, uint32_t n, const void *bad)
{
	uintptr_t i = ((uintptr_t)bad - (uintptr_t)wr) / size;

	return i < n ? i : n;
}

/* The caller holds send_lock. A post is noted first, here and of receives: it may complete before the library returns. */
static int bw_send(struct bw_qp *qp, struct bw_send_wr *wr, uint32_t n, uint32_t *done)
{
	uint32_t i, posted = qp->sends.posted;
	struct ibv_send_wr *bad = NULL;
	int r;

	if (!qp->qp)
		return -EBADF;
	if (posted - __atomic_load_n(&qp->sends.retired, __ATOMIC_ACQUIRE) + n > qp->send_max)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		bw_note_sent(qp, posted + i, wr[i].wr_id, wr[i].send_flags);
	__atomic_store_n(&qp->sends.posted, posted + n, __ATOMIC_RELEASE);
	r = bw_ret(ibv_post_send(qp->qp, (struct ibv_send_wr *)wr, &bad));
	*done = r ? bw_before(wr, sizeof(*wr), n, bad) : n;
	if (r)
		__atomic_store_n(&qp->sends.posted, posted + *done, __ATOMIC_RELEASE);
	return r;
}

static int bw_post_send(struct bw_qp *qp, struct bw_send_wr *wr, uint32_t n, uint32_t *done)
{
	int r;

	bw_lock(&qp->send_lock);
	r = bw_send(qp, wr, n, done);
	bw_unlock(&qp->send_lock);
	return r;
}

static int bw_post_recv(struct bw_qp *qp, struct bw_recv_wr *wr, uint32_t n, uint32_t *done)
{
	struct ibv_recv_wr *bad = NULL;
	uint32_t posted;
	int r = -EBADF;

	bw_lock(&qp->recv_lock);
	if (!qp->qp)
		goto unlock;
	r = -ENOMEM;
	posted = qp->recv_posted;
	if (posted - __atomic_load_n(&qp->recv_retired, __ATOMIC_ACQUIRE) + n > qp->recv_max)
		goto unlock;
	__atomic_store_n(&qp->recv_posted, posted + n, __ATOMIC_RELEASE);
	r = bw_ret(ibv_post_recv(qp->qp, (struct ibv_recv_wr *)wr, &bad));
	*done = r ? bw_before(wr, sizeof(*wr), n, bad) : n;
	if (r)
		__atomic_store_n(&qp->recv_posted, posted + *done, __ATOMIC_RELEASE);
unlock:
	bw_unlock(&qp->recv_lock);
	return r;
}

static int bw_post_srq_recv(struct bw_srq *srq, struct bw_recv_wr *wr, uint32_t n, uint32_t *done)
{
	struct ibv_recv_wr *bad = NULL;
	uint32_t posted;
	int r = -EBADF;

	bw_lock(&srq->lock);
	if (!srq->srq)
		goto unlock;
	r = -ENOMEM;
	posted = srq->posted;
	if (posted - __atomic_load_n(&srq->retired, __ATOMIC_ACQUIRE) + n > srq->max)
		goto unlock;
	__atomic_store_n(&srq->posted, posted + n, __ATOMIC_RELEASE);
	r = bw_ret(ibv_post_srq_recv(srq->srq, (struct ibv_recv_wr *)wr, &bad));
	*done = r ? bw_before(wr, sizeof(*wr), n, bad) : n;
	if (r)
		__atomic_store_n(&srq->posted, posted + *done, __ATOMIC_RELEASE);
unlock:
	bw_unlock(&srq->lock);
	return r;
}

/*
 * Retires the send request that wc completes and those before it, whose success
 * is not seen. Returns 0 if wc is of no send request: in a failed completion
 * nothing but its id tells which queue it is of.
 */
static int bw_retire_send(struct bw_sends *sends, const struct bw_wc *wc)
{
	uint32_t posted = __atomic_load_n(&sends->posted, __ATOMIC_ACQUIRE);
	uint32_t at = sends->retired;

	for (; at != posted; at++) {
		const struct bw_sent *s = &sends->ring[at & sends->mask];

		if (wc->status != IBV_WC_SUCCESS && s->wr_id == wc->wr_id)
			break;
		if (!s->signaled)
			continue;
		if (wc->status != IBV_WC_SUCCESS)
			return 0;
		break;
	}
	if (at == posted)
		return 0;
	__atomic_store_n(&sends->retired, at + 1, __ATOMIC_RELEASE);
	return 1;
}

/*
 * Retires a receive, unless all are: a failed send that a reset has left looks like one on a queue pair without SRQ.
 * CQs that share an SRQ do this at the same time.
 */
static void bw_retire_recv(const struct bw_peer *p)
{
	const uint32_t *posted = p->srq ? &p->srq->posted : &p->qp->recv_posted;
	uint32_t *retired = p->srq ? &p->srq->retired : &p->qp->recv_retired;
	uint32_t at = __atomic_load_n(retired, __ATOMIC_RELAXED);

	while ((int32_t)(__atomic_load_n(posted, __ATOMIC_ACQUIRE) - at) > 0 &&
	       !__atomic_compare_exchange_n(retired, &at, at + 1, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

static void bw_retire(struct bw_cq *cq, struct bw_wc *wc)
{
	struct bw_peer *p = bw_cq_peer(cq, wc->qp_num);

	/*
	 * Soft-RoCE reports an invalidated key with the kernel's bit, which is
	 * the library's for a good IP checksum and as such never set there.
	 */
	if (cq->kernel_flags && (wc->wc_flags & IBV_WC_IP_CSUM_OK))
		wc->wc_flags ^= IBV_WC_IP_CSUM_OK | IBV_WC_WITH_INV;
	wc->tag = 0;
	if (!p)
		return;
	if (p->qp)
		wc->tag = p->qp->tag;
	if (wc->status == IBV_WC_SUCCESS && !(wc->opcode & IBV_WC_RECV)) {
		bw_retire_send(p->qp ? &p->qp->sends : &p->left, wc);
		return;
	}
	if (wc->status != IBV_WC_SUCCESS && p->sends &&
	    (bw_retire_send(&p->left, wc) || (p->qp && bw_retire_send(&p->qp->sends, wc))))
		return;
	if (p->recvs && (p->srq || p->qp))
		bw_retire_recv(p);
}

static int bw_poll_some(struct bw_cq *cq, struct bw_wc *wc, int n)
{
	int i, r;

	bw_lock(&cq->lock);
	r = -EBADF;
	if (cq->cq) {
		r = ibv_poll_cq(cq->cq, n, (struct ibv_wc *)wc);
		if (r < 0)
			r = -EIO;
		for (i = 0; i < r; i++)
			bw_retire(cq, &wc[i]);
	}
	bw_unlock(&cq->lock);
	return r;
}

int bw_poll(uint64_t cq, struct bw_wc *wc, int n)
{
	return bw_poll_some((struct bw_cq *)(uintptr_t)cq, wc, n);
}

void bw_progress(struct bw_work *w, struct bw_wc *wc)
{
	struct bw_recv_wr *rwr = (struct bw_recv_wr *)(uintptr_t)w->rwr;

	if (w->nr && w->srq)
		w->recv_err = bw_post_srq_recv((struct bw_srq *)(uintptr_t)w->srq, rwr, w->nr, &w->recvs);
	else if (w->nr)
		w->recv_err = bw_post_recv((struct bw_qp *)(uintptr_t)w->rqp, rwr, w->nr, &w->recvs);
	if (w->ns)
		w->send_err = bw_post_send((struct bw_qp *)(uintptr_t)w->sqp,
					   (struct bw_send_wr *)(uintptr_t)w->swr, w->ns, &w->sends);
	if (w->nwc)
		w->polled = bw_poll(w->cq, wc, w->nwc);
}

#endif
