/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Declarations that the files of the module share.
 *
 * Locks, the outer first:
 *	QNIX_FILE_BUSY		one registration or de-registration of a file at a time
 *	qnix_nic.lock		the control program, and all that its operations touch
 *	qnix_fifo.lock		frames between NICs
 * One NIC's lock is not taken while another's is held, since frames go through FIFOs, but
 * for two NICs that meet again: there the one with the lower index is the outer.
 * None of them is taken by mmap or a page fault, since ioctls copy from and to
 * user memory with the first one held.
 */
#ifndef _QNIX_HOST_H
#define _QNIX_HOST_H

#ifndef CONFIG_64BIT
#error "qnix needs a kernel of 64 bits: offsets of mappings and doorbells are 64 bits wide"
#endif

#include <linux/device.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/nospec.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/xarray.h>

#include "ncp/ncp.h"
#include "ncp/wire.h"

#define QNIX_MAX_NICS		64		/* of this host */
#define QNIX_MAX_LINKS		256		/* NICs of other hosts that one knows */
#define QNIX_MAX_PEERS		60		/* addresses: their text fits a page */
#define QNIX_HPS_OFFSET		0x100000000ULL	/* for mmap; the VNI is at 0 */
#define QNIX_DEFAULT_TIMEOUT	30000		/* ms, of a registration or join */
#define QNIX_RUNG_WORDS	BITS_TO_LONGS(U16_MAX)
#define QNIX_BUDGET		64		/* steps of a NIC before others may have the lock */
#define QNIX_SLEEP		(TASK_KILLABLE | TASK_FREEZABLE)	/* of who waits for other processes */
#define QNIX_ORDERS		32		/* allocations are smaller than 1 << QNIX_ORDERS bytes */
#define QNIX_SENDS		256		/* datagrams of a NIC that a caller sends */

struct eventfd_ctx;

/* Parameters of the module. */
struct qnix_params {
	unsigned int nics;
	unsigned int coordinates;
	unsigned int processes;
	unsigned int names;
	unsigned int groups;
	unsigned int max_per_user;
	unsigned int max_translations;
	unsigned int packet_size;
	unsigned int local_memory;
	unsigned int poll_us;
	unsigned int port;
	unsigned int datagram;
	unsigned int dead_ms;
};

extern struct qnix_params qnix_params;

/* Pages that the control program and a process share. */
struct qnix_memory {
	struct kref ref;	/* the registration's, and one of each mapping */
	struct mm_struct *mm;	/* the process's, which is charged */
	struct page **pages;
	unsigned long count;
	void *address;		/* kernel address */
};

/* A frame in the input FIFO of a NIC. */
struct qnix_frame {
	struct list_head list;
	u16 source;
	u16 from;		/* index of the local NIC that sent it */
	u32 size;
	u8 data[] __aligned(8);
};

/* Input FIFO: any number of NICs of this host put, the owner takes. */
struct qnix_fifo {
	spinlock_t lock;			/* all of it */
	struct list_head frames;
	u32 bytes[QNIX_MAX_NICS];		/* of each NIC's frames in it */
	DECLARE_BITMAP(starved, QNIX_MAX_NICS);	/* NICs that found no room */
};

/* qnix_nic.state */
enum {
	QNIX_NIC_TIMER,	/* the thread must shorten its sleep */
	QNIX_NIC_RUNG,	/* there is something in @rung */
	QNIX_NIC_WORK,	/* there may be work: the holder of the lock looks for it */
};

struct qnix_nic {
	unsigned int index;	/* of /dev/qnix<index> */
	u16 number;		/* its coordinates */
	struct device *dev;	/* NULL: not visible */

	spinlock_t lock;		/* guards the control program and the fields below */
	struct ncp *ncp;
	u64 cookie;			/* of the last driver command */
	struct list_head commands;	/* qnix_command_wait */
	struct list_head registrations;
	void *tables;			/* of the process whose registration is being read, */
	size_t tables_size;		/* until the control program takes them */
	unsigned long *entries;		/* Process Flag Array: a bit for each entry that is taken */
	DECLARE_BITMAP(kick, QNIX_MAX_NICS);	/* NICs of this host that have new work */
	struct qnix_frame *reserved;	/* in this host, for tx_commit */
	bool retry;			/* there was no memory for a frame: try again later */
	unsigned long wanted;		/* there was no memory of 1 << bit bytes: the thread gets it */
	void *spare[QNIX_ORDERS];	/* and this is it */
	void *garbage;			/* memory to be freed without the lock */
	struct qnix_registration *notified;	/* processes to be woken without the lock */
	DECLARE_BITMAP(lost, QNIX_MAX_NICS);	/* atomic: NICs of this host that were lost */
	struct task_struct *creator;	/* makes a part of the NIC; it does not hold the lock */
	u64 alarm;			/* when the thread wakes up by itself; U64_MAX: never */
	bool from_wire;			/* the oldest frame is from the wire */

