// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The Virtual Network Interface and the host page: memory, and its mapping into the process. */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "compat.h"
#include "host.h"

static void qnix_memory_free(struct qnix_memory *memory)
{
	unsigned long i;

	vunmap(memory->address);
	for (i = 0; memory->pages && i < memory->count && memory->pages[i]; i++)
		put_page(memory->pages[i]);
	kvfree(memory->pages);
	qnix_uncharge_pages(memory->mm, memory->count);
	mmdrop(memory->mm);
	kfree(memory);
}

static void qnix_memory_release(struct kref *ref)
{
	qnix_memory_free(container_of(ref, struct qnix_memory, ref));
}

void qnix_memory_put(struct qnix_memory *memory)
{
	kref_put(&memory->ref, qnix_memory_release);
}

static int qnix_memory_fill(struct qnix_memory *memory)
{
	unsigned long i;

	for (i = 0; i < memory->count; i++) {
		if (fatal_signal_pending(current))
			return -EINTR;
		memory->pages[i] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN);
		if (!memory->pages[i])
			return -ENOMEM;
		cond_resched();
	}
	memory->address = vmap(memory->pages, memory->count, VM_MAP, PAGE_KERNEL);
	return memory->address ? 0 : -ENOMEM;
}

/* Memory is charged to @mm until the registration and all mappings are gone. */
struct qnix_memory *qnix_memory_create(struct mm_struct *mm, u32 size)
{
	struct qnix_memory *memory;
	int err;

	memory = kzalloc(sizeof(*memory), GFP_KERNEL_ACCOUNT);
	if (!memory)
		return ERR_PTR(-ENOMEM);
	kref_init(&memory->ref);
	memory->count = PAGE_ALIGN((unsigned long)size) >> PAGE_SHIFT;
	err = qnix_charge_pages(mm, memory->count);
	if (err) {
		kfree(memory);
		return ERR_PTR(err);
	}
	mmgrab(mm);
	memory->mm = mm;
	memory->pages = kvcalloc(memory->count, sizeof(*memory->pages),
				 GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	err = memory->pages ? qnix_memory_fill(memory) : -ENOMEM;
	if (err) {
		qnix_memory_free(memory);
		return ERR_PTR(err);
	}
	return memory;
}

static void qnix_vm_open(struct vm_area_struct *vma)
{
	struct qnix_memory *memory = vma->vm_private_data;

	kref_get(&memory->ref);
}

static void qnix_vm_close(struct vm_area_struct *vma)
{
	qnix_memory_put(vma->vm_private_data);
}

static vm_fault_t qnix_vm_fault(struct vm_fault *vmf)
{
	struct qnix_memory *memory = vmf->vma->vm_private_data;
	unsigned long page = vmf->pgoff & ((QNIX_HPS_OFFSET >> PAGE_SHIFT) - 1);

	if (page >= memory->count)
		return VM_FAULT_SIGBUS;
	vmf->page = memory->pages[array_index_nospec(page, memory->count)];
	get_page(vmf->page);
	return 0;
}

/* open and close are called when a mapping is split, moved or ended; never by fork. */
static const struct vm_operations_struct qnix_vm_ops = {
	.open = qnix_vm_open,
	.close = qnix_vm_close,
	.fault = qnix_vm_fault,
};

static struct qnix_memory *qnix_memory_at(struct qnix_registration *reg, unsigned long pgoff)
{
	if (pgoff == 0)
		return reg->vni;
	if (pgoff == QNIX_HPS_OFFSET >> PAGE_SHIFT)
		return reg->hps;
	return NULL;
}

static int qnix_map(struct qnix_registration *reg, struct vm_area_struct *vma)
{
	struct qnix_memory *memory = qnix_memory_at(reg, vma->vm_pgoff);

	if (reg->mm != vma->vm_mm)
		return -EACCES;
	if (!memory || vma_pages(vma) > memory->count || !(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EACCES;
	vm_flags_clear(vma, VM_MAYEXEC);
	/*
	 * Without VM_IO, madvise could clear VM_DONTCOPY, and ptrace could write to the
	 * mapping.
	 */
	vm_flags_set(vma, VM_IO | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	kref_get(&memory->ref);
	vma->vm_private_data = memory;
	vma->vm_ops = &qnix_vm_ops;
	return 0;
}

int qnix_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct qnix_registration *reg = qnix_registration_of(file->private_data);
	int err;

	if (!reg)
		return -ENOTCONN;
	err = qnix_map(reg, vma);
	qnix_registration_put(reg);
	return err;
}
