// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* New_Process and Delete_Process: entries of the NIC Process Table. */
#include "internal.h"

static u32 buckets_for(u32 entries)
{
	u32 n = 64;

	while (n < entries && n < 2 * QNIX_MAX_CONTEXTS)
		n *= 2;
	return n;
}

static size_t align64(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

/* Computes the offsets of a process's tables in its memory. Returns their size. */
static size_t lay_out(const struct qnix_memory_info *info, size_t *sends, size_t *receives,
		      size_t *flow, size_t *match)
{
	*sends = align64(sizeof(struct ncp_process));
	*receives = align64(*sends + (size_t)info->sends * sizeof(struct ncp_send));
	*flow = align64(*receives + (size_t)info->receives * sizeof(struct ncp_receive));
	*match = align64(*flow + buckets_for(info->sends) * sizeof(void *));
	return align64(*match + buckets_for(2 * info->receives) * sizeof(void *));
}

size_t ncp_process_memory(const struct qnix_memory_info *info)
{
	size_t sends, receives, flow, match;

	return lay_out(info, &sends, &receives, &flow, &match);
}

/* A Process Table entry with its tables, in one piece of memory. */
static struct ncp_process *allocate(struct ncp *ncp, const struct qnix_memory_info *info)
{
	u32 flows = buckets_for(info->sends), matches = buckets_for(2 * info->receives);
	size_t sends, receives, flow, match;
	size_t all = lay_out(info, &sends, &receives, &flow, &match);
	u8 *memory = ncp_alloc(ncp, all);
	struct ncp_process *p = (struct ncp_process *)memory;
	u32 i;

	if (!p)
		return NULL;
	p->ncp = ncp;
	p->memory = all;
	p->info = *info;
	p->sends = (struct ncp_send *)(memory + sends);
	p->receives = (struct ncp_receive *)(memory + receives);
	p->flows.ncp = ncp;
	p->matches.ncp = ncp;
	p->flows.buckets = (struct ncp_node **)(memory + flow);
	p->flows.mask = flows - 1;
	p->matches.buckets = (struct ncp_node **)(memory + match);
	p->matches.mask = matches - 1;
	ncp_link_init(&p->queue);
	ncp_link_init(&p->rung);
	ncp_link_init(&p->scheduled);
	ncp_link_init(&p->urgent);
	ncp_link_init(&p->ready);
	ncp_link_init(&p->drains);
	ncp_link_init(&p->dynamic);
	ncp_link_init(&p->waits);
	for (i = 0; i < info->sends; i++) {
		ncp_send_init(&p->sends[i], p);
		p->sends[i].context = (u16)i;
	}
	for (i = 0; i < info->receives; i++) {
		ncp_receive_init(&p->receives[i], p);
		p->receives[i].context = (u16)i;
	}
	return p;
}

/* The access points to the Virtual Network Interface and the host page. */
static void open_interface(struct ncp_process *p, const struct ncp_driver_command *c)
{
	const struct qnix_memory_info *info = &p->info;
	u8 *vni = c->vni, *hps = c->hps;

	p->host = c->process;
	p->commands = (struct qnix_command *)(vni + info->command_queue);
	p->send_contexts = (const struct qnix_context *)(vni + info->send_contexts);
	p->receive_contexts = (const struct qnix_context *)(vni + info->receive_contexts);
	p->send_regions = vni + info->send_regions;
	p->receive_regions = vni + info->receive_regions;
	p->pool = (struct qnix_descriptor *)(vni + info->buffer_pool);
	memcpy(hps, info, sizeof(*info));
	p->status = (struct qnix_vni_status *)(hps + info->status);
	p->send_doorbells = (u64 *)(hps + info->send_doorbells);
	p->receive_doorbells = (u64 *)(hps + info->receive_doorbells);
	p->ring = (u32 *)(hps + info->doorbell_ring);
	/* The queue is not polled until the process rings for the first time. */
	WRITE_ONCE(p->status->need_wakeup, 1);
}

static void to_all_nics(struct ncp *ncp, struct ncp_peer *peer, bool ends)
{
	u32 i;

	for (i = 0; i < ncp->limits.nics; i++) {
		if (!ncp->nics[i].id)
			continue;
		if (ends)
			ncp_emit_delete_process(ncp, &ncp->nics[i], peer);
		else
			ncp_emit_new_process(ncp, &ncp->nics[i], peer);
	}
}

/* Returns the reason to refuse a New_Process before any NIC gets a message, or 0. */
static int refusal(struct ncp *ncp, const struct ncp_driver_command *c)
{
	u32 result;

	if (c->index >= ncp->limits.processes || ncp->processes[c->index] ||
	    !ncp_name_valid(c->name) || !c->vni || !c->hps)
		return QNIX_DB_INVALID;
	if (ncp_peer_named(ncp, c->name))
		return NCP_TAKEN;
	/* The last entries are for root. */
	if (c->user != NCP_ROOT &&
	    ncp->stat.processes >= ncp->limits.processes - ncp->limits.processes / 8)
		return NCP_QUOTA;
	if (ncp_crowded(ncp))
		return QNIX_DB_NO_MEMORY;
	if (!c->group[0])
		return 0;
	result = ncp_group_check(ncp, c->group, c->size);
	return (int)result;
}

static int new_process(struct ncp *ncp, const struct ncp_driver_command *c)
{
	struct ncp_process *p;
	u32 result;
	int refused = refusal(ncp, c);

	if (refused)
		return refused;
	p = allocate(ncp, &c->info);
	if (!p)
		return QNIX_DB_NO_MEMORY;
	p->index = c->index;
	if (!++ncp->generations[c->index])
		ncp->generations[c->index] = 1;
	p->peer = ncp_peer_add(ncp, c->name, NULL, (u16)(c->index + 1),
			       ncp->generations[c->index], c->user, &result);
	if (!p->peer) {
		ncp_free(ncp, p, p->memory);
		return (int)result;
	}
	p->peer->process = p;
	open_interface(p, c);
	ncp->processes[c->index] = p;
	ncp->stat.processes++;
	to_all_nics(ncp, p->peer, false);
	if (c->group[0])
		result = ncp_join(p, c->group, c->size, NULL, c->cookie, true);
	else
		result = ncp_wait_add(p, NULL, NULL, c->cookie, true);
	if (result)
		ncp_delete_process(ncp, p);
	return (int)result;
}

/* Steps 1 to 5; step 6 is the wait for the acknowledgements. */
void ncp_new_process(struct ncp *ncp, const struct ncp_driver_command *c)
{
	int result = new_process(ncp, c);

	if (result)
		ncp->ops->driver_doorbell(ncp->host, c->cookie, result);
}

/*
 * Ends a process: all NICs get a message, operations with it fail, and the NIC does not
 * access it or its memory any more.
 */
void ncp_delete_process(struct ncp *ncp, struct ncp_process *p)
{
	struct ncp_peer *peer = p->peer;
	u32 i;

	while (!ncp_empty(&p->waits))
		ncp_wait_end(ncp, ncp_first(&p->waits, struct ncp_wait, at_process),
			     QNIX_DB_CANCELED);
	while (!ncp_empty(&peer->members))
		ncp_leave_as(ncp, ncp_first(&peer->members, struct ncp_member, at_peer),
			     QNIX_DB_CANCELED);
	to_all_nics(ncp, peer, true);
	/* Its own doorbells do not ring from here on. */
	p->ended = true;
	for (i = 0; i < p->info.sends; i++)
		ncp_send_drop(&p->sends[i]);
	while (!ncp_empty(&p->dynamic))
		ncp_receive_free(ncp_first(&p->dynamic, struct ncp_receive, dynamic));
	for (i = 0; i < p->info.receives; i++)
		ncp_receive_drop(&p->receives[i]);
	ncp_look_away(p);
	ncp_rest(p);
	ncp_peer_gone(ncp, peer);
	WRITE_ONCE(p->status->need_wakeup, 1);
	/* A reader that sees it has seen the last doorbell. */
	smp_store_release(&p->status->gone, 1);
	ncp_unlink(&p->rung);
	ncp->ops->notify(ncp->host, p->host);
	ncp->processes[p->index] = NULL;
	ncp->stat.processes--;
	ncp_free(ncp, p->gather, ncp->limits.packet_size);
	ncp_table_free(&p->flows);
	ncp_table_free(&p->matches);
	ncp_free(ncp, p, p->memory);
}
