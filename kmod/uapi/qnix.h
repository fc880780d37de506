/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause) */
/*
 * QNIX: the network interface that a process sees.
 *
 * This header defines the interface for the kernel module, the user-space NIC and the Go
 * client. A process registers once and gets two mappings:
 *
 *   the Virtual Network Interface (VNI), which it writes and the NIC reads:
 *	Command Queue | Send Context List | Receive Context List |
 *	Context Regions | Buffer Pool
 *   the host page (HPS), which the NIC writes and the process reads:
 *	NIC Memory Info | Virtual Network Interface Status | Doorbell Array |
 *	Doorbell Ring
 *
 * The NIC trusts neither mapping: it reads each field once and then checks it. In the host
 * page it reads only @sleepers. Fields that must be 0 are checked, too, so that a later
 * version can give them a meaning.
 *
 * All numbers are in the byte order of the machine. Memory order: a field marked (release)
 * is written after the data that it announces; its reader uses acquire.
 */
#ifndef _UAPI_QNIX_H
#define _UAPI_QNIX_H

#include <linux/types.h>
#include <linux/ioctl.h>

/* An incompatible change increases the version; a program refuses any other version. */
#define QNIX_ABI_VERSION	3

#define QNIX_NAME_LEN		20	/* printable ASCII, padded with NUL, at least one NUL */
#define QNIX_NAMES_PER_COMMAND	3

/* Limits of one registration; QNIX_IOC_INFO returns those of the NIC. */
#define QNIX_MAX_CONTEXTS	4096	/* of each kind */
#define QNIX_MAX_COMMANDS	4096	/* entries of the Command Queue; a power of two */
#define QNIX_MAX_REGION		16384	/* bytes of one Context Region; a multiple of 64 */
#define QNIX_MAX_POOL		65536	/* descriptors in the Buffer Pool */
#define QNIX_MAX_MESSAGE	0x7fffffff /* bytes; the NIC refuses longer ones */
#define QNIX_MAX_TAG		0xff7f	/* context tags above are system messages' codes */

/* ---- Virtual Network Interface: written by the process ---- */

/* qnix_command.command: commands that a process can post in its Command Queue */
enum {
	QNIX_CMD_NONE			= 0,	/* the entry is free */
	QNIX_CMD_SEND			= 1,	/* context */
	QNIX_CMD_SEND_SHORT		= 2,	/* context: data lie in its Context Region */
	QNIX_CMD_BROADCAST		= 3,	/* context, name of a group */
	QNIX_CMD_BROADCAST_SHORT	= 4,
	QNIX_CMD_MULTICAST		= 5,	/* context, size: names follow in QNIX_CMD_NAMES */
	QNIX_CMD_MULTICAST_SHORT	= 6,
	QNIX_CMD_NAMES			= 7,	/* three names */
	QNIX_CMD_JOIN_GROUP		= 8,	/* send context (for its doorbell), name, size */
	QNIX_CMD_LEAVE_GROUP		= 9,	/* send context, name */
	QNIX_CMD_RECEIVE		= 10,	/* receive context */
	QNIX_CMD_BARRIER		= 11,	/* send context, name, size */
	QNIX_CMD_CANCEL_SEND		= 12,	/* send context */
	QNIX_CMD_CANCEL_RECEIVE		= 13,	/* receive context */
};

/* One cache line. @command is written last (release), and set to 0 by the NIC. */
struct qnix_command {
	__u32 command;
	union {
		struct {
			__u16 context;
			__u16 reserved;		/* 0 */
			__u32 size;		/* processes of a group, receivers of a multicast */
			__u8  name[QNIX_NAME_LEN];
			__u8  pad[32];		/* 0 */
		};
		__u8 names[QNIX_NAMES_PER_COMMAND][QNIX_NAME_LEN];
	};
};

/* qnix_context.flags */
#define QNIX_CTX_DOORBELL	0x1	/* ring the doorbell after success, too; otherwise only after a failure */
#define QNIX_CTX_INLINE		0x2	/* the Context Region holds the data, as with *_SHORT, or receives them */
#define QNIX_CTX_POOL		0x4	/* descriptors lie in the Buffer Pool, at @pool_index */

/*
 * A Send or a Receive Context. From the command until the doorbell has rung
 * it belongs to the NIC, as do its Context Region and the memory that its
 * descriptors name.
 */
struct qnix_context {
	__u8  process[QNIX_NAME_LEN];	/* Receiver Process, or Sender Process */
	__u16 tag;			/* Context Tag */
	__u16 flags;
	__u32 len;			/* bytes to send, or room to receive */
	__u32 descriptors;		/* how many */
	__u32 pool_index;		/* with QNIX_CTX_POOL */
	__u8  pad[28];			/* 0 */
};

/* A piece of translated memory. Context Regions and the Buffer Pool hold them. */
struct qnix_descriptor {
	__u32 handle;			/* from QNIX_IOC_TRANSLATE */
	__u32 len;
	__u64 offset;			/* from the start of the translated memory */
};

