/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The host of NICs in user space: their memory, their FIFOs, the wire to other hosts and
 * the thread that runs them. soft.go uses it.
 *
 * One thread is in soft_run; it holds the lock while it runs NICs. All other
 * functions may be called from any thread meanwhile, and take the lock.
 */
#ifndef _QNIX_SOFT_H
#define _QNIX_SOFT_H

#include "ncp.h"
#include "wire.h"

struct soft;
struct soft_nic;
struct soft_process;

struct soft_config {
	const uint16_t *numbers;	/* of the NICs */
	uint32_t nics;
	struct ncp_limits limits;	/* of each */
	uint32_t translations;		/* of a process, at most */
	uint32_t polls;			/* polls before it sleeps */
	int	 udp;			/* bound socket, or -1; the caller's */
	uint8_t  key[WIRE_KEY];
	uint64_t dead_ns;		/* 0: the default */
};

/* Returns 0, or a negative errno. */
int soft_create(const struct soft_config *config, struct soft **soft);
/* To be called after soft_run has returned -1. */
void soft_destroy(struct soft *s);

/* A Driver Doorbell. */
struct soft_doorbell {
	uint64_t cookie;
	int64_t  result;
};

/*
 * Runs until soft_stop, and then returns -1. Before that it returns each time that Driver
 * Doorbells have rung, with their number in @doorbells.
 */
int soft_run(struct soft *s, struct soft_doorbell *doorbells, int room);
void soft_stop(struct soft *s);

/* Asks at an address (struct sockaddr_in or _in6) for NICs. Returns 0, or a negative errno. */
int soft_add_peer(struct soft *s, const void *sockaddr, uint32_t size);

/*
 * Makes a process on NIC @nic (its index in the configuration). On success it takes over
 * vni, hps (mappings), wakeup (an eventfd) and pidfd (or -1). Returns NULL without memory or
 * descriptors. @remote: whether memory of process @pid may be accessed. @user: the user of
 * the process.
 */
struct soft_process *soft_process_create(struct soft *s, uint32_t nic, uint32_t index,
					 const struct qnix_memory_info *info, void *vni, void *hps,
					 int wakeup, int pid, int pidfd, bool remote, uint64_t user);
/*
 * To be called after NCP_DELETE_PROCESS is done, or NCP_NEW_PROCESS has failed with an
 * error other than QNIX_DB_CANCELED.
 */
void soft_process_destroy(struct soft_process *p);

/*
 * Posts a driver command of @p (or of the NIC, with NULL). Returns 0, or -EAGAIN if the
 * queue is full.
 */
int soft_post(struct soft *s, uint32_t nic, struct soft_process *p, const struct ncp_driver_command *c);

void soft_pid(struct soft_process *p, uint16_t *pid, uint16_t *generation);

/*
 * Translates memory of the process, or with @fd >= 0 of that file from t->addr on. Fills
 * t->handle and entries of the Buffer Pool. Returns 0, or a negative errno.
 */
int soft_translate(struct soft_process *p, struct qnix_translate *t, int fd);
int soft_untranslate(struct soft_process *p, uint32_t handle);

/* Returns the counters of a process, or with NULL of the whole NIC. */
void soft_statistics(struct soft *s, uint32_t nic, struct soft_process *p, struct qnix_statistics *st);

struct soft_counters {
	uint64_t sleeps;	/* of the thread */
	uint64_t rounds;
	uint32_t nics;		/* in the cluster, as seen from the first */
	uint32_t pad;
	struct wire_counters wire;	/* of all NICs */
};

void soft_counters(struct soft *s, struct soft_counters *c);

#endif /* _QNIX_SOFT_H */
