/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef _QNIX_SIPHASH_H
#define _QNIX_SIPHASH_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stddef.h>
#include <stdint.h>
#endif

/* SipHash-2-4 of 128 bits: @tag of @size bytes of @data under @key. */
void wire_siphash(const uint8_t key[16], const void *data, size_t size,
		  uint8_t tag[16]);

#endif /* _QNIX_SIPHASH_H */
