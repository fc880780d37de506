// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Barrier. An epoch is a view and a round. The view identifies the set of members; the
 * round is each member's count of barriers in that view. So a barrier of a member that is
 * ahead is not mistaken for the previous one, nor a barrier of the present members for one
 * of earlier members.
 *
 * No member enters the barriers of a view, then those of another and those of the first
 * again, so each counts once in an epoch: a member that leaves has another mark when it
 * returns, and a view in which barriers begin has exactly as many members as the group's
 * size. So the next such view lacks one of the members before.
 */
#include "internal.h"

/* The mark that a member adds to a group's view. */
u64 ncp_barrier_mark(const struct ncp_member *m)
{
	u64 x = (u64)m->peer->nic << 32 | (u32)m->peer->pid << 16 | m->peer->generation;

	/* A process that leaves and joins again is another member. */
	x += m->serial * 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static void end(struct ncp_send *s, u32 state)
{
	s->member->under_way--;
	ncp_ring_send(s, state, 0);
}

/* Rings the doorbells of all barriers of an epoch that wait here. */
static void ring(struct ncp_send *first, u32 state)
{
	struct ncp_send *s, *next;

	ncp_unlink(&first->queue);
	for (s = first; s; s = next) {
		next = s->also;
		s->also = NULL;
		if (state == QNIX_DB_DONE && s->member->view == s->view)
			s->member->done = s->round;
		end(s, state);
	}
}

/* The numbers of barriers wrap. */
static bool is_after(u32 a, u32 b)
{
	return (int)(a - b) > 0;
}

static bool has_reached(const struct ncp_member *m, u64 view, u32 round)
{
	return m->view == view && !is_after(round, m->round);
}

/* A member has reached the barriers of @view up to @round. */
void ncp_barrier_reached(struct ncp_member *m, u64 view, u32 round)
{
	u32 before = m->view == view ? m->round : 0;
	struct ncp_link *l, *n;

	if (!is_after(round, before))
		return;
	m->view = view;
	m->round = round;
	ncp_for_each(l, n, &m->group->barriers) {
		struct ncp_send *s = ncp_entry(l, struct ncp_send, queue);

		if (s->view == view && is_after(s->round, before) &&
		    !is_after(s->round, round) && !--s->missing)
			ring(s, QNIX_DB_DONE);
	}
}

/* Step 2: a message to each NIC where other members are. */
static void notify(struct ncp *ncp, const struct ncp_member *m)
{
	struct ncp_link *l, *n;
	u64 stamp = ++ncp->stamp;

	if (!m->group->elsewhere)
		return;
	ncp_for_each(l, n, &m->group->members) {
		struct ncp_nic *nic = ncp_entry(l, struct ncp_member, in_group)->peer->at;

		if (!nic || nic->stamp == stamp)
			continue;
		nic->stamp = stamp;
		ncp_emit_barrier(ncp, nic, m);
	}
}

/* Step 1: waits with the others of its epoch, or as the first. */
static void enter(struct ncp_send *s)
{
	struct ncp_member *m = s->member;
	struct ncp *ncp = s->process->ncp;
	struct ncp_group *g = m->group;
	struct ncp_link *l, *n;

	ncp->work -= min_t(u32, ncp->work, 1 + g->count / 16);
	if (m->view != g->view) {
		m->view = g->view;
		m->round = 0;
		m->done = 0;
	}
	ncp_barrier_reached(m, g->view, m->round + 1);
	s->state = NCP_SEND_BARRIER;
	s->view = g->view;
	s->round = m->round;
	notify(ncp, m);
	ncp_for_each(l, n, &g->barriers) {
		struct ncp_send *first = ncp_entry(l, struct ncp_send, queue);

		if (first->view == s->view && first->round == s->round) {
			s->also = first->also;
			first->also = s;
			return;
		}
	}
	s->also = NULL;
	s->missing = 0;
	s->since = ++ncp->stamp;
	ncp_for_each(l, n, &g->members)
		s->missing += !has_reached(ncp_entry(l, struct ncp_member, in_group),
					   s->view, s->round);
	ncp_push(&g->barriers, &s->queue);
	if (!s->missing)
		ring(s, QNIX_DB_DONE);
}

void ncp_barrier(struct ncp_process *p, u16 index, const u8 *name, u32 size)
{
	struct ncp_send *s = &p->sends[index];
	struct ncp_group *g = ncp_name_valid(name) ? ncp_group_named(p->ncp, name) : NULL;

	if (!g) {
		ncp_ring_send(s, ncp_name_valid(name) ? QNIX_DB_UNKNOWN : QNIX_DB_INVALID, 0);
		return;
	}
	s->member = ncp_member_of(p->peer, g);
	if (!s->member || size != g->size) {
		ncp_ring_send(s, QNIX_DB_INVALID, 0);
	} else if (g->was_whole && g->count != g->size) {
		ncp_ring_send(s, QNIX_DB_GONE, 0);
	} else if (s->member->under_way == NCP_BARRIERS || ncp_crowded(p->ncp)) {
		ncp_ring_send(s, QNIX_DB_NO_MEMORY, 0);
	} else {
		s->member->under_way++;
		if (g->was_whole && ncp_empty(&g->early)) {
			enter(s);
		} else {
			s->state = NCP_SEND_EARLY;
			ncp_push(&g->early, &s->queue);
		}
	}
}

/* The group is whole: barriers that were posted earlier begin, one in each step. */
void ncp_barrier_whole(struct ncp *ncp, struct ncp_group *g)
{
	if (!ncp_empty(&g->early) && ncp_empty(&g->begins))
		ncp_push(&ncp->begins, &g->begins);
}

/* Begins a barrier of the next group. Returns false if none can begin now. */
bool ncp_barrier_begin(struct ncp *ncp)
{
	struct ncp_group *g = ncp_first(&ncp->begins, struct ncp_group, begins);
	struct ncp_send *s;

	if (ncp_empty(&ncp->begins) || ncp_crowded(ncp))
		return false;
	s = ncp_first(&g->early, struct ncp_send, queue);
	ncp_unlink(&s->queue);
	ncp_unlink(&g->begins);
	ncp_barrier_whole(ncp, g);
	if (g->count == g->size)
		enter(s);
	else
		end(s, QNIX_DB_GONE);
	return true;
}

/*
 * A member leaves that had completed the barriers of @view up to @done: every member has
 * reached these, and the messages about it are under way. Later barriers of the view cannot
 * complete any more. Those that had begun before it joined are without it: they go on.
 */
void ncp_barrier_left(struct ncp_member *m, u64 view, u32 done)
{
	struct ncp_group *g = m->group;
	struct ncp_link *l, *n;

	ncp_for_each(l, n, &g->barriers) {
		struct ncp_send *s = ncp_entry(l, struct ncp_send, queue);

		if (m->since > s->since)
			continue;
		if (s->view != view || is_after(s->round, done))
			ring(s, QNIX_DB_GONE);
	}
	while (!ncp_empty(&g->early)) {
		struct ncp_send *s = ncp_first(&g->early, struct ncp_send, queue);

		ncp_unlink(&s->queue);
		end(s, QNIX_DB_GONE);
	}
	ncp_unlink(&g->begins);
}
