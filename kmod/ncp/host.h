/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A host in memory, for tests, simulations and fuzzing. Its NICs run in one thread; the
 * caller that steps them also carries their frames.
 */
#ifndef _QNIX_NCP_HOST_H
#define _QNIX_NCP_HOST_H

#include "ncp.h"

#define HOST_HANDLES	64

struct host_memory {
	uint8_t *base;
	uint64_t len;
	uint32_t access;
};

/* The host's record of a process: its translated memory. A handle is an index + 1. */
struct host_process {
	struct host_memory memory[HOST_HANDLES];
	uint64_t notified;
};

struct host_doorbell {
	uint64_t cookie;
	int32_t result;
	int32_t pad;
};

struct host_nic;

struct host_nic *host_create(uint16_t nic, const struct ncp_limits *limits, uint32_t fifo);
/* Returns how many bytes the NIC has not freed. */
uint64_t host_destroy(struct host_nic *h);
struct ncp *host_ncp(struct host_nic *h);
/* Bytes that the NIC holds. */
uint64_t host_allocated(const struct host_nic *h);
/* The next @after allocations succeed, all others fail; < 0: none fails. */
void host_fail_after(struct host_nic *h, int64_t after);

uint32_t host_run(struct host_nic *h, uint32_t budget);
/*
 * Returns how many messages a receive has taken while they arrived in local memory, at least.
 * All receives must ask for a doorbell.
 */
uint64_t host_taken_early(const struct host_nic *h);
/* Output FIFO of one NIC: oldest frame, or NULL. */
const void *host_tx_peek(struct host_nic *h, uint16_t nic, uint32_t *size);
void host_tx_consume(struct host_nic *h, uint16_t nic);
bool host_receive(struct host_nic *h, uint16_t from, const void *frame, uint32_t size);
/* Moves frames from @from's output FIFO to @to's input FIFO. Returns how many. */
uint32_t host_carry(struct host_nic *from, struct host_nic *to, uint32_t most);
void host_drop(struct host_nic *h, uint16_t nic);
uint32_t host_doorbells(struct host_nic *h, struct host_doorbell *to, uint32_t most);
bool host_input_empty(const struct host_nic *h);
uint16_t host_id(const struct host_nic *h);
/* Returns the NIC that was lost last (ncp_ops.nic_lost), or 0. */
uint16_t host_lost(const struct host_nic *h);
/* Returns the largest number of names in one bucket of the Name Table. */
uint32_t host_longest_chain(const struct host_nic *h);

/* A membership as a NIC knows it. A process that leaves and joins again has another serial. */
struct host_member {
	uint16_t nic, pid, generation, pad;
	uint32_t serial;
};

/* Returns how many members of the group the NIC knows; up to @most of them are in @to. */
uint32_t host_members(struct host_nic *h, const uint8_t *group, struct host_member *to,
		      uint32_t most);
/* Sets the number of the last barrier of all members that the NIC knows. */
void host_set_round(struct host_nic *h, const uint8_t *group, uint32_t round);

#endif /* _QNIX_NCP_HOST_H */
