/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Differences between the kernels that the module supports: 6.1 and later. */
#ifndef _QNIX_COMPAT_H
#define _QNIX_COMPAT_H

#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/preempt.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags &= ~flags;
}
#endif

/*
 * Flags to pin memory that is only read. Before 6.2 a page that was never written would be
 * pinned as the shared zero page or as a page of the page cache, and later writes of the
 * process would not be seen. There the flags give the process a page of its own.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
#define QNIX_PIN_READ	(FOLL_LONGTERM | FOLL_WRITE | FOLL_FORCE)
#else
#define QNIX_PIN_READ	FOLL_LONGTERM
#endif

/* Where waking takes locks that sleep, preemption stays. */
static inline void qnix_preempt_disable(void)
{
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		preempt_disable();
}

static inline void qnix_preempt_enable(void)
{
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		preempt_enable();
}

static inline void qnix_eventfd_signal(struct eventfd_ctx *ctx)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 8, 0)
	eventfd_signal(ctx, 1);
#else
	eventfd_signal(ctx);
#endif
}

#endif /* _QNIX_COMPAT_H */
