// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Shares of the NIC's tables and memory. Users share the free part: a user may take more
 * only while he holds no more than is left, and a process only while it holds no more than
 * its user may still take. So one user alone gets half, each of n users gets one part in n
 * + 1, and a new user always finds some. The last eighth is for root, whom no share binds.
 * Claims of another NIC count for their user, with his processes on all NICs, and for that
 * NIC.
 */
#include "internal.h"

void ncp_quota_init(struct ncp *ncp)
{
	const struct ncp_limits *l = &ncp->limits;

	ncp->most[NCP_NAMES] = l->names;
	ncp->most[NCP_GROUPS] = l->groups;
	ncp->most[NCP_MEMBERS] = max_t(u32, 4 * l->names, l->groups);
	ncp->most[NCP_ENTRIES] = NCP_MAX_ENTRIES;
	ncp->most[NCP_LEGS] = 16 * NCP_MAX_LEGS;
	ncp->most[NCP_MEMORY] = l->local_memory;
}

static struct ncp_account **slot_of(struct ncp *ncp, u64 id, bool nic)
{
	const u32 w[3] = { (u32)id, (u32)(id >> 32), nic };
	struct ncp_account **slot = &ncp->accounts[ncp_hash(ncp, w, 3) & (NCP_ACCOUNTS - 1)];

	while (*slot && ((*slot)->id != id || (*slot)->nic != nic))
		slot = &(*slot)->next;
	return slot;
}

/*
 * Returns the account of a user or of another NIC, or NULL without memory. The caller must
 * give it back.
 */
static struct ncp_account *get(struct ncp *ncp, u64 id, bool nic)
{
	struct ncp_account **slot = slot_of(ncp, id, nic), *a = *slot;

	if (!a) {
		a = ncp_alloc(ncp, sizeof(*a));
		if (!a)
			return NULL;
		a->id = id;
		a->nic = nic;
		ncp_link_init(&a->dead);
		ncp_link_init(&a->hungry);
		ncp_link_init(&a->at_hungry);
		ncp_link_init(&a->queue);
		ncp_link_init(&a->at_queue);
		ncp_link_init(&a->scheduled);
		ncp_link_init(&a->at_scheduled);
		*slot = a;
	}
	a->refs++;
	return a;
}

static void put(struct ncp *ncp, struct ncp_account *a)
{
	if (!a || --a->refs)
		return;
	*slot_of(ncp, a->id, a->nic) = a->next;
	ncp_free(ncp, a, sizeof(*a));
}

/* Returns false without memory. */
bool ncp_account_open(struct ncp *ncp, struct ncp_peer *peer, u64 user)
{
	peer->user = get(ncp, user, false);
	if (!peer->user)
		return false;
	if (!peer->at)
		return true;
	peer->from = get(ncp, peer->at->id, true);
	if (peer->from)
		return true;
	put(ncp, peer->user);
	return false;
}

void ncp_account_close(struct ncp *ncp, struct ncp_peer *peer)
{
	put(ncp, peer->from);
	put(ncp, peer->user);
}

/*
 * Returns 0, or why @peer may not take @n more: QNIX_DB_NO_MEMORY if there are none, or
 * NCP_QUOTA.
 */
static u32 refusal(const struct ncp *ncp, const struct ncp_peer *peer, enum ncp_resource r, u32 n)
{
	u32 left = ncp->most[r] - ncp->held[r], reserve = ncp->most[r] / 8;

	if (n > left)
		return QNIX_DB_NO_MEMORY;
	/* Claims of another NIC, whatever users it names, must leave something for others. */
	if (peer->from && (u64)peer->from->held[r] + n >
			  (peer->user->id == NCP_ROOT ? NCP_NIC_ROOT : NCP_NIC) * (u64)left)
		return NCP_QUOTA;
	if (peer->user->id == NCP_ROOT)
		return 0;
	left = left > reserve ? left - reserve : 0;
	if ((u64)peer->user->held[r] + n > left)
		return NCP_QUOTA;
	left -= peer->user->held[r];
	return (u64)peer->held[r] + n > left ? NCP_QUOTA : 0;
}

/* Charges @peer without a check, for resources that pass from one user to another. */
void ncp_charge(struct ncp *ncp, struct ncp_peer *peer, enum ncp_resource r, u32 n)
{
	ncp->held[r] += n;
	peer->held[r] += n;
	peer->user->held[r] += n;
	if (peer->from)
		peer->from->held[r] += n;
}

u32 ncp_take(struct ncp *ncp, struct ncp_peer *peer, enum ncp_resource r, u32 n)
{
	u32 result = refusal(ncp, peer, r, n);

	if (!result)
		ncp_charge(ncp, peer, r, n);
	return result;
}

void ncp_give(struct ncp *ncp, struct ncp_peer *peer, enum ncp_resource r, u32 n)
{
	ncp->held[r] -= n;
	peer->held[r] -= n;
	peer->user->held[r] -= n;
	if (peer->from)
		peer->from->held[r] -= n;
	if (r == NCP_MEMORY)
		ncp_feed_again(ncp);
}

/* Converts a result for a process, which knows no quotas. */
u32 ncp_doorbell_of(int result)
{
	return result == NCP_QUOTA ? QNIX_DB_NO_MEMORY : (u32)result;
}
