// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Handshake that makes a session of two NICs. The lower number begins, so that there are
 * never two sessions:
 *
 *	lower				higher
 *	   <-------------- CONNECT_REQUEST	say hello
 *	HELLO, a ----------------------->	nothing is remembered
 *	   <--------------------- WELCOME a, b	b = PRF(secret, a)
 *	CONFIRM a, b ------------------->	up: the lower one is there, now
 *	   <------------------------ DATA a, b
 *	up: so is the higher one
 *
 * Each answer is as long as the datagram that it answers. The secret changes with every
 * session, and the incarnations in hellos change all the time, so that replayed datagrams
 * open no session. Nor do they end one, because WELCOME names the present session of the
 * higher NIC: if the lower NIC has the same session, nothing happens.
 */
#include "wire_internal.h"

#define AT_CURRENT	24	/* offsets of fields of handshake messages */
#define AT_BUFFER	32
#define AT_FRAME	36
#define AT_DATAGRAM	40

#define HANDSHAKE_FIRST	20	/* ms between handshake messages, at first */
#define HANDSHAKE_LAST	1000
#define ATTEMPT_AGE	(250 * WIRE_MS)	/* of an incarnation, after which hellos have another */
#define NEXT_AGE	(1000 * WIRE_MS) /* of a welcome, after which another one counts */

static uint64_t welcome_for(const struct wire_link *l, uint64_t his)
{
	uint8_t bytes[8], tag[16];
	uint64_t mine;

	put64(bytes, his);
	wire_siphash(l->secret, bytes, sizeof(bytes), tag);
	mine = get64(tag);
	return mine ? mine : 1;
}

/* Returns the incarnation for the lower NIC's next hello. */
static uint64_t attempt(struct wire *w, struct wire_link *l, uint64_t now)
{
	if (!l->attempts[0] || now - l->attempt_at >= ATTEMPT_AGE) {
		l->attempts[1] = l->attempts[0];
		l->attempts[0] = wire_random(w);
		l->attempt_at = now;
	}
	return l->attempts[0];
}

static uint32_t handshake(const struct wire *w, uint8_t *p, uint8_t type, uint16_t nic,
			 uint64_t mine, uint64_t his, uint64_t current)
{
	wire_begin(p, type, w->config.nic, nic, mine, his);
	put64(p + AT_CURRENT, current);
	put32(p + AT_BUFFER, w->config.buffer);
	put32(p + AT_FRAME, w->config.frame);
	put32(p + AT_DATAGRAM, w->config.datagram);
	return wire_seal(w->config.key, p, WIRE_HEADER);
}

/* ---- Answers: one for each datagram at most, and no longer ---- */

static void reply(struct wire *w, const struct wire_address *to, uint8_t type,
		  const struct wire_link *l, uint64_t mine, uint64_t his)
{
	struct wire_reply *r = &w->replies[w->reply_head % WIRE_REPLIES];

	if (w->reply_head - w->reply_tail == WIRE_REPLIES) {
		w->counters.unanswered++;
		return;
	}
	w->reply_head++;
	r->to = *to;
	r->type = type;
	r->nic = l->nic;
	r->mine = mine;
	r->his = his;
	r->current = type == WIRE_WELCOME ? l->session.mine : 0;
}

uint32_t wire_reply_output(struct wire *w, struct wire_address *to, uint8_t *p)
{
	struct wire_reply *r = &w->replies[w->reply_tail % WIRE_REPLIES];

	if (w->reply_head == w->reply_tail)
		return 0;
	w->reply_tail++;
	*to = r->to;
	return handshake(w, p, r->type, r->nic, r->mine, r->his, r->current);
}

void wire_handshake_stale(struct wire *w, struct wire_link *l, uint64_t now,
		      const struct wire_address *from)
{
	w->counters.stale++;
	if (wire_lower(w, l))
		reply(w, from, WIRE_HELLO, l, attempt(w, l, now), 0);
	else
		reply(w, from, WIRE_CONNECT_REQUEST, l, 0, 0);
}

/* ---- Input ---- */

/* Reads the peer's limits. Returns false if they do not fit this NIC's. */
static bool limits(struct wire *w, const uint8_t *p, struct wire_limits *to)
{
	to->buffer = get32(p + AT_BUFFER);
	to->datagram = get32(p + AT_DATAGRAM);
	if (get32(p + AT_FRAME) != w->config.frame) {
		w->counters.wrong_limits++;
		return false;
	}
	if ((to->buffer & (to->buffer - 1)) || to->buffer > 1u << 30 ||
	    to->buffer / 4 < w->config.frame ||
	    to->datagram < WIRE_MIN_DATAGRAM || to->datagram > WIRE_MAX_DATAGRAM) {
		w->counters.malformed++;
		return false;
	}
	return true;
}

