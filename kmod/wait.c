// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Waits for doorbells without using a CPU: QNIX_IOC_WAIT, poll and eventfd. */
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/poll.h>

#include "compat.h"
#include "host.h"

/*
 * The only field of the host page that the module reads: a process that overwrites it only
 * wakes itself.
 */
static u32 qnix_ring_tail(struct qnix_registration *reg)
{
	struct qnix_vni_status *status = reg->hps->address + reg->info.status;

	return smp_load_acquire(&status->ring_tail); /* the doorbells are visible, too */
}

/*
 * The control program calls this once for a batch of doorbells of a process. Who releases
 * the NIC's lock wakes the process: a file may be in so many epoll sets that this takes long.
 */
void qnix_notify(void *host, void *process)
{
	struct qnix_registration *reg = process;
	struct qnix_nic *nic = host;

	/* wq_has_sleeper has a barrier: ring_tail is written before. */
	if (!wq_has_sleeper(&reg->file->wait) && !READ_ONCE(reg->eventfd))
		return;
	if (xchg(&reg->notified, 1))
		return; /* the one who clears it will wake it */
	kref_get(&reg->ref);
	reg->next_notified = nic->notified;
	nic->notified = reg;
}

/*
 * Wakes a list of processes, which was a NIC's, without the lock. Returns those of which it
 * had the last reference, for qnix_free_registrations, which may sleep.
 */
struct qnix_registration *qnix_wake_notified(struct qnix_registration *reg)
{
	struct qnix_registration *next, *dead = NULL;

	for (; reg; reg = next) {
		next = reg->next_notified;
		xchg(&reg->notified, 0); /* has barriers; from now on others may list it again */
		wake_up_interruptible_poll(&reg->file->wait, EPOLLIN | EPOLLRDNORM);
		spin_lock(&reg->eventfd_lock);
		if (reg->eventfd)
			qnix_eventfd_signal(reg->eventfd);
		spin_unlock(&reg->eventfd_lock);
		if (refcount_dec_not_one(&reg->ref.refcount))
			continue;
		reg->next_notified = dead;
		dead = reg;
	}
	return dead;
}

void qnix_free_registrations(struct qnix_registration *dead)
{
	while (dead) {
		struct qnix_registration *next = dead->next_notified;

		qnix_registration_put(dead);
		dead = next;
	}
}

static bool qnix_wait_over(struct qnix_registration *reg, u32 seen)
{
	return qnix_ring_tail(reg) != seen || READ_ONCE(reg->ended);
}

/* Waits until ring_tail differs from @arg's, which poll then takes as acknowledged. */
int qnix_wait(struct qnix_file *file, struct qnix_registration *reg, const struct qnix_wait *arg)
{
	u32 seen = arg->ring_tail;
	int err;

	if (arg->pad)
		return -EINVAL;
	WRITE_ONCE(file->acknowledged, seen);
	if (arg->timeout_ns < 0)
		err = wait_event_interruptible(file->wait, qnix_wait_over(reg, seen));
	else if (arg->timeout_ns == 0)
		err = qnix_wait_over(reg, seen) ? 0 : -ETIME;
	else
		err = wait_event_interruptible_hrtimeout(file->wait, qnix_wait_over(reg, seen),
							 ns_to_ktime(arg->timeout_ns));
	if (qnix_ring_tail(reg) != seen)
		return 0;
	if (READ_ONCE(reg->ended))
		return -ENOTCONN;
	if (err == -ETIME)
		return -ETIMEDOUT;
	/* A restarted call would begin the time limit again. */
	return arg->timeout_ns < 0 ? err : -EINTR;
}

int qnix_eventfd(struct qnix_registration *reg, const struct qnix_eventfd *arg)
{
	struct eventfd_ctx *ctx = NULL;
	int err = 0;

	if (arg->pad || arg->fd < -1)
		return -EINVAL;
	if (arg->fd >= 0) {
		ctx = eventfd_ctx_fdget(arg->fd);
		if (IS_ERR(ctx))
			return PTR_ERR(ctx);
	}
	spin_lock(&reg->eventfd_lock);
	if (READ_ONCE(reg->ended))
		err = -ENOTCONN;
	else
		ctx = xchg(&reg->eventfd, ctx);
	spin_unlock(&reg->eventfd_lock);
	smp_mb(); /* before the caller reads ring_tail: pairs with wq_has_sleeper in qnix_notify */
	if (ctx)
		eventfd_ctx_put(ctx);
	return err;
}

__poll_t qnix_poll(struct file *file, struct poll_table_struct *table)
{
	struct qnix_file *qf = file->private_data;
	struct qnix_registration *reg = qnix_registration_of(qf);
	__poll_t events = 0;

	/* Use the file's wait queue, not the registration's, because epoll keeps it. */
	poll_wait(file, &qf->wait, table);
	smp_mb(); /* pairs with wq_has_sleeper in qnix_notify; kernels before 2025 lack it */
	if (!reg)
		return EPOLLERR;
	if (READ_ONCE(reg->ended))
		events = EPOLLERR | EPOLLHUP;
	else if (qnix_ring_tail(reg) != READ_ONCE(qf->acknowledged))
		events = EPOLLIN | EPOLLRDNORM;
	qnix_registration_put(reg);
	return events;
}
