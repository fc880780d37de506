// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The NIC control program: its tables, its step, and the host's queries. */
#include "internal.h"

void *ncp_alloc(struct ncp *ncp, size_t size)
{
	return ncp->ops->alloc(ncp->host, size);
}

void ncp_free(struct ncp *ncp, void *memory, size_t size)
{
	if (memory)
		ncp->ops->free(ncp->host, memory, size);
}

/*
 * Copies memory that a process may change meanwhile, so that the values that are checked
 * are the values that are used. @size is a multiple of 8; both pointers are aligned.
 */
void ncp_read_once(void *to, const void *from, size_t size)
{
	const u64 *f = from;
	u64 *t = to;
	size_t i;

	for (i = 0; i < size / sizeof(*t); i++)
		t[i] = READ_ONCE(f[i]);
}

struct ncp_process *ncp_process_of(struct ncp *ncp, u16 pid, u16 generation)
{
	u32 i = (u32)pid - 1;

	if (i >= ncp->limits.processes)
		return NULL;
	i = (u32)array_index_nospec(i, ncp->limits.processes);
	return ncp->generations[i] == generation ? ncp->processes[i] : NULL;
}

static u32 power_of_two(u32 n)
{
	u32 p = 64;

	while (p < n && p < 1u << 20)
		p *= 2;
	return p;
}

enum {
	T_COMMANDS,
	T_PROCESSES,
	T_GENERATIONS,
	T_NAMES,
	T_DEAD,
	T_IDS,
	T_GROUPS,
	T_ACCOUNTS,
	T_NICS,
	T_INDEX,
	T_BOUNCE,
	T_ALL,
};

/* An array of the NIC. */
struct table {
	void **at;
	size_t size;
};

static void tables(struct ncp *ncp, struct table t[T_ALL])
{
	const struct ncp_limits *l = &ncp->limits;

	t[T_COMMANDS].at = (void **)&ncp->commands;
	t[T_COMMANDS].size = NCP_DRIVER_COMMANDS * sizeof(*ncp->commands);
	t[T_PROCESSES].at = (void **)&ncp->processes;
	t[T_PROCESSES].size = l->processes * sizeof(*ncp->processes);
	t[T_GENERATIONS].at = (void **)&ncp->generations;
	t[T_GENERATIONS].size = l->processes * sizeof(*ncp->generations);
	t[T_NAMES].at = (void **)&ncp->by_name;
	t[T_NAMES].size = (ncp->peer_mask + 1) * sizeof(*ncp->by_name);
	t[T_DEAD].at = (void **)&ncp->dead_by_name;
	t[T_DEAD].size = (ncp->peer_mask + 1) * sizeof(*ncp->dead_by_name);
	t[T_IDS].at = (void **)&ncp->by_id;
	t[T_IDS].size = (ncp->peer_mask + 1) * sizeof(*ncp->by_id);
	t[T_GROUPS].at = (void **)&ncp->groups;
	t[T_GROUPS].size = (ncp->group_mask + 1) * sizeof(*ncp->groups);
	t[T_ACCOUNTS].at = (void **)&ncp->accounts;
	t[T_ACCOUNTS].size = NCP_ACCOUNTS * sizeof(*ncp->accounts);
	t[T_NICS].at = (void **)&ncp->nics;
	t[T_NICS].size = l->nics * sizeof(*ncp->nics);
	t[T_INDEX].at = (void **)&ncp->nic_index;
	t[T_INDEX].size = 65536 * sizeof(*ncp->nic_index);
	t[T_BOUNCE].at = (void **)&ncp->bounce;
	t[T_BOUNCE].size = NCP_BOUNCE;
}

static void free_all(struct ncp *ncp)
{
	struct table t[T_ALL];
	int i;

	tables(ncp, t);
	for (i = 0; i < T_ALL; i++)
		ncp_free(ncp, *t[i].at, t[i].size);
	ncp_free(ncp, ncp, sizeof(*ncp));
}

static bool allowed(u16 nic, const struct ncp_limits *l)
{
	return nic && l->processes && l->processes < 65536 && l->names >= l->processes &&
	       l->names <= 1u << 20 && l->groups && l->groups <= 1u << 20 && l->nics &&
	       l->nics < 65536 && l->packet_size >= 1024 && l->packet_size <= 65536;
}

