// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The Name Table: the processes of the whole cluster. */
#include "internal.h"

bool ncp_name_valid(const u8 *name)
{
	int i, n = 0;

	while (n < QNIX_NAME_LEN && name[n] > ' ' && name[n] <= '~')
		n++;
	if (!n || n == QNIX_NAME_LEN)
		return false;
	for (i = n; i < QNIX_NAME_LEN; i++)
		if (name[i])
			return false;
	return true;
}

u32 ncp_name_hash(const u8 *name)
{
	u64 w[2], h;
	u32 tail;

	memcpy(w, name, sizeof(w));
	memcpy(&tail, name + sizeof(w), sizeof(tail));
	h = (w[0] ^ (w[1] << 23 | w[1] >> 41)) * 0x9e3779b97f4a7c15ull;
	h = (h ^ h >> 32 ^ tail) * 0xd6e8feb86659fd93ull;
	return (u32)(h >> 32);
}

static u32 id_hash(u16 nic, u16 pid)
{
	return (((u32)nic << 16 | pid) * 0x9e3779b1u) >> 7;
}

/*
 * Who has that name. Two NICs that register one name at the same time both
 * stand here until one gives up: the lower NIC has it.
 */
struct ncp_peer *ncp_peer_named(struct ncp *ncp, const u8 *name)
{
	struct ncp_peer *p = ncp->by_name[ncp_name_hash(name) & ncp->peer_mask];
	struct ncp_peer *found = NULL;

	for (; p; p = p->next_name)
		if (!p->gone && !memcmp(p->name, name, QNIX_NAME_LEN) &&
		    (!found || p->nic < found->nic))
			found = p;
	return found;
}

/* The process of this NIC that has that name. */
struct ncp_peer *ncp_peer_here(struct ncp *ncp, const u8 *name)
{
	struct ncp_peer *p = ncp->by_name[ncp_name_hash(name) & ncp->peer_mask];

	while (p && (!p->process || memcmp(p->name, name, QNIX_NAME_LEN)))
		p = p->next_name;
	return p;
}

/*
 * Whom a receive under that name and tag means: one that is gone, while a
 * message of it is here, else who has the name now.
 */
struct ncp_peer *ncp_peer_to_hear(struct ncp_process *r, const u8 *name, u16 tag)
{
	struct ncp *ncp = r->ncp;
	struct ncp_peer *p = ncp->by_name[ncp_name_hash(name) & ncp->peer_mask];
	struct ncp_peer *found = NULL;

	for (; p; p = p->next_name) {
		if (memcmp(p->name, name, QNIX_NAME_LEN))
			continue;
		if (p->gone) {
			/* The one that has been gone for longest stands last. */
			if (ncp_head(&r->matches, p, tag))
				found = p;
		} else if (!found || (!found->gone && p->nic < found->nic)) {
			found = p;
		}
	}
	return found;
}

struct ncp_peer *ncp_peer_of(struct ncp *ncp, u16 nic, u16 pid, u16 generation)
{
	struct ncp_peer *p = ncp->by_id[id_hash(nic, pid) & ncp->peer_mask];

	while (p && (p->nic != nic || p->pid != pid || p->generation != generation || p->gone))
		p = p->next_id;
	return p;
}

/* Whoever has that pid there now. */
struct ncp_peer *ncp_peer_at(struct ncp *ncp, u16 nic, u16 pid)
{
	struct ncp_peer *p = ncp->by_id[id_hash(nic, pid) & ncp->peer_mask];

	while (p && (p->nic != nic || p->pid != pid || p->gone))
		p = p->next_id;
	return p;
}

/* NULL: the table is full, or there is no memory. */
struct ncp_peer *ncp_peer_add(struct ncp *ncp, const u8 *name, struct ncp_nic *at, u16 pid,
			      u16 generation)
{
	struct ncp_peer *p, **slot;

	if (ncp->peers >= ncp->limits.names)
		return NULL;
	p = ncp_alloc(ncp, sizeof(*p));
	if (!p)
		return NULL;
	memcpy(p->name, name, QNIX_NAME_LEN);
	p->at = at;
	p->nic = at ? at->id : ncp->id;
	p->pid = pid;
	p->generation = generation;
	ncp_link_init(&p->at_nic);
	ncp_link_init(&p->sends);
	ncp_link_init(&p->receives);
	ncp_link_init(&p->members);
	if (at)
		ncp_push(&at->peers, &p->at_nic);
	slot = &ncp->by_name[ncp_name_hash(name) & ncp->peer_mask];
	p->next_name = *slot;
	*slot = p;
	slot = &ncp->by_id[id_hash(p->nic, pid) & ncp->peer_mask];
	p->next_id = *slot;
	*slot = p;
	ncp->peers++;
	return p;
}

/* Frees the entry of a process that is gone once nothing of it is left here. */
void ncp_peer_release(struct ncp *ncp, struct ncp_peer *peer)
{
	struct ncp_peer **slot;

	if (!ncp_empty(&peer->receives))
		return;
	slot = &ncp->by_name[ncp_name_hash(peer->name) & ncp->peer_mask];
	while (*slot != peer)
		slot = &(*slot)->next_name;
	*slot = peer->next_name;
	slot = &ncp->by_id[id_hash(peer->nic, peer->pid) & ncp->peer_mask];
	while (*slot != peer)
		slot = &(*slot)->next_id;
	*slot = peer->next_id;
	ncp->peers--;
	ncp_free(ncp, peer, sizeof(*peer));
}

/*
 * A process has ended, or its NIC has: what was under way with it fails, and
 * it is no member of any group. Whole messages of it that wait for a receive
 * stay.
 */
void ncp_peer_gone(struct ncp *ncp, struct ncp_peer *peer)
{
	struct ncp_link *l, *n;

	while (!ncp_empty(&peer->members))
		ncp_member_remove(ncp, ncp_first(&peer->members, struct ncp_member, at_peer),
				  0, 0);
	while (!ncp_empty(&peer->sends))
		ncp_send_end(ncp_first(&peer->sends, struct ncp_send, at_peer), QNIX_DB_GONE);
	ncp_for_each(l, n, &peer->receives) {
		struct ncp_receive *r = ncp_entry(l, struct ncp_receive, at_peer);

		if (r->state != NCP_RECEIVE_HELD)
			ncp_receive_fail(r, QNIX_DB_GONE);
	}
	peer->gone = true;
	peer->at = NULL;
	peer->process = NULL;
	ncp_unlink(&peer->at_nic);
	ncp_peer_release(ncp, peer);
}
