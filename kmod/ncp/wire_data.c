// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Datagrams of a session: parsing and building their headers. */
#include "wire_internal.h"

#define AT_NUMBER	24	/* offsets of fields of the header */
#define AT_ACK		32
#define AT_CREDIT	40
#define AT_STAMP	48
#define AT_ECHO		52
#define AT_SEQUENCE	56
#define AT_POSITION	64
#define AT_DELAY	68
#define AT_DUPLICATES	70

/*
 * Units of time stamps and delays. Stamps repeat after 73 minutes; the dead time ends a
 * silence long before.
 */
#define STAMP_SHIFT	10

static uint32_t stamp(uint64_t now)
{
	uint32_t s = (uint32_t)(now >> STAMP_SHIFT);

	return s ? s : 1;	/* 0: none */
}

/* ---- Input ---- */

/* Evaluates the stamps of the newest datagram; older ones have no new information. */
static void times(struct wire_link *l, uint64_t now, const uint8_t *p)
{
	uint32_t echo = get32(p + AT_ECHO), passed, delay = get16(p + AT_DELAY);

	l->rx.stamp = get32(p + AT_STAMP);
	l->rx.came_at = now;
	if (!echo || delay == 0xffffu)
		return;
	passed = stamp(now) - echo;
	if (passed > 0xffffffffu / 2)
		return;
	passed = passed > delay ? passed - delay : 0;
	wire_congestion_rtt(&l->congestion, ((uint64_t)passed + 1) << STAMP_SHIFT, now);
}

static void credit(struct wire_link *l, uint64_t granted)
{
	/* The credit is bounded by the ring, counted from the acknowledged position. */
	if (granted > l->tx.credit &&
	    granted <= l->tx.position + l->session.limits.buffer)
		l->tx.credit = granted;
}

/* Returns false if the datagram belongs to no valid session. */
static bool of_session(struct wire *w, struct wire_link *l, uint64_t now,
		       uint64_t his, uint64_t mine)
{
	if (!mine || !his)
		return false;
	if (mine == l->session.mine && his == l->session.his)
		return true;
	if (mine != l->next.mine || his != l->next.his || now - l->next_at > WIRE_LIFE)
		return false;
	if (wire_is_up(l))
		wire_down(w, l, now, WIRE_RESTARTED);
	/* The peer repeats it after the host knows that the old link is gone. */
	return !l->report_down && wire_open(w, l, now, &l->next);
}

/* Returns whether the parts and fields of the datagram are valid. */
static bool sensible(const struct wire_link *l, const uint8_t *p, uint32_t size)
{
	uint32_t head = WIRE_HEADER + 8 * p[7];

	return !(p[6] & ~WIRE_ASKS) && p[7] <= WIRE_WORDS && head <= size &&
	       get64(p + AT_ACK) <= l->tx.next && get64(p + AT_NUMBER);
}

void wire_data_input(struct wire *w, struct wire_link *l, uint64_t now,
		     const struct wire_address *from, const uint8_t *p, uint32_t size)
{
	uint32_t head = WIRE_HEADER + 8 * p[7];
	bool newest;

	if (!of_session(w, l, now, get64(p + 8), get64(p + 16))) {
		if (l->report_down)
			w->counters.stale++;
		else
			wire_handshake_stale(w, l, now, from);
		return;
	}
	if (!sensible(l, p, size)) {
		w->counters.malformed++;
		return;
	}
	newest = get64(p + AT_NUMBER) > l->rx.newest;
	if (!wire_fresh(&l->rx, get64(p + AT_NUMBER))) {
		w->counters.replayed++;
		return;
	}
	l->received_at = wire_most(l->received_at, now);
	if (p[1] == WIRE_CLOSE) {
		wire_down(w, l, now, WIRE_CLOSED);
		return;
	}
	if (newest)
		times(l, now, p);
	credit(l, get64(p + AT_CREDIT));
	wire_acked(w, l, now, p + WIRE_HEADER, p[7], get64(p + AT_ACK),
		   get16(p + AT_DUPLICATES));
	if (p[6] & WIRE_ASKS)
		l->rx.ack_at = now;
	if (size > head)
		wire_fragment_input(w, l, now, get64(p + AT_SEQUENCE),
				    get32(p + AT_POSITION), p + head, size - head);
	wire_arm(w, l);
	wire_work(w, l);
}

/* ---- Output ---- */

/* Writes the bitmap, as far as needed and at most @most words. Returns the number of words. */
static uint8_t bitmap(const struct wire_rx *rx, uint8_t *p, uint32_t most)
{
	uint64_t after = rx->next + 1, word, s;
	uint8_t n = 0;
	int bit;

	for (; n < most && after < rx->beyond; n++) {
		word = 0;
		for (bit = 0; bit < 64; bit++) {
			s = after + bit;
			if (s < rx->beyond &&
			    rx->bits[s / 64 % WIRE_WORDS] >> (s % 64) & 1)
				word |= 1ull << bit;
		}
		put64(p + 8 * n, word);
		after += 64;
	}
	return n;
}