	struct wire *wire;		/* NULL: no wire */
	void *datagram;			/* memory for a datagram to send; NULL while it is used */
	unsigned long *remote;		/* NICs of other hosts that are in the NIC Table, */
	u32 remotes;			/* and how many */

	unsigned long state;
	unsigned long *rung;		/* atomic bits: processes that have rung, */
	DECLARE_BITMAP(rung_words, QNIX_RUNG_WORDS);	/* and words of it that are not 0 */
	wait_queue_head_t wakeup;
	struct task_struct *thread;
	u64 runs_caller, runs_thread;	/* under the lock */

	struct qnix_fifo input;
};

extern struct qnix_nic *qnix_nics[QNIX_MAX_NICS];

/*
 * A wait for a Driver Doorbell. It is on the waiter's stack, and in nic->commands under
 * nic->lock.
 */
struct qnix_command_wait {
	struct list_head list;
	u64 cookie;
	wait_queue_head_t wakeup;
	bool done;
	int result;		/* 0 or QNIX_DB_* */
};

struct qnix_user;

/* A process that is registered with a NIC. */
struct qnix_registration {
	struct kref ref;
	struct qnix_nic *nic;
	struct list_head list;		/* nic->registrations */
	struct qnix_user *user;
	pid_t tgid;			/* for debugfs alone */
	u16 index, pid, generation;
	bool ended;			/* set under nic->lock */
	u8 name[QNIX_NAME_LEN];
	struct qnix_memory_info info;	/* the NIC's copy: the process may overwrite the host page's */

	struct mm_struct *mm;
	struct mmu_notifier notifier;	/* reports exit and exec */
	struct qnix_memory *vni, *hps;
	void *tables;			/* for the NIC, before it takes them */
	unsigned long tables_pages;	/* charged to @mm */

	struct mutex translate_lock;	/* insertion against the end */
	bool translate_ended;
	struct xarray translations;	/* struct qnix_translation, by handle */
	u32 next_handle;
	atomic_t translation_count;
	atomic_long_t translation_pages;

	struct qnix_file *file;		/* with a reference */
	spinlock_t eventfd_lock;
	struct eventfd_ctx *eventfd;	/* under eventfd_lock; qnix_notify only looks whether there is one */
	unsigned int notified;		/* it is in a list of processes to be woken, */
	struct qnix_registration *next_notified;	/* and the next in that list */
};

/* qnix_file.state */
enum {
	QNIX_FILE_BUSY,	/* a registration or de-registration is under way */
};

/* An open device. */
struct qnix_file {
	struct kref ref;		/* the open file's, and one of each registration */
	struct qnix_nic *nic;
	unsigned long state;
	wait_queue_head_t idle;		/* for QNIX_FILE_BUSY to be cleared */
	spinlock_t reg_lock;		/* of the pointer */
	struct qnix_registration *reg;
	wait_queue_head_t wait;		/* for ring_tail to change */
	u32 acknowledged;		/* ring_tail as last given to QNIX_IOC_WAIT */
};

/* mapping.c */
struct qnix_memory *qnix_memory_create(struct mm_struct *mm, u32 size);
void qnix_memory_put(struct qnix_memory *memory);
int qnix_mmap(struct file *file, struct vm_area_struct *vma);

/* limits.c */
int qnix_charge_pages(struct mm_struct *mm, unsigned long pages);
void qnix_uncharge_pages(struct mm_struct *mm, unsigned long pages);
kuid_t qnix_namespace_uid(struct user_namespace *ns);
struct qnix_user *qnix_user_charge(void);
void qnix_user_uncharge(struct qnix_user *user);
kuid_t qnix_user_uid(const struct qnix_user *user);

/* registration.c */
int qnix_register(struct qnix_file *file, struct qnix_register *arg);
int qnix_deregister(struct qnix_file *file);
struct qnix_file *qnix_file_create(struct qnix_nic *nic);
void qnix_file_release(struct qnix_file *file);
struct qnix_registration *qnix_registration_of(struct qnix_file *file);
void qnix_registration_put(struct qnix_registration *reg);
int qnix_errno(int doorbell);

/* group.c */
int qnix_join(struct qnix_registration *reg, const struct qnix_group *arg);
int qnix_leave(struct qnix_registration *reg, const struct qnix_group *arg);
bool qnix_name_empty(const u8 *name);

/* translate.c */
int qnix_translate(struct qnix_registration *reg, struct qnix_translate *arg);
int qnix_untranslate(struct qnix_registration *reg, u32 handle);
void qnix_translations_end(struct qnix_registration *reg);

