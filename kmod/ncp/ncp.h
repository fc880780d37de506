/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The NIC control program executes TX and RX in alternation, on the operations that a host
 * provides. It is freestanding and has no threads, no clock and no locks: the same code
 * runs in the kernel module, in the user-space NIC, and under simulators and fuzzers.
 *
 * A host calls one NIC's functions from one thread at a time.
 */
#ifndef _QNIX_NCP_H
#define _QNIX_NCP_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#endif
#include "../uapi/qnix.h"

/* The header of a packet, after the specification; big-endian on the wire. */
struct ncp_header {
	__be16 destination_nic;
	__be16 receiver;	/* pid; 0 with @sender 0: a system message */
	__be16 source_nic;
	__be16 sender;
	__be16 tag;		/* or the system message's code */
	__be16 length_high;	/* Packet Length in Bytes: 4 bytes that are not aligned to 4 */
	__be16 length_low;
	__be16 counter;
};

/*
 * A frame from NIC to NIC: the generations of both pids, the header, the payload. The
 * generations make sure that a process whose pid was reused gets no packet for its
 * predecessor.
 */
struct ncp_frame {
	__be16 receiver_generation;
	__be16 sender_generation;
	struct ncp_header header;
};

/*
 * Operations of the host for a NIC. @host is the argument of ncp_create, @process that of
 * NCP_NEW_PROCESS. No operation may wait for another process or call back into the NIC.
 */
struct ncp_ops {
	/* Zeroed memory, or NULL. */
	void *(*alloc)(void *host, size_t size);
	void (*free)(void *host, void *memory, size_t size);

	/*
	 * DMA from and to translated memory. Returns 0, or -1 if the handle is not
	 * @process's, is too short, or lacks the access, or if the memory is gone.
	 */
	int (*read)(void *host, void *process, uint32_t handle, uint64_t offset,
		    void *to, uint32_t len);
	int (*write)(void *host, void *process, uint32_t handle, uint64_t offset,
		     const void *from, uint32_t len);
	/* From one process of this NIC to another (or itself) at once. */
	int (*copy)(void *host, void *to, uint32_t to_handle, uint64_t to_offset,
		    void *from, uint32_t from_handle, uint64_t from_offset,
		    uint32_t len);

	/*
	 * NIC output FIFO. tx_reserve returns room for a frame of @size bytes to a NIC of
	 * the NIC Table, or NULL if it is full: try again later. tx_commit sends the first
	 * @size bytes of the latest reservation; 0 gives it back, and may free its memory.
	 */
	void *(*tx_reserve)(void *host, uint16_t nic, uint32_t size);
	void (*tx_commit)(void *host, uint16_t nic, uint32_t size);

	/*
	 * NIC input FIFO. rx_peek returns the oldest frame, which does not move or change
	 * until rx_consume, or NULL. @nic is its sender, as the network has proven. Frames
	 * are aligned to 2 bytes. The first frame of a NIC comes after NCP_ADD_NIC has been
	 * posted; after it was removed and added again, no earlier frame may come.
	 */
	const void *(*rx_peek)(void *host, uint16_t *nic, uint32_t *size);
	void (*rx_consume)(void *host);

	/* A doorbell of the process has rung: wake its waiters. Called once a batch. */
	void (*notify)(void *host, void *process);
	/*
	 * Driver Doorbell: a driver command is done. @result: 0, a QNIX_DB_*, NCP_TAKEN or
	 * NCP_QUOTA. NCP_ABANDON causes no call of its own.
	 */
	void (*driver_doorbell)(void *host, uint64_t cookie, int result);
	/*
	 * A message for @nic was lost: this NIC has removed it from its NIC Table. If @nic can
	 * learn of that, both add each other again.
	 */
	void (*nic_lost)(void *host, uint16_t nic);

	/* Returns an unpredictable number, for keys of hashes. */
	uint64_t (*random)(void *host);
};

/* A result of NCP_NEW_PROCESS: a process of the cluster has that name. */
#define NCP_TAKEN	256
/* The user, or the NIC, holds its whole share: see quota.c. */
#define NCP_QUOTA	257

/* The user without a share: no quota binds him. */
#define NCP_ROOT	0

struct ncp_limits {
	uint32_t processes;	/* entries of the NIC Process Table */
	uint32_t names;		/* of the Name Table: processes of the whole cluster */
	uint32_t groups;
	uint32_t nics;
	uint32_t packet_size;	/* bytes of payload in a packet between NICs; 1024 .. 65536 */
	uint32_t local_memory;	/* bytes for messages without a receive */
};

