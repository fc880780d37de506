/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The functions that the control program needs from its environment, under the kernel's
 * names. In user space they are defined here.
 */
#ifndef _QNIX_NCP_COMPAT_H
#define _QNIX_NCP_COMPAT_H

#ifdef __KERNEL__

#include <linux/build_bug.h>
#include <linux/compiler.h>
#include <linux/container_of.h>
#include <linux/minmax.h>
#include <linux/nospec.h>
#include <linux/string.h>
#include <linux/types.h>
#include <asm/barrier.h>
#include <asm/byteorder.h>

#else /* !__KERNEL__ */

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <linux/types.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define READ_ONCE(x)	__atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_RELAXED)
/* No later access is moved before the load. */
#define smp_load_acquire(p)	__atomic_load_n((p), __ATOMIC_ACQUIRE)
/* No earlier access is moved after the store. */
#define smp_store_release(p, v)	__atomic_store_n((p), (v), __ATOMIC_RELEASE)
/* No access is moved across it. */
#define smp_mb()	__atomic_thread_fence(__ATOMIC_SEQ_CST)

#define cpu_to_be16(x)	htobe16(x)
#define cpu_to_be32(x)	htobe32(x)
#define cpu_to_be64(x)	htobe64(x)
#define be16_to_cpu(x)	be16toh(x)
#define be32_to_cpu(x)	be32toh(x)
#define be64_to_cpu(x)	be64toh(x)

#define container_of(p, type, member) \
	((type *)((char *)(p) - offsetof(type, member)))
#define min_t(type, a, b)	((type)(a) < (type)(b) ? (type)(a) : (type)(b))
#define max_t(type, a, b)	((type)(a) > (type)(b) ? (type)(a) : (type)(b))

/*
 * Returns @index, or 0 if it is not below @size, also in speculative execution: it uses a
 * mask instead of a branch. Neither argument may have its highest bit set.
 */
static inline size_t ncp_index_nospec(size_t index, size_t size)
{
	/* Hide @index from the compiler, which would drop the mask because of the check. */
	__asm__ volatile("" : "+r"(index));
	return index & (size_t)((ptrdiff_t)~(index | (size - 1 - index)) >> (8 * sizeof(size_t) - 1));
}

#define array_index_nospec(index, size)	ncp_index_nospec((index), (size))

#endif /* __KERNEL__ */

#endif /* _QNIX_NCP_COMPAT_H */
