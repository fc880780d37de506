// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Receiving: fragments go to their place in a ring, from which the host reads whole frames
 * in place. The peer's credit is the position up to which it may write.
 */
#include "wire_internal.h"

/*
 * Returns whether a datagram with that number arrives for the first time (after RFC 6479),
 * and records it.
 */
bool wire_fresh(struct wire_rx *rx, uint64_t number)
{
	const uint64_t words = WIRE_REPLAY / 64;
	uint64_t word = number / 64, newest = rx->newest / 64, bit, i;

	if (!number)
		return false;
	if (number > rx->newest) {
		for (i = 0; i < words && newest + i < word; i++)
			rx->replay[(newest + i + 1) % words] = 0;
		rx->newest = number;
	} else if (newest - word >= words) {
		return false;
	}
	bit = 1ull << (number % 64);
	if (rx->replay[word % words] & bit)
		return false;
	rx->replay[word % words] |= bit;
	return true;
}

static bool arrived(const struct wire_rx *rx, uint64_t s)
{
	return s < rx->next || (rx->bits[s / 64 % WIRE_WORDS] >> (s % 64) & 1);
}

/*
 * Advances over all fragments without a gap. Returns false if the pieces contradict each
 * other.
 */
static bool advance(struct wire_rx *rx)
{
	struct wire_arrival *a;

	while (rx->next < rx->beyond && arrived(rx, rx->next)) {
		a = &rx->arrivals[rx->next % WIRE_FRAGMENTS];
		if (a->position < rx->end)
			return false;
		rx->end = a->position + a->size;
		rx->bits[rx->next / 64 % WIRE_WORDS] &= ~(1ull << (rx->next % 64));
		rx->next++;
	}
	return true;
}

static void acknowledge(struct wire_rx *rx, uint64_t now)
{
	if (++rx->unacked >= 2 || rx->beyond > rx->next)
		rx->ack_at = now;
	else
		rx->ack_at = wire_least(rx->ack_at, now + WIRE_ACK_DELAY);
}

void wire_fragment_input(struct wire *w, struct wire_link *l, uint64_t now,
			 uint64_t sequence, uint32_t low, const uint8_t *p, uint32_t size)
{
	struct wire_rx *rx = &l->rx;
	const uint64_t ring = w->config.buffer;
	struct wire_arrival *a = &rx->arrivals[sequence % WIRE_FRAGMENTS];
	uint64_t position, at;

	if (size % 8) {
		w->counters.malformed++;
		return;
	}
	if (sequence < rx->next + WIRE_FRAGMENTS && arrived(rx, sequence)) {
		w->counters.duplicates++;
		rx->duplicates++;
		rx->ack_at = now;
		return;
	}
	position = rx->end + (uint32_t)(low - (uint32_t)rx->end);
	at = position & (ring - 1);
	if (sequence >= rx->next + WIRE_FRAGMENTS ||
	    position + size > rx->read + ring || at + size > ring) {
		w->counters.overrun++;
		return;
	}
	memcpy(rx->ring + at, p, size);
	a->position = position;
	a->size = size;
	rx->bits[sequence / 64 % WIRE_WORDS] |= 1ull << (sequence % 64);
	rx->beyond = wire_most(rx->beyond, sequence + 1);
	if (!advance(rx)) {
		wire_down(w, l, now, WIRE_NONSENSE);
		return;
	}
	acknowledge(rx, now);
	wire_ready(w, l);
}

/* Skips the bytes that the peer left out at the end of its ring. */
static bool skip(const struct wire *w, struct wire_rx *rx)
{
	const uint64_t ring = w->config.buffer, at = rx->read & (ring - 1);
	const uint8_t *p = rx->ring + at;
	uint64_t there = rx->end - rx->read, n = get32(p + 4);

	if (n < 8 || n % 8 || n > ring - at || (n > there && there > 8))
		return false;
	rx->read += n <= there ? n : 0;
	return true;
}

/*
 * Returns whether the next frame is complete, and its @size. An invalid frame ends the
 * link.
 */
bool wire_frame_ready(struct wire *w, struct wire_link *l, uint64_t now, uint32_t *size)
{
	const uint64_t ring = w->config.buffer;
	struct wire_rx *rx = &l->rx;
	uint64_t at, before;

	do {
		if (rx->end - rx->read < 8)
			return false;
		at = rx->read & (ring - 1);
		*size = get32(rx->ring + at);
		if (*size != WIRE_SKIP)
			break;
		before = rx->read;
		if (!skip(w, rx))
			goto invalid;
	} while (rx->read != before);
	if (*size == WIRE_SKIP)
		return false;	/* nothing after it has arrived */
	if (!*size || *size > w->config.frame || at + wire_record(*size) > ring)
		goto invalid;
	return wire_record(*size) <= rx->end - rx->read;
invalid:
	wire_down(w, l, now, WIRE_NONSENSE);
	return false;
}

const void *wire_peek(struct wire *w, uint64_t now, uint16_t *nic, uint32_t *size)
{
	struct wire_link *l;

	now = wire_now(w, now);
	while (!w->peeked && w->ready.first) {
		l = w->ready.first;
		wire_unready(w, l);
		if (wire_is_open(l) && wire_frame_ready(w, l, now, size))
			w->peeked = l;
	}
	l = w->peeked;
	if (!l || !wire_is_open(l))
		return NULL;
	*nic = l->nic;
	*size = get32(l->rx.ring + (l->rx.read & (w->config.buffer - 1)));
	return l->rx.ring + (l->rx.read & (w->config.buffer - 1)) + 4;
}

void wire_consume(struct wire *w, uint64_t now)
{
	struct wire_link *l = w->peeked;
	struct wire_rx *rx;

	w->peeked = NULL;
	if (!l || !wire_is_open(l))
		return;
	now = wire_now(w, now);
	rx = &l->rx;
	rx->read += wire_record(get32(rx->ring + (rx->read & (w->config.buffer - 1))));
	w->counters.frames_in++;
	wire_ready(w, l);	/* goes behind the others */
	if (rx->read + w->config.buffer - rx->granted >= w->config.buffer / 4) {
		rx->ack_at = now;	/* the peer may be waiting for room */
		wire_work(w, l);
	}
}
