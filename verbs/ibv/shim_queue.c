// SPDX-License-Identifier: BSD-2-Clause
/* Queues: making, changing and destroying them. */
#include "lib.h"

#if BW_HEADERS

#include <stdlib.h>
#include <string.h>

static struct bw_peer *bw_slot(struct bw_peer *peers, uint32_t mask, uint32_t qpn)
{
	uint32_t i = (qpn * 2654435761u) >> 8;

	for (;; i++) {
		struct bw_peer *p = &peers[i & mask];

		if (!p->used || p->qpn == qpn)
			return p;
	}
}

struct bw_peer *bw_cq_peer(struct bw_cq *cq, uint32_t qpn)
{
	struct bw_peer *p;

	if (!cq->peers)
		return NULL;
	p = bw_slot(cq->peers, cq->peer_mask, qpn);
	return p->used ? p : NULL;
}

/* Makes room for one more, and drops those of closed queue pairs, whose completions then no longer count. */
static int bw_cq_grow(struct bw_cq *cq)
{
	uint32_t i, live = 0, size = 16;
	struct bw_peer *peers;

	for (i = 0; cq->peers && i <= cq->peer_mask; i++)
		live += cq->peers[i].used && cq->peers[i].qp;
	while (size < 4 * (live + 1))
		size *= 2;
	peers = calloc(size, sizeof(*peers));
	if (!peers)
		return -ENOMEM;
	for (i = 0; cq->peers && i <= cq->peer_mask; i++)
		if (cq->peers[i].used && cq->peers[i].qp)
			*bw_slot(peers, size - 1, cq->peers[i].qpn) = cq->peers[i];
		else
			free(cq->peers[i].left.ring);
	free(cq->peers);
	cq->peers = peers;
	cq->peer_mask = size - 1;
	cq->npeers = live;
	return 0;
}

int bw_cq_attach(struct bw_cq *cq, struct bw_qp *qp, int sends, int recvs)
{
	struct bw_peer *p;
	int r = 0;

	bw_lock(&cq->lock);
	if (!cq->peers || 2 * (cq->npeers + 1) > cq->peer_mask)
		r = bw_cq_grow(cq);
	if (r == 0) {
		p = bw_slot(cq->peers, cq->peer_mask, qp->qp->qp_num);
		if (!p->used)
			cq->npeers++;
		if (p->qp != qp) {
			free(p->left.ring);
			*p = (struct bw_peer){ .used = 1, .qpn = qp->qp->qp_num, .qp = qp, .srq = qp->srq };
		}
		p->sends |= sends;
		p->recvs |= recvs;
	}
	bw_unlock(&cq->lock);
	return r;
}

/*
 * Gives the queue pair an empty ring. Sends that are under way may still complete, on Soft-RoCE: p keeps their ring,
 * which tells them from receives of the SRQ. Returns the ring that is not needed.
 */
static struct bw_sent *bw_leave_sends(struct bw_peer *p, struct bw_sent *empty)
{
	struct bw_sends *s = &p->qp->sends;
	struct bw_sent *old = p->left.ring;

	if (!p->srq || !p->sends || !p->recvs || s->posted == s->retired)
		return empty;
	p->left = *s;
	s->ring = empty;
	return old;
}

/* The entry stays: completions of the queue pair may still come and count for its SRQ. */
void bw_cq_detach(struct bw_cq *cq, struct bw_qp *qp)
{
	uint32_t i;

	bw_lock(&cq->lock);
	for (i = 0; cq->peers && i <= cq->peer_mask; i++)
		if (cq->peers[i].qp == qp) {
			free(bw_leave_sends(&cq->peers[i], NULL));
			cq->peers[i].qp = NULL;
		}
	bw_unlock(&cq->lock);
}

void bw_cq_drop_srq(struct bw_cq *cq, struct bw_srq *srq)
{
	uint32_t i;

	bw_lock(&cq->lock);
	for (i = 0; cq->peers && i <= cq->peer_mask; i++)
		if (cq->peers[i].srq == srq)
			cq->peers[i].srq = NULL;
	bw_unlock(&cq->lock);
}

