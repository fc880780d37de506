// SPDX-License-Identifier: BSD-2-Clause
/*
 * A provider that says no: a libibverbs that refuses what the real one's
 * device would grant. A test builds it as a shared library and names it in
 * BYWASH_LIBIBVERBS; BYWASH_PROVIDER names the profile. Everything that is
 * not here goes to the real library, which the linker finds behind this one.
 *
 * The profiles are the limits of rdma-core's providers as of its commit
 * 691953d8d, and of their kernel modules where those refuse.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct profile {
	const char *name;
	int inline_refused;	/* create_qp fails above it */
	int inline_granted;	/* create_qp grants this much at most */
	int inline_ignored;	/* grants what is asked for, and reads the request's keys instead of its bytes */
	int resize, windows, srq, atomics, rc;
	int max_wr, max_cqe, max_sge, rd_atomic;
	uint64_t bind;	/* most bytes of a memory window; 0: any number */
	unsigned int vendor; /* 0: the real device's, by which the driver knows Soft-RoCE's own faults */
	int last;	/* a queue pair in ERR gives shared receives back late, with an event: see below */
	int stuck;	/* refuses the first reset of a queue pair, and then to destroy it once */
	int faults;	/* of the provider's own */
};

/* Takes the first entry of a list for a list of one, though the work request names none. */
#define EMPTY_LISTS 1
/* Sets no errno when it refuses a queue pair. */
#define SILENT 2
/* Leaves the longest message of a port at 0. */
#define NO_LONGEST 4

#define MANY 1024

static const struct profile profiles[] = {
	/* providers/mlx5: has all of it. */
	{ "mlx5", MANY, MANY, 0, 1, 1, 1, 1, 1, 32768, 1 << 22, 30, 16, 0, 0, 0, 0, 0 },
	/* providers/mlx5/qp.c: binds at most 2 GiB; here 1 MiB, so that tests reach it. */
	{ "binds", MANY, MANY, 0, 1, 1, 1, 1, 1, 32768, 1 << 22, 30, 16, 1 << 20, 0, 0, 0, 0 },
	/* providers/mlx4/verbs.c: 1 KiB of inline bytes. */
	{ "mlx4", MANY, MANY, 0, 1, 1, 1, 1, 1, 16351, 65408, 32, 16, 0, 0, 0, 0, 0 },
	/* providers/irdma/uverbs.c: EINVAL above max_hw_inline, 101 in generation 2 (E810), which has neither SRQ nor atomics. */
	{ "irdma", 101, MANY, 0, 1, 1, 0, 0, 1, 4063, 1 << 20, 13, 127, 0, 0, 0, 0, EMPTY_LISTS },
	/* providers/bnxt_re/main.h: 96 in static mode; no alloc_mw, though the firmware names windows. */
	{ "bnxt_re", 96, MANY, 0, 1, 0, 1, 0, 1, 8191, 1 << 20, 6, 32, 0, 0, 0, 0, SILENT },
	/* providers/hns/hns_roce_u_verbs.c, get_max_inline_data: grants less than asked for; no resize_cq, no alloc_mw. */
	{ "hns", MANY, 32, 0, 0, 0, 1, 1, 1, 32768, 1 << 22, 63, 128, 0, 0, 0, 0, 0 },
	/* providers/erdma: ERDMA_MAX_INLINE; no resize_cq, create_srq or alloc_mw. */
	{ "erdma", 96, MANY, 0, 0, 0, 0, 1, 1, 8192, 1 << 18, 6, 16, 0, 0, 0, 0, 0 },
	/* providers/mana/wr.c: does not look at IBV_SEND_INLINE; no resize_cq or create_srq. */
	{ "mana", MANY, MANY, 1, 0, 0, 0, 0, 1, 4096, 1 << 16, 15, 32, 0, 0x1414, 0, 0, NO_LONGEST },
	/* providers/vmw_pvrdma/qp.c: no inline bytes; no resize_cq or alloc_mw. */
	{ "pvrdma", MANY, 0, 0, 0, 0, 1, 0, 1, 16384, 1 << 18, 16, 16, 0, 0, 0, 0, 0 },
	/* providers/efa/verbs.c: SRD and UD only. */
	{ "efa", 32, MANY, 0, 0, 0, 0, 0, 0, 1024, 1 << 15, 2, 0, 0, 0, 0, 0, 0 },
	/* providers/mlx5 and its kernel module: all that raise the event Last WQE Reached. */
	{ "last", MANY, MANY, 0, 1, 1, 1, 1, 1, 32768, 1 << 22, 30, 16, 0, 0x02c9, 1, 0, 0 },
	/* Any adapter whose firmware does not answer for some time. */
	{ "stuck", MANY, MANY, 0, 1, 1, 1, 1, 1, 32768, 1 << 22, 30, 16, 0, 0, 0, 1, 0 },
	/* Nobody's: the least of everything. */
	{ "least", 0, 0, 0, 0, 0, 0, 0, 1, 128, 1400, 1, 1, 0, 0, 0, 0, 0 },
};

