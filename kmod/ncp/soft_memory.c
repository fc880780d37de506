// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Translated memory: memory of a file is mapped here, other memory is accessed by
 * process_vm_readv and process_vm_writev.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <linux/magic.h>

#include "compat.h"
#include "soft_internal.h"

/*
 * A handle is the index of its entry plus 1 in the lower bits, and the entry's generation
 * above.
 */
static uint32_t make_handle(uint32_t place, uint16_t turn)
{
	return (uint32_t)turn << 16 | (place + 1);
}

static struct soft_memory *find(struct soft_process *p, uint32_t handle)
{
	uint32_t place = (handle & 0xffff) - 1;
	struct soft_memory *m;

	if (place >= p->memories)
		return NULL;
	m = &p->memory[array_index_nospec(place, p->memories)];
	if (!m->len || m->turn != handle >> 16)
		return NULL;
	return m;
}

/* Returns the memory that an operation names, or NULL. */
static struct soft_memory *reach(struct soft_process *p, uint32_t handle, uint64_t offset,
				 uint32_t len, uint32_t access)
{
	struct soft_memory *m = find(p, handle);

	if (!m || !(m->access & access) || offset > m->len || len > m->len - offset)
		return NULL;
	return m;
}

/*
 * Returns whether the process still has its pid: otherwise the memory would be another
 * process's. A signal to this thread interrupts even a poll that does not wait: that says
 * nothing about the process, so the thread asks again.
 */
static bool alive(struct soft_process *p)
{
	struct pollfd fd = { .fd = p->pidfd, .events = POLLIN };
	int n;

	if (!p->remote || p->pidfd < 0)
		return false;
	do {
		n = poll(&fd, 1, 0);
	} while (n < 0 && errno == EINTR);
	return n == 0;
}

static int transfer(struct soft_process *p, bool write, uint64_t addr, void *local, uint32_t len)
{
	while (len) {
		struct iovec here = { local, len };
		struct iovec there = { (void *)(uintptr_t)addr, len };
		ssize_t n;

		if (!alive(p))
			return -1;
		if (write)
			n = process_vm_writev(p->pid, &here, 1, &there, 1, 0);
		else
			n = process_vm_readv(p->pid, &here, 1, &there, 1, 0);
		if (n <= 0)
			return -1;
		addr += n;
		local = (uint8_t *)local + n;
		len -= n;
	}
	return 0;
}

int soft_read(void *host, void *process, uint32_t handle, uint64_t offset, void *to, uint32_t len)
{
	struct soft_process *p = process;
	struct soft_memory *m = reach(p, handle, offset, len, QNIX_ACCESS_READ);

	(void)host;
	if (!m)
		return -1;
	if (!m->base)
		return transfer(p, false, m->addr + offset, to, len);
	memcpy(to, m->base + offset, len);
	return 0;
}

int soft_write(void *host, void *process, uint32_t handle, uint64_t offset, const void *from, uint32_t len)
{
	struct soft_process *p = process;
	struct soft_memory *m = reach(p, handle, offset, len, QNIX_ACCESS_WRITE);

	(void)host;
	if (!m)
		return -1;
	if (!m->base)
		return transfer(p, true, m->addr + offset, (void *)from, len);
	memcpy(m->base + offset, from, len);
	return 0;
}

int soft_copy(void *host, void *to, uint32_t to_handle, uint64_t to_offset,
	      void *from, uint32_t from_handle, uint64_t from_offset, uint32_t len)
{
	struct soft *s = ((struct soft_nic *)host)->soft;
	struct soft_memory *t = reach(to, to_handle, to_offset, len, QNIX_ACCESS_WRITE);
	struct soft_memory *f = reach(from, from_handle, from_offset, len, QNIX_ACCESS_READ);

	if (!t || !f)
		return -1;
	if (t->base && f->base) {
		/* Both may be views of one file. */
		memmove(t->base + to_offset, f->base + from_offset, len);
		return 0;
	}
	if (f->base)
		return transfer(to, true, t->addr + to_offset, f->base + from_offset, len);
	if (t->base)
		return transfer(from, false, f->addr + from_offset, t->base + to_offset, len);
	while (len) {
		uint32_t n = len < SOFT_BOUNCE ? len : SOFT_BOUNCE;

		if (transfer(from, false, f->addr + from_offset, s->bounce, n) ||
		    transfer(to, true, t->addr + to_offset, s->bounce, n))
			return -1;
		from_offset += n;
		to_offset += n;
		len -= n;
	}
	return 0;
}

/*
 * Returns whether the process may have @len more bytes of a file mapped here. A user may
 * only while he has no more than is left: so each of n users gets one part in n + 1, and
 * the program itself never runs out of mappings.
 */
static bool may_map(const struct soft_process *p, uint64_t len)
{
	uint64_t left = SOFT_MAPPED, user = 0;
	uint32_t maps_left = SOFT_MAPS, maps = 0;
	const struct soft_process *x;

	for (x = p->nic->soft->processes; x; x = x->next) {
		left -= x->mapped;
		maps_left -= x->maps;
		if (x->user == p->user) {
			user += x->mapped;
			maps += x->maps;
		}
	}
	return len <= left && user + len <= left && maps < maps_left;
}

