// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Descriptor Maps: the places of a message's bytes, and moving them. */
#include "internal.h"

void ncp_map_memory(struct ncp_map *map, void *memory, u32 len)
{
	memset(map, 0, sizeof(*map));
	map->memory = memory;
	map->room = len;
}

/*
 * Fills @map with the buffer that a context names; @c is the NIC's copy. Returns false if
 * the buffer is outside the process's interface.
 */
bool ncp_map_context(struct ncp_process *p, const struct qnix_context *c, u16 index,
		     bool receive, bool inline_data, struct ncp_map *map)
{
	u8 *region = (receive ? p->receive_regions : p->send_regions) +
		     (size_t)index * p->info.region_size;

	if (inline_data) {
		if (c->len > p->info.region_size)
			return false;
		ncp_map_memory(map, region, c->len);
		return true;
	}
	memset(map, 0, sizeof(*map));
	map->count = c->descriptors;
	if (c->flags & QNIX_CTX_POOL) {
		if (c->pool_index > p->info.pool_entries ||
		    c->descriptors > p->info.pool_entries - c->pool_index)
			return false;
		map->list = p->pool + array_index_nospec(c->pool_index, p->info.pool_entries + 1);
	} else {
		if (c->descriptors > p->info.region_size / sizeof(*map->list))
			return false;
		map->list = (const struct qnix_descriptor *)region;
	}
	return true;
}

/*
 * Makes @map->room more than 0. Returns NCP_BAD_FROM if no descriptor is left or the next
 * one is invalid; the caller knows which side @map belongs to.
 */
static enum ncp_moved next_piece(struct ncp *ncp, struct ncp_map *map)
{
	while (!map->room) {
		if (!map->list || !map->count)
			return NCP_BAD_FROM;
		if (!ncp->work)
			return NCP_PAUSED;
		ncp->work--;
		/* Read each field once: the process may write to it at any time. */
		map->handle = READ_ONCE(map->list->handle);
		map->room = READ_ONCE(map->list->len);
		map->offset = READ_ONCE(map->list->offset);
		if (!map->handle || map->offset + map->room < map->offset) {
			map->room = 0;
			map->count = 0;
			return NCP_BAD_FROM;
		}
		map->list++;
		map->count--;
	}
	return NCP_MOVED;
}

static void advance(struct ncp_map *map, u32 n)
{
	if (map->list)
		map->offset += n;
	else
		map->memory += n;
	map->room -= n;
}

/*
 * The host's copy failed, which may be either side's fault: copying through a buffer of the
 * NIC shows whose.
 */
static enum ncp_moved bounce(struct ncp *ncp, struct ncp_process *to,
			     const struct ncp_map *t, struct ncp_process *from,
			     const struct ncp_map *f, u32 n, u32 *moved)
{
	u32 done, part;

	for (done = 0; done < n; done += part) {
		part = min_t(u32, n - done, NCP_BOUNCE);
		if (ncp->ops->read(ncp->host, from->host, f->handle, f->offset + done,
				   ncp->bounce, part))
			return NCP_BAD_FROM;
		if (ncp->ops->write(ncp->host, to->host, t->handle, t->offset + done,
				    ncp->bounce, part))
			return NCP_BAD_TO;
		*moved += part;
	}
	return NCP_MOVED;
}

static enum ncp_moved move_piece(struct ncp *ncp, struct ncp_process *to,
				 const struct ncp_map *t, struct ncp_process *from,
				 const struct ncp_map *f, u32 n, u32 *moved)
{
	if (!t->list && !f->list) {
		memcpy(t->memory, f->memory, n);
	} else if (!t->list) {
		if (ncp->ops->read(ncp->host, from->host, f->handle, f->offset, t->memory, n))
			return NCP_BAD_FROM;
	} else if (!f->list) {
		if (ncp->ops->write(ncp->host, to->host, t->handle, t->offset, f->memory, n))
			return NCP_BAD_TO;
	} else if (ncp->ops->copy(ncp->host, to->host, t->handle, t->offset,
				  from->host, f->handle, f->offset, n)) {
		return bounce(ncp, to, t, from, f, n, moved);
	}
	*moved += n;
	return NCP_MOVED;
}

/*
 * Moves @len bytes and advances both maps; @to or @from is NULL for memory of the NIC. Adds
 * to *@moved the bytes that were moved, also before a fault or the end of this step's work.
 */
enum ncp_moved ncp_move(struct ncp *ncp, struct ncp_process *to, struct ncp_map *to_map,
			struct ncp_process *from, struct ncp_map *from_map, u32 len,
			u32 *moved)
{
	enum ncp_moved result;
	u32 n;

	for (; len; len -= n) {
		result = next_piece(ncp, from_map);
		if (result != NCP_MOVED)
			return result;
		result = next_piece(ncp, to_map);
		if (result != NCP_MOVED)
			return result == NCP_PAUSED ? NCP_PAUSED : NCP_BAD_TO;
		if (!ncp->work)
			return NCP_PAUSED;
		n = min_t(u32, min_t(u32, len, NCP_PIECE), min_t(u32, from_map->room, to_map->room));
		ncp->work -= min_t(u32, ncp->work, 1 + n / 1024);
		result = move_piece(ncp, to, to_map, from, from_map, n, moved);
		if (result != NCP_MOVED)
			return result;
		advance(from_map, n);
		advance(to_map, n);
	}
	return NCP_MOVED;
}