static const struct profile *now;
static void *real;

static void *next(const char *name)
{
	void *f = dlsym(real, name);

	if (!f) {
		fprintf(stderr, "provider: libibverbs has no %s\n", name);
		abort();
	}
	return f;
}

__attribute__((constructor)) static void choose(void)
{
	const char *name = getenv("BYWASH_PROVIDER");
	size_t k;

	real = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	for (k = 0; name && k < sizeof(profiles) / sizeof(profiles[0]); k++)
		if (!strcmp(name, profiles[k].name))
			now = &profiles[k];
	if (!real || !now) {
		fprintf(stderr, "provider: BYWASH_PROVIDER names no profile, or there is no libibverbs\n");
		abort();
	}
}

static int at_most(int have, int most)
{
	return have < most ? have : most;
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	int (*f)(struct ibv_context *, struct ibv_device_attr *) = next("ibv_query_device");
	int r = f(c, a);

	if (r)
		return r;
	a->max_qp_wr = at_most(a->max_qp_wr, now->max_wr);
	a->max_cqe = at_most(a->max_cqe, now->max_cqe);
	a->max_sge = at_most(a->max_sge, now->max_sge);
	a->max_qp_rd_atom = at_most(a->max_qp_rd_atom, now->rd_atomic);
	a->max_qp_init_rd_atom = at_most(a->max_qp_init_rd_atom, now->rd_atomic);
	if (!now->atomics)
		a->atomic_cap = IBV_ATOMIC_NONE;
	if (!now->srq)
		a->max_srq = 0; /* max_srq_wr stays: some devices leave it */
	if (now->vendor)
		a->vendor_id = now->vendor;
	return 0;
}

static struct ibv_mw *refuse_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	(void)pd;
	(void)type;
	errno = EOPNOTSUPP;
	return NULL;
}

static int (*real_post)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);

static int refuses(const struct ibv_send_wr *wr)
{
	uint32_t bytes = 0;
	int k;

	if (wr->num_sge > now->max_sge)
		return EINVAL;
	switch (wr->opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return now->atomics ? 0 : EINVAL;
	case IBV_WR_BIND_MW:
		return now->windows && (!now->bind || wr->bind_mw.bind_info.length <= now->bind) ? 0 : EINVAL;
	case IBV_WR_LOCAL_INV:
		return now->windows ? 0 : EINVAL;
	default:
		break;
	}
	if ((now->faults & EMPTY_LISTS) && !wr->num_sge && wr->sg_list && wr->sg_list->length)
		return EFAULT; /* such a request would access what a former one did */
	if (!(wr->send_flags & IBV_SEND_INLINE))
		return 0;
	for (k = 0; k < wr->num_sge; k++)
		bytes += wr->sg_list[k].length;
	if (now->inline_ignored && bytes)
		return EFAULT; /* such a request would send what its key 0 names, and fail */
	return (int)bytes > at_most(now->inline_refused, now->inline_granted) ? EINVAL : 0;
}

static int post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct ibv_send_wr *w;

	for (w = wr; w; w = w->next) {
		int r = refuses(w);

		if (r) {
			fprintf(stderr, "provider %s refuses opcode %d, flags %#x\n", now->name, w->opcode, w->send_flags);
			*bad = w;
			return r;
		}
	}
	return real_post(qp, wr, bad);
}

static int (*real_query_port)(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a, size_t size);

/* Lanes of XDR: 256, which the old field cannot hold. rdma-core 54 has a further one behind it. */
static int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a, size_t size)
{
	int r = real_query_port(c, port, a, size);

	if (r)
		return r;
	a->active_speed = 128;
	if (size >= 56)
		((uint32_t *)a)[13] = 256;
	if (now->faults & NO_LONGEST)
		a->max_msg_sz = 0;
	return 0;
}

/*
 * A queue pair in ERR: the device still completes shared receives that it has
 * taken, for LATE, and raises the event Last WQE Reached then. A program that
 * resets or destroys the queue pair before loses them.
 */
#define LATE 5000 /* us */

