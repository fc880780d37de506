// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A NIC's control program is run by any thread that has work for it and finds the lock
 * free, for a limited number of steps; the NIC's thread does the rest. QNIX_NIC_WORK says
 * that there may be work. The thread that brings work sets it, and the holder of the lock
 * clears it before it looks for the work. A thread that finds the lock taken leaves,
 * because the holder looks once more after it has released the lock.
 *
 * The lock is a spinlock, so that its holder is never off the processor for long: a process
 * whose cgroup has no processor time left would otherwise stop the NIC for the others. What
 * may sleep happens without the lock: see memory.c and qnix_net_flush.
 */
#include <linux/bitmap.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/stat.h>
#include <linux/slab.h>

#include "compat.h"
#include "host.h"
#include "trace.h"

#define QNIX_RETRY_NS	NSEC_PER_MSEC	/* between attempts to get memory */

struct qnix_nic *qnix_nics[QNIX_MAX_NICS];

struct qnix_nic *qnix_local_nic(u16 number)
{
	unsigned int index = number - qnix_params.coordinates;

	if (index >= qnix_params.nics)
		return NULL;
	return qnix_nics[array_index_nospec(index, qnix_params.nics)];
}

void qnix_nic_wake(struct qnix_nic *nic)
{
	set_bit(QNIX_NIC_WORK, &nic->state);
	wake_up(&nic->wakeup);
}

void qnix_nic_lock(struct qnix_nic *nic)
{
	spin_lock(&nic->lock);
}

static void qnix_nic_release(struct qnix_nic *nic)
{
	struct qnix_registration *notified = nic->notified, *dead;
	void *garbage = nic->garbage;

	nic->notified = NULL;
	nic->garbage = NULL;
	/* Whom it wakes does not wait until a caller of low priority gets the processor again. */
	qnix_preempt_disable();
	spin_unlock(&nic->lock);
	dead = qnix_wake_notified(notified);
	qnix_preempt_enable();
	qnix_free_registrations(dead);
	qnix_free_garbage(garbage);
	smp_mb(); /* release the lock before looking for work: see qnix_nic_turn */
}

/* For a caller that may not run the NIC afterwards. */
void qnix_nic_unlock(struct qnix_nic *nic)
{
	if (!bitmap_empty(nic->kick, QNIX_MAX_NICS))
		set_bit(QNIX_NIC_WORK, &nic->state);
	qnix_nic_release(nic);
	if (test_bit(QNIX_NIC_WORK, &nic->state))
		wake_up(&nic->wakeup);
}

static u64 qnix_nic_due(struct qnix_nic *nic, u64 now)
{
	u64 due = qnix_net_due(nic);

	return nic->retry ? min(due, now + QNIX_RETRY_NS) : due;
}

/* The time that the NIC's thread may sleep may have become shorter. The caller holds the lock. */
void qnix_nic_set_alarm(struct qnix_nic *nic)
{
	if (nic->alarm <= qnix_nic_due(nic, ktime_get_ns()))
		return;
	nic->alarm = 0; /* until the thread has set it */
	set_bit(QNIX_NIC_TIMER, &nic->state);
	wake_up(&nic->wakeup);
}

/* Passes the rings since the last call to the control program. */
static void qnix_nic_doorbells(struct qnix_nic *nic)
{
	unsigned int word, bit;

	if (!test_and_clear_bit(QNIX_NIC_RUNG, &nic->state))
		return;
	for_each_set_bit(word, nic->rung_words, QNIX_RUNG_WORDS) {
		unsigned long rung;

		clear_bit(word, nic->rung_words);
		smp_mb__after_atomic(); /* clear it before reading the word */
		rung = xchg(&nic->rung[word], 0);
		for_each_set_bit(bit, &rung, BITS_PER_LONG)
			ncp_ring(nic->ncp, word * BITS_PER_LONG + bit);
	}
}

/*
 * Steps until @left is used up or there is no work. The caller holds the lock. Adds NICs
 * with new work to @todo.
 */
