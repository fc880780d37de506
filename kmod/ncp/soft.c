// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The host of NICs in user space: see soft.h. */

#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "soft_internal.h"

/* Steps of a NIC before the next NIC's turn. */
#define BATCH	32

/* Batches of a busy thread between two checks for rings. */
#define LOOKS	8

#define LONG_YIELD	2000000u	/* ns */
#define NO_POLL_FOR	10000000u

#define FIFO	(1u << 20)	/* bytes */

#define RETRY	1000000u	/* ns between attempts to get memory */

/* epoll data of descriptors that are not a process's eventfd */
#define CONTROL	(~0ull)
#define UDP	(~0ull - 1)

uint64_t soft_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* The thread gives way to callers that are counted in waiting. */
void soft_lock(struct soft *s)
{
	__atomic_fetch_add(&s->waiting, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&s->lock);
	__atomic_fetch_sub(&s->waiting, 1, __ATOMIC_SEQ_CST);
}

static void wake(struct soft *s)
{
	uint64_t one = 1;

	if (__atomic_load_n(&s->asleep, __ATOMIC_SEQ_CST) && write(s->control, &one, sizeof(one)) < 0)
		return;		/* the counter is full, so the eventfd is readable */
}

void soft_unlock(struct soft *s)
{
	pthread_mutex_unlock(&s->lock);
	wake(s);
}

struct soft_nic *soft_nic_of(struct soft *s, uint16_t number)
{
	uint32_t k;

	for (k = 0; k < s->count; k++)
		if (s->nics[k].number == number)
			return &s->nics[k];
	return NULL;
}

/* ---- Operations of the host for a NIC ---- */

void *soft_alloc(void *host, size_t size)
{
	(void)host;
	return calloc(1, size);
}

void soft_free(void *host, void *memory, size_t size)
{
	(void)host;
	(void)size;
	free(memory);
}