/*
 * Maps a process's file. It must be sealed against shrinking, because an access beyond its
 * end would kill this process. It must be on tmpfs, because huge pages that were taken back
 * fault, too.
 */
static int map_file(struct soft_process *p, struct soft_memory *m, const struct qnix_translate *t,
		    int fd)
{
	uint64_t page = sysconf(_SC_PAGESIZE);
	uint64_t from = t->addr & ~(page - 1);
	int prot = t->access & QNIX_ACCESS_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
	int seals = fcntl(fd, F_GET_SEALS);
	struct statfs fs;
	struct stat st;

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return -EINVAL;
	if (fstatfs(fd, &fs) || fstat(fd, &st))
		return -errno;
	if (fs.f_type != TMPFS_MAGIC)
		return -EINVAL;
	if (t->addr > (uint64_t)st.st_size || t->len > (uint64_t)st.st_size - t->addr)
		return -EFAULT;
	m->map_len = t->addr + t->len - from;
	if (!may_map(p, m->map_len))
		return -ENOMEM;
	m->map = mmap(NULL, m->map_len, prot, MAP_SHARED, fd, from);
	if (m->map == MAP_FAILED) {
		m->map = NULL;
		return -errno;
	}
	m->base = (uint8_t *)m->map + (t->addr - from);
	p->maps++;
	p->mapped += m->map_len;
	return 0;
}

/*
 * Checks that the first and the last byte are accessible, so that a wrong address fails at
 * once.
 */
static int try_remote(struct soft_process *p, const struct qnix_translate *t)
{
	struct iovec there[2] = {
		{ (void *)(uintptr_t)t->addr, 1 }, { (void *)(uintptr_t)(t->addr + t->len - 1), 1 },
	};
	char bytes[2];
	struct iovec here = { bytes, 2 };
	ssize_t n;

	if (!p->remote)
		return -EPERM;
	if (!alive(p))
		return -ESRCH;
	n = process_vm_readv(p->pid, &here, 1, there, 2, 0);
	if (n == 2)
		return 0;
	if (n >= 0 || errno == EFAULT)
		return -EFAULT;
	return errno == ESRCH ? -ESRCH : -EPERM; /* ESRCH: the process is dying, which is no lack of permission */
}

/* Entries of the Buffer Pool, one for each buffer. */
static int fill_pool(struct soft_process *p, const struct qnix_translate *t, uint32_t handle)
{
	struct qnix_descriptor *pool = (void *)(p->vni + p->info.buffer_pool);
	uint64_t n, k;

	n = t->pool_stride ? t->len / t->pool_stride : 0;
	if (!n || t->pool_index > p->info.pool_entries || n > p->info.pool_entries - t->pool_index)
		return -EINVAL;
	for (k = 0; k < n; k++)
		pool[t->pool_index + k] = (struct qnix_descriptor){
			.handle = handle, .len = t->pool_stride, .offset = k * t->pool_stride,
		};
	return 0;
}

/* What munmap takes. It is called without the lock: many pages take long. */
struct mapping {
	void *at;
	size_t len;
};

static void unmap(struct mapping m)
{
	if (m.at)
		munmap(m.at, m.len);
}

/* Forgets memory. No copy is under way, as the caller holds the lock, and none begins. */
static struct mapping drop(struct soft_process *p, struct soft_memory *m)
{
	struct mapping map = { m->map, m->map_len };

	if (m->map) {
		p->maps--;
		p->mapped -= m->map_len;
	}
	*m = (struct soft_memory){ .turn = m->turn + 1 };
	return map;
}

static int translate(struct soft_process *p, struct qnix_translate *t, int fd)
{
	struct soft_memory *m = NULL;
	uint32_t place;
	int err;

	if (!t->len || t->addr + t->len < t->addr || !t->access ||
	    t->access & ~(QNIX_ACCESS_READ | QNIX_ACCESS_WRITE))
		return -EINVAL;
	for (place = 0; place < p->memories && !m; place++)
		if (!p->memory[place].len)
			m = &p->memory[place];
	if (!m)
		return -ENOSPC;
	err = fd >= 0 ? map_file(p, m, t, fd) : try_remote(p, t);
	if (!err && t->pool_index != QNIX_NO_POOL)
		err = fill_pool(p, t, make_handle(place - 1, m->turn));
	if (err) {
		unmap(drop(p, m)); /* of which no page was used */
		return err;
	}
	m->addr = t->addr;
	m->len = t->len;
	m->access = t->access;
	t->handle = make_handle(place - 1, m->turn);
	return 0;
}

int soft_translate(struct soft_process *p, struct qnix_translate *t, int fd)
{
	int err;

	soft_lock(p->nic->soft);
	err = translate(p, t, fd);
	soft_unlock(p->nic->soft);
	return err;
}

int soft_untranslate(struct soft_process *p, uint32_t handle)
{
	struct mapping map = { 0 };
	struct soft_memory *m;

	soft_lock(p->nic->soft);
	m = find(p, handle);
	if (m)
		map = drop(p, m);
	soft_unlock(p->nic->soft);
	unmap(map);
	return m ? 0 : -ENOENT;
}

void soft_memory_free(struct soft_process *p)
{
	uint32_t place;

	for (place = 0; place < p->memories; place++)
		if (p->memory[place].len)
			unmap(drop(p, &p->memory[place]));
	free(p->memory);
}
