// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Layout of the components in a process's two mappings. */
#include "internal.h"

#define PAGE	4096u

static u32 align_to(u32 n, u32 to)
{
	return (n + to - 1) & ~(to - 1);
}

static bool power_of_two(u32 n)
{
	return n && !(n & (n - 1));
}

static bool allowed(const struct qnix_register *r)
{
	return power_of_two(r->commands) && r->commands <= QNIX_MAX_COMMANDS &&
	       r->sends && r->sends <= QNIX_MAX_CONTEXTS &&
	       r->receives && r->receives <= QNIX_MAX_CONTEXTS &&
	       r->region_size <= QNIX_MAX_REGION && r->region_size % 64 == 0 &&
	       r->pool_entries <= QNIX_MAX_POOL;
}

int ncp_layout(const struct qnix_register *r, struct qnix_memory_info *info)
{
	u32 at = 0;

	/* Within these limits nothing below exceeds 32 bits. */
	if (!allowed(r))
		return -1;
	memset(info, 0, sizeof(*info));
	info->abi_version = QNIX_ABI_VERSION;
	info->commands = r->commands;
	info->sends = r->sends;
	info->receives = r->receives;
	info->region_size = r->region_size;
	info->pool_entries = r->pool_entries;
	info->ring_entries = 1;
	while (info->ring_entries < r->sends + r->receives)
		info->ring_entries *= 2;

	info->command_queue = at;
	at += r->commands * (u32)sizeof(struct qnix_command);
	info->send_contexts = at;
	at += r->sends * (u32)sizeof(struct qnix_context);
	info->receive_contexts = at;
	at += r->receives * (u32)sizeof(struct qnix_context);
	info->send_regions = at;
	at += r->sends * r->region_size;
	info->receive_regions = at;
	at += r->receives * r->region_size;
	info->buffer_pool = at;
	at += r->pool_entries * (u32)sizeof(struct qnix_descriptor);
	info->vni_size = align_to(at, PAGE);

	/* Fields that the NIC writes at different times are in different cache lines. */
	at = align_to(sizeof(*info), 64);
	info->status = at;
	at += (u32)sizeof(struct qnix_vni_status);
	info->send_doorbells = at;
	at = align_to(at + r->sends * (u32)sizeof(struct qnix_doorbell), 64);
	info->receive_doorbells = at;
	at = align_to(at + r->receives * (u32)sizeof(struct qnix_doorbell), 64);
	info->doorbell_ring = at;
	at += info->ring_entries * (u32)sizeof(u32);
	info->hps_size = align_to(at, PAGE);
	return 0;
}
