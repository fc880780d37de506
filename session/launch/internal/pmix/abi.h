/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The part of the PMIx ABI that package pmix uses, as the PMIx standard fixes
 * it from version 2 on. testdata/check.c holds it against the headers.
 */
#ifndef BYWASH_PMIX_ABI_H
#define BYWASH_PMIX_ABI_H

#include <stddef.h>
#include <stdint.h>

#define BW_PMIX_NSPACE 256
#define BW_PMIX_KEY    512

#define BW_PMIX_RANK_WILDCARD (UINT32_MAX - 1)
#define BW_PMIX_GLOBAL	      3 /* a scope: all processes */
#define BW_PMIX_JOB_SIZE      "pmix.job.size"
#define BW_PMIX_LOCAL_SIZE    "pmix.local.size" /* of this job, on this host */
#define BW_PMIX_TIMEOUT	      "pmix.timeout"

/* Types of a value. */
#define BW_PMIX_INT	    6
#define BW_PMIX_UINT32	    14
#define BW_PMIX_BYTE_OBJECT 27

struct bw_pmix_proc {
	char nspace[BW_PMIX_NSPACE];
	uint32_t rank;
};

struct bw_pmix_value {
	uint16_t type;
	union {
		int integer;
		uint32_t u32;
		struct {
			char *bytes;
			size_t size;
		} bo;
		struct {
			char *name, *value;
			char separator;
		} env;		/* the largest */
	} data;
};

struct bw_pmix_info {
	char key[BW_PMIX_KEY];
	uint32_t flags;
	struct bw_pmix_value value;
};

/* Events. */
#define BW_PMIX_LOST_CONNECTION (-61)
#define BW_PMIX_LOST_SERVER	(-101) /* up to version 3 */

#define BW_PMIX_EVENT_DONE (-334) /* no further handler needs it */

typedef void (*bw_pmix_event_done)(int status, struct bw_pmix_info *results, size_t n, void (*op)(int, void *),
				   void *op_data, void *data);
typedef void (*bw_pmix_handler)(size_t id, int status, const struct bw_pmix_proc *source, struct bw_pmix_info *info,
				size_t n, struct bw_pmix_info *results, size_t nresults, bw_pmix_event_done done,
				void *data);

#endif
