// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Puts system messages into the NIC output FIFO, or into a list while it has no room. No
 * message overtakes those in the list.
 */
#include "internal.h"

struct ncp_message {
	struct ncp_link link;
	u32 size;
	u8 frame[sizeof(struct ncp_frame) + NCP_MAX_PAYLOAD];
};

/* Returns room for a frame, or NULL if there is none in this step. */
static void *room(struct ncp *ncp, struct ncp_nic *nic, u32 size)
{
	void *at;

	if (nic->full && nic->looked == ncp->now)
		return NULL;
	at = ncp->ops->tx_reserve(ncp->host, nic->id, size);
	nic->full = !at;
	nic->looked = ncp->now;
	return at;
}

void *ncp_frame_reserve(struct ncp *ncp, struct ncp_nic *nic, u32 size)
{
	return ncp_empty(&nic->behind) ? room(ncp, nic, size) : NULL;
}

void ncp_output_free(struct ncp *ncp, struct ncp_nic *nic)
{
	while (!ncp_empty(&nic->behind)) {
		struct ncp_message *m = ncp_first(&nic->behind, struct ncp_message, link);

		ncp_unlink(&m->link);
		ncp_free(ncp, m, sizeof(*m));
	}
	nic->behind_count = 0;
	ncp_unlink(&nic->late);
}

/*
 * Returns whether so many messages wait for a NIC that processes must not cause more of
 * those that nothing else bounds. The rest is for what cannot be refused.
 */
bool ncp_crowded(const struct ncp *ncp)
{
	const struct ncp_link *l, *n;

	ncp_for_each(l, n, &ncp->late)
		if (ncp_entry(l, struct ncp_nic, late)->behind_count >= NCP_MAX_BEHIND / 2)
			return true;
	return false;
}

static void put_off(struct ncp *ncp, struct ncp_nic *nic, const void *frame, u32 size)
{
	struct ncp_message *m = NULL;

	if (nic->behind_count < NCP_MAX_BEHIND)
		m = ncp_alloc(ncp, sizeof(*m));
	if (!m) {
		/* A NIC that misses a message has a wrong view of this one: remove it. */
		nic->lost = true;
		if (ncp_empty(&nic->late))
			ncp_push(&ncp->late, &nic->late);
		return;
	}
	memcpy(m->frame, frame, size);
	m->size = size;
	ncp_push(&nic->behind, &m->link);
	nic->behind_count++;
	if (ncp_empty(&nic->late))
		ncp_push(&ncp->late, &nic->late);
}

static void header(const struct ncp *ncp, const struct ncp_nic *nic, u16 code, u32 len,
		   struct ncp_frame *f)
{
	memset(f, 0, sizeof(*f));
	f->header.destination_nic = cpu_to_be16(nic->id);
	f->header.source_nic = cpu_to_be16(ncp->id);
	f->header.tag = cpu_to_be16(code);
	f->header.length_low = cpu_to_be16((u16)len);
}

/* Sends a system message, whose payload ends at @end. */
void ncp_emit(struct ncp *ncp, struct ncp_nic *nic, u16 code, const u8 *payload, const u8 *end)
{
	u8 frame[sizeof(struct ncp_frame) + NCP_MAX_PAYLOAD];
	u32 len = (u32)(end - payload), size = sizeof(struct ncp_frame) + len;
	struct ncp_frame f;
	void *at;

	if (!nic || nic->gone || nic->lost)
		return;
	header(ncp, nic, code, len, &f);
	memcpy(frame, &f, sizeof(f));
	memcpy(frame + sizeof(f), payload, len);
	ncp->stat.system_messages++;
	at = ncp_frame_reserve(ncp, nic, size);
	if (!at) {
		put_off(ncp, nic, frame, size);
		return;
	}
	memcpy(at, frame, size);
	ncp->ops->tx_commit(ncp->host, nic->id, size);
}

/*
 * Sends a system message with @len bytes of the process @from behind its payload. Returns
 * false if that is not possible at once, or the bytes are not accessible.
 */
bool ncp_emit_with(struct ncp *ncp, struct ncp_nic *nic, u16 code, const u8 *payload,
		  const u8 *end, struct ncp_process *from, struct ncp_map *map, u32 len)
{
	u32 n = (u32)(end - payload), size = sizeof(struct ncp_frame) + n + len, moved = 0;
	struct ncp_frame *f;
	struct ncp_map to;

	if (nic->gone || nic->lost)
		return false;
	f = ncp_frame_reserve(ncp, nic, size);
	if (!f)
		return false;
	ncp_map_memory(&to, (u8 *)(f + 1) + n, len);
	if (ncp_move(ncp, NULL, &to, from, map, len, &moved) != NCP_MOVED) {
		ncp->ops->tx_commit(ncp->host, nic->id, 0);
		return false;
	}
	header(ncp, nic, code, n + len, f);
	memcpy(f + 1, payload, n);
	ncp->stat.system_messages++;
	ncp->ops->tx_commit(ncp->host, nic->id, size);
	return true;
}

static bool flush_nic(struct ncp *ncp, struct ncp_nic *nic)
{
	bool did = false;
	int i;

	for (i = 0; i < NCP_FLUSH && !ncp_empty(&nic->behind); i++) {
		struct ncp_message *m = ncp_first(&nic->behind, struct ncp_message, link);
		void *at = room(ncp, nic, m->size);

		if (!at)
			break;
		memcpy(at, m->frame, m->size);
		ncp->ops->tx_commit(ncp->host, nic->id, m->size);
		ncp_unlink(&m->link);
		ncp_free(ncp, m, sizeof(*m));
		nic->behind_count--;
		did = true;
	}
	if (ncp_empty(&nic->behind))
		ncp_unlink(&nic->late);
	return did;
}

/* Sends what has waited, as far as there is room. */
bool ncp_flush(struct ncp *ncp)
{
	struct ncp_link *l, *n;
	bool did = false;

	ncp_for_each(l, n, &ncp->late) {
		struct ncp_nic *nic = ncp_entry(l, struct ncp_nic, late);

		if (nic->lost) {
			u16 id = nic->id;

			/*
			 * The removal may add messages to the list: start again in the next
			 * step.
			 */
			ncp_nic_remove(ncp, nic);
			ncp->ops->nic_lost(ncp->host, id);
			return true;
		}
		did |= flush_nic(ncp, nic);
	}
	return did;
}
