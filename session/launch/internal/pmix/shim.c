// SPDX-License-Identifier: BSD-2-Clause
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"
#include "shim.h"

#define BW_PMIX_ERR_TYPE (-18) /* a mismatch */

static struct {
	int (*init)(struct bw_pmix_proc *me, struct bw_pmix_info *info, size_t n);
	int (*finalize)(const struct bw_pmix_info *info, size_t n);
	int (*abort)(int status, const char *msg, struct bw_pmix_proc *procs, size_t n);
	int (*put)(uint8_t scope, const char *key, struct bw_pmix_value *value);
	int (*commit)(void);
	int (*fence)(const struct bw_pmix_proc *procs, size_t nprocs, const struct bw_pmix_info *info, size_t n);
	int (*get)(const struct bw_pmix_proc *proc, const char *key, const struct bw_pmix_info *info, size_t n,
		   struct bw_pmix_value **value);
	int (*register_handler)(int *codes, size_t ncodes, struct bw_pmix_info *info, size_t n, bw_pmix_handler handler,
				void (*done)(int status, size_t id, void *data), void *data);
	const char *(*error_string)(int status);
} lib;

/* Once PMIx_Init has named it. */
static struct bw_pmix_proc me;

int bw_pmix_load(char *why, size_t size)
{
	static const char file[] = "libpmix.so.2";
	static const struct {
		const char *name;
		void **to;
	} symbols[] = {
		{ "PMIx_Init", (void **)&lib.init },
		{ "PMIx_Finalize", (void **)&lib.finalize },
		{ "PMIx_Abort", (void **)&lib.abort },
		{ "PMIx_Put", (void **)&lib.put },
		{ "PMIx_Commit", (void **)&lib.commit },
		{ "PMIx_Fence", (void **)&lib.fence },
		{ "PMIx_Get", (void **)&lib.get },
		{ "PMIx_Register_event_handler", (void **)&lib.register_handler },
		{ "PMIx_Error_string", (void **)&lib.error_string },
	};
	/* Its plugins want its symbols: they are opened by the library later. */
	void *handle = dlopen(file, RTLD_NOW | RTLD_GLOBAL);

	if (!handle) {
		snprintf(why, size, "%s", dlerror());
		return -ENOENT;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		*symbols[i].to = dlsym(handle, symbols[i].name);
		if (!*symbols[i].to) {
			snprintf(why, size, "%s lacks %s", file, symbols[i].name);
			return -ENOSYS;
		}
	}
	return 0;
}

const char *bw_pmix_error(int status)
{
	return lib.error_string(status);
}

static int get_value(uint32_t rank, const char *key, int timeout, uint16_t type, struct bw_pmix_value **value)
{
	struct bw_pmix_info info;
	struct bw_pmix_proc of = me;
	int r;

	of.rank = rank;
	memset(&info, 0, sizeof(info));
	strcpy(info.key, BW_PMIX_TIMEOUT);
	info.value.type = BW_PMIX_INT;
	info.value.data.integer = timeout;
	*value = NULL;
	r = lib.get(&of, key, timeout ? &info : NULL, timeout ? 1 : 0, value);
	if (r < 0)
		return r;
	if (!*value || (*value)->type != type) {
		/* What it holds is of a type that is not known here: it is lost. */
		return BW_PMIX_ERR_TYPE;
	}
	return 0;
}

/* The pipe by which an event leaves the library's thread. */
static int events[2] = { -1, -1 };

static void tell(int status)
{
	/* Nobody is told twice: a full or closed pipe is no error. */
	if (write(events[1], &status, sizeof(status)) < 0)
		errno = 0;
}

static void on_event(size_t id, int status, const struct bw_pmix_proc *source, struct bw_pmix_info *info, size_t n,
		     struct bw_pmix_info *results, size_t nresults, bw_pmix_event_done done, void *data)
{
	(void)id;
	(void)source;
	(void)info;
	(void)n;
	(void)results;
	(void)nresults;
	tell(status);
	if (done)
		done(BW_PMIX_EVENT_DONE, NULL, 0, NULL, NULL, data);
}

static void on_registered(int status, size_t id, void *registered)
{
	/* A server that refuses is still noticed by a request, when it is gone. */
	(void)status;
	(void)id;
	sem_post(registered);
}

/*
 * Waits until the handler is in place: of a server that ends before, nothing would be heard. A server that does not answer
 * for REGISTER_TIME is left to the requests that follow.
 */
#define REGISTER_TIME 5 /* seconds */

static void register_handler(void)
{
	static int codes[] = { BW_PMIX_LOST_CONNECTION, BW_PMIX_LOST_SERVER };
	static sem_t registered; /* the library may use it later */
	struct timespec until;

	if (pipe2(events, O_CLOEXEC | O_NONBLOCK) < 0)
		return;
	sem_init(&registered, 0, 0);
	lib.register_handler(codes, sizeof(codes) / sizeof(codes[0]), NULL, 0, on_event, on_registered, &registered);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += REGISTER_TIME;
	while (sem_timedwait(&registered, &until) < 0 && errno == EINTR)
		;
}

int bw_pmix_events(void)
{
	return events[0];
}

int bw_pmix_init(uint32_t *rank, uint32_t *size, uint32_t *local)
{
	struct bw_pmix_value *value;
	int r;

	r = lib.init(&me, NULL, 0);
	if (r < 0)
		return r;
	*rank = me.rank;
	register_handler();
	r = get_value(BW_PMIX_RANK_WILDCARD, BW_PMIX_JOB_SIZE, 0, BW_PMIX_UINT32, &value);
	if (r < 0) {
		lib.finalize(NULL, 0);
		return r;
	}
	*size = value->data.u32;
	free(value);
	*local = 0;
	if (get_value(BW_PMIX_RANK_WILDCARD, BW_PMIX_LOCAL_SIZE, 0, BW_PMIX_UINT32, &value) >= 0) {
		*local = value->data.u32;
		free(value);
	}
	return 0;
}

int bw_pmix_put(const char *key, void *bytes, size_t size)
{
	struct bw_pmix_value value = { .type = BW_PMIX_BYTE_OBJECT };

	value.data.bo.bytes = bytes;
	value.data.bo.size = size;
	return lib.put(BW_PMIX_GLOBAL, key, &value);
}

/* Without collecting: a value travels when, and only to whom, somebody asks for it. */
int bw_pmix_fence(void)
{
	int r = lib.commit();

	return r < 0 ? r : lib.fence(NULL, 0, NULL, 0);
}

int bw_pmix_get(uint32_t rank, const char *key, int timeout, void **bytes, size_t *size)
{
	struct bw_pmix_value *value;
	int r;

	r = get_value(rank, key, timeout, BW_PMIX_BYTE_OBJECT, &value);
	if (r < 0)
		return r;
	*bytes = value->data.bo.bytes;
	*size = value->data.bo.size;
	free(value);
	return 0;
}

int bw_pmix_abort(int code, const char *why)
{
	return lib.abort(code, why, NULL, 0);
}

int bw_pmix_finalize(void)
{
	int r = lib.finalize(NULL, 0);

	tell(0);
	return r;
}
