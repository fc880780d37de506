// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Translation of a process's memory: its pages are pinned, and the process gets a handle.
 * No physical address leaves the kernel.
 */
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "compat.h"
#include "host.h"
#include "trace.h"

#define QNIX_PIN_BATCH		1024		/* pages between two checks for signals */
#define QNIX_MAX_TRANSLATION	(256ULL << 30)	/* bytes: its table of pages takes 512 MiB */

static void qnix_translation_free(struct qnix_registration *reg, struct qnix_translation *tr)
{
	bool dirty = tr->access & QNIX_ACCESS_WRITE;
	unsigned long done, batch;

	for (done = 0; done < tr->count; done += batch) {
		batch = min_t(unsigned long, tr->count - done, QNIX_PIN_BATCH);
		unpin_user_pages_dirty_lock(tr->pages + done, batch, dirty);
		cond_resched();
	}
	kvfree(tr->pages);
	kfree(tr);
	atomic_dec(&reg->translation_count);
}

static void qnix_translation_uncharge(struct qnix_registration *reg, unsigned long pages)
{
	qnix_uncharge_pages(reg->mm, pages);
	atomic_long_sub(pages, &reg->translation_pages);
}

static int qnix_pin(struct qnix_translation *tr, u64 addr, unsigned long pages)
{
	unsigned int flags = QNIX_PIN_READ;
	unsigned long batch;
	int got;

	if (tr->access & QNIX_ACCESS_WRITE)
		flags = FOLL_LONGTERM | FOLL_WRITE;
	while (tr->count < pages) {
		if (fatal_signal_pending(current))
			return -EINTR;
		batch = min_t(unsigned long, pages - tr->count, QNIX_PIN_BATCH);
		got = pin_user_pages_fast((addr & PAGE_MASK) + (tr->count << PAGE_SHIFT), batch,
					  flags, tr->pages + tr->count);
		if (got <= 0)
			return got ? got : -EFAULT;
		tr->count += got;
		cond_resched();
	}
	return 0;
}

/* The pages are charged already, and stay charged if this succeeds. */
static struct qnix_translation *qnix_translation_create(struct qnix_registration *reg,
							const struct qnix_translate *arg,
							unsigned long pages)
{
	struct qnix_translation *tr;
	int err = -ENOMEM;

	tr = kzalloc(sizeof(*tr), GFP_KERNEL_ACCOUNT);
	if (!tr) {
		atomic_dec(&reg->translation_count);
		return ERR_PTR(-ENOMEM);
	}
	tr->len = arg->len;
	tr->offset = offset_in_page(arg->addr);
	tr->access = arg->access;
	tr->pages = kvmalloc_array(pages, sizeof(*tr->pages), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (tr->pages)
		err = qnix_pin(tr, arg->addr, pages);
	if (!err)
		return tr;
	qnix_translation_free(reg, tr);
	return ERR_PTR(err);
}

/* Fills the Buffer Pool's entries for @arg's buffers. */
static void qnix_fill_pool(struct qnix_registration *reg, const struct qnix_translate *arg)
{
	struct qnix_descriptor *pool = reg->vni->address + reg->info.buffer_pool;
	u64 i, count = div64_u64(arg->len, arg->pool_stride);

	for (i = 0; i < count; i++) {
		struct qnix_descriptor *d = pool + array_index_nospec(arg->pool_index + i,
								      reg->info.pool_entries);

		WRITE_ONCE(d->handle, arg->handle);
		WRITE_ONCE(d->len, arg->pool_stride);
		WRITE_ONCE(d->offset, i * arg->pool_stride);
	}
}

static int qnix_translate_check(struct qnix_registration *reg, const struct qnix_translate *arg)
{
	u64 end;

	if (!arg->len || !arg->access || arg->access & ~(QNIX_ACCESS_READ | QNIX_ACCESS_WRITE) ||
	    arg->handle)
		return -EINVAL;
	if (check_add_overflow(arg->addr, arg->len, &end) || end > TASK_SIZE_MAX)
		return -EFAULT;
	if (arg->len > QNIX_MAX_TRANSLATION)
		return -ENOMEM;
	if (arg->pool_index == QNIX_NO_POOL)
		return arg->pool_stride ? -EINVAL : 0;
	if (!arg->pool_stride || arg->pool_stride > arg->len ||
	    arg->pool_index + div64_u64(arg->len, arg->pool_stride) > reg->info.pool_entries)
		return -EINVAL;
	return 0;
}

/* Adds @tr, unless the registration has ended meanwhile. */
static int qnix_translation_insert(struct qnix_registration *reg, struct qnix_translation *tr,
				   u32 *handle)
{
	int err = -ENOTCONN;

	mutex_lock(&reg->translate_lock);
	if (!reg->translate_ended)
		err = xa_alloc_cyclic(&reg->translations, handle, tr, XA_LIMIT(1, INT_MAX),
				      &reg->next_handle, GFP_KERNEL_ACCOUNT);
	mutex_unlock(&reg->translate_lock);
	return min(err, 0);
}

int qnix_translate(struct qnix_registration *reg, struct qnix_translate *arg)
{
	struct qnix_translation *tr;
	unsigned long pages;
	int err;

	err = qnix_translate_check(reg, arg);
	if (err)
		return err;
	if (atomic_inc_return(&reg->translation_count) > qnix_params.max_translations) {
		atomic_dec(&reg->translation_count);
		return -ENOSPC;
	}
	pages = (offset_in_page(arg->addr) + arg->len + PAGE_SIZE - 1) >> PAGE_SHIFT;
	err = qnix_charge_pages(reg->mm, pages);
	if (err) {
		atomic_dec(&reg->translation_count);
		return err;
	}
	atomic_long_add(pages, &reg->translation_pages);
	tr = qnix_translation_create(reg, arg, pages);
	err = PTR_ERR_OR_ZERO(tr);
	if (!err) {
		err = qnix_translation_insert(reg, tr, &arg->handle);
		if (err)
			qnix_translation_free(reg, tr);
	}
	if (err) {
		qnix_translation_uncharge(reg, pages);
		return err;
	}
	if (arg->pool_index != QNIX_NO_POOL)
		qnix_fill_pool(reg, arg);
	trace_qnix_translate(reg->nic->number, reg->pid, arg->handle, pages);
	return 0;
}

static void qnix_translation_end(struct qnix_registration *reg, struct qnix_translation *tr)
{
	unsigned long pages = tr->count;

	qnix_translation_free(reg, tr);
	qnix_translation_uncharge(reg, pages);
}

/*
 * When this returns, the NIC has finished its current copy and does not find the handle any
 * more.
 */
int qnix_untranslate(struct qnix_registration *reg, u32 handle)
{
	struct qnix_translation *tr = xa_erase(&reg->translations, handle);

	if (!tr)
		return -ENOENT;
	qnix_nic_lock(reg->nic);
	qnix_nic_unlock(reg->nic);
	trace_qnix_untranslate(reg->nic->number, reg->pid, handle, tr->count);
	qnix_translation_end(reg, tr);
	return 0;
}

/* The NIC does not know the registration any more. */
void qnix_translations_end(struct qnix_registration *reg)
{
	struct qnix_translation *tr;
	unsigned long handle;

	mutex_lock(&reg->translate_lock);
	reg->translate_ended = true;
	mutex_unlock(&reg->translate_lock);
	xa_for_each(&reg->translations, handle, tr)
		if (xa_erase(&reg->translations, handle) == tr)
			qnix_translation_end(reg, tr);
}
