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

/* The hash is keyed, so that users cannot choose names that share a bucket. */
u32 ncp_name_hash(const struct ncp *ncp, const u8 *name)
{
	u32 w[QNIX_NAME_LEN / 4];

	memcpy(w, name, sizeof(w));
	return ncp_hash(ncp, w, QNIX_NAME_LEN / 4);
}

static u32 id_hash(const struct ncp *ncp, u16 nic, u16 pid)
{
	const u32 w = (u32)nic << 16 | pid;

	return ncp_hash(ncp, &w, 1);
}

static struct ncp_chain **name_slot(struct ncp *ncp, struct ncp_chain **table, const u8 *name)
{
	return &table[ncp_name_hash(ncp, name) & ncp->peer_mask];
}

static struct ncp_chain **id_slot(struct ncp *ncp, u16 nic, u16 pid)
{
	return &ncp->by_id[id_hash(ncp, nic, pid) & ncp->peer_mask];
}

/*
 * Returns the holder of the name. If two NICs register a name at the same time, both
 * entries exist until one NIC gives up, and the lower NIC holds the name.
 */
struct ncp_peer *ncp_peer_named(struct ncp *ncp, const u8 *name)
{
	struct ncp_chain *c = *name_slot(ncp, ncp->by_name, name);
	struct ncp_peer *p, *found = NULL;

	for (; c; c = c->next) {
		p = ncp_entry(c, struct ncp_peer, named);
		if (!memcmp(p->name, name, QNIX_NAME_LEN) && (!found || p->nic < found->nic))
			found = p;
	}
	return found;
}

/* The process of this NIC that has that name. */
struct ncp_peer *ncp_peer_here(struct ncp *ncp, const u8 *name)
{
	struct ncp_chain *c = *name_slot(ncp, ncp->by_name, name);
	struct ncp_peer *p;

	for (; c; c = c->next) {
		p = ncp_entry(c, struct ncp_peer, named);
		if (p->process && !memcmp(p->name, name, QNIX_NAME_LEN))
			return p;
	}
	return NULL;
}

/*
 * Returns the sender that a receive with that name and tag means: the process that ended
 * first of those with a message here, otherwise the present holder of the name.
 */
struct ncp_peer *ncp_peer_to_receive(struct ncp_process *r, const u8 *name, u16 tag)
{
	struct ncp *ncp = r->ncp;
	struct ncp_chain *c = *name_slot(ncp, ncp->dead_by_name, name);
	struct ncp_peer *p, *found = NULL;
	u32 looked = 0;

	for (; c; c = c->next, looked++) {
		p = ncp_entry(c, struct ncp_peer, named);
		if (!memcmp(p->name, name, QNIX_NAME_LEN) && ncp_head(&r->matches, p, tag))
			found = p;
	}
	ncp->work -= min_t(u32, ncp->work, looked / 8);
	return found ? found : ncp_peer_named(ncp, name);
}

/* Returns the process that has that pid there now. */
struct ncp_peer *ncp_peer_at(struct ncp *ncp, u16 nic, u16 pid)
{
	struct ncp_chain *c = *id_slot(ncp, nic, pid);
	struct ncp_peer *p;

	for (; c; c = c->next) {
		p = ncp_entry(c, struct ncp_peer, numbered);
		if (p->nic == nic && p->pid == pid)
			return p;
	}
	return NULL;
}

struct ncp_peer *ncp_peer_of(struct ncp *ncp, u16 nic, u16 pid, u16 generation)
{
	struct ncp_peer *p = ncp_peer_at(ncp, nic, pid);

	return p && p->generation == generation ? p : NULL;
}

/*
 * Forgets the user's process that ended first, with its messages that were not received.
 * Returns false if there is none.
 */
static bool forget(struct ncp_account *user)
{
	struct ncp_link *l, *n;
	struct ncp_peer *peer;
	u32 left = 0;

	if (ncp_empty(&user->dead))
		return false;
	peer = ncp_first(&user->dead, struct ncp_peer, dead);
	ncp_unlink(&peer->dead);
	ncp_for_each(l, n, &peer->receives)
		left++;
	/* Freeing the last receive frees the entry. */
	for (l = peer->receives.next; left; left--, l = n) {
		struct ncp_receive *r = ncp_entry(l, struct ncp_receive, at_peer);

		n = l->next;
		/* A message that a receive is taking stays until it is complete. */
		if (!r->claim)
			ncp_receive_free(r);
	}
	return true;
}

static u32 take_name(struct ncp *ncp, struct ncp_peer *peer)
{
	u32 i, result = ncp_take(ncp, peer, NCP_NAMES, 1);

	for (i = 0; result && i < NCP_FORGET && forget(peer->user); i++)
		result = ncp_take(ncp, peer, NCP_NAMES, 1);
	return result;
}

static void insert(struct ncp *ncp, struct ncp_peer *p)
{
	ncp_chain_add(name_slot(ncp, ncp->by_name, p->name), &p->named);
	ncp_chain_add(id_slot(ncp, p->nic, p->pid), &p->numbered);
	if (p->at)
		ncp_push(&p->at->peers, &p->at_nic);
}

/* NULL: *@result says why. */
struct ncp_peer *ncp_peer_add(struct ncp *ncp, const u8 *name, struct ncp_nic *at, u16 pid,
			      u16 generation, u64 user, u32 *result)
{
	struct ncp_peer *p = ncp_alloc(ncp, sizeof(*p));

	*result = QNIX_DB_NO_MEMORY;
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
	ncp_link_init(&p->dead);
	ncp_link_init(&p->hungry);
	ncp_link_init(&p->at_hungry);
	if (!ncp_account_open(ncp, p, user)) {
		ncp_free(ncp, p, sizeof(*p));
		return NULL;
	}
	*result = take_name(ncp, p);
	if (*result) {
		ncp_account_close(ncp, p);
		ncp_free(ncp, p, sizeof(*p));
		return NULL;
	}
	insert(ncp, p);
	return p;
}

/* Frees the entry of a process that has ended, once no message of it is left here. */
void ncp_peer_release(struct ncp *ncp, struct ncp_peer *peer)
{
	if (!ncp_empty(&peer->receives))
		return;
	ncp_chain_remove(&peer->named);
	ncp_unlink(&peer->dead);
	ncp_give(ncp, peer, NCP_NAMES, 1);
	ncp_account_close(ncp, peer);
	ncp_free(ncp, peer, sizeof(*peer));
}

/*
 * A process, or its NIC, has ended: operations with it fail, and it leaves all groups. Its
 * complete messages that wait for a receive stay.
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
	ncp_chain_remove(&peer->named);
	ncp_chain_add(name_slot(ncp, ncp->dead_by_name, peer->name), &peer->named);
	ncp_chain_remove(&peer->numbered);
	peer->at = NULL;
	peer->process = NULL;
	ncp_unlink(&peer->at_nic);
	ncp_push(&peer->user->dead, &peer->dead);
	ncp_peer_release(ncp, peer);
}