static unsigned int qnix_nic_steps(struct qnix_nic *nic, unsigned int left, unsigned long *todo)
{
	unsigned int budget = left;

	clear_bit(QNIX_NIC_WORK, &nic->state);
	smp_mb__after_atomic(); /* clear it before looking for work */
	nic->retry = false;
	qnix_nic_doorbells(nic);
	qnix_net_prepare(nic);
	/*
	 * A process that is killed, or has to leave the processor, leaves the rest to the
	 * thread. Who is to be woken does not wait for the end of the turn.
	 */
	while (left && !nic->notified && ncp_step(nic->ncp))
		left = fatal_signal_pending(current) || need_resched() ? 0 :
		       left - min(left, ncp_weight(nic->ncp));
	nic->retry |= ncp_retry(nic->ncp);
	if (nic->wire || nic->retry)
		qnix_nic_set_alarm(nic);
	if (nic->wanted)
		wake_up(&nic->wakeup);
	if (!left || nic->notified)
		set_bit(QNIX_NIC_WORK, &nic->state);
	bitmap_or(todo, todo, nic->kick, QNIX_MAX_NICS);
	bitmap_zero(nic->kick, QNIX_MAX_NICS);
	trace_qnix_run(nic->number, budget - left, current == nic->thread);
	return left;
}

/* Runs @nic if no other thread does. Returns the rest of the budget. */
static unsigned int qnix_nic_turn(struct qnix_nic *nic, unsigned int left, unsigned long *todo)
{
	bool ran = false, taken = false;

	set_bit(QNIX_NIC_WORK, &nic->state);
	smp_mb__after_atomic(); /* set it before trying the lock */
	while (left && test_bit(QNIX_NIC_WORK, &nic->state)) {
		taken = !spin_trylock(&nic->lock);
		if (taken)
			break;
		ran = true;
		nic->runs_caller++;
		left = qnix_nic_steps(nic, left, todo);
		qnix_nic_release(nic);
	}
	if (ran)
		qnix_net_flush(nic);
	if (!taken && test_bit(QNIX_NIC_WORK, &nic->state))
		wake_up(&nic->wakeup);
	return left;
}

/*
 * Runs @nic, then the NICs that it gave work, as far as the budget goes. So another NIC of
 * this host answers without the help of a thread.
 */
void qnix_nic_run(struct qnix_nic *nic)
{
	DECLARE_BITMAP(todo, QNIX_MAX_NICS);
	unsigned int left = QNIX_BUDGET, i = nic->index;

	bitmap_zero(todo, QNIX_MAX_NICS);
	__set_bit(i, todo);
	while (i < QNIX_MAX_NICS) {
		__clear_bit(i, todo);
		left = qnix_nic_turn(qnix_nics[i], left, todo);
		i = find_next_bit(todo, QNIX_MAX_NICS, i + 1);
		if (i >= QNIX_MAX_NICS)
			i = find_first_bit(todo, QNIX_MAX_NICS);
	}
}

/* Process @index has posted commands. */
void qnix_nic_ring(struct qnix_nic *nic, unsigned int index)
{
	set_bit(index, nic->rung);
	smp_mb__after_atomic(); /* a thread that sees the word's bit also sees the process's, */
	set_bit(index / BITS_PER_LONG, nic->rung_words);
	smp_mb__after_atomic(); /* and one that sees QNIX_NIC_RUNG also sees the word's */
	set_bit(QNIX_NIC_RUNG, &nic->state);
	qnix_nic_run(nic);
}

static void qnix_wake_all(unsigned long *todo)
{
	unsigned int i;

	for_each_set_bit(i, todo, QNIX_MAX_NICS)
		qnix_nic_wake(qnix_nics[i]);
}

/*
 * Runs a batch of the thread with the lock held, and releases it. Returns true if there was
 * work.
 */
static bool qnix_thread_batch(struct qnix_nic *nic)
{
	DECLARE_BITMAP(todo, QNIX_MAX_NICS);
	unsigned int left;
	bool more;

	bitmap_zero(todo, QNIX_MAX_NICS);
	nic->runs_thread++;
	left = qnix_nic_steps(nic, QNIX_BUDGET, todo);
	qnix_nic_unlock(nic);
	more = qnix_net_flush(nic);
	qnix_wake_all(todo);
	return left < QNIX_BUDGET || more;
}

