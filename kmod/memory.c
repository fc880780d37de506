// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory for the control program and the wire. They run under a spinlock, where nothing may
 * sleep: a thread that sleeps there, or whose cgroup has used up its processor time, would
 * stop the NIC for everyone. What the kernel does not have at once, the NIC's thread gets
 * without the lock, for the next attempt. vfree() may sleep, so it is put off.
 */
#include <linux/bitops.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "host.h"

#define QNIX_AT_ONCE	SZ_128K	/* holds the largest frame; more takes too long to clear under the lock */

/*
 * Returns memory, cleared with __GFP_ZERO in @flags, or NULL. The caller holds the lock,
 * unless it has set nic->creator.
 */
void *qnix_get(struct qnix_nic *nic, size_t size, gfp_t flags)
{
	void *memory = NULL;
	unsigned int order;

	flags |= __GFP_NOWARN;
	if (READ_ONCE(nic->creator) == current)
		return kvmalloc(size, GFP_KERNEL | flags);
	lockdep_assert_held(&nic->lock);
	if (size <= QNIX_AT_ONCE)
		memory = kmalloc(size, GFP_NOWAIT | flags);
	if (memory)
		return memory;
	/* A spare is at most twice as large: quotas count the size that is asked for. */
	order = order_base_2(size);
	if (order >= QNIX_ORDERS)
		return NULL;
	memory = nic->spare[order];
	nic->spare[order] = NULL;
	if (!memory)
		WRITE_ONCE(nic->wanted, nic->wanted | BIT(order));
	return memory;
}

/* Memory that is to be freed without the lock begins with the address of the next. */
void qnix_put(struct qnix_nic *nic, void *memory)
{
	if (!is_vmalloc_addr(memory) || READ_ONCE(nic->creator) == current) {
		kvfree(memory);
		return;
	}
	*(void **)memory = nic->garbage;
	nic->garbage = memory;
}

/* Frees @garbage, which was a NIC's. */
void qnix_free_garbage(void *garbage)
{
	while (garbage) {
		void *next = *(void **)garbage;

		vfree(garbage);
		garbage = next;
	}
}

/* For the NIC's thread: gets the memory that there was not. */
void qnix_get_wanted(struct qnix_nic *nic)
{
	unsigned long wanted = READ_ONCE(nic->wanted);
	unsigned int order;

	for_each_set_bit(order, &wanted, QNIX_ORDERS) {
		void *memory = kvzalloc(BIT(order), GFP_KERNEL | __GFP_NOWARN);

		qnix_nic_lock(nic);
		WRITE_ONCE(nic->wanted, nic->wanted & ~BIT(order));
		if (memory && !nic->spare[order]) {
			swap(nic->spare[order], memory);
			set_bit(QNIX_NIC_WORK, &nic->state);
		}
		qnix_nic_unlock(nic);
		kvfree(memory);
	}
}
