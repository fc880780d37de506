// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Waits for acknowledgements: registrations wait for New_Process_Ack, joins for
 * New_Group_Ack. A wait records which NICs are missing, and not how many, so that repeated
 * acknowledgements, and NICs that are added or removed, do not confuse it.
 */
#include "internal.h"

/* Returns 0, or QNIX_DB_NO_MEMORY. If no acknowledgement is missing, the wait ends at once. */
u32 ncp_wait_add(struct ncp_process *p, struct ncp_group *group, struct ncp_send *send,
		 u64 cookie, bool registers)
{
	struct ncp *ncp = p->ncp;
	size_t size = sizeof(struct ncp_wait) + ncp->limits.nics;
	struct ncp_wait *w = ncp_alloc(ncp, size);
	u32 i;

	if (!w)
		return QNIX_DB_NO_MEMORY;
	w->memory = size;
	w->need = (u8 *)(w + 1);
	w->process = p;
	w->group = group;
	w->send = send;
	w->cookie = cookie;
	w->registers = registers;
	for (i = 0; i < ncp->limits.nics; i++) {
		if (!ncp->nics[i].id || ncp->nics[i].gone)
			continue;
		if (registers) {
			w->need[i] |= NCP_NEED_PROCESS;
			w->acks++;
		}
		if (group) {
			w->need[i] |= NCP_NEED_GROUP;
			w->acks++;
		}
	}
	/* This NIC's own view of the group. */
	if (group)
		w->acks++;
	ncp_push(&p->waits, &w->at_process);
	if (!w->acks)
		ncp_wait_end(ncp, w, 0);
	return 0;
}

/* @result: 0, QNIX_DB_*, NCP_TAKEN or NCP_QUOTA. */
void ncp_wait_end(struct ncp *ncp, struct ncp_wait *w, int result)
{
	ncp_unlink(&w->at_process);
	if (w->send)
		ncp_ring_send(w->send, result ? ncp_doorbell_of(result) : QNIX_DB_DONE, 0);
	else
		ncp->ops->driver_doorbell(ncp->host, w->cookie, result);
	ncp_free(ncp, w, w->memory);
}

static void acked(struct ncp *ncp, struct ncp_wait *w, u32 acks)
{
	w->acks -= acks;
	if (!w->acks)
		ncp_wait_end(ncp, w, 0);
}

void ncp_wait_process_ack(struct ncp *ncp, struct ncp_process *p, struct ncp_nic *nic,
			  int result)
{
	struct ncp_link *l, *n;

	ncp_for_each(l, n, &p->waits) {
		struct ncp_wait *w = ncp_entry(l, struct ncp_wait, at_process);
		u8 *need = &w->need[nic - ncp->nics];

		if (!(*need & NCP_NEED_PROCESS))
			continue;
		if (result) {
			ncp_registration_fails(ncp, p, result);
			return;
		}
		*need &= (u8)~NCP_NEED_PROCESS;
		acked(ncp, w, 1);
		return;
	}
}

/* With @nic NULL the group is whole here. @result: 0, or why @nic knows no such member. */
void ncp_wait_group_ack(struct ncp *ncp, struct ncp_member *m, struct ncp_nic *nic, int result)
{
	struct ncp_process *p = m->peer->process;
	struct ncp_wait *w = ncp_wait_of(p, m->group);

	if (!w)
		return;
	if (nic) {
		u8 *need = &w->need[nic - ncp->nics];

		if (!(*need & NCP_NEED_GROUP))
			return;
		if (result && w->registers)
			ncp_registration_fails(ncp, p, result);
		else if (result)
			ncp_leave_as(ncp, m, result);
		if (result)
			return;
		*need &= (u8)~NCP_NEED_GROUP;
	} else {
		if (w->whole)
			return;
		w->whole = true;
	}
	acked(ncp, w, 1);
}

struct ncp_wait *ncp_wait_of(struct ncp_process *p, const struct ncp_group *group)
{
	struct ncp_link *l, *n;

	ncp_for_each(l, n, &p->waits) {
		struct ncp_wait *w = ncp_entry(l, struct ncp_wait, at_process);

		if (w->group == group)
			return w;
	}
	return NULL;
}

/* Ends all waits for a NIC that is dead. */
void ncp_wait_nic_gone(struct ncp *ncp, struct ncp_nic *nic)
{
	struct ncp_link *l, *n;
	u32 i;

	for (i = 0; i < ncp->limits.processes; i++) {
		if (!ncp->processes[i])
			continue;
		ncp_for_each(l, n, &ncp->processes[i]->waits) {
			struct ncp_wait *w = ncp_entry(l, struct ncp_wait, at_process);
			u8 *need = &w->need[nic - ncp->nics];
			u32 acks = !!(*need & NCP_NEED_PROCESS) + !!(*need & NCP_NEED_GROUP);

			*need = 0;
			if (acks)
				acked(ncp, w, acks);
		}
	}
}

/* The registration of @p has failed without a request to end it: ends it. */
void ncp_registration_fails(struct ncp *ncp, struct ncp_process *p, int result)
{
	struct ncp_link *l, *n;
	u64 cookie = 0;
	bool found = false;

	ncp_for_each(l, n, &p->waits) {
		struct ncp_wait *w = ncp_entry(l, struct ncp_wait, at_process);

		if (!w->registers)
			continue;
		cookie = w->cookie;
		found = true;
		ncp_unlink(&w->at_process);
		ncp_free(ncp, w, w->memory);
	}
	if (!found)
		return;
	ncp_delete_process(ncp, p);
	ncp->ops->driver_doorbell(ncp->host, cookie, result);
}

bool ncp_registering(const struct ncp_process *p)
{
	struct ncp_link *l, *n;

	ncp_for_each(l, n, &p->waits)
		if (ncp_entry(l, struct ncp_wait, at_process)->registers)
			return true;
	return false;
}

/* The host has given up the command that @cookie names. */
void ncp_wait_abandon(struct ncp *ncp, u64 cookie)
{
	struct ncp_link *l, *n;
	u32 i;

	for (i = 0; i < ncp->limits.processes; i++) {
		if (!ncp->processes[i])
			continue;
		ncp_for_each(l, n, &ncp->processes[i]->waits) {
			struct ncp_wait *w = ncp_entry(l, struct ncp_wait, at_process);
			struct ncp_member *m;

			if (w->send || w->cookie != cookie)
				continue;
			m = w->registers || !w->group ? NULL :
			    ncp_member_of(w->process->peer, w->group);
			if (m)
				ncp_leave_as(ncp, m, QNIX_DB_CANCELED);
			else
				ncp_wait_end(ncp, w, QNIX_DB_CANCELED);
			return;
		}
	}
}
