/* SPDX-License-Identifier: BSD-2-Clause */
/* The libraries, opened at run time; only for shim*.c. */
#ifndef BYWASH_IBV_LIB_H
#define BYWASH_IBV_LIB_H

#include "shim.h"

#if BW_HEADERS

#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <sched.h>

/* Every function of libibverbs used here that is not inline. */
#define BW_VERBS(X)                                                                                                    \
	X(ibv_get_device_list)                                                                                         \
	X(ibv_free_device_list)                                                                                        \
	X(ibv_get_device_name)                                                                                         \
	X(ibv_open_device)                                                                                             \
	X(ibv_close_device)                                                                                            \
	X(ibv_query_device)                                                                                            \
	X(ibv_query_port)                                                                                              \
	X(ibv_query_pkey)                                                                                              \
	X(ibv_get_async_event)                                                                                         \
	X(ibv_ack_async_event)                                                                                         \
	X(ibv_alloc_pd)                                                                                                \
	X(ibv_dealloc_pd)                                                                                              \
	X(ibv_dereg_mr)                                                                                                \
	X(ibv_create_comp_channel)                                                                                     \
	X(ibv_destroy_comp_channel)                                                                                    \
	X(ibv_get_cq_event)                                                                                            \
	X(ibv_ack_cq_events)                                                                                           \
	X(ibv_create_cq)                                                                                               \
	X(ibv_resize_cq)                                                                                               \
	X(ibv_destroy_cq)                                                                                              \
	X(ibv_create_srq)                                                                                              \
	X(ibv_modify_srq)                                                                                              \
	X(ibv_destroy_srq)                                                                                             \
	X(ibv_create_qp)                                                                                               \
	X(ibv_modify_qp)                                                                                               \
	X(ibv_query_qp)                                                                                                \
	X(ibv_destroy_qp)

/* The same of librdmacm. */
#define BW_CM(X)                                                                                                       \
	X(rdma_create_event_channel)                                                                                   \
	X(rdma_destroy_event_channel)                                                                                  \
	X(rdma_create_id)                                                                                              \
	X(rdma_destroy_id)                                                                                             \
	X(rdma_bind_addr)                                                                                              \
	X(rdma_resolve_addr)                                                                                           \
	X(rdma_resolve_route)                                                                                          \
	X(rdma_connect)                                                                                                \
	X(rdma_listen)                                                                                                 \
	X(rdma_accept)                                                                                                 \
	X(rdma_reject)                                                                                                 \
	X(rdma_disconnect)                                                                                             \
	X(rdma_get_cm_event)                                                                                           \
	X(rdma_ack_cm_event)                                                                                           \
	X(rdma_set_option)                                                                                             \
	X(rdma_init_qp_attr)

#define BW_MEMBER(name) __typeof__(name) *name;

struct bw_verbs {
	BW_VERBS(BW_MEMBER)
	/* Of rdma-core 33; headers may be older. */
	ssize_t (*_ibv_query_gid_table)(struct ibv_context *ctx, struct bw_gid *gids, size_t max, uint32_t flags,
					size_t entry_size);
	struct ibv_mr *(*ibv_reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
					   unsigned int access);
};

struct bw_cm {
	BW_CM(BW_MEMBER)
	int (*rdma_establish)(struct rdma_cm_id *id);
};

extern struct bw_verbs bw_verbs;
extern struct bw_cm bw_cm;

/* What a call that returned a pointer, -1 or errno failed with. */
static inline int bw_errno(void)
{
	return errno ? -errno : -EIO;
}

/* For calls that return 0 or errno; some providers return -1 and set errno, others -errno. */
static inline int bw_ret(int r)
{
	if (r == 0)
		return 0;
	if (r == -1)
		return bw_errno();
	return r < 0 ? r : -r;
}

/*
 * A lock that is nearly always free. Its holder may be descheduled inside a
 * system call of the library, hence the yield.
 */
struct bw_lock {
	int taken;
};

static inline int bw_trylock(struct bw_lock *l)
{
	return !__atomic_exchange_n(&l->taken, 1, __ATOMIC_ACQUIRE);
}

static inline void bw_lock(struct bw_lock *l)
{
	while (!bw_trylock(l))
		sched_yield();
}

static inline void bw_unlock(struct bw_lock *l)
{
	__atomic_store_n(&l->taken, 0, __ATOMIC_RELEASE);
}

/* A send request under way: which one, and whether its success is seen. */
struct bw_sent {
	uint64_t wr_id;
	uint32_t signaled;
	uint32_t pad;
};

/*
 * The counts, here and of receives, are free-running; posted minus retired is outstanding. The poster
 * advances posted, whoever polls the CQ retired, which never passes posted.
 */
struct bw_sends {
	uint32_t posted, retired;
	struct bw_sent *ring;	/* of mask + 1 */
	uint32_t mask;
};

struct bw_srq {
	struct bw_lock lock;
	struct ibv_srq *srq;	/* NULL once closed */
	uint32_t max, posted, retired;
};

struct bw_qp {
	struct bw_lock send_lock, recv_lock;
	struct ibv_qp *qp;	/* NULL once closed; both locks guard it */
	struct bw_cq *scq, *rcq;
	struct bw_srq *srq;
	uint32_t tag;
	uint32_t send_max;
	struct bw_sends sends;
	uint32_t recv_max, recv_posted, recv_retired;
};

/* What a CQ knows of a queue pair; it outlives the queue pair while completions of it can come. */
struct bw_peer {
	uint32_t qpn;
	uint32_t used;
	struct bw_qp *qp;	/* NULL once closed */
	struct bw_srq *srq;
	uint32_t sends, recvs;	/* whether these complete here */
	struct bw_sends left;	/* those that a reset or close has left; only with an SRQ */
};

struct bw_cq {
	struct bw_lock lock;
	struct ibv_cq *cq;	/* NULL once closed */
	struct bw_peer *peers;	/* open addressing; peer_mask + 1 of them, or NULL */
	uint32_t peer_mask, npeers;
	int kernel_flags;	/* see bw_retire */
};

int bw_cq_attach(struct bw_cq *cq, struct bw_qp *qp, int sends, int recvs);
void bw_cq_detach(struct bw_cq *cq, struct bw_qp *qp);
struct bw_peer *bw_cq_peer(struct bw_cq *cq, uint32_t qpn);

#endif
#endif
