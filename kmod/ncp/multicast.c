// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Broadcast and Multicast: one send operation, a leg, to each receiver.
 *
 * Step 1 of the specification, which copies the data to a local buffer, is left out
 * deliberately: the legs read the process's own memory, which is as fast and needs no local
 * memory. The counter of the buffer (steps 2 and 3) is in the operation of the context.
 */
#include "internal.h"

/* Legs are allocated by so many, because a host may not have much memory in one piece at once. */
#define CHUNK	64

static u32 chunks(const struct ncp_send *s)
{
	return (s->legs_all + CHUNK - 1) / CHUNK;
}

static size_t chunk_size(const struct ncp_send *s)
{
	return min_t(u32, s->legs_all, CHUNK) * sizeof(**s->legs);
}

static struct ncp_send *leg_at(const struct ncp_send *s, u32 i)
{
	return &s->legs[i / CHUNK][i % CHUNK];
}

static void legs_free(struct ncp_send *s)
{
	struct ncp *ncp = s->process->ncp;
	u32 i;

	ncp_give(ncp, s->process->peer, NCP_LEGS, s->legs_all);
	if (!s->legs)
		return;
	for (i = 0; i < chunks(s); i++)
		ncp_free(ncp, s->legs[i], chunk_size(s));
	ncp_free(ncp, s->legs, chunks(s) * sizeof(*s->legs));
	s->legs = NULL;
}

/* Returns false without memory. */
static bool legs_alloc(struct ncp_send *s)
{
	struct ncp *ncp = s->process->ncp;
	u32 i;

	if (!s->legs_all)
		return true;
	s->legs = ncp_alloc(ncp, chunks(s) * sizeof(*s->legs));
	if (!s->legs)
		return false;
	for (i = 0; i < chunks(s); i++) {
		s->legs[i] = ncp_alloc(ncp, chunk_size(s));
		if (!s->legs[i])
			return false;
	}
	return true;
}

/* One of the events that the doorbell waits for has occurred. */
static void count(struct ncp_send *s)
{
	if (--s->legs_left)
		return;
	legs_free(s);
	ncp_ring_send(s, s->result, s->len);
}

static void failed(struct ncp_send *s, u32 result)
{
	if (result != QNIX_DB_DONE && s->result == QNIX_DB_DONE)
		s->result = result;
}

void ncp_leg_end(struct ncp_send *leg, u32 result)
{
	leg->state = NCP_SEND_FREE;
	failed(leg->parent, result);
	count(leg->parent);
}

/* Queues a leg behind other sends to that receiver and tag. Its turn comes later. */
static void leg_to(struct ncp_send *s, struct ncp_peer *peer)
{
	struct ncp_send *leg = leg_at(s, s->legs_made++);

	ncp_send_init(leg, s->process);
	leg->context = 0xffff;
	leg->parent = s;
	leg->flow.tag = s->flow.tag;
	leg->map = s->map;
	leg->len = s->len;
	leg->urgent = s->urgent;
	s->legs_left++;
	ncp_send_later(leg, peer);
}

/* Takes the context and makes room for @n legs; the caller holds it by one count. */
static bool begin(struct ncp_process *p, u16 index, bool urgent, u32 n)
{
	struct ncp_send *s = &p->sends[index];
	u8 unused[QNIX_NAME_LEN];

	if (!ncp_send_context(p, index, urgent, s, unused))
		return false;
	s->legs_all = n;
	s->legs_made = 0;
	s->legs_left = 1;
	s->result = QNIX_DB_DONE;
	s->legs = NULL;
	if (n > NCP_MAX_LEGS - p->peer->held[NCP_LEGS] ||
	    ncp_take(p->ncp, p->peer, NCP_LEGS, n)) {
		ncp_ring_send(s, QNIX_DB_NO_MEMORY, 0);
		return false;
	}
	if (!legs_alloc(s)) {
		legs_free(s);
		ncp_ring_send(s, QNIX_DB_NO_MEMORY, 0);
		return false;
	}
	s->state = NCP_SEND_PARENT;
	/* To queue a leg is far less than to send it. */
	p->ncp->work -= min_t(u32, p->ncp->work, n / 16);
	return true;
}

void ncp_broadcast(struct ncp_process *p, u16 index, const u8 *name, bool urgent)
{
	struct ncp_send *s = &p->sends[index];
	struct ncp_group *g = ncp_name_valid(name) ? ncp_group_named(p->ncp, name) : NULL;
	struct ncp_link *l, *n;

	if (!g) {
		ncp_ring_send(s, ncp_name_valid(name) ? QNIX_DB_UNKNOWN : QNIX_DB_INVALID, 0);
		return;
	}
	if (!begin(p, index, urgent, g->count - !!ncp_member_of(p->peer, g)))
		return;
	ncp_for_each(l, n, &g->members) {
		struct ncp_peer *peer = ncp_entry(l, struct ncp_member, in_group)->peer;

		if (peer != p->peer)
			leg_to(s, peer);
	}
	count(s);
}

void ncp_multicast(struct ncp_process *p, u16 index, u32 size, bool urgent)
{
	if (!size || size > p->ncp->limits.names) {
		ncp_ring_send(&p->sends[index], QNIX_DB_INVALID, 0);
		return;
	}
	if (!begin(p, index, urgent, size))
		return;
	p->sends[index].state = NCP_SEND_NAMES;
	p->multicast = &p->sends[index];
	p->names = size;
}

static void all_named(struct ncp_process *p)
{
	struct ncp_send *s = p->multicast;

	p->multicast = NULL;
	s->state = NCP_SEND_PARENT;
	count(s);
}

/* Handles up to three names. */
void ncp_multicast_names(struct ncp_process *p, const struct qnix_command *c)
{
	int i;

	if (!p->multicast) {
		ncp_misuse(p);
		return;
	}
	for (i = 0; i < QNIX_NAMES_PER_COMMAND && p->names; i++, p->names--) {
		bool valid = ncp_name_valid(c->names[i]);
		struct ncp_peer *peer = valid ? ncp_peer_named(p->ncp, c->names[i]) : NULL;

		if (peer)
			leg_to(p->multicast, peer);
		else
			failed(p->multicast, valid ? QNIX_DB_UNKNOWN : QNIX_DB_INVALID);
	}
	if (!p->names)
		all_named(p);
}

/* Another command came instead of names: only the receivers named so far are served. */
void ncp_multicast_cut(struct ncp_process *p)
{
	if (!p->multicast)
		return;
	failed(p->multicast, QNIX_DB_INVALID);
	all_named(p);
}

/* Cancels the legs that have no permission yet. */
void ncp_legs_cancel(struct ncp_send *s)
{
	struct ncp_process *p = s->process;
	u32 i;

	/* This count keeps the legs until all have been handled. */
	s->legs_left++;
	p->ncp->work -= min_t(u32, p->ncp->work, s->legs_made / 16);
	for (i = 0; i < s->legs_made; i++)
		ncp_send_cancel(leg_at(s, i));
	count(s);
}

/* The process has ended. */
void ncp_legs_drop(struct ncp_send *s)
{
	u32 i;

	for (i = 0; i < s->legs_made; i++)
		ncp_send_drop(leg_at(s, i));
	legs_free(s);
}