/* Writes a header and the bitmap. Returns their size. */
static uint32_t header(struct wire *w, struct wire_link *l, uint64_t now, uint8_t type,
		       uint32_t words, uint8_t *p)
{
	struct wire_rx *rx = &l->rx;
	uint64_t delay = rx->stamp ? (now - rx->came_at) >> STAMP_SHIFT : 0;

	wire_begin(p, type, w->config.nic, l->nic, l->session.mine, l->session.his);
	p[7] = bitmap(rx, p + WIRE_HEADER, words);
	put64(p + AT_NUMBER, ++l->tx.number);
	put64(p + AT_ACK, rx->next);
	rx->granted = rx->read + w->config.buffer;
	put64(p + AT_CREDIT, rx->granted);
	put32(p + AT_STAMP, stamp(now));
	put32(p + AT_ECHO, rx->stamp);
	put16(p + AT_DELAY, delay < 0xffffu ? (uint16_t)delay : 0xffffu);
	put16(p + AT_DUPLICATES, rx->duplicates);
	put64(p + AT_SEQUENCE, l->tx.next);
	rx->unacked = 0;
	rx->ack_at = WIRE_NEVER;
	l->sent_at = now;
	return WIRE_HEADER + 8 * p[7];
}

static uint32_t fragment(struct wire *w, struct wire_link *l, uint64_t now,
			 uint64_t sequence, uint8_t *p)
{
	struct wire_tx *tx = &l->tx;
	struct wire_fragment *f = &tx->fragments[sequence % WIRE_FRAGMENTS];
	uint32_t at, room = l->session.limits.datagram - WIRE_LEAST - f->size;

	at = header(w, l, now, WIRE_DATA, room / 8 < WIRE_WORDS ? room / 8 : WIRE_WORDS, p);
	put64(p + AT_SEQUENCE, sequence);
	put32(p + AT_POSITION, (uint32_t)f->position);
	memcpy(p + at, tx->ring + (f->position & (tx->size - 1)), f->size);
	if (wire_sent(w, l, now, f))
		p[6] |= WIRE_ASKS;
	return at + f->size;
}

static bool keepalive_due(const struct wire *w, const struct wire_link *l, uint64_t now)
{
	return now >= l->sent_at + w->config.dead_ns / 8;
}

uint32_t wire_data_output(struct wire *w, struct wire_link *l, uint64_t now, uint8_t *p)
{
	uint64_t sequence;
	uint32_t size;

	if (wire_pick(w, l, &sequence)) {
		size = fragment(w, l, now, sequence, p);
	} else if (l->tx.ask) {
		size = header(w, l, now, WIRE_DATA, WIRE_WORDS, p);
		p[6] |= WIRE_ASKS;
	} else if (l->rx.ack_at <= now || keepalive_due(w, l, now)) {
		size = header(w, l, now, WIRE_DATA, WIRE_WORDS, p);
	} else {
		return 0;
	}
	l->tx.ask = false;
	wire_arm(w, l);
	return wire_seal(w->config.key, p, size);
}

uint32_t wire_close_output(struct wire *w, struct wire_link *l, uint64_t now, uint8_t *p)
{
	uint32_t size = header(w, l, now, WIRE_CLOSE, 0, p);

	if (!--l->closing)
		l->session.mine = 0;
	return wire_seal(w->config.key, p, size);
}

/* ---- Time ---- */

/* Computes when the link's next timer is due. */
void wire_arm(struct wire *w, struct wire_link *l)
{
	uint64_t at = wire_handshake_timer(w, l);

	if (wire_is_up(l)) {
		at = wire_least(at, l->received_at + w->config.dead_ns);
		at = wire_least(at, l->sent_at + w->config.dead_ns / 8);
		at = wire_least(at, l->rx.ack_at);
		at = wire_least(at, l->tx.lost_at);
		at = wire_least(at, l->tx.probe_at);
	}
	l->deadline = at;
	w->deadline = wire_least(w->deadline, at);
}

void wire_data_tick(struct wire *w, struct wire_link *l, uint64_t now)
{
	if (now >= l->received_at + w->config.dead_ns) {
		wire_down(w, l, now, WIRE_SILENT);
		return;
	}
	if (l->tx.lost_at <= now)
		wire_find_lost(l, now);
	if (l->tx.probe_at <= now)
		wire_probe(w, l, now);
	wire_arm(w, l);
}
