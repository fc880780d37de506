// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Detection of losses. A fragment counts as lost when a datagram that was sent later has
 * arrived, and a round trip and a quarter of the least one have passed since it was sent
 * (RACK, RFC 8985). If no acknowledgement arrives at all, one fragment is sent again,
 * whatever the window allows, and then, at growing intervals, all.
 */
#include "wire_internal.h"

#define PROBE_FIRST	(100 * WIRE_MS)	/* while no round trip is known */
#define PATIENCE_MOST	16	/* quarters of the least round trip */
#define NO_DUPLICATES	16	/* round trips without duplicates, after which it is shortened */
#define BACKOFF_MOST	10
#define BACKOFF_ALL	3	/* from here on everything counts as lost */

/* Returns the cost of a fragment in the window, which includes the datagram's header. */
static uint32_t cost(const struct wire_fragment *f)
{
	return f->size + WIRE_LEAST;
}

static struct wire_fragment *at(const struct wire_tx *tx, uint64_t sequence)
{
	return &tx->fragments[sequence % WIRE_FRAGMENTS];
}

static void lose(struct wire_link *l, struct wire_fragment *f)
{
	f->state = FRAGMENT_LOST;
	l->tx.flight -= cost(f);
	l->tx.lost++;
	l->congestion.lost++;
}

/* ---- Acknowledgements ---- */

static void arrive(struct wire_link *l, uint64_t now, uint64_t sequence)
{
	struct wire_tx *tx = &l->tx;
	struct wire_fragment *f = at(tx, sequence);

	if (f->state == FRAGMENT_ACKED)
		return;
	if (f->state == FRAGMENT_SENT)
		tx->flight -= cost(f);
	else
		tx->lost--;
	f->state = FRAGMENT_ACKED;
	l->congestion.arrived++;
	tx->highest = wire_most(tx->highest, sequence + 1);
	tx->backoff = 0;
	/* An acknowledgement this soon after the repetition is for the first transmission. */
	if (f->again && now - f->sent < l->congestion.least)
		return;
	if (f->sent > tx->newest_sent ||
	    (f->sent == tx->newest_sent && sequence > tx->newest)) {
		tx->newest_sent = f->sent;
		tx->newest_rtt = now - f->sent;
		tx->newest = sequence;
	}
}

/* Needless repetitions show that datagrams overtake each other. */
static void patience(struct wire_link *l, uint16_t duplicates)
{
	struct wire_tx *tx = &l->tx;
	uint16_t more = (uint16_t)(duplicates - tx->duplicates);

	if (!more || more > 0x7fff)
		return;
	tx->duplicates = duplicates;
	tx->no_duplicates = 0;
	if (tx->patience < PATIENCE_MOST && !tx->impatient)
		tx->patience++;
	tx->impatient = true;
}

static void end_round(struct wire_link *l, uint64_t now)
{
	struct wire_tx *tx = &l->tx;

	if (now < l->congestion.round_at + l->congestion.srtt)
		return;
	wire_congestion_round(&l->congestion, l->session.limits.datagram, now);
	tx->impatient = false;
	if (++tx->no_duplicates < NO_DUPLICATES)
		return;
	tx->no_duplicates = 0;
	if (tx->patience > 1)
		tx->patience--;
}

void wire_acked(struct wire *w, struct wire_link *l, uint64_t now, const uint8_t *bits,
		uint32_t words, uint64_t ack, uint16_t duplicates)
{
	struct wire_tx *tx = &l->tx;
	uint32_t before = l->congestion.arrived, i;
	uint64_t s;

	if (ack < tx->first)
		return;		/* of an older datagram */
	for (; tx->first < ack; tx->first++)
		arrive(l, now, tx->first);
	for (i = 0; i < 64 * words && ack + 1 + i < tx->next; i++) {
		s = ack + 1 + i;
		if (get64(bits + i / 64 * 8) >> (i % 64) & 1)
			arrive(l, now, s);
	}
	tx->tail = tx->first < tx->next ? at(tx, tx->first)->position : tx->position;
	patience(l, duplicates);
	wire_find_lost(l, now);
	if (l->congestion.arrived == before)
		return;
	end_round(l, now);
	wire_arm_probe(w, l, now);
}

/* ---- Losses ---- */

static uint64_t reordering(const struct wire_link *l)
{
	const struct wire_congestion *c = &l->congestion;

	return wire_least(c->least / 4 * l->tx.patience, 4 * c->srtt);
}

void wire_find_lost(struct wire_link *l, uint64_t now)
{
	struct wire_tx *tx = &l->tx;
	uint64_t s, due, wait = tx->newest_rtt + reordering(l);
	struct wire_fragment *f;

	tx->lost_at = WIRE_NEVER;
	for (s = tx->first; s < tx->highest; s++) {
		f = at(tx, s);
		if (f->state != FRAGMENT_SENT || f->sent > tx->newest_sent ||
		    (f->sent == tx->newest_sent && s > tx->newest))
			continue;
		due = f->sent + wait;
		if (due <= now)
			lose(l, f);
		else
			tx->lost_at = wire_least(tx->lost_at, due);
	}
}

bool wire_sent(struct wire *w, struct wire_link *l, uint64_t now, struct wire_fragment *f)
{
	f->again = f->state == FRAGMENT_LOST;
	f->state = FRAGMENT_SENT;
	f->sent = now;
	l->tx.flight += cost(f);
	wire_arm_probe(w, l, now);
	return f->again || wire_blocked(l);
}

/* ---- Silence ---- */

void wire_arm_probe(struct wire *w, struct wire_link *l, uint64_t now)
{
	const struct wire_congestion *c = &l->congestion;
	uint64_t wait = PROBE_FIRST, most = w->config.dead_ns / 16;

	if (l->tx.first == l->tx.next && !wire_wants(l)) {
		l->tx.probe_at = WIRE_NEVER;
		return;
	}
	if (c->srtt)
		wait = c->srtt + 4 * c->variance + WIRE_ACK_DELAY + WIRE_MS;
	most = wire_most(most, wait);
	l->tx.probe_at = now + wire_least(wait << l->tx.backoff, most);
}

void wire_probe(struct wire *w, struct wire_link *l, uint64_t now)
{
	struct wire_tx *tx = &l->tx;
	struct wire_fragment *f;
	bool one = false;
	uint64_t s;

	if (tx->backoff < BACKOFF_MOST)
		tx->backoff++;
	w->counters.timeouts++;
	for (s = tx->first; s < tx->next; s++) {
		f = at(tx, s);
		if (f->state != FRAGMENT_SENT || (one && tx->backoff < BACKOFF_ALL))
			continue;
		lose(l, f);
		one = true;
	}
	if (tx->backoff == BACKOFF_ALL)
		wire_congestion_collapse(&l->congestion, l->session.limits.datagram, now);
	if (tx->lost)
		tx->probes = 1;
	else
		tx->ask = true;		/* there is no credit */
	wire_arm_probe(w, l, now);
	wire_work(w, l);
}