int bw_create_cq(void *ctx, int cqe, void *ch, int vector, int kernel_flags, struct bw_cq **cq, void **key, int *got)
{
	struct bw_cq *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->kernel_flags = kernel_flags;
	errno = 0;
	c->cq = bw_verbs.ibv_create_cq(ctx, cqe, NULL, ch, vector);
	if (!c->cq) {
		free(c);
		return bw_errno();
	}
	*cq = c;
	*key = c->cq;
	*got = c->cq->cqe;
	return 0;
}

int bw_resize_cq(struct bw_cq *cq, int cqe, int *got)
{
	int r = -EBADF;

	bw_lock(&cq->lock);
	if (cq->cq) {
		r = bw_ret(bw_verbs.ibv_resize_cq(cq->cq, cqe));
		*got = cq->cq->cqe;
	}
	bw_unlock(&cq->lock);
	return r;
}

int bw_destroy_cq(struct bw_cq *cq)
{
	uint32_t i;
	int r;

	bw_lock(&cq->lock);
	r = bw_ret(bw_verbs.ibv_destroy_cq(cq->cq));
	if (r == 0 || r == -EIO || r == -ENODEV) {
		cq->cq = NULL;
		for (i = 0; cq->peers && i <= cq->peer_mask; i++)
			free(cq->peers[i].left.ring);
		free(cq->peers);
		cq->peers = NULL;
	}
	bw_unlock(&cq->lock);
	return r;
}

int bw_req_notify(struct bw_cq *cq, int solicited)
{
	int r = -EBADF;

	bw_lock(&cq->lock);
	if (cq->cq)
		r = bw_ret(ibv_req_notify_cq(cq->cq, solicited));
	bw_unlock(&cq->lock);
	return r;
}

int bw_create_srq(void *pd, uint32_t wr, uint32_t sge, struct bw_srq **srq, void **key)
{
	struct ibv_srq_init_attr a = { .attr = { .max_wr = wr, .max_sge = sge } };
	struct bw_srq *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	errno = 0;
	s->srq = bw_verbs.ibv_create_srq(pd, &a);
	if (!s->srq) {
		free(s);
		return bw_errno();
	}
	s->max = wr;
	*srq = s;
	*key = s->srq;
	return 0;
}

int bw_set_srq_limit(struct bw_srq *srq, uint32_t limit)
{
	struct ibv_srq_attr a = { .srq_limit = limit };
	int r = -EBADF;

	bw_lock(&srq->lock);
	if (srq->srq)
		r = bw_ret(bw_verbs.ibv_modify_srq(srq->srq, &a, IBV_SRQ_LIMIT));
	bw_unlock(&srq->lock);
	return r;
}

int bw_destroy_srq(struct bw_srq *srq)
{
	int r;

	bw_lock(&srq->lock);
	r = bw_ret(bw_verbs.ibv_destroy_srq(srq->srq));
	if (r == 0 || r == -EIO || r == -ENODEV)
		srq->srq = NULL;
	bw_unlock(&srq->lock);
	return r;
}

static void bw_drop_qp(struct bw_qp *qp)
{
	bw_cq_detach(qp->scq, qp);
	bw_cq_detach(qp->rcq, qp);
	free(qp->sends.ring);
	qp->sends.ring = NULL;
	qp->qp = NULL;
}

int bw_create_qp(void *pd, struct bw_cq *scq, struct bw_cq *rcq, struct bw_srq *srq, struct bw_qp_init *init,
		 struct bw_qp **qp, void **key, uint32_t *qpn)
{
	struct ibv_qp_init_attr a = {
		.send_cq = scq->cq,
		.recv_cq = rcq->cq,
		.srq = srq ? srq->srq : NULL,
		.cap = { init->max_send_wr, init->max_recv_wr, init->max_send_sge, init->max_recv_sge, init->max_inline },
		.qp_type = IBV_QPT_RC,
	};
	uint32_t sent = 1;
	struct bw_qp *q;
	int r = -ENOMEM;

