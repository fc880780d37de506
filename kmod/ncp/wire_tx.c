// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Sending: frames are a stream in a ring. No frame wraps, so that the host writes it in
 * place. Each frame is its length (4 bytes) and its bytes, padded with zeros to 8. If a
 * frame does not fit before the ring's end, WIRE_SKIP and the number of skipped bytes stand
 * there, and the frame begins at the start.
 */
#include "wire_internal.h"

void *wire_reserve(struct wire *w, uint16_t nic, uint32_t size)
{
	struct wire_link *l = wire_find(w, nic);
	uint64_t at, end;
	struct wire_tx *tx;

	if (!l || !wire_is_open(l) || w->leaving || !size || size > w->config.frame)
		return NULL;
	tx = &l->tx;
	at = tx->head;
	end = (at & ~(tx->size - 1)) + tx->size;
	if (at + wire_record(size) > end)
		at = end;
	if (at + wire_record(size) > tx->tail + tx->size)
		return NULL;
	tx->reserved = at;
	tx->room = size;
	return tx->ring + (at & (tx->size - 1)) + 4;
}

void wire_commit(struct wire *w, uint64_t now, uint16_t nic, uint32_t size)
{
	struct wire_link *l = wire_find(w, nic);
	struct wire_tx *tx;
	uint8_t *p;

	if (!l || !wire_is_open(l) || l->tx.reserved == WIRE_NEVER || size > l->tx.room)
		return;
	tx = &l->tx;
	now = wire_now(w, now);
	if (size) {
		if (tx->reserved != tx->head) {
			p = tx->ring + (tx->head & (tx->size - 1));
			put32(p, WIRE_SKIP);
			put32(p + 4, (uint32_t)(tx->reserved - tx->head));
			tx->skip_from = tx->head + 8;
			tx->skip_to = tx->reserved;
		}
		p = tx->ring + (tx->reserved & (tx->size - 1));
		put32(p, size);
		memset(p + 4 + size, 0, wire_record(size) - 4 - size);
		tx->head = tx->reserved + wire_record(size);
		w->counters.frames_out++;
		if (tx->probe_at == WIRE_NEVER)
			wire_arm_probe(w, l, now);
		wire_arm(w, l);
		wire_work(w, l);
	}
	tx->reserved = WIRE_NEVER;
}

static uint32_t fragment_most(const struct wire_link *l)
{
	return (l->session.limits.datagram - WIRE_LEAST - 8 * WIRE_SPARE) & ~7u;
}

/* Returns the size of the next fragment without regard to the window. */
static uint32_t next_size(const struct wire_link *l)
{
	const struct wire_tx *tx = &l->tx;
	uint64_t n, position = tx->position;

	if (position == tx->skip_from && position != tx->head)
		position = tx->skip_to;
	n = tx->size - (position & (tx->size - 1));
	n = wire_least(n, tx->head - position);
	if (position < tx->skip_from)
		n = wire_least(n, tx->skip_from - position);
	if (tx->next - tx->first == WIRE_FRAGMENTS || tx->credit <= position)
		return 0;
	n = wire_least(n, tx->credit - position);
	return (uint32_t)wire_least(n, fragment_most(l));
}

static uint64_t cut(struct wire_link *l, uint32_t size)
{
	struct wire_tx *tx = &l->tx;
	struct wire_fragment *f = &tx->fragments[tx->next % WIRE_FRAGMENTS];

	if (tx->position == tx->skip_from)
		tx->position = tx->skip_to;
	f->position = tx->position;
	f->size = size;
	f->again = false;
	tx->position += size;
	return tx->next++;
}

static uint64_t first_lost(const struct wire_tx *tx)
{
	uint64_t s = tx->first;

	while (tx->fragments[s % WIRE_FRAGMENTS].state != FRAGMENT_LOST)
		s++;
	return s;
}

/* Returns whether there is more to send, even if something holds it back. */
bool wire_wants(const struct wire_link *l)
{
	return l->tx.lost || l->tx.position != l->tx.head;
}

bool wire_blocked(const struct wire_link *l)
{
	return wire_wants(l) && (l->tx.flight >= l->congestion.window ||
				 (!l->tx.lost && !next_size(l)));
}

bool wire_pick(struct wire *w, struct wire_link *l, uint64_t *sequence)
{
	struct wire_tx *tx = &l->tx;
	uint32_t size = 0;

	if (!tx->lost) {
		size = next_size(l);
		if (!size)
			return false;
	}
	if (tx->flight >= l->congestion.window && !tx->probes) {
		l->congestion.limited = true;
		return false;
	}
	if (tx->probes)
		tx->probes--;
	if (!tx->lost) {
		*sequence = cut(l, size);
		return true;
	}
	*sequence = first_lost(tx);
	tx->lost--;
	w->counters.retransmitted++;
	return true;
}
