// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The driver's side of the Driver Command Queue and of the Driver Doorbells. */
#include <linux/jiffies.h>
#include <linux/sched.h>
#include <linux/wait.h>

#include "host.h"

/* Each step reads the queue: a command that is not done after this many steps never will be. */
#define QNIX_COMMAND_STEPS	1000000

/*
 * Posts @command. With @wait, the caller waits for its Driver Doorbell with one of the
 * functions below.
 */
void qnix_command_post(struct qnix_nic *nic, struct ncp_driver_command *command,
		       struct qnix_command_wait *wait)
{
	lockdep_assert_held(&nic->lock);
	command->cookie = ++nic->cookie;
	if (wait) {
		wait->cookie = command->cookie;
		wait->result = 0;
		wait->done = false;
		init_waitqueue_head(&wait->wakeup);
		list_add_tail(&wait->list, &nic->commands);
	}
	while (!ncp_post(nic->ncp, command))
		ncp_step(nic->ncp);
	set_bit(QNIX_NIC_WORK, &nic->state);
}

/*
 * For commands that need no other NIC or process: runs the control program until the
 * command is done.
 */
int qnix_command_finish(struct qnix_nic *nic, struct qnix_command_wait *wait)
{
	unsigned int steps = 0;

	lockdep_assert_held(&nic->lock);
	while (!wait->done && !WARN_ON_ONCE(steps++ > QNIX_COMMAND_STEPS))
		ncp_step(nic->ncp);
	list_del(&wait->list);
	return qnix_errno(wait->result);
}

/*
 * For a registration: runs the control program until it has taken the process's tables or
 * refused the command. Each step of it begins with a command of this queue.
 */
void qnix_command_read(struct qnix_nic *nic, struct qnix_command_wait *wait, u16 index)
{
	struct qnix_statistics s;
	unsigned int steps = 0;

	lockdep_assert_held(&nic->lock);
	while (!wait->done && !ncp_process_statistics(nic->ncp, index, &s) &&
	       !WARN_ON_ONCE(steps++ > QNIX_COMMAND_STEPS))
		ncp_step(nic->ncp);
}

/*
 * For commands that need other NICs or processes. The caller must not hold nic->lock: it
 * runs the NICs of this host as far as possible, then sleeps, also through a suspend. A
 * command that times out is abandoned; the caller still has to undo its own part. Only
 * fatal signals interrupt the wait: a runtime that uses signals itself would never complete
 * a group if each signal restarted the wait.
 */
int qnix_command_wait(struct qnix_nic *nic, struct qnix_command_wait *wait, u32 timeout_ms)
{
	unsigned long timeout = msecs_to_jiffies(timeout_ms ? timeout_ms : QNIX_DEFAULT_TIMEOUT);
	long left;

	qnix_nic_run(nic);
	/* Like wait_event_killable_timeout, but the caller can be frozen. */
	left = ___wait_event(wait->wakeup, ___wait_cond_timeout(READ_ONCE(wait->done)),
			     QNIX_SLEEP, 0, timeout, __ret = schedule_timeout(__ret));
	qnix_nic_lock(nic);
	list_del(&wait->list);
	if (!wait->done && left <= 0) {
		struct ncp_driver_command abandon = {
			.command = NCP_ABANDON,
			.cookie = wait->cookie,
		};

		/* @cookie names the command to give up, not this one. */
		while (!ncp_post(nic->ncp, &abandon))
			ncp_step(nic->ncp);
		set_bit(QNIX_NIC_WORK, &nic->state);
	} else {
		left = 1;
	}
	qnix_nic_unlock(nic);
	if (left > 0)
		return qnix_errno(wait->result);
	return left ? -EINTR : -ETIMEDOUT;
}

void qnix_driver_doorbell(void *host, u64 cookie, int result)
{
	struct qnix_nic *nic = host;
	struct qnix_command_wait *wait;

	list_for_each_entry(wait, &nic->commands, list) {
		if (wait->cookie == cookie) {
			wait->result = result;
			list_del_init(&wait->list); /* the next search is short */
			WRITE_ONCE(wait->done, true);
			wake_up(&wait->wakeup);
			return;
		}
	}
}

/* Converts the result of a Driver Doorbell to the result of an ioctl. */
int qnix_errno(int doorbell)
{
	switch (doorbell) {
	case 0:
	case QNIX_DB_DONE:
		return 0;
	case NCP_TAKEN:
		return -EADDRINUSE;
	case QNIX_DB_UNKNOWN:
		return -ENOENT;
	case QNIX_DB_GONE:
		return -ENOTCONN;
	case QNIX_DB_CANCELED: /* by QNIX_IOC_LEAVE; callers repeat a call after EINTR */
		return -ECANCELED;
	case QNIX_DB_NO_MEMORY:
		return -ENOSPC;
	case NCP_QUOTA:
		return -EDQUOT;
	default:
		return -EINVAL;
	}
}