/* dma.c */
struct qnix_translation {
	u64 len;
	u32 offset;		/* of the first byte in the first page */
	u32 access;
	unsigned long count;
	struct page **pages;
};

int qnix_dma_read(void *host, void *process, u32 handle, u64 offset, void *to, u32 len);
int qnix_dma_write(void *host, void *process, u32 handle, u64 offset, const void *from, u32 len);
int qnix_dma_copy(void *host, void *to, u32 to_handle, u64 to_offset,
		  void *from, u32 from_handle, u64 from_offset, u32 len);

/* wait.c */
void qnix_notify(void *host, void *process);
struct qnix_registration *qnix_wake_notified(struct qnix_registration *reg);
void qnix_free_registrations(struct qnix_registration *dead);
int qnix_wait(struct qnix_file *file, struct qnix_registration *reg, const struct qnix_wait *arg);
int qnix_eventfd(struct qnix_registration *reg, const struct qnix_eventfd *arg);
__poll_t qnix_poll(struct file *file, struct poll_table_struct *table);

/* nic.c */
struct qnix_nic *qnix_nic_create(unsigned int index, u16 number);
int qnix_nic_go(struct qnix_nic *nic);
void qnix_nic_halt(struct qnix_nic *nic);
void qnix_nic_destroy(struct qnix_nic *nic);
void qnix_nic_lock(struct qnix_nic *nic);
void qnix_nic_unlock(struct qnix_nic *nic);
void qnix_nic_run(struct qnix_nic *nic);
void qnix_nic_ring(struct qnix_nic *nic, unsigned int index);
void qnix_nic_wake(struct qnix_nic *nic);
void qnix_nic_set_alarm(struct qnix_nic *nic);

/* command.c: nic->lock held */
void qnix_command_post(struct qnix_nic *nic, struct ncp_driver_command *command,
		       struct qnix_command_wait *wait);
int qnix_command_finish(struct qnix_nic *nic, struct qnix_command_wait *wait);
void qnix_command_read(struct qnix_nic *nic, struct qnix_command_wait *wait, u16 index);
int qnix_command_wait(struct qnix_nic *nic, struct qnix_command_wait *wait, u32 timeout_ms);
void qnix_driver_doorbell(void *host, u64 cookie, int result);

/* memory.c */
void *qnix_get(struct qnix_nic *nic, size_t size, gfp_t flags);
void qnix_put(struct qnix_nic *nic, void *memory);
void qnix_free_garbage(void *garbage);
void qnix_get_wanted(struct qnix_nic *nic);

/* switch.c */
void qnix_fifo_init(struct qnix_fifo *fifo);
void qnix_fifo_drain(struct qnix_fifo *fifo);
void *qnix_tx_reserve(void *host, u16 nic, u32 size);
void qnix_tx_commit(void *host, u16 nic, u32 size);
const void *qnix_rx_peek(void *host, u16 *nic, u32 *size);
void qnix_rx_consume(void *host);

struct qnix_nic *qnix_local_nic(u16 number);
void qnix_nic_lost(void *host, u16 number);
void qnix_find_lost(struct qnix_nic *nic);

/* net.c: the wire to other hosts; peers.c: their addresses; udp.c: datagrams */
extern struct mutex qnix_net_lock;	/* guards key and peers; taken before nic->lock */
int qnix_net_set_key(const u8 *key);
bool qnix_net_get_key(u8 *key);
void qnix_net_add(const struct wire_address *address);
void qnix_net_remove(const struct wire_address *address);
void qnix_net_input(const struct wire_address *from, const void *datagram, u32 size);
void qnix_net_ran(void);
void qnix_net_prepare(struct qnix_nic *nic);
bool qnix_net_flush(struct qnix_nic *nic);
u64 qnix_net_due(struct qnix_nic *nic);
void qnix_net_lost(struct qnix_nic *nic, u16 number);

int qnix_peers_get(char *text);
int qnix_peers_set(const char *text);
void qnix_peers_attach(struct qnix_nic *nic);
void qnix_peers_free(void);

int qnix_udp_open(void);
void qnix_udp_close(void);
void qnix_udp_send(const struct wire_address *to, void *datagram, u32 size);
int qnix_udp_parse(const char *text, struct wire_address *address);
int qnix_udp_print(char *text, size_t room, const struct wire_address *address);

/* device.c */
int qnix_device_init(void);
void qnix_device_exit(void);
int qnix_devices_add(void);
void qnix_devices_remove(void);

/* sysfs.c, debugfs.c */
extern const struct attribute_group *qnix_groups[];
extern struct class qnix_class;
void qnix_debugfs_add(void);
void qnix_debugfs_exit(void);

#endif /* _QNIX_HOST_H */
