// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The wire as a host sees it: made and freed, datagrams in and out, time, figures. */
#include "wire_internal.h"

#define LINKS		64
#define ADDRESSES	64
#define FRAME		(20 + 16384)	/* a struct ncp_frame and 16 KiB */
#define BUFFER		262144
#define BUFFER_MOST	(1u << 30)
#define DEAD		(5000 * WIRE_MS)
#define DEAD_LEAST	(10 * WIRE_MS)

/* ---- Life ---- */

/* Reports whether the buffer holds four of the longest frames. */
static bool holds(const struct wire_config *c)
{
	return c->buffer / 4 >= wire_record(c->frame);
}

static void defaults(struct wire_config *c)
{
	if (!c->links)
		c->links = LINKS;
	if (!c->addresses)
		c->addresses = ADDRESSES;
	if (!c->frame)
		c->frame = FRAME;
	if (!c->datagram)
		c->datagram = WIRE_ETHERNET;
	if (!c->buffer)
		for (c->buffer = BUFFER; c->buffer < BUFFER_MOST && !holds(c); c->buffer *= 2)
			;
	if (!c->dead_ns)
		c->dead_ns = DEAD;
}

static bool allowed(const struct wire_config *c)
{
	return c->nic && c->links <= 0xffffu && c->addresses <= 0xffffu &&
	       !(c->buffer & (c->buffer - 1)) && c->buffer <= BUFFER_MOST &&
	       c->buffer >= 4096 && holds(c) &&
	       c->datagram >= WIRE_MIN_DATAGRAM && c->datagram <= WIRE_MAX_DATAGRAM &&
	       c->dead_ns >= DEAD_LEAST && c->dead_ns <= 3600 * 1000 * WIRE_MS;
}

struct wire *wire_create(const struct wire_ops *ops, void *host,
			 const struct wire_config *config, uint64_t now)
{
	struct wire_config c = *config;
	struct wire *w;

	defaults(&c);
	if (!allowed(&c))
		return NULL;
	w = ops->alloc(host, sizeof(*w));
	if (!w)
		return NULL;
	w->ops = ops;
	w->host = host;
	w->config = c;
	w->deadline = WIRE_NEVER;
	w->ticked = now;
	w->buckets = 1;
	while (w->buckets < c.links)
		w->buckets *= 2;
	w->links = ops->alloc(host, c.links * sizeof(*w->links));
	w->table = ops->alloc(host, w->buckets * sizeof(*w->table));
	w->places = ops->alloc(host, c.addresses * sizeof(*w->places));
	if (w->links && w->table && w->places)
		return w;
	wire_destroy(w);
	return NULL;
}

static void release(struct wire *w, void *memory, size_t size)
{
	if (memory)
		w->ops->free(w->host, memory, size);
}

void wire_destroy(struct wire *w)
{
	while (w->count)
		wire_remove(w, w->links[w->count - 1]);
	release(w, w->places, w->config.addresses * sizeof(*w->places));
	release(w, w->table, w->buckets * sizeof(*w->table));
	release(w, w->links, w->config.links * sizeof(*w->links));
	memset(w->config.key, 0, sizeof(w->config.key));
	w->ops->free(w->host, w, sizeof(*w));
}

/* ---- Datagrams ---- */

/* Returns whether the datagram claims to belong to a session that stands or is being made. */
static bool known(const struct wire *w, const uint8_t *p)
{
	const struct wire_link *l = wire_find(w, get16(p + 2));
	uint64_t his = get64(p + 8), mine = get64(p + 16);

	return l && mine && ((mine == l->session.mine && his == l->session.his) ||
			     (mine == l->next.mine && his == l->next.his));
}

/*
 * Admits a few datagrams without a session, so that an end that was started again is
 * noticed.
 */
static bool may_be_unauthenticated(struct wire *w, uint64_t now)
{
	uint64_t from = wire_most(w->unauthenticated, now);

	if (from >= now + WIRE_MAX_UNAUTHENTICATED * WIRE_UNAUTHENTICATED)
		return false;
	w->unauthenticated = from + WIRE_UNAUTHENTICATED;
	return true;
}

/*
 * Returns whether the datagram is worth hashing: anyone can send datagrams, and the hash
 * costs time in proportion to their length. All types but data are short, and data are no
 * longer than this side's limit.
 */
static bool worth(struct wire *w, uint64_t now, const uint8_t *p, uint32_t size)
{
	if (size < WIRE_COMMON + WIRE_TAG || size > wire_most(w->config.datagram, WIRE_ANSWER))
		return false;
	if (p[0] != WIRE_VERSION || (p[1] != WIRE_DATA && p[1] != WIRE_CLOSE))
		return size <= WIRE_ANSWER;
	return known(w, p) || may_be_unauthenticated(w, now);
}

/* Checks the fields that all types share. Returns whether the datagram is for this NIC. */
static bool ours(struct wire *w, uint64_t now, const uint8_t *p, uint32_t size)
{
	if (!worth(w, now, p, size)) {
		w->counters.unauthenticated++;
		return false;
	}
	w->counters.hashed += size;
	if (!wire_genuine(w->config.key, p, size))
		w->counters.unauthenticated++;
	else if (p[0] != WIRE_VERSION)
		w->counters.wrong_version++;
	else if (get16(p + 4) != w->config.nic || get16(p + 2) == w->config.nic)
		w->counters.misdirected++;
	else
		return true;
	return false;
}

