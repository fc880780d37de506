// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Discovery of the NICs at an address: repeated questions, and answers without state. */
#include "wire_internal.h"

/* Layout of WHO and HERE: a count, and as many NICs as fit. */
#define WHO_SIZE	(WIRE_ANSWER - WIRE_TAG)
#define WHO_MOST	((WHO_SIZE - WIRE_COMMON - 2) / 2)

#define WHO_FIRST	100	/* ms until the question is first repeated */
#define WHO_LAST	5000	/* and later on */

static bool same(const struct wire_address *a, const struct wire_address *b)
{
	return !memcmp(a->bytes, b->bytes, sizeof(a->bytes));
}

int wire_add_address(struct wire *w, uint64_t now, const struct wire_address *a)
{
	struct wire_place *free = NULL, *p;
	uint32_t i;

	for (i = 0; i < w->config.addresses; i++) {
		p = &w->places[i];
		if (p->used && same(&p->address, a))
			return 0;
		if (!p->used && !free)
			free = p;
	}
	if (!free)
		return -1;
	memset(free, 0, sizeof(*free));
	free->used = true;
	free->address = *a;
	free->pause = WHO_FIRST;
	now = wire_now(w, now);
	free->ask_at = now;
	w->deadline = wire_least(w->deadline, now);
	return 0;
}

void wire_remove_address(struct wire *w, const struct wire_address *a)
{
	uint32_t i;

	for (i = 0; i < w->config.addresses; i++)
		if (w->places[i].used && same(&w->places[i].address, a))
			w->places[i].used = false;
	for (i = 0; i < w->count; i++)
		if (same(&w->links[i]->known, a))
			w->links[i]->until = 0;
}

uint64_t wire_discovery_timer(const struct wire *w)
{
	uint64_t at = WIRE_NEVER;
	uint32_t i;

	for (i = 0; i < w->config.addresses; i++)
		if (w->places[i].used)
			at = wire_least(at, w->places[i].ask_at);
	return at;
}

void wire_discovery_tick(struct wire *w, uint64_t now)
{
	struct wire_place *p;
	uint32_t i;

	for (i = 0; i < w->config.addresses; i++) {
		p = &w->places[i];
		if (!p->used || p->ask_at > now)
			continue;
		p->nonce = wire_random(w);
		p->after = 0;
		p->asking = true;
		p->ask_at = now + p->pause * WIRE_MS;
		p->pause = p->pause * 2 < WHO_LAST ? p->pause * 2 : WHO_LAST;
		w->asking = true;
	}
}

uint32_t wire_discovery_output(struct wire *w, struct wire_address *to, uint8_t *datagram)
{
	struct wire_place *p;
	uint32_t i;

	for (i = 0; w->asking && i < w->config.addresses; i++) {
		p = &w->places[i];
		if (!p->used || !p->asking)
			continue;
		p->asking = false;
		*to = p->address;
		memset(datagram, 0, WHO_SIZE);
		wire_begin(datagram, WIRE_WHO, w->config.nic, 0, p->nonce, 0);
		put16(datagram + WIRE_COMMON, p->after);
		return wire_seal(w->config.key, datagram, WHO_SIZE);
	}
	w->asking = false;
	return 0;
}

/* Sends handshake messages to each NIC at that address until nothing has come from there for long. */
static void learn(struct wire *w, uint64_t now, uint16_t nic,
		  const struct wire_address *at)
{
	struct wire_link *l;

	if (!nic || nic == w->config.nic)
		return;
	l = wire_link(w, now, nic);
	if (!l)
		return;
	if (l->until < now && !wire_is_up(l)) {
		l->handshake_at = now;
		l->pause = 0;
	}
	l->known = *at;
	l->until = now + 3 * WHO_LAST * WIRE_MS;
	wire_arm(w, l);
}

void wire_here_input(struct wire *w, uint64_t now, const uint8_t *p, uint32_t size)
{
	struct wire_place *place = NULL;
	uint32_t i, count;

	if (size != WHO_SIZE || get16(p + WIRE_COMMON) > WHO_MOST) {
		w->counters.malformed++;
		return;
	}
	for (i = 0; i < w->config.addresses && !place; i++)
		if (w->places[i].used && w->places[i].nonce == get64(p + 16))
			place = &w->places[i];
	if (!place) {
		w->counters.stale++;
		return;
	}
	count = get16(p + WIRE_COMMON);
	for (i = 0; i < count; i++)
		learn(w, now, get16(p + WIRE_COMMON + 2 + 2 * i),
		      &place->address);
	if (count < WHO_MOST)
		return;
	/* There may be more NICs. */
	place->after = get16(p + WIRE_COMMON + 2 * WHO_MOST);
	place->nonce = wire_random(w);
	place->asking = true;
	w->asking = true;
}

uint32_t wire_answer(const uint8_t key[WIRE_KEY], const uint16_t *nics, uint32_t count,
		     const void *question, uint32_t size, void *answer)
{
	const uint8_t *q = question;
	uint8_t *p = answer;
	uint32_t i, n = 0;

	if (size != WIRE_ANSWER || q[0] != WIRE_VERSION || q[1] != WIRE_WHO || get16(q + 4) ||
	    !wire_genuine(key, q, size))
		return 0;
	memset(p, 0, WHO_SIZE);
	wire_begin(p, WIRE_HERE, 0, get16(q + 2), 0, get64(q + 8));
	for (i = 0; i < count && n < WHO_MOST; i++)
		if (nics[i] > get16(q + WIRE_COMMON))
			put16(p + WIRE_COMMON + 2 + 2 * n++, nics[i]);
	put16(p + WIRE_COMMON, (uint16_t)n);
	return wire_seal(key, p, WHO_SIZE);
}