static void notify(void *host, void *process)
{
	struct soft_process *p = process;
	struct qnix_vni_status *st = (void *)(p->hps + p->info.status);

	(void)host;
	/*
	 * The tail is written before sleepers is read; a sleeper does it the other way
	 * round.
	 */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&st->sleepers, __ATOMIC_RELAXED))
		syscall(SYS_futex, &st->ring_tail, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* soft_run's caller removes them soon; there are never more than commands under way. */
static void driver_doorbell(void *host, uint64_t cookie, int result)
{
	struct soft *s = ((struct soft_nic *)host)->soft;

	if (!cookie)		/* no caller waits */
		return;
	if (s->doorbells_rung == s->doorbells_room) {
		uint32_t room = s->doorbells_room ? 2 * s->doorbells_room : 64;
		struct soft_doorbell *more = realloc(s->doorbells, room * sizeof(*more));

		if (!more)
			abort();	/* a request would hang for ever */
		s->doorbells = more;
		s->doorbells_room = room;
	}
	s->doorbells[s->doorbells_rung++] = (struct soft_doorbell){ cookie, result };
}

static void nic_lost(void *host, uint16_t nic)
{
	struct soft_nic *n = host, *other = soft_nic_of(n->soft, nic);

	if (other)
		n->lost |= 1ull << other->place;
	else if (n->wire)
		wire_restart(n->wire, soft_now(), nic);
}

uint64_t soft_random(void *host)
{
	uint64_t x;

	(void)host;
	while (getrandom(&x, sizeof(x), 0) != sizeof(x))
		;
	return x;
}

static const struct ncp_ops ops = {
	.alloc = soft_alloc,
	.free = soft_free,
	.read = soft_read,
	.write = soft_write,
	.copy = soft_copy,
	.tx_reserve = soft_tx_reserve,
	.tx_commit = soft_tx_commit,
	.rx_peek = soft_rx_peek,
	.rx_consume = soft_rx_consume,
	.notify = notify,
	.driver_doorbell = driver_doorbell,
	.nic_lost = nic_lost,
	.random = soft_random,
};

/* ---- Making and unmaking ---- */

static int compare(const void *a, const void *b)
{
	return *(const uint16_t *)a - *(const uint16_t *)b;
}

static int watch(struct soft *s, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event e = { .events = events, .data.u64 = data };

	return epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

static int create_nic(struct soft *s, uint32_t place, const struct soft_config *config)
{
	struct soft_nic *n = &s->nics[place];
	int err;

	n->soft = s;
	n->place = place;
	n->number = config->numbers[place];
	err = soft_fifo_init(&n->input, FIFO);
	if (err)
		return err;
	n->ncp = ncp_create(&ops, n, n->number, &config->limits);
	return n->ncp ? 0 : -ENOMEM;
}

/* Adds the NICs of the host to each other. */
static void introduce(struct soft *s)
{
	uint32_t a, b;

	for (a = 0; a < s->count; a++) {
		for (b = 0; b < s->count; b++) {
			struct ncp_driver_command c = { .command = NCP_ADD_NIC, .nic = s->nics[b].number };

			if (a == b)
				continue;
			while (!ncp_post(s->nics[a].ncp, &c))
				ncp_step(s->nics[a].ncp);
		}
	}
}

/*
 * @n has removed @other from its NIC Table: @other removes it as well, and both add each
 * other, as if they had just met.
 */
static void meet_again(struct soft_nic *n, struct soft_nic *other)
{
	struct ncp_driver_command remove = { .command = NCP_REMOVE_NIC, .nic = n->number };
	struct ncp_driver_command add = { .command = NCP_ADD_NIC, .nic = n->number };
	int k;

	while (!ncp_post(other->ncp, &remove))
		ncp_step(other->ncp);
	for (k = 0; k < NCP_DRIVER_COMMANDS; k++)
		ncp_step(other->ncp);
	soft_fifo_forget(&n->input, other->number);
	soft_fifo_forget(&other->input, n->number);
	n->lost &= ~(1ull << other->place);
	other->lost &= ~(1ull << n->place);
	while (!ncp_post(other->ncp, &add))
		ncp_step(other->ncp);
	add.nic = other->number;
	while (!ncp_post(n->ncp, &add))
		ncp_step(n->ncp);
}

static void find_lost(struct soft_nic *n)
{
	uint32_t k;

	for (k = 0; n->lost && k < n->soft->count; k++)
		if (n->lost >> k & 1)
			meet_again(n, &n->soft->nics[k]);
}

static int create(struct soft *s, const struct soft_config *config)
{
	uint32_t k;
	int err;

	s->udp = config->udp;
	s->polls = config->polls;
	s->translations = config->translations;
	s->cluster = config->nics;
	memcpy(s->key, config->key, sizeof(s->key));
	s->epoll = epoll_create1(EPOLL_CLOEXEC);
	s->control = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->epoll < 0 || s->control < 0)
		return -errno;
	s->bounce = malloc(SOFT_BOUNCE);
	s->numbers = malloc(config->nics * sizeof(*s->numbers));
	s->nics = calloc(config->nics, sizeof(*s->nics));
	if (!s->bounce || !s->numbers || !s->nics)
		return -ENOMEM;
	memcpy(s->numbers, config->numbers, config->nics * sizeof(*s->numbers));
	qsort(s->numbers, config->nics, sizeof(*s->numbers), compare);
	for (k = 0; k < config->nics; k++) {
		s->count = k + 1;
		err = create_nic(s, k, config);
		if (err)
			return err;
	}
	introduce(s);
	err = watch(s, s->control, EPOLLIN, CONTROL);
	if (!err && s->udp >= 0)
		err = soft_udp_create(s, config);
	if (!err && s->udp >= 0)
		err = watch(s, s->udp, EPOLLIN, UDP);
	return err;
}

int soft_create(const struct soft_config *config, struct soft **soft)
{
	struct soft *s = calloc(1, sizeof(*s));
	int err;

	if (!s)
		return -ENOMEM;
	pthread_mutex_init(&s->lock, NULL);
	s->epoll = -1;
	s->control = -1;
	s->udp = -1;
	err = create(s, config);
	if (err) {
		soft_destroy(s);
		return err;
	}
	*soft = s;
	return 0;
}

void soft_destroy(struct soft *s)
{
	uint32_t k;

	soft_udp_close_all(s);
	for (k = 0; k < s->count; k++) {
		if (s->nics[k].ncp)
			ncp_destroy(s->nics[k].ncp);
		free(s->nics[k].input.data);
	}
	soft_udp_destroy(s);
	if (s->epoll >= 0)
		close(s->epoll);
	if (s->control >= 0)
		close(s->control);
	free(s->nics);
	free(s->numbers);
	free(s->bounce);
	free(s->doorbells);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

struct soft_process *soft_process_create(struct soft *s, uint32_t nic, uint32_t index,
					 const struct qnix_memory_info *info, void *vni, void *hps,
					 int wakeup, int pid, int pidfd, bool remote, uint64_t user)
{
	struct soft_process *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	*p = (struct soft_process){
		.nic = &s->nics[nic], .index = index, .remote = remote, .pid = pid, .pidfd = pidfd,
		.user = user, .wakeup = wakeup, .vni = vni, .hps = hps, .info = *info, .memories = s->translations,
	};
	p->memory = calloc(p->memories, sizeof(*p->memory));
	/* With edge triggering nobody need read the eventfd. */
	if (!p->memory || watch(s, wakeup, EPOLLIN | EPOLLET, (uint64_t)nic << 32 | index)) {
		free(p->memory);
		free(p);
		return NULL;
	}
	soft_lock(s);
	p->next = s->processes;
	s->processes = p;
	soft_unlock(s);
	return p;
}

void soft_process_destroy(struct soft_process *p)
{
	struct soft *s = p->nic->soft;
	struct soft_process **at = &s->processes;

	soft_lock(s);
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	epoll_ctl(s->epoll, EPOLL_CTL_DEL, p->wakeup, NULL);
	soft_unlock(s);
	soft_memory_free(p);
	munmap(p->vni, p->info.vni_size);
	munmap(p->hps, p->info.hps_size);
	close(p->wakeup);
	if (p->pidfd >= 0)
		close(p->pidfd);
	free(p);
}

int soft_post(struct soft *s, uint32_t nic, struct soft_process *p, const struct ncp_driver_command *c)
{
	struct ncp_driver_command x = *c;
	bool ok;

	if (p) {
		x.index = p->index;
		x.process = p;
		x.vni = p->vni;
		x.hps = p->hps;
		x.info = p->info;
		x.user = p->user;
	}
	soft_lock(s);
	ok = ncp_post(s->nics[nic].ncp, &x);
	soft_unlock(s);
	return ok ? 0 : -EAGAIN;
}

void soft_pid(struct soft_process *p, uint16_t *pid, uint16_t *generation)
{
	soft_lock(p->nic->soft);
	ncp_pid(p->nic->ncp, p->index, pid, generation);
	soft_unlock(p->nic->soft);
}

void soft_statistics(struct soft *s, uint32_t nic, struct soft_process *p, struct qnix_statistics *st)
{
	memset(st, 0, sizeof(*st));
	soft_lock(s);
	if (!p)
		ncp_statistics(s->nics[nic].ncp, st);
	else
		ncp_process_statistics(p->nic->ncp, p->index, st);
	soft_unlock(s);
}

/* ---- Running ---- */

/* Collects rings. Returns whether there were any. @timeout_ns < 0 means no limit. */
static bool look(struct soft *s, int64_t timeout_ns)
{
	struct epoll_event events[64];
	bool rung = false;
	uint64_t x;
	int k, n;

	if (timeout_ns <= 0) {
		n = epoll_wait(s->epoll, events, 64, timeout_ns < 0 ? -1 : 0);
	} else {
		int64_t ms = (timeout_ns + 999999) / 1000000;

		n = epoll_wait(s->epoll, events, 64, ms > INT_MAX ? INT_MAX : (int)ms);
	}
	for (k = 0; k < n; k++) {
		uint64_t data = events[k].data.u64;

		if (data == CONTROL) {
			if (read(s->control, &x, sizeof(x)) < 0)
				continue;
		} else if (data == UDP) {
			s->readable = true;
		} else {
			pthread_mutex_lock(&s->lock);
			ncp_ring(s->nics[data >> 32].ncp, data & 0xffff);
			pthread_mutex_unlock(&s->lock);
		}
		rung = true;
	}
	return rung;
}

/* Runs every NIC for a batch, and the wire. Returns whether there was work. */
static bool run_once(struct soft *s)
{
	bool busy = false;
	uint32_t k;
	int step;

	if (s->udp >= 0 && soft_udp_input(s))
		busy = true;
	for (k = 0; k < s->count; k++) {
		struct soft_nic *n = &s->nics[k];

		if (n->wire && soft_events(n))
			busy = true;
		for (step = 0; step < BATCH && ncp_step(n->ncp); step += ncp_weight(n->ncp))
			busy = true;
		find_lost(n);
	}
	if (s->udp >= 0 && soft_udp_output(s))
		busy = true;
	s->rounds++;
	return busy;
}

static void need_wakeup(struct soft *s, bool need)
{
	uint32_t k;

	for (k = 0; k < s->count; k++)
		ncp_need_wakeup(s->nics[k].ncp, need);
}

/* Returns when a NIC without memory must try again. */
static uint64_t retry(struct soft *s)
{
	uint32_t k;

	for (k = 0; k < s->count; k++)
		if (ncp_retry(s->nics[k].ncp))
			return soft_now() + RETRY;
	return UINT64_MAX;
}

static bool run_locked(struct soft *s)
{
	bool busy;
	int k;

	/* Let callers that wait for the lock have it, but not all the time: there may always be some. */
	for (k = 0; k < 16 && __atomic_load_n(&s->waiting, __ATOMIC_SEQ_CST); k++)
		sched_yield();
	pthread_mutex_lock(&s->lock);
	busy = run_once(s);
	pthread_mutex_unlock(&s->lock);
	return busy;
}

/*
 * Sleeps until a process rings or the wire has work. It first tells each process that it
 * must ring, and then looks for work once more.
 */
static void sleep_until_rung(struct soft *s)
{
	int64_t timeout = -1;
	uint64_t due, again, now;
	bool busy;

	__atomic_store_n(&s->asleep, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&s->lock);
	need_wakeup(s, true);
	busy = run_once(s) || s->doorbells_rung;
	due = soft_timer(s);
	again = retry(s);
	due = again < due ? again : due;
	pthread_mutex_unlock(&s->lock);
	if (!busy && !__atomic_load_n(&s->stopped, __ATOMIC_SEQ_CST)) {
		now = soft_now();
		if (due != UINT64_MAX)
			timeout = due > now ? (int64_t)(due - now) : 0;
		s->sleeps++;
		look(s, timeout);
	}
	__atomic_store_n(&s->asleep, 0, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&s->lock);
	need_wakeup(s, false);
	pthread_mutex_unlock(&s->lock);
}

static int take_doorbells(struct soft *s, struct soft_doorbell *doorbells, int room)
{
	int n;

	pthread_mutex_lock(&s->lock);
	n = s->doorbells_rung < (uint32_t)room ? (int)s->doorbells_rung : room;
	memcpy(doorbells, s->doorbells, n * sizeof(*doorbells));
	s->doorbells_rung -= n;
	memmove(s->doorbells, s->doorbells + n, s->doorbells_rung * sizeof(*doorbells));
	pthread_mutex_unlock(&s->lock);
	return n;
}

/*
 * Yielding costs far more if another thread computes on the processor: the scheduler puts a
 * thread that yields last, and one that wakes up first. So a yield that takes long stops
 * polling for a while. Returns whether to poll on.
 */
static bool yield(struct soft *s)
{
	uint64_t before = soft_now(), now;

	if (before < s->no_poll_until)
		return false;
	sched_yield();
	now = soft_now();
	if (now - before > LONG_YIELD)
		s->no_poll_until = now + NO_POLL_FOR;
	return now >= s->no_poll_until;
}

int soft_run(struct soft *s, struct soft_doorbell *doorbells, int room)
{
	uint32_t idle = 0, round = 0;

	while (!__atomic_load_n(&s->stopped, __ATOMIC_SEQ_CST)) {
		if (s->doorbells_rung)
			return take_doorbells(s, doorbells, room);
		if (run_locked(s)) {
			idle = 0;
			if (++round % LOOKS == 0)
				look(s, 0);
			continue;
		}
		if (look(s, 0)) {
			idle = 0;
		} else if (++idle >= s->polls || !yield(s)) {
			sleep_until_rung(s);
			idle = 0;
		}
	}
	return -1;
}

void soft_stop(struct soft *s)
{
	uint64_t one = 1;

	__atomic_store_n(&s->stopped, 1, __ATOMIC_SEQ_CST);
	if (write(s->control, &one, sizeof(one)) < 0)
		return;
}

void soft_counters(struct soft *s, struct soft_counters *c)
{
	struct wire_counters w;
	uint64_t *to = (uint64_t *)&c->wire, *from = (uint64_t *)&w;
	uint32_t k, i;

	memset(c, 0, sizeof(*c));
	soft_lock(s);
	c->sleeps = s->sleeps;
	c->rounds = s->rounds;
	c->nics = s->cluster;
	for (k = 0; k < s->count; k++) {
		if (!s->nics[k].wire)
			continue;
		wire_counters(s->nics[k].wire, &w);
		for (i = 0; i < sizeof(w) / sizeof(uint64_t); i++)
			to[i] += from[i];
	}
	soft_unlock(s);
}
