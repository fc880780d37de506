// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Registration of a process with a NIC, and its end: the six and the five steps of the
 * specification. A registration ends by ioctl, with the last close of the device, or with
 * the address space that it was made for (exit, kill, exec), whichever is first.
 */
#include <linux/cred.h>
#include <linux/delay.h>
#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/user_namespace.h>

#include "compat.h"
#include "host.h"
#include "trace.h"

static void qnix_file_free(struct kref *ref)
{
	kfree(container_of(ref, struct qnix_file, ref));
}

static void qnix_registration_free(struct kref *ref)
{
	struct qnix_registration *reg = container_of(ref, struct qnix_registration, ref);

	if (!IS_ERR_OR_NULL(reg->vni))
		qnix_memory_put(reg->vni);
	if (!IS_ERR_OR_NULL(reg->hps))
		qnix_memory_put(reg->hps);
	kvfree(reg->tables);
	qnix_uncharge_pages(reg->mm, reg->tables_pages);
	if (!IS_ERR_OR_NULL(reg->user))
		qnix_user_uncharge(reg->user);
	xa_destroy(&reg->translations);
	mutex_destroy(&reg->translate_lock);
	mmdrop(reg->mm);
	kref_put(&reg->file->ref, qnix_file_free);
	kfree(reg);
}

void qnix_registration_put(struct qnix_registration *reg)
{
	kref_put(&reg->ref, qnix_registration_free);
}

/* Returns the file's registration, which the caller must put, or NULL. */
struct qnix_registration *qnix_registration_of(struct qnix_file *file)
{
	struct qnix_registration *reg;

	spin_lock(&file->reg_lock);
	reg = file->reg;
	if (reg)
		kref_get(&reg->ref);
	spin_unlock(&file->reg_lock);
	return reg;
}

static void qnix_registration_publish(struct qnix_file *file, struct qnix_registration *reg)
{
	spin_lock(&file->reg_lock);
	file->reg = reg;
	spin_unlock(&file->reg_lock);
}

/* Steps 1 and 2 of de-registration: the NIC forgets the process, and notifies the others. */
static bool qnix_registration_delete(struct qnix_registration *reg)
{
	struct ncp_driver_command command = {
		.command = NCP_DELETE_PROCESS,
		.index = reg->index,
	};
	struct qnix_nic *nic = reg->nic;
	struct qnix_command_wait wait;
	struct eventfd_ctx *eventfd;

	qnix_nic_lock(nic);
	if (reg->ended) {
		qnix_nic_unlock(nic);
		return false;
	}
	WRITE_ONCE(reg->ended, true);
	ncp_pid(nic->ncp, reg->index, &reg->pid, &reg->generation);
	qnix_command_post(nic, &command, &wait);
	qnix_command_finish(nic, &wait);
	list_del_init(&reg->list);
	qnix_nic_unlock(nic);
	spin_lock(&reg->eventfd_lock);
	eventfd = reg->eventfd;
	WRITE_ONCE(reg->eventfd, NULL);
	spin_unlock(&reg->eventfd_lock);
	if (eventfd) {
		qnix_eventfd_signal(eventfd); /* who was to do it finds no eventfd any more */
		eventfd_ctx_put(eventfd);
	}
	return true;
}

/*
 * Performs the five steps. Of concurrent callers, one performs them. Afterwards the NIC
 * does not access the process any more.
 */
static void qnix_registration_end(struct qnix_registration *reg)
{
	struct qnix_vni_status *status = reg->hps->address + reg->info.status;
	struct qnix_nic *nic = reg->nic;

	if (!qnix_registration_delete(reg))
		return;
	/*
	 * Steps 3 and 4, to unmap the mappings, are left to the process. Unmapping them
	 * here would take memory away from its other threads, and the next mmap could get
	 * the addresses to which they go on writing. The mappings stay, without a NIC
	 * behind them, which @gone reports, and stay charged, until the process unmaps them
	 * or ends.
	 */
	smp_store_release(&status->gone, 1);
	qnix_translations_end(reg);
	wake_up_all(&reg->file->wait);
	/* Step 5. */
	qnix_nic_lock(nic);
	clear_bit(reg->index, nic->entries);
	qnix_nic_unlock(nic);
	trace_qnix_deregister(nic->number, reg->pid, reg->generation);
	qnix_nic_run(nic);
}