	q = calloc(1, sizeof(*q));
	if (!q)
		return r;
	*q = (struct bw_qp){ .scq = scq, .rcq = rcq, .srq = srq, .tag = init->tag,
			     .send_max = init->max_send_wr, .recv_max = init->max_recv_wr };
	while (sent < init->max_send_wr)
		sent *= 2;
	q->sends.mask = sent - 1;
	q->sends.ring = calloc(sent, sizeof(*q->sends.ring));
	if (!q->sends.ring)
		goto free;
	errno = 0;
	q->qp = bw_verbs.ibv_create_qp(pd, &a);
	if (!q->qp) {
		/* bnxt_re says nothing about limits that are exceeded. */
		r = errno ? -errno : -EINVAL;
		goto free;
	}
	r = bw_cq_attach(scq, q, 1, 0);
	if (r == 0)
		r = bw_cq_attach(rcq, q, 0, 1);
	if (r) {
		bw_verbs.ibv_destroy_qp(q->qp);
		bw_drop_qp(q);
		goto free;
	}
	init->max_send_sge = a.cap.max_send_sge;
	init->max_recv_sge = a.cap.max_recv_sge;
	init->max_inline = a.cap.max_inline_data;
	*qp = q;
	*key = q->qp;
	*qpn = q->qp->qp_num;
	return 0;

free:
	free(q->sends.ring);
	free(q);
	return r;
}

/* After a reset nothing is outstanding. Returns the ring that is not needed. */
static struct bw_sent *bw_forget_work(struct bw_qp *qp, struct bw_sent *empty)
{
	struct bw_peer *p;

	bw_lock(&qp->send_lock);
	bw_lock(&qp->recv_lock);
	bw_lock(&qp->scq->lock);
	p = bw_cq_peer(qp->scq, qp->qp->qp_num);
	if (p && p->qp == qp)
		empty = bw_leave_sends(p, empty);
	qp->sends.retired = qp->sends.posted;
	bw_unlock(&qp->scq->lock);
	bw_lock(&qp->rcq->lock);
	qp->recv_retired = qp->recv_posted;
	bw_unlock(&qp->rcq->lock);
	bw_unlock(&qp->recv_lock);
	bw_unlock(&qp->send_lock);
	return empty;
}

int bw_modify_qp(struct bw_qp *qp, const struct bw_qp_attr *from)
{
	struct ibv_qp_attr a = {
		.qp_state = from->state,
		.path_mtu = from->path_mtu,
		.rq_psn = from->rq_psn,
		.sq_psn = from->sq_psn,
		.dest_qp_num = from->dest_qpn,
		.qp_access_flags = from->access,
		.pkey_index = from->pkey_index,
		.port_num = from->port,
		.timeout = from->timeout,
		.retry_cnt = from->retry_cnt,
		.rnr_retry = from->rnr_retry,
		.min_rnr_timer = from->min_rnr_timer,
		.max_rd_atomic = from->max_rd_atomic,
		.max_dest_rd_atomic = from->max_dest_rd_atomic,
		.ah_attr = {
			.grh = {
				.flow_label = from->flow_label,
				.sgid_index = from->sgid_index,
				.hop_limit = from->hop_limit,
				.traffic_class = from->traffic_class,
			},
			.dlid = from->dlid,
			.sl = from->sl,
			.src_path_bits = from->src_path_bits,
			.static_rate = from->static_rate,
			.is_global = from->is_global,
			.port_num = from->ah_port,
		},
	};
	struct bw_sent *ring = NULL;
	int r;

	memcpy(a.ah_attr.grh.dgid.raw, from->dgid, sizeof(from->dgid));
	if (from->state == IBV_QPS_RESET) {
		ring = calloc(qp->sends.mask + 1, sizeof(*ring));
		if (!ring)
			return -ENOMEM;
	}
	r = bw_ret(bw_verbs.ibv_modify_qp(qp->qp, &a, from->mask));
	if (r == 0 && from->state == IBV_QPS_RESET)
		ring = bw_forget_work(qp, ring);
	free(ring);
	return r;
}

int bw_qp_state(struct bw_qp *qp, uint32_t *state)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a = { 0 };
	int r = bw_ret(bw_verbs.ibv_query_qp(qp->qp, &a, IBV_QP_STATE, &init));

	*state = a.qp_state;
	return r;
}

int bw_destroy_qp(struct bw_qp *qp)
{
	int r;

	bw_lock(&qp->send_lock);
	bw_lock(&qp->recv_lock);
	r = bw_ret(bw_verbs.ibv_destroy_qp(qp->qp));
	if (r == 0 || r == -EIO || r == -ENODEV)
		bw_drop_qp(qp);
	bw_unlock(&qp->recv_lock);
	bw_unlock(&qp->send_lock);
	return r;
}

#endif