static pthread_mutex_t late_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_qp *late[MANY];    /* that still complete */
static struct ibv_qp *reached[MANY]; /* whose event is not read yet */
static struct ibv_qp *refused[MANY]; /* that were not reset once */
static int kept[MANY];		     /* of them, those that were not destroyed once, either */
static struct events {
	struct ibv_context *of;
	int device, ours;
} opened[MANY];

static int place(struct ibv_qp **list, struct ibv_qp *qp)
{
	int k;

	for (k = 0; k < MANY; k++)
		if (list[k] == qp)
			return k;
	return -1;
}

static struct events *events_of(struct ibv_context *c)
{
	int k;

	for (k = 0; k < MANY; k++)
		if (opened[k].of == c)
			return &opened[k];
	abort();
}

/* The library uses the device's own file of events between enter and leave. */
static pthread_mutex_t fd_lock = PTHREAD_MUTEX_INITIALIZER;

static int enter(struct ibv_context *c)
{
	int both;

	pthread_mutex_lock(&fd_lock);
	both = c->async_fd;
	if (now->last)
		c->async_fd = events_of(c)->device;
	return both;
}

static void leave(struct ibv_context *c, int both)
{
	c->async_fd = both;
	pthread_mutex_unlock(&fd_lock);
}

static void *finish(void *qp)
{
	uint64_t one = 1;

	usleep(LATE);
	pthread_mutex_lock(&late_lock);
	late[place(late, qp)] = NULL;
	reached[place(reached, NULL)] = qp;
	if (write(events_of(((struct ibv_qp *)qp)->context)->ours, &one, sizeof(one)) < 0)
		abort();
	pthread_mutex_unlock(&late_lock);
	return NULL;
}

static void begin_late(struct ibv_qp *qp)
{
	pthread_t t;

	pthread_mutex_lock(&late_lock);
	late[place(late, NULL)] = qp;
	pthread_mutex_unlock(&late_lock);
	if (pthread_create(&t, NULL, finish, qp) || pthread_detach(t))
		abort();
}

static void check_late(struct ibv_qp *qp, const char *what)
{
	pthread_mutex_lock(&late_lock);
	if (place(late, qp) >= 0) {
		fprintf(stderr, "provider: %s a queue pair before its last shared receive is back\n", what);
		abort();
	}
	pthread_mutex_unlock(&late_lock);
}

int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	int (*f)(struct ibv_context *, struct ibv_async_event *) = next("ibv_get_async_event");
	struct pollfd device = { .events = POLLIN };
	int k, r, both;
	uint64_t n;

	if (!now->last)
		return f(c, e);
	pthread_mutex_lock(&late_lock);
	device.fd = events_of(c)->device;
	for (k = 0; k < MANY && !(reached[k] && reached[k]->context == c); k++)
		;
	if (k < MANY) {
		*e = (struct ibv_async_event){ .event_type = IBV_EVENT_QP_LAST_WQE_REACHED, .element.qp = reached[k] };
		reached[k] = NULL;
	} else if (read(events_of(c)->ours, &n, sizeof(n)) < 0 && errno != EAGAIN) {
		abort();
	}
	pthread_mutex_unlock(&late_lock);
	if (k < MANY)
		return 0;
	if (poll(&device, 1, 0) != 1) {
		errno = EAGAIN;
		return -1;
	}
	both = enter(c);
	r = f(c, e);
	leave(c, both);
	return r;
}

void ibv_ack_async_event(struct ibv_async_event *e)
{
	void (*f)(struct ibv_async_event *) = next("ibv_ack_async_event");

	if (!now->last || e->event_type != IBV_EVENT_QP_LAST_WQE_REACHED)
		f(e);
}

/* Puts the events of begin_late beside the device's. */
static void join_events(struct ibv_context *c)
{
	struct epoll_event in = { .events = EPOLLIN };
	int both = epoll_create1(EPOLL_CLOEXEC), ours = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (both < 0 || ours < 0 || epoll_ctl(both, EPOLL_CTL_ADD, c->async_fd, &in) || epoll_ctl(both, EPOLL_CTL_ADD, ours, &in))
		abort();
	pthread_mutex_lock(&late_lock);
	*events_of(NULL) = (struct events){ c, c->async_fd, ours };
	pthread_mutex_unlock(&late_lock);
	c->async_fd = both;
}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct ibv_context *(*f)(struct ibv_device *) = next("ibv_open_device");
	struct ibv_context *c = f(d);
	struct verbs_context *v;

	if (!c)
		return NULL;
	v = verbs_get_ctx(c);
	real_query_port = v->query_port;
	v->query_port = query_port;
	if (!now->windows)
		c->ops.alloc_mw = refuse_mw;
	real_post = c->ops.post_send;
	c->ops.post_send = post;
	if (now->last)
		join_events(c);
	return c;
}