void wire_input(struct wire *w, uint64_t now, const struct wire_address *from,
		const void *datagram, uint32_t size)
{
	const uint8_t *p = datagram;
	struct wire_link *l;
	bool data;

	now = wire_now(w, now);
	w->counters.datagrams_in++;
	w->counters.bytes_in += size;
	if (w->leaving || !ours(w, now, p, size))
		return;
	size -= WIRE_TAG;
	if (p[1] == WIRE_HERE) {
		wire_here_input(w, now, p, size);
		return;
	}
	data = p[1] == WIRE_DATA || p[1] == WIRE_CLOSE;
	if (!get16(p + 2) || size < WIRE_HEADER || (!data && size != WIRE_HEADER)) {
		w->counters.malformed++;
		return;
	}
	l = wire_link(w, now, get16(p + 2));
	if (!l)
		return;
	if (data)
		wire_data_input(w, l, now, from, p, size);
	else
		wire_handshake_input(w, l, now, from, p);
}

static uint32_t link_output(struct wire *w, struct wire_link *l, uint64_t now,
			    struct wire_address *to, uint8_t *p)
{
	uint32_t size = 0;

	if (!w->leaving)
		size = wire_handshake_output(w, l, now, to, p);
	if (size) {
		wire_arm(w, l);
		return size;
	}
	if (!wire_is_up(l))
		return 0;
	*to = l->session.address;
	if (l->closing)
		return wire_close_output(w, l, now, p);
	return w->leaving ? 0 : wire_data_output(w, l, now, p);
}

static uint32_t output(struct wire *w, uint64_t now, struct wire_address *to, uint8_t *p)
{
	uint32_t size = wire_reply_output(w, to, p);
	struct wire_link *l;

	if (!size)
		size = wire_discovery_output(w, to, p);
	while (!size && w->work.first) {
		l = w->work.first;
		wire_rest(w, l);
		size = link_output(w, l, now, to, p);
		if (size)
			wire_work(w, l);	/* goes behind the others */
	}
	return size;
}

uint32_t wire_output(struct wire *w, uint64_t now, struct wire_address *to,
		     void *datagram, uint32_t room)
{
	uint32_t size;

	if (room < w->config.datagram)
		return 0;
	size = output(w, wire_now(w, now), to, datagram);
	if (size) {
		w->counters.datagrams_out++;
		w->counters.bytes_out += size;
	}
	return size;
}

/* ---- Time ---- */

uint64_t wire_timer(const struct wire *w)
{
	return w->deadline;
}

/*
 * Returns whether the link can be removed: the host does not need it, it is not up, and no
 * event of it is pending.
 */
static bool is_over(const struct wire *w, const struct wire_link *l, uint64_t now)
{
	return !wire_is_up(l) && !l->report_down && l->until < now &&
	       l->since + w->config.dead_ns < now;
}

static void tick_link(struct wire *w, struct wire_link *l, uint64_t now, bool stopped)
{
	/* Datagrams that it sent while this host was stopped may wait in a queue. */
	if (stopped)
		l->received_at = wire_most(l->received_at + w->config.dead_ns / 2, now) - w->config.dead_ns / 2;
	if (wire_is_up(l))
		wire_data_tick(w, l, now);
	wire_arm(w, l);
	wire_work(w, l);
}

void wire_tick(struct wire *w, uint64_t now)
{
	struct wire_link *l;
	bool stopped;
	uint32_t i;

	now = wire_now(w, now);
	/* Links that are up have timers far more often than that. */
	stopped = now > w->ticked + w->config.dead_ns / 4;
	w->ticked = now;
	if (w->leaving)
		return;
	if (now < w->deadline)
		return;
	wire_discovery_tick(w, now);
	w->deadline = wire_discovery_timer(w);
	for (i = w->count; i-- > 0;) {
		l = w->links[i];
		if (is_over(w, l, now))
			wire_remove(w, l);
		else if (l->deadline <= now || stopped)
			tick_link(w, l, now, stopped);
		else
			w->deadline = wire_least(w->deadline, l->deadline);
	}
}

/* ---- Figures ---- */

void wire_counters(const struct wire *w, struct wire_counters *c)
{
	*c = w->counters;
}

bool wire_link_info(const struct wire *w, uint32_t index, struct wire_link_info *info)
{
	const struct wire_link *l;

	memset(info, 0, sizeof(*info));
	if (index >= w->count)
		return false;
	l = w->links[index];
	info->nic = l->nic;
	info->up = wire_is_up(l);
	info->address = info->up ? l->session.address : l->known;
	info->since_ns = l->since;
	if (!info->up)
		return true;
	info->rtt_ns = l->congestion.srtt;
	info->least_rtt_ns = l->congestion.least;
	info->window = (uint32_t)l->congestion.window;
	info->flight = (uint32_t)l->tx.flight;
	info->queued = (uint32_t)(l->tx.head - l->tx.tail);
	info->datagram = l->session.limits.datagram;
	return true;
}
