// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The NIC Table: the NICs of the cluster but this one. */
#include "internal.h"

struct ncp_nic *ncp_nic_of(struct ncp *ncp, u16 nic)
{
	u16 i = ncp->nic_index[nic];

	return i ? &ncp->nics[i - 1] : NULL;
}

/* Sends @nic the processes and group members of this NIC. */
static void introduce(struct ncp *ncp, struct ncp_nic *nic)
{
	struct ncp_link *l, *n;
	u32 i;

	for (i = 0; i < ncp->limits.processes; i++) {
		struct ncp_process *p = ncp->processes[i];

		if (!p)
			continue;
		ncp_emit_new_process(ncp, nic, p->peer);
		ncp_for_each(l, n, &p->peer->members)
			ncp_emit_new_group(ncp, nic, ncp_entry(l, struct ncp_member, at_peer));
	}
}

/* Returns 0, or a QNIX_DB_*. */
int ncp_nic_add(struct ncp *ncp, u16 id)
{
	struct ncp_nic *nic;
	u32 i;

	if (!id || id == ncp->id || ncp_nic_of(ncp, id))
		return QNIX_DB_INVALID;
	for (i = 0; i < ncp->limits.nics && ncp->nics[i].id; i++)
		;
	if (i == ncp->limits.nics)
		return QNIX_DB_NO_MEMORY;
	nic = &ncp->nics[i];
	nic->id = id;
	nic->full = false;
	nic->lost = false;
	nic->looked = 0;
	nic->behind_count = 0;
	ncp_link_init(&nic->peers);
	ncp_link_init(&nic->late);
	ncp_link_init(&nic->behind);
	ncp->nic_index[id] = (u16)(i + 1);
	ncp->nic_count++;
	introduce(ncp, nic);
	return 0;
}

/* Marks the groups that lose members with @nic. */
static void tear(struct ncp_nic *nic, u64 stamp)
{
	struct ncp_link *l, *n, *k, *o;

	ncp_for_each(l, n, &nic->peers)
		ncp_for_each(k, o, &ncp_entry(l, struct ncp_peer, at_nic)->members)
			ncp_entry(k, struct ncp_member, at_peer)->group->torn = stamp;
}

void ncp_nic_remove(struct ncp *ncp, struct ncp_nic *nic)
{
	u64 stamp = ++ncp->stamp;

	/* First, so that it gets no messages about the consequences of its end. */
	ncp->nic_index[nic->id] = 0;
	nic->gone = true;
	ncp_output_free(ncp, nic);
	ncp_wait_nic_gone(ncp, nic);
	tear(nic, stamp);
	while (!ncp_empty(&nic->peers))
		ncp_peer_gone(ncp, ncp_first(&nic->peers, struct ncp_peer, at_nic));
	ncp_members_renew(ncp, stamp);
	ncp_output_free(ncp, nic);
	nic->id = 0;
	nic->gone = false;
	ncp->nic_count--;
}