static void welcomed(struct wire *w, struct wire_link *l, uint64_t now,
		     const struct wire_address *from, const uint8_t *p)
{
	struct wire_session s = {
		.mine = get64(p + 16),
		.his = get64(p + 8),
		.address = *from,
	};

	if (!s.mine || !s.his || now - l->attempt_at > WIRE_LIFE ||
	    (s.mine != l->attempts[0] && s.mine != l->attempts[1])) {
		w->counters.stale++;
		return;
	}
	if (wire_is_up(l) && get64(p + AT_CURRENT) == l->session.his)
		return;
	if (!limits(w, p, &s.limits))
		return;
	/* An earlier welcome may have been confirmed, and the peer's data may be under way. */
	if (!l->next.mine || now - l->next_at >= NEXT_AGE || l->next.mine == s.mine) {
		l->next = s;
		l->next_at = now;
	}
	reply(w, from, WIRE_CONFIRM, l, l->next.mine, l->next.his);
}

static void confirmed(struct wire *w, struct wire_link *l, uint64_t now,
		      const struct wire_address *from, const uint8_t *p)
{
	struct wire_session s = {
		.mine = get64(p + 16),
		.his = get64(p + 8),
		.address = *from,
	};

	if (!s.mine || !s.his || !limits(w, p, &s.limits))
		return;
	if (s.mine == l->session.mine && s.his == l->session.his) {
		l->rx.ack_at = now;	/* the first datagram of this side was lost */
		wire_work(w, l);
	} else if (s.mine != welcome_for(l, s.his)) {
		w->counters.stale++;	/* an answer would cause another one, without end */
	} else if (wire_is_up(l)) {
		wire_down(w, l, now, WIRE_RESTARTED);
	} else if (!l->report_down && wire_open(w, l, now, &s)) {
		l->rx.ack_at = now;
		wire_work(w, l);
	}
	/* No session begins until the host knows of the old link's end: handshake messages go on. */
}

void wire_handshake_input(struct wire *w, struct wire_link *l, uint64_t now,
		      const struct wire_address *from, const uint8_t *p)
{
	struct wire_limits theirs;
	uint64_t his = get64(p + 8);
	bool lower = wire_lower(w, l);

	switch (p[1]) {
	case WIRE_HELLO:
		if (lower || !his)
			break;
		if (limits(w, p, &theirs))
			reply(w, from, WIRE_WELCOME, l, welcome_for(l, his), his);
		return;
	case WIRE_CONNECT_REQUEST:
		if (!lower)
			break;
		reply(w, from, WIRE_HELLO, l, attempt(w, l, now), 0);
		return;
	case WIRE_WELCOME:
		if (!lower)
			break;
		welcomed(w, l, now, from, p);
		return;
	case WIRE_CONFIRM:
		if (lower)
			break;
		confirmed(w, l, now, from, p);
		return;
	}
	w->counters.malformed++;
}

/* ---- Output, when it is time ---- */

static bool handshaking(const struct wire_link *l)
{
	return !wire_is_up(l) && l->until && l->until >= l->handshake_at;
}

uint64_t wire_handshake_timer(const struct wire *w, const struct wire_link *l)
{
	uint64_t at = WIRE_NEVER;

	if (handshaking(l))
		at = l->handshake_at;
	if (!wire_is_up(l))	/* to be removed then */
		at = wire_least(at, wire_most(l->until, l->since + w->config.dead_ns) + 1);
	return at;
}

uint32_t wire_handshake_output(struct wire *w, struct wire_link *l, uint64_t now,
			   struct wire_address *to, uint8_t *p)
{
	if (!handshaking(l) || l->handshake_at > now)
		return 0;
	l->pause = l->pause ? l->pause * 2 : HANDSHAKE_FIRST;
	if (l->pause > HANDSHAKE_LAST)
		l->pause = HANDSHAKE_LAST;
	l->handshake_at = now + l->pause * WIRE_MS;
	*to = l->known;
	if (wire_lower(w, l))
		return handshake(w, p, WIRE_HELLO, l->nic, attempt(w, l, now), 0, 0);
	return handshake(w, p, WIRE_CONNECT_REQUEST, l->nic, 0, 0, 0);
}