static bool qnix_thread_has_chores(struct qnix_nic *nic)
{
	return READ_ONCE(nic->wanted) || !bitmap_empty(nic->lost, QNIX_MAX_NICS);
}

/* What may sleep, or needs other NICs, between batches. */
static void qnix_thread_chores(struct qnix_nic *nic)
{
	qnix_get_wanted(nic);
	qnix_find_lost(nic);
}

/* Runs batches until there is no work. Returns true if there was some. */
static bool qnix_thread_work(struct qnix_nic *nic)
{
	bool worked = false;

	qnix_nic_lock(nic);
	while (qnix_thread_batch(nic)) {
		worked = true;
		cond_resched_tasks_rcu_qs();
		qnix_thread_chores(nic);
		if (kthread_should_stop())
			break;
		qnix_nic_lock(nic);
	}
	return worked;
}

static void qnix_thread_notify(struct qnix_nic *nic, bool need)
{
	qnix_nic_lock(nic);
	ncp_need_wakeup(nic->ncp, need);
	qnix_nic_unlock(nic);
}

/*
 * The thread gives up a processor that another task needs: a process that spins for its
 * doorbell would otherwise wait for the end of the thread's time slice, although it can run
 * the NIC itself.
 */
static bool qnix_thread_may_poll(void)
{
	return single_task_running() && !need_resched() && !kthread_should_stop();
}

/*
 * Polls for commands without a ring until @window after the last work. Returns true if
 * there was some. While processes rely on the polling, it neither reschedules nor sleeps
 * for the lock.
 */
static bool qnix_thread_poll(struct qnix_nic *nic, u64 window)
{
	u64 end = ktime_get_ns() + window;
	bool found = false;

	if (!qnix_thread_may_poll())
		return false;
	qnix_thread_notify(nic, false);
	while (ktime_get_ns() < end && qnix_thread_may_poll() && !qnix_thread_has_chores(nic)) {
		if (spin_trylock(&nic->lock) && qnix_thread_batch(nic)) {
			found = true;
			end = ktime_get_ns() + window;
		} else {
			cpu_relax();
		}
	}
	qnix_thread_notify(nic, true);
	return found;
}

static bool qnix_thread_wanted(struct qnix_nic *nic)
{
	return test_bit(QNIX_NIC_WORK, &nic->state) || test_bit(QNIX_NIC_TIMER, &nic->state) ||
	       qnix_thread_has_chores(nic) || kthread_should_stop();
}

/* Sleeps until there is work, or the wire or a retry is due. */
static void qnix_thread_sleep(struct qnix_nic *nic)
{
	ktime_t limit = KTIME_MAX;
	u64 now;

	qnix_nic_lock(nic);
	clear_bit(QNIX_NIC_TIMER, &nic->state);
	now = ktime_get_ns();
	nic->alarm = qnix_nic_due(nic, now);
	if (nic->alarm != U64_MAX)
		limit = nic->alarm > now ? nic->alarm - now : 0;
	qnix_nic_unlock(nic);
	wait_event_interruptible_hrtimeout(nic->wakeup, qnix_thread_wanted(nic), limit);
}

/*
 * The thread is needed when callers run out of their budgets, and for timers. If that
 * happens often, it polls for a while, so that nobody has to wake it: twice as long each
 * time that the polling found work, half as long otherwise.
 */
static int qnix_nic_thread(void *data)
{
	struct qnix_nic *nic = data;
	u64 window = 0, slept = 0;

	while (!kthread_should_stop()) {
		u64 most = READ_ONCE(qnix_params.poll_us) * NSEC_PER_USEC;
		bool worked;

		qnix_thread_chores(nic);
		worked = qnix_thread_work(nic);
		if (worked && ktime_get_ns() - slept < most)
			window = min_t(u64, most, 2 * window + NSEC_PER_USEC);
		window = min(window, most);
		if (window && !qnix_thread_poll(nic, window))
			window /= 2;
		qnix_thread_work(nic);
		slept = ktime_get_ns();
		qnix_thread_sleep(nic);
	}
	return 0;
}

