// SPDX-License-Identifier: BSD-2-Clause
/* A libpmix whose server is lost in PMIx_Fence. As in the real one, another thread registers the handler of events. */
#include <pthread.h>
#include <stdlib.h>

#include "../abi.h"

static bw_pmix_handler handler;
static void (*registered)(int status, size_t id, void *data);
static void *registered_data;

int PMIx_Init(struct bw_pmix_proc *me, struct bw_pmix_info *info, size_t n)
{
	(void)info;
	(void)n;
	me->rank = 0;
	return 0;
}

static void *registers(void *h)
{
	__atomic_store_n(&handler, (bw_pmix_handler)h, __ATOMIC_RELEASE);
	registered(0, 1, registered_data);
	return NULL;
}

int PMIx_Register_event_handler(int *codes, size_t ncodes, struct bw_pmix_info *info, size_t n, bw_pmix_handler h,
				void (*done)(int, size_t, void *), void *data)
{
	pthread_t thread;

	(void)codes;
	(void)ncodes;
	(void)info;
	(void)n;
	registered = done;
	registered_data = data;
	return pthread_create(&thread, NULL, registers, (void *)h);
}

int PMIx_Fence(const struct bw_pmix_proc *procs, size_t nprocs, const struct bw_pmix_info *info, size_t n)
{
	bw_pmix_handler h = __atomic_load_n(&handler, __ATOMIC_ACQUIRE);

	(void)procs;
	(void)nprocs;
	(void)info;
	(void)n;
	if (!h)
		return -1; /* nobody hears of the loss */
	h(1, BW_PMIX_LOST_CONNECTION, NULL, NULL, 0, NULL, 0, NULL, NULL);
	return 0;
}

int PMIx_Get(const struct bw_pmix_proc *proc, const char *key, const struct bw_pmix_info *info, size_t n,
	     struct bw_pmix_value **value)
{
	(void)proc;
	(void)key;
	(void)info;
	(void)n;
	*value = calloc(1, sizeof(**value));
	(*value)->type = BW_PMIX_UINT32;
	(*value)->data.u32 = 1;
	return 0;
}

int PMIx_Commit(void)
{
	return 0;
}

int PMIx_Finalize(const struct bw_pmix_info *info, size_t n)
{
	(void)info;
	(void)n;
	return 0;
}

const char *PMIx_Error_string(int status)
{
	(void)status;
	return "from the fake";
}

/* Not called. */
int PMIx_Abort(void)
{
	abort();
}

int PMIx_Put(void)
{
	abort();
}