/* ---- Host page: written by the NIC ---- */

/* NIC Memory Info: offsets of the components, in bytes from the start of their mapping. */
struct qnix_memory_info {
	__u32 abi_version;
	__u32 command_queue;		/* in the VNI */
	__u32 send_contexts;
	__u32 receive_contexts;
	__u32 send_regions;
	__u32 receive_regions;
	__u32 buffer_pool;
	__u32 vni_size;			/* bytes, of whole pages */
	__u32 status;			/* in the host page */
	__u32 send_doorbells;
	__u32 receive_doorbells;
	__u32 doorbell_ring;
	__u32 hps_size;
	__u32 commands;			/* how many of each */
	__u32 sends;
	__u32 receives;
	__u32 region_size;
	__u32 pool_entries;
	__u32 ring_entries;		/* a power of two, at least sends + receives */
	__u32 pad;
};

/* Virtual Network Interface Status */
struct qnix_vni_status {
	__u32 command_queue_head;	/* commands read, modulo 2^32; updated every eighth */
	__u32 need_wakeup;		/* (release) QNIX_IOC_DOORBELL after a command */
	__u32 misuse;			/* commands ignored, as no doorbell could report them */
	__u32 gone;			/* (release) the registration has ended; no doorbell rings */
	__u8  pad0[48];
	__u32 ring_tail;		/* (release) doorbells rung, modulo 2^32; a futex word */
	__u8  pad1[60];
	__u32 sleepers;			/* written by the process: waiters for a change of ring_tail */
	__u8  pad2[60];
};

/* qnix_doorbell.state */
enum {
	QNIX_DB_FREE		= 0,
	QNIX_DB_PENDING		= 1,	/* for the process's own use: the NIC never writes it */
	QNIX_DB_DONE		= 2,
	QNIX_DB_TRUNCATED	= 3,	/* the message was longer than the room; @len: its length */
	QNIX_DB_UNKNOWN		= 4,	/* no process or group has that name */
	QNIX_DB_GONE		= 5,	/* the other process, or its NIC, is gone */
	QNIX_DB_CANCELED	= 6,
	QNIX_DB_INVALID		= 7,	/* the context has an invalid value */
	QNIX_DB_FAULT		= 8,	/* a descriptor names memory that is not translated */
	QNIX_DB_NO_MEMORY	= 9,	/* a table of the NIC is full, or it has no memory */
};

/* A doorbell is one 64-bit word, written at once (release). @len: bytes moved. */
struct qnix_doorbell {
	__u32 len;
	__u32 state;
};

/* An entry of the Doorbell Ring names a doorbell that has rung. */
#define QNIX_RING_RECEIVE	0x80000000u	/* of a Receive Context; else of a Send Context */
#define QNIX_RING_INDEX		0x0000ffffu

/* ---- ioctls; the user-space NIC takes the same structures over its socket ---- */

/* qnix_info.features */
#define QNIX_FEATURE_SOFT	0x1	/* a NIC in user space */

struct qnix_info {
	__u32 abi_version;
	__u32 features;
	__u16 nic;			/* this NIC's coordinates, 1 .. 65535 */
	__u16 pad0;
	__u32 nics;			/* in the cluster, this one included */
	__u32 packet_size;		/* bytes of payload in a packet of the network */
	__u32 local_memory;		/* bytes for messages without a receive */
	__u32 max_processes;
	__u32 max_per_user;		/* processes registered by one user */
	__u32 max_contexts;
	__u32 max_commands;
	__u32 max_region;
	__u32 max_pool;
	__u32 max_message;
	__u32 max_translations;		/* of one process */
	__u32 size_command;		/* of the structures */
	__u32 size_context;
	__u32 size_descriptor;
	__u32 size_memory_info;
	__u32 size_status;
	__u32 size_doorbell;
	__u32 pad[12];
};

struct qnix_register {
	__u8  name[QNIX_NAME_LEN];
	__u8  group[QNIX_NAME_LEN];	/* empty: none */
	__u32 group_size;		/* processes that make the group whole */
	__u32 timeout_ms;		/* for the other NICs and the group; 0: 30 s */
	__u32 commands;			/* entries of the Command Queue; a power of two */
	__u32 sends;			/* Send Contexts */
	__u32 receives;			/* Receive Contexts */
	__u32 region_size;		/* of each Context Region; a multiple of 64 */
	__u32 pool_entries;
	/* the NIC's answer */
	__u16 pid;
	__u16 generation;		/* of the pid, which is reused */
	__u16 nic;
	__u16 pad0;
	__u32 vni_size;
	__u64 vni_offset;		/* for mmap */
	__u64 hps_offset;
	__u32 hps_size;
	__u32 pad1;
};

/* qnix_translate.access */
#define QNIX_ACCESS_READ	0x1	/* the NIC reads: memory to send from */
#define QNIX_ACCESS_WRITE	0x2	/* the NIC writes: memory to receive in */

#define QNIX_NO_POOL		0xffffffffu

