// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Limits on the memory that a process pins and on the registrations of a user. */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/user_namespace.h>

#include "host.h"

#define QNIX_MAX_LEVELS	34	/* the kernel nests 33 user namespaces, the first one included */

/*
 * Counts pages as pinned, up to RLIMIT_MEMLOCK, like RDMA: VmPin in /proc/PID/status. It
 * needs no lock, so that the end of a mapping can uncount them.
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

/* A user with registrations of his own, or in a user namespace of his. */
struct qnix_count {
	struct list_head list;
	kuid_t uid;
	unsigned int registrations;
};

/*
 * The users that a registration counts for: its user, and the owner of each user namespace
 * around him. Otherwise a user with subordinate ids would have the limit once for each id.
 */
struct qnix_user {
	unsigned int levels;
	struct qnix_count *counts[QNIX_MAX_LEVELS];
};

static DEFINE_MUTEX(qnix_counts_lock);
static LIST_HEAD(qnix_counts);

static struct qnix_count *qnix_count_find(kuid_t uid)
{
	struct qnix_count *count;

	list_for_each_entry(count, &qnix_counts, list)
		if (uid_eq(count->uid, uid))
			return count;
	count = kzalloc(sizeof(*count), GFP_KERNEL_ACCOUNT);
	if (!count)
		return NULL;
	count->uid = uid;
	list_add(&count->list, &qnix_counts);
	return count;
}

static void qnix_count_put(struct qnix_count *count)
{
	if (count->registrations)
		return;
	list_del(&count->list);
	kfree(count);
}

static bool qnix_user_counts(const struct qnix_user *user, kuid_t uid)
{
	unsigned int i;

	for (i = 0; i < user->levels; i++)
		if (uid_eq(user->counts[i]->uid, uid))
			return true;
	return false;
}

/* Counts a registration for @uid, unless @user counts for him already. */
static int qnix_count_charge(struct qnix_user *user, kuid_t uid)
{
	unsigned int limit = READ_ONCE(qnix_params.max_per_user);
	struct qnix_count *count;

	if (qnix_user_counts(user, uid))
		return 0;
	if (user->levels == QNIX_MAX_LEVELS)
		return -EUSERS;
	count = qnix_count_find(uid);
	if (!count)
		return -ENOMEM;
	if (count->registrations >= limit && !capable(CAP_SYS_RESOURCE)) {
		qnix_count_put(count);
		return -EUSERS;
	}
	count->registrations++;
	user->counts[user->levels++] = count;
	return 0;
}

/*
 * The user that counts for a user namespace: its owner. Root makes namespaces for other
 * users, who would exclude each other if they shared root's limit: there the user that is
 * root inside counts.
 */
kuid_t qnix_namespace_uid(struct user_namespace *ns)
{
	return uid_eq(ns->owner, GLOBAL_ROOT_UID) ? make_kuid(ns, 0) : ns->owner;
}

static int qnix_user_charge_all(struct qnix_user *user)
{
	struct user_namespace *ns;
	int err;

	err = qnix_count_charge(user, current_uid());
	for (ns = current_user_ns(); ns != &init_user_ns && !err; ns = ns->parent) {
		kuid_t uid = qnix_namespace_uid(ns);

		if (uid_valid(uid) && !uid_eq(uid, GLOBAL_ROOT_UID))
			err = qnix_count_charge(user, uid);
	}
	return err;
}

static void qnix_user_uncharge_all(struct qnix_user *user)
{
	while (user->levels) {
		struct qnix_count *count = user->counts[--user->levels];

		count->registrations--;
		qnix_count_put(count);
	}
}

/* Counts a registration of the calling user, on any NIC. */
struct qnix_user *qnix_user_charge(void)
{
	struct qnix_user *user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	int err;

	if (!user)
		return ERR_PTR(-ENOMEM);
	mutex_lock(&qnix_counts_lock);
	err = qnix_user_charge_all(user);
	if (err)
		qnix_user_uncharge_all(user);
	mutex_unlock(&qnix_counts_lock);
	if (!err)
		return user;
	kfree(user);
	return ERR_PTR(err);
}

void qnix_user_uncharge(struct qnix_user *user)
{
	mutex_lock(&qnix_counts_lock);
	qnix_user_uncharge_all(user);
	mutex_unlock(&qnix_counts_lock);
	kfree(user);
}

kuid_t qnix_user_uid(const struct qnix_user *user)
{
	return user->counts[0]->uid;
}
