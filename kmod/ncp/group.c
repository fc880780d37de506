// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The Group Table: Join_Group, Leave_Group, New_Group. */
#include "internal.h"

static struct ncp_group **slot_of(struct ncp *ncp, const u8 *name)
{
	struct ncp_group **slot = &ncp->groups[ncp_name_hash(ncp, name) & ncp->group_mask];

	while (*slot && memcmp((*slot)->name, name, QNIX_NAME_LEN))
		slot = &(*slot)->next;
	return slot;
}

struct ncp_group *ncp_group_named(struct ncp *ncp, const u8 *name)
{
	return *slot_of(ncp, name);
}

struct ncp_member *ncp_member_of(const struct ncp_peer *peer, const struct ncp_group *g)
{
	struct ncp_link *l, *n;

	ncp_for_each(l, n, &peer->members)
		if (ncp_entry(l, struct ncp_member, at_peer)->group == g)
			return ncp_entry(l, struct ncp_member, at_peer);
	return NULL;
}

/* Returns 0, or the reason why no process can join that group with that size. */
u32 ncp_group_check(struct ncp *ncp, const u8 *name, u32 size)
{
	struct ncp_group *g;

	if (!ncp_name_valid(name) || !size || size > ncp->limits.names)
		return QNIX_DB_INVALID;
	g = ncp_group_named(ncp, name);
	if (!g)
		return ncp->held[NCP_GROUPS] < ncp->limits.groups ? 0 : QNIX_DB_NO_MEMORY;
	return g->size == size && g->count < size ? 0 : QNIX_DB_INVALID;
}

/* NULL: *@result says why. */
static struct ncp_group *group_add(struct ncp *ncp, const u8 *name, u32 size,
				   struct ncp_peer *peer, u32 *result)
{
	struct ncp_group *g = ncp_alloc(ncp, sizeof(*g));

	*result = g ? ncp_take(ncp, peer, NCP_GROUPS, 1) : QNIX_DB_NO_MEMORY;
	if (*result) {
		ncp_free(ncp, g, sizeof(*g));
		return NULL;
	}
	g->payer = peer;
	memcpy(g->name, name, QNIX_NAME_LEN);
	g->size = size;
	ncp_link_init(&g->members);
	ncp_link_init(&g->barriers);
	ncp_link_init(&g->early);
	ncp_link_init(&g->begins);
	*slot_of(ncp, name) = g;
	return g;
}

static void group_free(struct ncp *ncp, struct ncp_group *g)
{
	*slot_of(ncp, g->name) = g->next;
	ncp_give(ncp, g->payer, NCP_GROUPS, 1);
	ncp_free(ncp, g, sizeof(*g));
}

/* NULL: *@result says why. */
static struct ncp_member *member_add(struct ncp *ncp, const u8 *name, u32 size,
				     struct ncp_peer *peer, u32 serial, u32 *result)
{
	struct ncp_group *g = ncp_group_named(ncp, name);
	struct ncp_member *m = ncp_alloc(ncp, sizeof(*m));

	*result = m ? ncp_take(ncp, peer, NCP_MEMBERS, 1) : QNIX_DB_NO_MEMORY;
	if (*result) {
		ncp_free(ncp, m, sizeof(*m));
		return NULL;
	}
	if (!g)
		g = group_add(ncp, name, size, peer, result);
	if (!g) {
		ncp_give(ncp, peer, NCP_MEMBERS, 1);
		ncp_free(ncp, m, sizeof(*m));
		return NULL;
	}
	m->group = g;
	m->peer = peer;
	m->serial = serial;
	m->since = ++ncp->stamp;
	ncp_push(&g->members, &m->in_group);
	ncp_push(&peer->members, &m->at_peer);
	g->count++;
	g->elsewhere += !!peer->at;
	g->view += ncp_barrier_mark(m);
	return m;
}

/* The entry counts for the oldest member. */
static void pass_on(struct ncp *ncp, struct ncp_group *g)
{
	struct ncp_peer *oldest = ncp_first(&g->members, struct ncp_member, in_group)->peer;

	if (g->payer == oldest)
		return;
	ncp_give(ncp, g->payer, NCP_GROUPS, 1);
	ncp_charge(ncp, oldest, NCP_GROUPS, 1);
	g->payer = oldest;
}

