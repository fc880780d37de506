/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The NIC control program: TX and RX, executed in alternation, over what a
 * host gives it. It is freestanding and has no threads, no clock and no
 * locks: the same code runs in the kernel module, in the user-space NIC, and
 * under simulators and fuzzers.
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
 * A frame from NIC to NIC: generations of both pids, so that a pid that is
 * used again never gets a packet of the dead, then the header, then payload.
 */
struct ncp_frame {
	__be16 receiver_generation;
	__be16 sender_generation;
	struct ncp_header header;
};

/*
 * Operations of the host for a NIC. @host is what ncp_create was given, @process
 * what NCP_NEW_PROCESS named. None of them sleeps for another process's sake; none
 * calls back into the NIC.
 */
struct ncp_ops {
	/* Zeroed memory, or NULL. */
	void *(*alloc)(void *host, size_t size);
	void (*free)(void *host, void *memory, size_t size);

	/*
	 * DMA from and to translated memory. 0, or -1: the handle is not
	 * @process's, or does not reach so far, or lacks the access, or the memory is gone.
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
	 * NIC output FIFO. Room for a frame of @size bytes to a NIC of the NIC Table,
	 * or NULL: it is full, come back. tx_commit sends the first
	 * @size bytes of what was reserved last; 0 gives it back.
	 */
	void *(*tx_reserve)(void *host, uint16_t nic, uint32_t size);
	void (*tx_commit)(void *host, uint16_t nic, uint32_t size);

	/*
	 * NIC input FIFO. The oldest frame, which stays where it is and as it is until
	 * rx_consume, or NULL. @nic is who sent it, which the network has proven.
	 * Frames are aligned to 2 bytes. The first frame of a NIC comes after
	 * NCP_ADD_NIC has been posted; once it is added again after a removal,
	 * none from before may come any more.
	 */
	const void *(*rx_peek)(void *host, uint16_t *nic, uint32_t *size);
	void (*rx_consume)(void *host);

	/* A doorbell of the process has rung: wake whoever waits. Called once a batch. */
	void (*notify)(void *host, void *process);
	/*
	 * A driver command is done: its Driver Doorbell. @result: 0, a QNIX_DB_*,
	 * NCP_TAKEN or NCP_QUOTA. NCP_ABANDON has none of its own.
	 */
	void (*driver_doorbell)(void *host, uint64_t cookie, int result);

	/* A number that nobody can guess: keys of hashes. */
	uint64_t (*random)(void *host);
};

/* A result of NCP_NEW_PROCESS: a process of the cluster has that name. */
#define NCP_TAKEN	256
/* The user, or the NIC, holds its share: see quota.c. */
#define NCP_QUOTA	257

/* The user whom no share binds. */
#define NCP_ROOT	0

struct ncp_limits {
	uint32_t processes;	/* entries of the NIC Process Table */
	uint32_t names;		/* of the Name Table: processes of the whole cluster */
	uint32_t groups;
	uint32_t nics;
	uint32_t packet_size;	/* bytes of payload in a packet between NICs; 1024 .. 65536 */
	uint32_t local_memory;	/* bytes for messages that came before their receive */
};

struct ncp;

/* The memory of a NIC of these limits comes from @ops->alloc. NULL: there is none. */
struct ncp *ncp_create(const struct ncp_ops *ops, void *host, uint16_t nic,
		       const struct ncp_limits *limits);
void ncp_destroy(struct ncp *ncp);

/* ---- Driver Command Queue ---- */

enum {
	NCP_NONE,
	/*
	 * All fields; the group may be empty. After a failure other than
	 * QNIX_DB_CANCELED nothing of the process is touched any more.
	 */
	NCP_NEW_PROCESS,
	NCP_DELETE_PROCESS,	/* @index. Afterwards nothing of the process is touched any more */
	NCP_JOIN_GROUP,		/* @index, @group, @size: what QNIX_IOC_JOIN asks for */
	NCP_LEAVE_GROUP,	/* @index, @group */
	NCP_ABANDON,		/* @cookie of a NEW_PROCESS or JOIN_GROUP that is not to be waited for */
	NCP_ADD_NIC,		/* @nic: it can be reached; it is told of our processes */
	NCP_REMOVE_NIC,		/* @nic: it is dead; so are its processes */
};

struct ncp_driver_command {
	uint32_t command;
	uint16_t index;			/* in the NIC Process Table */
	uint16_t nic;
	uint32_t size;
	uint64_t cookie;		/* for the Driver Doorbell */
	uint64_t user;			/* NCP_NEW_PROCESS: whose it is, the same number at all NICs */
	uint8_t  name[QNIX_NAME_LEN];
	uint8_t  group[QNIX_NAME_LEN];
	void	 *process;		/* the host's */
	void	 *vni, *hps;		/* both mappings, zeroed, as the process sees them */
	struct qnix_memory_info info;	/* from ncp_layout; copied to the host page */
};

/* How @r's components lie; 0, or -1: it asks for what is not allowed. */
int ncp_layout(const struct qnix_register *r, struct qnix_memory_info *info);

/* Bytes of the one piece of memory that NCP_NEW_PROCESS allocates for a process's tables. */
size_t ncp_process_memory(const struct qnix_memory_info *info);

/* Posts a command; false: the queue is full, ncp_step first. */
bool ncp_post(struct ncp *ncp, const struct ncp_driver_command *command);

/* The id and generation of a process, from NCP_NEW_PROCESS's having been read on. */
void ncp_pid(struct ncp *ncp, uint16_t index, uint16_t *pid, uint16_t *generation);
/* Whether the Name Table has a process of another NIC: until that NIC's Delete_Process has been read. */
bool ncp_knows(struct ncp *ncp, uint16_t nic, uint16_t pid, uint16_t generation);

/* ---- Running ---- */

/*
 * Driver commands, TX, driver commands, RX. False: there is nothing that can
 * be done. Its time is bounded: a packet, a command and a frame, and of each
 * no more descriptors and bytes than so many.
 */
bool ncp_step(struct ncp *ncp);

/* What the last step was worth, for who has a budget of steps: 1 for an ordinary one. */
uint32_t ncp_weight(const struct ncp *ncp);

/*
 * The last step found no memory for what it had to do, and nothing will ring
 * when there is some: step again after a while.
 */
bool ncp_retry(const struct ncp *ncp);

/*
 * Process @index has rung: its Command Queue is read from the next step on.
 * One that posts nothing for a while is not looked at any more, and told so in
 * its status, so that idle processes cost nothing. Beyond the table: somebody
 * has rung, all are looked at.
 */
void ncp_ring(struct ncp *ncp, uint16_t index);

/*
 * Tells the processes whether they must ring (QNIX_IOC_DOORBELL) after a command. Whoever
 * is about to sleep sets it and then steps until nothing can be done.
 */
void ncp_need_wakeup(struct ncp *ncp, bool need);

void ncp_statistics(const struct ncp *ncp, struct qnix_statistics *s);
/* Of one process; false: there is none. */
bool ncp_process_statistics(const struct ncp *ncp, uint16_t index,
			    struct qnix_statistics *s);

#endif /* _QNIX_NCP_H */