int ibv_close_device(struct ibv_context *c)
{
	int (*f)(struct ibv_context *) = next("ibv_close_device");

	struct events *e;

	if (now->last) {
		pthread_mutex_lock(&late_lock);
		e = events_of(c);
		close(c->async_fd);
		close(e->ours);
		c->async_fd = e->device;
		e->of = NULL;
		pthread_mutex_unlock(&late_lock);
	}
	return f(c);
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	int (*f)(struct ibv_qp *) = next("ibv_destroy_qp");

	int k;

	check_late(qp, "destroyed");
	pthread_mutex_lock(&late_lock);
	k = place(refused, qp);
	if (now->stuck && k >= 0 && !kept[k]) {
		kept[k] = 1;
		pthread_mutex_unlock(&late_lock);
		return ETIMEDOUT;
	}
	k = place(reached, qp);
	if (k >= 0)
		reached[k] = NULL; /* as the kernel does */
	pthread_mutex_unlock(&late_lock);
	return f(qp);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct ibv_qp *(*f)(struct ibv_pd *, struct ibv_qp_init_attr *) = next("ibv_create_qp");
	uint32_t asked = a->cap.max_inline_data;
	struct ibv_qp *qp;
	int both;

	if (!now->rc) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if ((int)asked > now->inline_refused || (int)a->cap.max_send_wr > now->max_wr || (int)a->cap.max_recv_wr > now->max_wr) {
		if (!(now->faults & SILENT))
			errno = EINVAL;
		return NULL;
	}
	both = enter(pd->context);
	qp = f(pd, a);
	leave(pd->context, both);
	if (qp && now->inline_granted < MANY)
		a->cap.max_inline_data = at_most((int)a->cap.max_inline_data, now->inline_granted);
	return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask)
{
	int (*f)(struct ibv_qp *, struct ibv_qp_attr *, int) = next("ibv_modify_qp");
	int r, was = qp->state;

	if ((mask & IBV_QP_ACCESS_FLAGS) && (a->qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) && !now->atomics)
		return EINVAL;
	if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a->max_rd_atomic > now->rd_atomic)
		return EINVAL;
	if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a->max_dest_rd_atomic > now->rd_atomic)
		return EINVAL;
	if (now->stuck && (mask & IBV_QP_STATE) && a->qp_state == IBV_QPS_RESET && was != IBV_QPS_RESET) {
		int first;

		pthread_mutex_lock(&late_lock);
		first = place(refused, qp) < 0;
		if (first)
			refused[place(refused, NULL)] = qp;
		pthread_mutex_unlock(&late_lock);
		if (first)
			return ETIMEDOUT;
	}
	if ((mask & IBV_QP_STATE) && a->qp_state == IBV_QPS_RESET && now->vendor) {
		/* The driver does not see Soft-RoCE, which needs this: reset in verbs/qpreset.go. */
		struct ibv_qp_attr failed = { .qp_state = IBV_QPS_ERR };

		if (!f(qp, &failed, IBV_QP_STATE))
			usleep(2000);
	}
	if ((mask & IBV_QP_STATE) && a->qp_state == IBV_QPS_RESET)
		check_late(qp, "reset");
	r = f(qp, a, mask);
	if (!r && now->last && qp->srq && (mask & IBV_QP_STATE) && a->qp_state == IBV_QPS_ERR && was != IBV_QPS_ERR)
		begin_late(qp);
	return r;
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	int (*f)(struct ibv_cq *, int) = next("ibv_resize_cq");

	return now->resize ? f(cq, cqe) : EOPNOTSUPP;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	struct ibv_srq *(*f)(struct ibv_pd *, struct ibv_srq_init_attr *) = next("ibv_create_srq");
	struct ibv_srq *srq;
	int both;

	if (!now->srq) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	both = enter(pd->context);
	srq = f(pd, a);
	leave(pd->context, both);
	return srq;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *arg, struct ibv_comp_channel *ch, int vector)
{
	struct ibv_cq *(*f)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int) = next("ibv_create_cq");
	int both = enter(c);
	struct ibv_cq *cq = f(c, cqe, arg, ch, vector);

	leave(c, both);
	return cq;
}

static int access_refused(int access)
{
	return ((access & IBV_ACCESS_MW_BIND) && !now->windows) || ((access & IBV_ACCESS_REMOTE_ATOMIC) && !now->atomics);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct ibv_mr *(*f)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int) = next("ibv_reg_mr_iova2");

	if (access_refused((int)access)) {
		errno = EINVAL;
		return NULL;
	}
	return f(pd, addr, length, iova, access);
}