/* @view and @done: the barriers that the member has completed. */
void ncp_member_remove(struct ncp *ncp, struct ncp_member *m, u64 view, u32 done)
{
	struct ncp_group *g = m->group;

	ncp_barrier_left(m, view, done);
	ncp_unlink(&m->in_group);
	ncp_unlink(&m->at_peer);
	g->count--;
	g->elsewhere -= !!m->peer->at;
	g->view -= ncp_barrier_mark(m);
	ncp_give(ncp, m->peer, NCP_MEMBERS, 1);
	ncp_free(ncp, m, sizeof(*m));
	if (g->count)
		pass_on(ncp, g);
	else
		group_free(ncp, g);
}

/* A process has joined: if the group is whole now, its waits end. */
static void joined(struct ncp *ncp, struct ncp_group *g)
{
	struct ncp_link *l, *n;

	if (g->count < g->size)
		return;
	g->was_whole = true;
	ncp_for_each(l, n, &g->members) {
		struct ncp_member *m = ncp_entry(l, struct ncp_member, in_group);

		if (m->acked)
			continue;
		m->acked = true;
		if (m->peer->at)
			ncp_emit_new_group_ack(ncp, m->peer, g->name, m->serial, 0);
		else
			ncp_wait_group_ack(ncp, m, NULL, 0);
	}
	ncp_barrier_whole(ncp, g);
}

/*
 * Returns 0 if the join waits until the group is whole on every NIC; then it rings @send or
 * the Driver Doorbell.
 */
u32 ncp_join(struct ncp_process *p, const u8 *name, u32 size, struct ncp_send *send,
	     u64 cookie, bool registers)
{
	struct ncp *ncp = p->ncp;
	u32 i, result = ncp_group_check(ncp, name, size);
	struct ncp_group *g;
	struct ncp_member *m;

	if (result)
		return result;
	if (ncp_crowded(ncp))
		return QNIX_DB_NO_MEMORY;
	g = ncp_group_named(ncp, name);
	if (g && ncp_member_of(p->peer, g))
		return QNIX_DB_INVALID;
	m = member_add(ncp, name, size, p->peer, ++ncp->joins, &result);
	if (!m)
		return result;
	result = ncp_wait_add(p, m->group, send, cookie, registers);
	if (result) {
		ncp_member_remove(ncp, m, 0, 0);
		return result;
	}
	for (i = 0; i < ncp->limits.nics; i++)
		if (ncp->nics[i].id)
			ncp_emit_new_group(ncp, &ncp->nics[i], m);
	joined(ncp, m->group);
	return 0;
}

void ncp_join_command(struct ncp_process *p, u16 index, const u8 *name, u32 size)
{
	struct ncp_send *s = &p->sends[index];
	u32 result;

	s->state = NCP_SEND_JOIN;
	result = ncp_join(p, name, size, s, 0, false);
	if (result)
		ncp_ring_send(s, ncp_doorbell_of((int)result), 0);
}

/* A member of this NIC leaves; all NICs get a message. */
void ncp_leave_as(struct ncp *ncp, struct ncp_member *m, int wait_result)
{
	struct ncp_wait *w = ncp_wait_of(m->peer->process, m->group);
	u32 i;

	if (w)
		ncp_wait_end(ncp, w, wait_result);
	for (i = 0; i < ncp->limits.nics; i++)
		if (ncp->nics[i].id)
			ncp_emit_leave_group(ncp, &ncp->nics[i], m);
	ncp_member_remove(ncp, m, m->view, m->done);
}

/*
 * A NIC is lost. It may come back with the same members, or restarted with others that have
 * the same numbers, and the other NICs may not notice: so that barriers of before do not
 * count then, each member of this NIC, in the groups with that stamp, becomes another, which
 * is in the group at once.
 */
