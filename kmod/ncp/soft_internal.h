/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef _QNIX_SOFT_INTERNAL_H
#define _QNIX_SOFT_INTERNAL_H

#include <pthread.h>

#include "soft.h"

/* Translated memory. */
struct soft_memory {
	uint8_t	 *base;		/* mapped here; NULL: in the process, at @addr */
	void	 *map;		/* mapping to unmap */
	size_t	 map_len;
	uint64_t addr;
	uint64_t len;		/* 0: the entry is free */
	uint32_t access;
	uint16_t turn;		/* generation of this entry, to recognise old handles */
};

struct soft_process {
	struct soft_process *next;
	struct soft_nic *nic;
	uint32_t index;
	uint64_t user;
	bool	 remote;
	int	 pid;
	int	 pidfd;
	int	 wakeup;
	uint8_t	 *vni, *hps;
	struct qnix_memory_info info;
	struct soft_memory *memory;
	uint32_t memories;
	uint32_t maps;		/* entries of memory that are mapped here */
	uint64_t mapped;	/* their bytes */
};

/*
 * Frames between the NICs of one host. Sizes lie before the frames, which are
 * aligned to 4 and not to 8, so that the payload after the 20 bytes of an
 * ncp_frame is aligned.
 */
struct soft_fifo {
	uint8_t	 *data;
	uint32_t size;		/* bytes; a power of two */
	uint32_t head, tail;	/* bytes ever taken and put, modulo 2^32 */
	uint32_t reserved;	/* offset of the reserved frame in data */
	uint16_t from;		/* NIC that has reserved */
};

struct soft_nic {
	struct soft *soft;
	uint32_t place;
	uint16_t number;
	struct ncp *ncp;
	struct wire *wire;
	struct soft_fifo input;	/* from NICs of this host */
	uint64_t lost;	/* bits: NICs of this host, by place, that it has removed */
	bool	 from_wire;	/* the frame peeked is the wire's */
	bool	 wire_next;	/* the wire is next */
};

struct soft {
	pthread_mutex_t lock;
	uint32_t waiting;	/* threads that want the lock; atomic */
	uint32_t asleep;	/* the thread is, or is about to; atomic */
	uint32_t stopped;	/* atomic */
	int	 epoll;
	int	 control;	/* eventfd: wakes the thread */
	int	 udp;
	bool	 readable;	/* udp is readable, as epoll reported */
	uint8_t	 key[WIRE_KEY];
	uint32_t polls;
	uint32_t translations;
	struct soft_process *processes;
	uint32_t max_datagram;
	uint64_t sleeps, rounds;
	uint64_t no_poll_until;	/* until when polling does not pay, ns */
	uint32_t cluster;
	struct soft_nic *nics;
	uint32_t count;
	uint16_t *numbers;	/* ascending */
	struct soft_doorbell *doorbells;
	uint32_t doorbells_rung, doorbells_room;
	uint8_t	 *bounce;
	struct soft_datagrams *datagrams;
};

#define SOFT_BOUNCE	65536u

/*
 * Files of processes that are mapped here: half of the mappings that the kernel allows
 * (vm.max_map_count), and a quarter of the addresses.
 */
#define SOFT_MAPS	32768u
#define SOFT_MAPPED	(1ULL << 45)

uint64_t soft_now(void);
void *soft_alloc(void *host, size_t size);
void soft_free(void *host, void *memory, size_t size);
uint64_t soft_random(void *host);
void soft_lock(struct soft *s);
void soft_unlock(struct soft *s);
struct soft_nic *soft_nic_of(struct soft *s, uint16_t number);

/* soft_memory.c */
int soft_read(void *host, void *process, uint32_t handle, uint64_t offset, void *to, uint32_t len);
int soft_write(void *host, void *process, uint32_t handle, uint64_t offset, const void *from, uint32_t len);
int soft_copy(void *host, void *to, uint32_t to_handle, uint64_t to_offset,
	      void *from, uint32_t from_handle, uint64_t from_offset, uint32_t len);
void soft_memory_free(struct soft_process *p);

/* soft_fifo.c */
int soft_fifo_init(struct soft_fifo *f, uint32_t size);
void soft_fifo_forget(struct soft_fifo *f, uint16_t from);
void *soft_tx_reserve(void *host, uint16_t nic, uint32_t size);
void soft_tx_commit(void *host, uint16_t nic, uint32_t size);
const void *soft_rx_peek(void *host, uint16_t *nic, uint32_t *size);
void soft_rx_consume(void *host);

/* soft_udp.c */
int soft_udp_create(struct soft *s, const struct soft_config *config);
void soft_udp_destroy(struct soft *s);
bool soft_udp_input(struct soft *s);
bool soft_udp_output(struct soft *s);
void soft_udp_close_all(struct soft *s);
bool soft_events(struct soft_nic *n);
uint64_t soft_timer(struct soft *s);

#endif /* _QNIX_SOFT_INTERNAL_H */
