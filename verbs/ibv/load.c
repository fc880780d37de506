// SPDX-License-Identifier: BSD-2-Clause
#define _GNU_SOURCE
#include <stdlib.h>
#include "lib.h"

void bw_free(void *p)
{
	free(p);
}

#if BW_HEADERS

#include <dlfcn.h>
#include <stdio.h>

struct bw_verbs bw_verbs;
struct bw_cm bw_cm;

static int bw_symbol(void *lib, const char *file, const char *name, void **to, char *why, size_t size)
{
	*to = dlsym(lib, name);
	if (*to)
		return 0;
	snprintf(why, size, "%s lacks %s: it is too old", file, name);
	return -ENOSYS;
}

static void *bw_dlopen(const char *file, char *why, size_t size)
{
	void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		snprintf(why, size, "%s", dlerror());
	return lib;
}

#define BW_LOAD(name)                                                                                                  \
	if (bw_symbol(lib, file, #name, &sym, why, size) < 0)                                                          \
		return -ENOSYS;                                                                                        \
	into->name = (__typeof__(&*into->name))sym;

int bw_load(char *why, size_t size)
{
	const char *file = secure_getenv("BYWASH_LIBIBVERBS");
	struct bw_verbs *into = &bw_verbs;
	void *lib, *sym;

	if (!file || !*file)
		file = "libibverbs.so.1";

	lib = bw_dlopen(file, why, size);
	if (!lib)
		return -ENOENT;
	BW_VERBS(BW_LOAD)
	BW_LOAD(_ibv_query_gid_table)
	BW_LOAD(ibv_reg_mr_iova2)
	return 0;
}

int bw_load_cm(char *why, size_t size)
{
	static const char file[] = "librdmacm.so.1";
	struct bw_cm *into = &bw_cm;
	void *lib, *sym;

	lib = bw_dlopen(file, why, size);
	if (!lib)
		return -ENOENT;
	BW_CM(BW_LOAD)
	BW_LOAD(rdma_establish)
	return 0;
}

#endif