/*
 * A process's tables are allocated already, and charged to their user. All other memory is
 * shared among users by ncp/quota.c. It is charged to nobody, because the process that
 * happens to run the NIC must not fail because of another one.
 */
static void *qnix_alloc(void *host, size_t size)
{
	struct qnix_nic *nic = host;
	void *tables = nic->tables;

	if (tables && size == nic->tables_size) {
		nic->tables = NULL;
		return tables;
	}
	return qnix_get(nic, size, __GFP_ZERO);
}

static void qnix_free(void *host, void *memory, size_t size)
{
	qnix_put(host, memory);
}

static u64 qnix_random(void *host)
{
	return get_random_u64();
}

static const struct ncp_ops qnix_ncp_ops = {
	.alloc = qnix_alloc,
	.free = qnix_free,
	.read = qnix_dma_read,
	.write = qnix_dma_write,
	.copy = qnix_dma_copy,
	.tx_reserve = qnix_tx_reserve,
	.tx_commit = qnix_tx_commit,
	.rx_peek = qnix_rx_peek,
	.rx_consume = qnix_rx_consume,
	.notify = qnix_notify,
	.driver_doorbell = qnix_driver_doorbell,
	.nic_lost = qnix_nic_lost,
	.random = qnix_random,
};

static int qnix_nic_start(struct qnix_nic *nic)
{
	struct ncp_limits limits = {
		.processes = qnix_params.processes,
		.names = qnix_params.names,
		.groups = qnix_params.groups,
		.nics = QNIX_MAX_LINKS + qnix_params.nics,
		.packet_size = qnix_params.packet_size,
		.local_memory = qnix_params.local_memory,
	};

	nic->entries = bitmap_zalloc(qnix_params.processes, GFP_KERNEL);
	nic->remote = bitmap_zalloc(U16_MAX + 1, GFP_KERNEL);
	nic->rung = bitmap_zalloc(qnix_params.processes, GFP_KERNEL);
	if (!nic->entries || !nic->remote || !nic->rung)
		return -ENOMEM;
	nic->creator = current;
	nic->ncp = ncp_create(&qnix_ncp_ops, nic, nic->number, &limits);
	nic->creator = NULL;
	if (!nic->ncp)
		return -ENOMEM;
	ncp_need_wakeup(nic->ncp, true);
	return 0;
}

/* The NIC must not be visible any more, and all NICs of this host must have been halted. */
void qnix_nic_destroy(struct qnix_nic *nic)
{
	unsigned int order;

	if (nic->ncp)
		ncp_destroy(nic->ncp);
	qnix_free_garbage(nic->garbage);
	for (order = 0; order < QNIX_ORDERS; order++)
		kvfree(nic->spare[order]);
	kvfree(nic->datagram);
	qnix_fifo_drain(&nic->input);
	bitmap_free(nic->entries);
	bitmap_free(nic->remote);
	bitmap_free(nic->rung);
	kfree(nic);
}

/* The thread starts with qnix_nic_go, when all NICs of this host are there. */
struct qnix_nic *qnix_nic_create(unsigned int index, u16 number)
{
	struct qnix_nic *nic = kzalloc(sizeof(*nic), GFP_KERNEL);
	int err;

	if (!nic)
		return ERR_PTR(-ENOMEM);
	nic->index = index;
	nic->number = number;
	spin_lock_init(&nic->lock);
	INIT_LIST_HEAD(&nic->commands);
	INIT_LIST_HEAD(&nic->registrations);
	init_waitqueue_head(&nic->wakeup);
	qnix_fifo_init(&nic->input);
	err = qnix_nic_start(nic);
	if (err) {
		qnix_nic_destroy(nic);
		return ERR_PTR(err);
	}
	return nic;
}

int qnix_nic_go(struct qnix_nic *nic)
{
	struct task_struct *thread = kthread_run(qnix_nic_thread, nic, "qnix/%u", nic->index);

	if (IS_ERR(thread))
		return PTR_ERR(thread);
	nic->thread = thread;
	return 0;
}

void qnix_nic_halt(struct qnix_nic *nic)
{
	if (nic->thread)
		kthread_stop(nic->thread);
	nic->thread = NULL;
}
