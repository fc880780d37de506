/* SPDX-License-Identifier: BSD-2-Clause */
/* What package pmix calls. Functions return a PMIx status: 0, or negative. */
#ifndef BYWASH_PMIX_SHIM_H
#define BYWASH_PMIX_SHIM_H

#include <stddef.h>
#include <stdint.h>

int bw_pmix_load(char *why, size_t size);
const char *bw_pmix_error(int status);
/* local: ranks on this host, or 0. */
int bw_pmix_init(uint32_t *rank, uint32_t *size, uint32_t *local);
int bw_pmix_put(const char *key, void *bytes, size_t size);
int bw_pmix_fence(void);
/* The bytes are malloc'ed: the caller frees them. */
int bw_pmix_get(uint32_t rank, const char *key, int timeout, void **bytes, size_t *size);
/* The end of a pipe that does not block, or -1: an int comes out, the status of a lost connection or 0 after finalize. */
int bw_pmix_events(void);
int bw_pmix_abort(int code, const char *why);
int bw_pmix_finalize(void);

#endif
