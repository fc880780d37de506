// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * To ring a doorbell: write the state of the context, add an entry to the Doorbell Ring,
 * and notify the host once a step. The control program never reads the host page.
 */
#include "internal.h"

static void ring(struct ncp_process *p, u64 *doorbell, u32 entry, u32 state, u32 len)
{
	union {
		struct qnix_doorbell d;
		u64 word;
	} u = { .d = { .len = len, .state = state } };

	if (p->ended)
		return;
	/* Data first, then the doorbell, */
	smp_store_release(doorbell, u.word);
	WRITE_ONCE(p->ring[p->ring_tail & (p->info.ring_entries - 1)], entry);
	p->ring_tail++;
	/* then the ring's tail. */
	smp_store_release(&p->status->ring_tail, p->ring_tail);
	p->stat.doorbells++;
	p->ncp->stat.doorbells++;
	if (state != QNIX_DB_DONE) {
		p->stat.failures++;
		p->ncp->stat.failures++;
	}
	if (ncp_empty(&p->rung))
		ncp_push(&p->ncp->rung, &p->rung);
}

/* Gives the context back to the process. */
void ncp_ring_send(struct ncp_send *s, u32 state, u32 len)
{
	struct ncp_process *p = s->process;

	s->state = NCP_SEND_FREE;
	if (state != QNIX_DB_DONE || (s->flags & QNIX_CTX_DOORBELL))
		ring(p, &p->send_doorbells[s->context], s->context, state, len);
}

void ncp_ring_receive(struct ncp_receive *r, u32 state, u32 len)
{
	struct ncp_process *p = r->process;

	r->state = NCP_RECEIVE_FREE;
	if (state != QNIX_DB_DONE || (r->flags & QNIX_CTX_DOORBELL))
		ring(p, &p->receive_doorbells[r->context], QNIX_RING_RECEIVE | r->context,
		     state, len);
}

/* Counts a command whose error no doorbell can report. */
void ncp_misuse(struct ncp_process *p)
{
	p->stat.misuse++;
	p->ncp->stat.misuse++;
	WRITE_ONCE(p->status->misuse, ++p->misuse);
}

void ncp_notify_host(struct ncp *ncp)
{
	struct ncp_process *p;

	while (!ncp_empty(&ncp->rung)) {
		p = ncp_first(&ncp->rung, struct ncp_process, rung);
		ncp_unlink(&p->rung);
		ncp->ops->notify(ncp->host, p->host);
	}
}