struct qnix_translate {
	__u64 addr;
	__u64 len;
	__u32 access;
	__u32 pool_index;		/* first entry of the Buffer Pool to fill; QNIX_NO_POOL */
	__u32 pool_stride;		/* bytes of each buffer: len / stride entries are filled */
	__u32 handle;			/* the NIC's answer; never 0 */
};

struct qnix_untranslate {
	__u32 handle;
	__u32 pad;
};

struct qnix_group {
	__u8  name[QNIX_NAME_LEN];
	__u32 size;			/* join: processes that make the group whole */
	__u32 timeout_ms;		/* join: 0: 30 s */
	__u32 pad;
};

struct qnix_wait {
	__u32 ring_tail;		/* as last seen: the call returns at once if it has changed */
	__u32 pad;
	__s64 timeout_ns;		/* < 0: none */
};

/* Only of a NIC in the kernel: it is signalled when doorbells have rung. */
struct qnix_eventfd {
	__s32 fd;			/* -1: no more */
	__u32 pad;
};

struct qnix_statistics {
	__u64 commands;
	__u64 packets_sent;		/* to other NICs and to processes of this one */
	__u64 packets_received;
	__u64 bytes_sent;
	__u64 bytes_received;
	__u64 doorbells;
	__u64 requests_sent;		/* Permission_Request */
	__u64 requests_remembered;	/* not granted when they arrived */
	__u64 requests_buffered;	/* granted with a local buffer */
	__u64 failures;			/* doorbells that reported a failure */
	__u64 misuse;
	__u64 system_messages;
	__u64 bad_frames;		/* from other NICs, dropped */
	__u64 late_frames;		/* for a process that is gone, dropped */
	__u64 processes;		/* now */
	__u64 local_memory;		/* bytes in use, now */
	__u64 pad[8];
};

/*
 * QNIX_IOC_DEREGISTER does not remove the mappings: the process must unmap them, because
 * another thread may use them or may have mapped something else over them. @gone reports
 * that there is no NIC behind them any more. Their memory belongs to the process, and
 * counts towards RLIMIT_MEMLOCK, until it unmaps them. When the call returns, the NIC does
 * not access translated memory any more. When the memory of a registered process has ended,
 * so has the registration: whoever has the file then, for example after execve, can
 * register and deregister with it.
 */
#define QNIX_IOC_MAGIC		0xD9	/* not used in ioctl-number.rst */
#define QNIX_IOC_INFO		_IOR(QNIX_IOC_MAGIC, 0, struct qnix_info)
#define QNIX_IOC_REGISTER	_IOWR(QNIX_IOC_MAGIC, 1, struct qnix_register)
#define QNIX_IOC_DEREGISTER	_IO(QNIX_IOC_MAGIC, 2)
#define QNIX_IOC_TRANSLATE	_IOWR(QNIX_IOC_MAGIC, 3, struct qnix_translate)
#define QNIX_IOC_UNTRANSLATE	_IOW(QNIX_IOC_MAGIC, 4, struct qnix_untranslate)
#define QNIX_IOC_JOIN		_IOW(QNIX_IOC_MAGIC, 5, struct qnix_group)
#define QNIX_IOC_LEAVE		_IOW(QNIX_IOC_MAGIC, 6, struct qnix_group)
#define QNIX_IOC_DOORBELL	_IO(QNIX_IOC_MAGIC, 7)
#define QNIX_IOC_WAIT		_IOW(QNIX_IOC_MAGIC, 8, struct qnix_wait)
#define QNIX_IOC_STATISTICS	_IOR(QNIX_IOC_MAGIC, 9, struct qnix_statistics)
#define QNIX_IOC_EVENTFD	_IOW(QNIX_IOC_MAGIC, 10, struct qnix_eventfd)

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
_Static_assert(sizeof(struct qnix_command) == 64, "qnix_command");
_Static_assert(sizeof(struct qnix_context) == 64, "qnix_context");
_Static_assert(sizeof(struct qnix_descriptor) == 16, "qnix_descriptor");
_Static_assert(sizeof(struct qnix_memory_info) == 80, "qnix_memory_info");
_Static_assert(sizeof(struct qnix_vni_status) == 192, "qnix_vni_status");
_Static_assert(sizeof(struct qnix_doorbell) == 8, "qnix_doorbell");
_Static_assert(sizeof(struct qnix_info) == 128, "qnix_info");
_Static_assert(sizeof(struct qnix_register) == 104, "qnix_register");
_Static_assert(sizeof(struct qnix_translate) == 32, "qnix_translate");
_Static_assert(sizeof(struct qnix_untranslate) == 8, "qnix_untranslate");
_Static_assert(sizeof(struct qnix_group) == 32, "qnix_group");
_Static_assert(sizeof(struct qnix_wait) == 16, "qnix_wait");
_Static_assert(sizeof(struct qnix_eventfd) == 8, "qnix_eventfd");
_Static_assert(sizeof(struct qnix_statistics) == 192, "qnix_statistics");
#endif

#endif /* _UAPI_QNIX_H */
