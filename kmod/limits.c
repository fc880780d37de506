// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* What one process may pin, and one user may register. */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "host.h"

/*
 * Counts pages as pinned, up to RLIMIT_MEMLOCK, as RDMA does: VmPin in
 * /proc/PID/status. It needs no lock, so that a mapping's end can take back.
 */
int qnix_charge_pages(struct mm_struct *mm, unsigned long pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	u64 now = atomic64_add_return(pages, &mm->pinned_vm);

	if (now <= limit || capable(CAP_IPC_LOCK))
		return 0;
	atomic64_sub(pages, &mm->pinned_vm);
	return -ENOMEM;
}

void qnix_uncharge_pages(struct mm_struct *mm, unsigned long pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
}

struct qnix_user {
	struct list_head list;
	kuid_t uid;
	unsigned int registrations;
};

static DEFINE_MUTEX(qnix_users_lock);
static LIST_HEAD(qnix_users);

static struct qnix_user *qnix_user_find(kuid_t uid)
{
	struct qnix_user *user;

	list_for_each_entry(user, &qnix_users, list)
		if (uid_eq(user->uid, uid))
			return user;
	user = kzalloc(sizeof(*user), GFP_KERNEL);
	if (!user)
		return NULL;
	user->uid = uid;
	list_add(&user->list, &qnix_users);
	return user;
}

static void qnix_user_put(struct qnix_user *user)
{
	if (user->registrations)
		return;
	list_del(&user->list);
	kfree(user);
}

/* One more registration of the calling user, on whatever NIC. */
struct qnix_user *qnix_user_charge(void)
{
	unsigned int limit = READ_ONCE(qnix_params.max_per_user);
	struct qnix_user *user;
	int err = 0;

	mutex_lock(&qnix_users_lock);
	user = qnix_user_find(current_uid());
	if (!user) {
		err = -ENOMEM;
	} else if (user->registrations >= limit && !capable(CAP_SYS_RESOURCE)) {
		qnix_user_put(user);
		err = -EUSERS;
	} else {
		user->registrations++;
	}
	mutex_unlock(&qnix_users_lock);
	return err ? ERR_PTR(err) : user;
}

void qnix_user_uncharge(struct qnix_user *user)
{
	mutex_lock(&qnix_users_lock);
	user->registrations--;
	qnix_user_put(user);
	mutex_unlock(&qnix_users_lock);
}

kuid_t qnix_user_uid(const struct qnix_user *user)
{
	return user->uid;
}
