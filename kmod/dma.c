// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The NIC's DMA engines, which copy to and from translated memory. The control program
 * calls them with the NIC's lock held, so a handle that was found stays valid.
 */
#include <linux/highmem.h>
#include <linux/mm.h>

#include "host.h"

/* A place in translated memory that goes from page to page. */
struct qnix_cursor {
	struct page **page;
	u32 offset;
};

static bool qnix_cursor_set(struct qnix_cursor *c, void *process, u32 handle, u64 offset,
			    u32 len, u32 access)
{
	struct qnix_registration *reg = process;
	struct qnix_translation *tr = xa_load(&reg->translations, handle);
	u64 first;

	if (!tr || !(tr->access & access) || offset > tr->len || len > tr->len - offset)
		return false;
	/*
	 * The process chose the offset: bound it also for speculative execution past the
	 * check.
	 */
	first = tr->offset + array_index_nospec(offset, tr->len + 1);
	c->page = tr->pages + (first >> PAGE_SHIFT);
	c->offset = offset_in_page(first);
	return true;
}

static u32 qnix_cursor_room(const struct qnix_cursor *c)
{
	return PAGE_SIZE - c->offset;
}

static void qnix_cursor_advance(struct qnix_cursor *c, u32 bytes)
{
	c->offset += bytes;
	if (c->offset == PAGE_SIZE) {
		c->offset = 0;
		c->page++;
	}
}

int qnix_dma_read(void *host, void *process, u32 handle, u64 offset, void *to, u32 len)
{
	struct qnix_cursor c;

	if (!qnix_cursor_set(&c, process, handle, offset, len, QNIX_ACCESS_READ))
		return -1;
	while (len) {
		u32 bytes = min(len, qnix_cursor_room(&c));

		memcpy_from_page(to, *c.page, c.offset, bytes);
		qnix_cursor_advance(&c, bytes);
		to += bytes;
		len -= bytes;
	}
	return 0;
}

int qnix_dma_write(void *host, void *process, u32 handle, u64 offset, const void *from, u32 len)
{
	struct qnix_cursor c;

	if (!qnix_cursor_set(&c, process, handle, offset, len, QNIX_ACCESS_WRITE))
		return -1;
	while (len) {
		u32 bytes = min(len, qnix_cursor_room(&c));

		memcpy_to_page(*c.page, c.offset, from, bytes);
		qnix_cursor_advance(&c, bytes);
		from += bytes;
		len -= bytes;
	}
	return 0;
}

/* Both memories may overlap; the result is then undefined. */
int qnix_dma_copy(void *host, void *to, u32 to_handle, u64 to_offset,
		  void *from, u32 from_handle, u64 from_offset, u32 len)
{
	struct qnix_cursor in, out;

	if (!qnix_cursor_set(&out, to, to_handle, to_offset, len, QNIX_ACCESS_WRITE) ||
	    !qnix_cursor_set(&in, from, from_handle, from_offset, len, QNIX_ACCESS_READ))
		return -1;
	while (len) {
		u32 bytes = min3(len, qnix_cursor_room(&in), qnix_cursor_room(&out));
		char *source = kmap_local_page(*in.page);
		char *target = kmap_local_page(*out.page);

		memmove(target + out.offset, source + in.offset, bytes);
		flush_dcache_page(*out.page);
		kunmap_local(target);
		kunmap_local(source);
		qnix_cursor_advance(&in, bytes);
		qnix_cursor_advance(&out, bytes);
		len -= bytes;
	}
	return 0;
}