static void qnix_mm_release(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	qnix_registration_end(container_of(notifier, struct qnix_registration, notifier));
}

static const struct mmu_notifier_ops qnix_notifier_ops = {
	.release = qnix_mm_release,
};

static struct qnix_registration *qnix_registration_alloc(struct qnix_file *file)
{
	struct qnix_registration *reg = kzalloc(sizeof(*reg), GFP_KERNEL_ACCOUNT);

	if (!reg)
		return NULL;
	kref_init(&reg->ref);
	kref_get(&file->ref);
	reg->file = file;
	spin_lock_init(&reg->eventfd_lock);
	reg->nic = file->nic;
	INIT_LIST_HEAD(&reg->list);
	reg->tgid = task_tgid_nr(current);
	mmgrab(current->mm);
	reg->mm = current->mm;
	reg->notifier.ops = &qnix_notifier_ops;
	mutex_init(&reg->translate_lock);
	xa_init_flags(&reg->translations, XA_FLAGS_ALLOC1);
	return reg;
}

/*
 * Allocates the NIC's tables for the process. This comes before the NIC's lock, because the
 * allocation of charged memory may have to reclaim some first.
 */
static int qnix_registration_tables(struct qnix_registration *reg)
{
	size_t size = ncp_process_memory(&reg->info);
	unsigned long pages = PAGE_ALIGN(size) >> PAGE_SHIFT;
	int err;

	err = qnix_charge_pages(reg->mm, pages);
	if (err)
		return err;
	reg->tables_pages = pages;
	reg->tables = kvzalloc(size, GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	return reg->tables ? 0 : -ENOMEM;
}

/* Steps 3 and 4 of registration: allocates the memory of both mappings. mmap maps it. */
static struct qnix_registration *qnix_registration_create(struct qnix_file *file,
							  const struct qnix_register *arg)
{
	struct qnix_registration *reg = qnix_registration_alloc(file);
	int err;

	if (!reg)
		return ERR_PTR(-ENOMEM);
	memcpy(reg->name, arg->name, sizeof(reg->name));
	err = -EINVAL;
	if (ncp_layout(arg, &reg->info))
		goto fail;
	reg->user = qnix_user_charge();
	err = PTR_ERR_OR_ZERO(reg->user);
	if (err)
		goto fail;
	reg->vni = qnix_memory_create(reg->mm, reg->info.vni_size);
	err = PTR_ERR_OR_ZERO(reg->vni);
	if (err)
		goto fail;
	reg->hps = qnix_memory_create(reg->mm, reg->info.hps_size);
	err = PTR_ERR_OR_ZERO(reg->hps);
	if (err)
		goto fail;
	err = qnix_registration_tables(reg);
	if (err)
		goto fail;
	return reg;
fail:
	qnix_registration_put(reg);
	return ERR_PTR(err);
}

/*
 * Returns the user whose share of the NIC's tables the caller takes: his own. In a user
 * namespace it is that of qnix_namespace_uid, who would otherwise have a share for each of
 * his subordinate ids. Root has no limit, and nobody else counts as root.
 */
static u64 qnix_registration_user(void)
{
	struct user_namespace *ns = current_user_ns();
	kuid_t uid = current_uid();

	for (; ns != &init_user_ns; ns = ns->parent) {
		kuid_t counts = qnix_namespace_uid(ns);

		if (uid_valid(counts) && !uid_eq(counts, GLOBAL_ROOT_UID))
			uid = counts;
	}
	return from_kuid(&init_user_ns, uid);
}

/* Step 1: an entry of the Process Table; steps 2 and 5: the NIC reads the command and fills it. */
static int qnix_registration_post(struct qnix_registration *reg, const struct qnix_register *arg,
				  struct qnix_command_wait *wait)
{
	struct qnix_nic *nic = reg->nic;
	struct ncp_driver_command command = {
		.command = NCP_NEW_PROCESS,
		.size = arg->group_size,
		.process = reg,
		.user = qnix_registration_user(),
		.vni = reg->vni->address,
		.hps = reg->hps->address,
		.info = reg->info,
	};
	unsigned int index;

	memcpy(command.name, arg->name, sizeof(command.name));
	memcpy(command.group, arg->group, sizeof(command.group));
	qnix_nic_lock(nic);
	index = find_first_zero_bit(nic->entries, qnix_params.processes);
	if (index >= qnix_params.processes) {
		qnix_nic_unlock(nic);
		return -EAGAIN;
	}
	set_bit(index, nic->entries);
	reg->index = index;
	command.index = index;
	list_add_tail(&reg->list, &nic->registrations);
	nic->tables = reg->tables;
	nic->tables_size = ncp_process_memory(&reg->info);
	qnix_command_post(nic, &command, wait);
	qnix_command_read(nic, wait, index);
	reg->tables = nic->tables;
	nic->tables = NULL;
	qnix_nic_unlock(nic);
	return 0;
}

static int qnix_registration_check(const struct qnix_register *arg)
{
	bool group = !qnix_name_empty(arg->group);

	if (!ncp_name_valid(arg->name) || arg->pid || arg->generation || arg->nic || arg->pad0 ||
	    arg->vni_size || arg->vni_offset || arg->hps_offset || arg->hps_size || arg->pad1)
		return -EINVAL;
	if (group ? !ncp_name_valid(arg->group) || !arg->group_size : arg->group_size)
		return -EINVAL;
	return 0;
}

static void qnix_registration_answer(struct qnix_registration *reg, struct qnix_register *arg)
{
	qnix_nic_lock(reg->nic);
	ncp_pid(reg->nic->ncp, reg->index, &reg->pid, &reg->generation);
	qnix_nic_unlock(reg->nic);
	arg->pid = reg->pid;
	arg->generation = reg->generation;
	arg->nic = reg->nic->number;
	arg->vni_size = reg->info.vni_size;
	arg->hps_size = reg->info.hps_size;
	arg->vni_offset = 0;
	arg->hps_offset = QNIX_HPS_OFFSET;
}

/* Returns whether another NIC of this host still has the name of a process that has ended. */
static bool qnix_registration_known(const struct qnix_registration *reg)
{
	bool known = false;
	unsigned int i;

	for (i = 0; i < QNIX_MAX_NICS && !known; i++) {
		if (!qnix_nics[i] || qnix_nics[i] == reg->nic)
			continue;
		qnix_nic_lock(qnix_nics[i]);
		known = ncp_knows(qnix_nics[i]->ncp, reg->nic->number, reg->pid, reg->generation);
		qnix_nic_unlock(qnix_nics[i]);
	}
	return known;
}

/*
 * When this returns, the name is free on every NIC of this host; NICs of other hosts get a
 * message. The time limit is for a NIC that handles no frames, which is an error.
 */
static void qnix_registration_forgotten(const struct qnix_registration *reg)
{
	unsigned long limit = jiffies + HZ;

	while (qnix_registration_known(reg) && time_before(jiffies, limit)) {
		qnix_nic_run(reg->nic);
		usleep_range(20, 200);
	}
}

/* Ends a registration for good, in a context that may wait for the end of its address space. */
static void qnix_registration_finish(struct qnix_registration *reg)
{
	qnix_registration_end(reg);
	qnix_registration_forgotten(reg);
	mmu_notifier_unregister(&reg->notifier, reg->mm);
	qnix_registration_put(reg);
}

/*
 * Whether the file has a registration of an address space that has ended: the file was
 * inherited over execve, or passed on.
 */
static bool qnix_registration_orphaned(const struct qnix_registration *reg)
{
	return reg->mm != current->mm && READ_ONCE(reg->ended);
}

static void qnix_registration_drop(struct qnix_file *file)
{
	struct qnix_registration *reg = file->reg;

	qnix_registration_publish(file, NULL);
	qnix_registration_finish(reg);
}

static int qnix_register_locked(struct qnix_file *file, struct qnix_register *arg)
{
	struct qnix_command_wait wait;
	struct qnix_registration *reg;
	int err;

	if (file->reg && !qnix_registration_orphaned(file->reg))
		return -EISCONN;
	err = qnix_registration_check(arg);
	if (err)
		return err;
	if (file->reg)
		qnix_registration_drop(file);
	reg = qnix_registration_create(file, arg);
	if (IS_ERR(reg))
		return PTR_ERR(reg);
	/*
	 * Before the NIC knows the process: from here on the end of the address space is
	 * reported.
	 */
	err = mmu_notifier_register(&reg->notifier, reg->mm);
	if (err) {
		qnix_registration_put(reg);
		/*
		 * Any signal interrupts it: nothing has been done yet, so the system call
		 * restarts.
		 */
		return err == -EINTR ? -ERESTARTNOINTR : err;
	}
	err = qnix_registration_post(reg, arg, &wait);
	if (err) {
		reg->ended = true;
		mmu_notifier_unregister(&reg->notifier, reg->mm);
		qnix_registration_put(reg);
		return err;
	}
	/* Step 6: all NICs know it, and its group is whole. */
	err = qnix_command_wait(reg->nic, &wait, arg->timeout_ms);
	if (err) {
		qnix_registration_finish(reg);
		return err;
	}
	qnix_registration_answer(reg, arg);
	trace_qnix_register(reg->nic->number, reg->pid, reg->generation, reg->name);
	WRITE_ONCE(file->acknowledged, 0);
	qnix_registration_publish(file, reg);
	return 0;
}

/* Behind a mutex a thread could not be frozen, for suspend, while another waits for a group. */
static int qnix_file_lock(struct qnix_file *file)
{
	return wait_event_state(file->idle, !test_and_set_bit_lock(QNIX_FILE_BUSY, &file->state),
				QNIX_SLEEP);
}

static void qnix_file_unlock(struct qnix_file *file)
{
	clear_bit_unlock(QNIX_FILE_BUSY, &file->state);
	smp_mb__after_atomic(); /* clear it before looking for threads that wait */
	wake_up(&file->idle);
}

int qnix_register(struct qnix_file *file, struct qnix_register *arg)
{
	int err;

	if (qnix_file_lock(file))
		return -EINTR;
	err = qnix_register_locked(file, arg);
	qnix_file_unlock(file);
	return err;
}

int qnix_deregister(struct qnix_file *file)
{
	int err = 0;

	if (qnix_file_lock(file))
		return -EINTR;
	if (!file->reg)
		err = -ENOTCONN;
	else if (file->reg->mm != current->mm && !qnix_registration_orphaned(file->reg))
		err = -EACCES;
	else
		qnix_registration_drop(file);
	qnix_file_unlock(file);
	return err;
}

struct qnix_file *qnix_file_create(struct qnix_nic *nic)
{
	struct qnix_file *file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);

	if (!file)
		return NULL;
	kref_init(&file->ref);
	file->nic = nic;
	init_waitqueue_head(&file->idle);
	spin_lock_init(&file->reg_lock);
	init_waitqueue_head(&file->wait);
	return file;
}

/* The last close: no other thread uses the file. */
void qnix_file_release(struct qnix_file *file)
{
	if (file->reg)
		qnix_registration_finish(file->reg);
	kref_put(&file->ref, qnix_file_free);
}