void ncp_members_renew(struct ncp *ncp, u64 torn)
{
	struct ncp_link *l, *n;
	u32 i, k;

	for (i = 0; i < ncp->limits.processes; i++) {
		if (!ncp->processes[i])
			continue;
		ncp_for_each(l, n, &ncp->processes[i]->peer->members) {
			struct ncp_member *m = ncp_entry(l, struct ncp_member, at_peer);

			if (m->group->torn != torn)
				continue;
			ncp_barrier_left(m, m->view, m->done);
			m->group->view -= ncp_barrier_mark(m);
			m->serial = ++ncp->joins;
			m->group->view += ncp_barrier_mark(m);
			for (k = 0; k < ncp->limits.nics; k++) {
				if (!ncp->nics[k].id)
					continue;
				ncp_emit_leave_group(ncp, &ncp->nics[k], m);
				ncp_emit_new_group(ncp, &ncp->nics[k], m);
			}
		}
	}
}

u32 ncp_leave(struct ncp_process *p, const u8 *name)
{
	struct ncp_group *g;
	struct ncp_member *m;
	struct ncp_wait *w;

	if (!ncp_name_valid(name))
		return QNIX_DB_INVALID;
	g = ncp_group_named(p->ncp, name);
	if (!g)
		return QNIX_DB_UNKNOWN;
	m = ncp_member_of(p->peer, g);
	w = ncp_wait_of(p, g);
	if (!m || (w && w->registers))
		return QNIX_DB_INVALID;
	if (ncp_crowded(p->ncp))
		return QNIX_DB_NO_MEMORY;
	ncp_leave_as(p->ncp, m, QNIX_DB_CANCELED);
	return 0;
}

void ncp_leave_command(struct ncp_process *p, u16 index, const u8 *name)
{
	u32 result = ncp_leave(p, name);

	ncp_ring_send(&p->sends[index], result ? result : QNIX_DB_DONE, 0);
}

/* Cancels a Join_Group whose doorbell has not rung. */
void ncp_join_cancel(struct ncp_send *s)
{
	struct ncp_process *p = s->process;
	struct ncp_link *l, *n;

	ncp_for_each(l, n, &p->waits) {
		struct ncp_wait *w = ncp_entry(l, struct ncp_wait, at_process);

		if (w->send == s) {
			ncp_leave_as(p->ncp, ncp_member_of(p->peer, w->group),
				     QNIX_DB_CANCELED);
			return;
		}
	}
}

/*
 * @nic uses another size than the members here. Of processes that join at the same time,
 * the size of the lowest NIC holds; a member of this NIC that has joined stays. Returns
 * true if the group was given up here.
 */
static bool yields(struct ncp *ncp, struct ncp_group *g, const struct ncp_nic *nic)
{
	struct ncp_link *l, *n;
	u32 left = g->count;

	ncp_for_each(l, n, &g->members) {
		struct ncp_member *m = ncp_entry(l, struct ncp_member, in_group);

		if (m->peer->nic <= nic->id ||
		    (!m->peer->at && !ncp_wait_of(m->peer->process, g)))
			return false;
	}
	/* Removing the last member frees the group. */
	for (; left; left--) {
		struct ncp_member *m = ncp_first(&g->members, struct ncp_member, in_group);
		struct ncp_process *p = m->peer->process;
		struct ncp_wait *w = m->peer->at ? NULL : ncp_wait_of(p, g);

		if (m->peer->at)
			ncp_member_remove(ncp, m, 0, 0);
		else if (w->registers)
			ncp_registration_fails(ncp, p, QNIX_DB_INVALID);
		else
			ncp_leave_as(ncp, m, QNIX_DB_INVALID);
	}
	return true;
}

/* New_Group: a process of another NIC joins. Returns false if the message is invalid. */
bool ncp_new_group(struct ncp *ncp, struct ncp_nic *nic, struct ncp_peer *peer, const u8 *name,
		   u32 size, u32 serial)
{
	struct ncp_group *g;
	struct ncp_member *m;
	u32 result;

	if (!ncp_name_valid(name) || !size)
		return false;
	g = ncp_group_named(ncp, name);
	if (g && ncp_member_of(peer, g))
		return false;
	if (g && g->size != size && !yields(ncp, g, nic)) {
		/* Of two that join at once, one has yielded already when this arrives. */
		ncp_emit_new_group_ack(ncp, peer, name, serial, QNIX_DB_INVALID);
		return true;
	}
	m = member_add(ncp, name, size, peer, serial, &result);
	if (m)
		joined(ncp, m->group);
	else
		ncp_emit_new_group_ack(ncp, peer, name, serial, result);
	return true;
}