struct ncp;

/*
 * Makes a NIC with these limits. Its memory comes from @ops->alloc. Returns NULL without
 * memory.
 */
struct ncp *ncp_create(const struct ncp_ops *ops, void *host, uint16_t nic,
		       const struct ncp_limits *limits);
void ncp_destroy(struct ncp *ncp);

/* ---- Driver Command Queue ---- */

#define NCP_DRIVER_COMMANDS	64	/* entries; a step reads one at least */

enum {
	/*
	 * Uses all fields; the group may be empty. After a failure other than
	 * QNIX_DB_CANCELED the NIC does not access the process any more.
	 */
	NCP_NEW_PROCESS = 1,
	NCP_DELETE_PROCESS,	/* @index. Afterwards the NIC does not access the process any more */
	NCP_JOIN_GROUP,		/* @index, @group, @size: what QNIX_IOC_JOIN asks for */
	NCP_LEAVE_GROUP,	/* @index, @group */
	NCP_ABANDON,		/* @cookie of a NEW_PROCESS or JOIN_GROUP to give up */
	NCP_ADD_NIC,		/* @nic: it can be reached; it gets the names of this NIC's processes */
	NCP_REMOVE_NIC,		/* @nic: it is dead; so are its processes */
};

struct ncp_driver_command {
	uint32_t command;
	uint16_t index;			/* in the NIC Process Table */
	uint16_t nic;
	uint32_t size;
	uint64_t cookie;		/* for the Driver Doorbell */
	uint64_t user;			/* NCP_NEW_PROCESS: user id, the same number at all NICs */
	uint8_t  name[QNIX_NAME_LEN];
	uint8_t  group[QNIX_NAME_LEN];
	void	 *process;		/* the host's */
	void	 *vni, *hps;		/* both mappings, zeroed */
	struct qnix_memory_info info;	/* from ncp_layout; copied to the host page */
};

/* A valid name has 1 to 19 printable ASCII characters without spaces, padded with NULs. */
bool ncp_name_valid(const uint8_t *name);

/* Computes the layout of @r's components. Returns 0, or -1 if @r exceeds a limit. */
int ncp_layout(const struct qnix_register *r, struct qnix_memory_info *info);

/* Bytes of the one piece of memory that NCP_NEW_PROCESS allocates for a process's tables. */
size_t ncp_process_memory(const struct qnix_memory_info *info);

/* Posts a command. Returns false if the queue is full: call ncp_step first. */
bool ncp_post(struct ncp *ncp, const struct ncp_driver_command *command);

/* Returns the id and generation of a process, once the NIC has read its NCP_NEW_PROCESS. */
void ncp_pid(struct ncp *ncp, uint16_t index, uint16_t *pid, uint16_t *generation);
/*
 * Returns whether the Name Table has a process of another NIC, until that NIC's
 * Delete_Process was read.
 */
bool ncp_knows(struct ncp *ncp, uint16_t nic, uint16_t pid, uint16_t generation);

/* ---- Running ---- */

/*
 * Runs driver commands, TX, driver commands, RX. Returns false if there is no work. Its
 * time is bounded: one packet, one barrier, one command and one frame, each with a bounded
 * number of descriptors and bytes.
 */
bool ncp_step(struct ncp *ncp);

/*
 * Returns the cost of the last step, for a caller with a budget of steps: 1 for an ordinary
 * step.
 */
uint32_t ncp_weight(const struct ncp *ncp);

/*
 * Returns whether the last step found no memory for its work. No event follows when there
 * is memory again: step again after a pause.
 */
bool ncp_retry(const struct ncp *ncp);

/*
 * Process @index has rung: its Command Queue is polled from the next step on. A process
 * that posts nothing for a while is not polled any more, and must ring (need_wakeup in its
 * status), so that idle processes cost nothing. An @index beyond the table polls all
 * processes.
 */
void ncp_ring(struct ncp *ncp, uint16_t index);

/*
 * Tells the processes whether they must ring (QNIX_IOC_DOORBELL) after a command. A caller
 * that is about to sleep sets it and then steps until there is no work.
 */
void ncp_need_wakeup(struct ncp *ncp, bool need);

void ncp_statistics(const struct ncp *ncp, struct qnix_statistics *s);
/* Returns the counters of one process, and false if there is none. */
bool ncp_process_statistics(const struct ncp *ncp, uint16_t index,
			    struct qnix_statistics *s);

#endif /* _QNIX_NCP_H */