struct ncp *ncp_create(const struct ncp_ops *ops, void *host, u16 nic,
		       const struct ncp_limits *limits)
{
	struct table t[T_ALL];
	struct ncp *ncp;
	int i;

	if (!allowed(nic, limits))
		return NULL;
	ncp = ops->alloc(host, sizeof(*ncp));
	if (!ncp)
		return NULL;
	ncp->ops = ops;
	ncp->host = host;
	ncp->id = nic;
	ncp->limits = *limits;
	ncp->cycle = 1;
	ncp->work = NCP_WORK;
	for (i = 0; i < NCP_KEY; i++)
		ncp->key[i] = ops->random(host);
	ncp_quota_init(ncp);
	ncp->peer_mask = power_of_two(limits->names) - 1;
	ncp->group_mask = power_of_two(limits->groups) - 1;
	ncp_link_init(&ncp->queue);
	ncp_link_init(&ncp->scheduled);
	ncp_link_init(&ncp->rung);
	ncp_link_init(&ncp->late);
	ncp_link_init(&ncp->hungry);
	ncp_link_init(&ncp->begins);
	tables(ncp, t);
	for (i = 0; i < T_ALL; i++) {
		*t[i].at = ncp_alloc(ncp, t[i].size);
		if (!*t[i].at) {
			free_all(ncp);
			return NULL;
		}
	}
	return ncp;
}

void ncp_destroy(struct ncp *ncp)
{
	u32 i;

	/* Send no more messages: other NICs see this one as dead. */
	for (i = 0; i < ncp->limits.nics; i++)
		ncp->nics[i].gone = true;
	for (i = 0; i < ncp->limits.nics; i++)
		if (ncp->nics[i].id)
			ncp_nic_remove(ncp, &ncp->nics[i]);
	for (i = 0; i < ncp->limits.processes; i++)
		if (ncp->processes[i])
			ncp_delete_process(ncp, ncp->processes[i]);
	free_all(ncp);
}

bool ncp_step(struct ncp *ncp)
{
	bool did;

	ncp->now++;
	ncp->retry = false;
	ncp->weight = 0;
	ncp->work = NCP_WORK;
	did = ncp_driver_command(ncp);
	did |= ncp_tx(ncp);
	did |= ncp_driver_command(ncp);
	/* A NIC that the driver has added is known before its first frame is read. */
	if (ncp->taken == ncp->posted)
		did |= ncp_rx(ncp);
	ncp_notify_host(ncp);
	return did;
}

uint32_t ncp_weight(const struct ncp *ncp)
{
	return 1 + (ncp->weight + NCP_WORK - ncp->work) / NCP_WEIGHT;
}

bool ncp_retry(const struct ncp *ncp)
{
	return ncp->retry;
}

void ncp_ring(struct ncp *ncp, u16 index)
{
	u32 i;

	if (index < ncp->limits.processes) {
		if (ncp->processes[index])
			ncp_look_at(ncp->processes[index]);
		return;
	}
	for (i = 0; i < ncp->limits.processes; i++)
		if (ncp->processes[i])
			ncp_look_at(ncp->processes[i]);
}

void ncp_need_wakeup(struct ncp *ncp, bool need)
{
	struct ncp_link *u, *v, *l, *n;

	ncp->asleep = need;
	ncp->looked = 0; /* who posted after he was looked at does not ring: begin again */
	ncp_for_each(u, v, &ncp->queue)
		ncp_for_each(l, n, &ncp_entry(u, struct ncp_account, at_queue)->queue)
			WRITE_ONCE(ncp_entry(l, struct ncp_process, queue)->status->need_wakeup,
				   need);
	/*
	 * A process reads need_wakeup after a post, so at least one of both sees the
	 * other's store.
	 */
	smp_mb();
}

void ncp_pid(struct ncp *ncp, u16 index, u16 *pid, u16 *generation)
{
	*pid = (u16)(index + 1);
	*generation = index < ncp->limits.processes ? ncp->generations[index] : 0;
}

bool ncp_knows(struct ncp *ncp, u16 nic, u16 pid, u16 generation)
{
	return ncp_peer_of(ncp, nic, pid, generation);
}

void ncp_statistics(const struct ncp *ncp, struct qnix_statistics *s)
{
	*s = ncp->stat;
	s->local_memory = ncp->held[NCP_MEMORY];
}

bool ncp_process_statistics(const struct ncp *ncp, u16 index, struct qnix_statistics *s)
{
	if (index >= ncp->limits.processes || !ncp->processes[index])
		return false;
	*s = ncp->processes[index]->stat;
	s->processes = 1;
	return true;
}
