// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The beginning and the end of a session, and their events for the host. */
#include "wire_internal.h"

/* Both rings and both tables, in one piece of memory. */
size_t wire_link_memory(const struct wire *w)
{
	return 2 * (size_t)w->config.buffer +
	       WIRE_FRAGMENTS * (sizeof(struct wire_fragment) + sizeof(struct wire_arrival));
}

static bool get_memory(struct wire *w, struct wire_link *l)
{
	uint8_t *p = l->memory;

	if (!p)
		p = w->ops->alloc(w->host, wire_link_memory(w));
	if (!p) {
		w->counters.refused++;
		return false;
	}
	l->memory = p;
	memset(&l->tx, 0, sizeof(l->tx));
	memset(&l->rx, 0, sizeof(l->rx));
	l->tx.ring = p;
	l->rx.ring = p + w->config.buffer;
	p += 2 * (size_t)w->config.buffer;
	l->tx.fragments = (struct wire_fragment *)p;
	p += WIRE_FRAGMENTS * sizeof(struct wire_fragment);
	l->rx.arrivals = (struct wire_arrival *)p;
	return true;
}

bool wire_open(struct wire *w, struct wire_link *l, uint64_t now,
	       const struct wire_session *s)
{
	if (!get_memory(w, l))
		return false;
	l->session = *s;
	if (l->session.limits.datagram > w->config.datagram)
		l->session.limits.datagram = w->config.datagram;
	l->tx.size = wire_least(w->config.buffer, s->limits.buffer);
	l->tx.credit = s->limits.buffer;
	l->tx.reserved = WIRE_NEVER;
	l->tx.lost_at = WIRE_NEVER;
	l->tx.probe_at = WIRE_NEVER;
	l->tx.patience = 1;
	l->rx.granted = w->config.buffer;
	l->rx.ack_at = WIRE_NEVER;
	wire_congestion_init(&l->congestion, l->session.limits.datagram, now);
	l->next.mine = 0;
	memset(l->attempts, 0, sizeof(l->attempts));
	wire_new_secret(w, l);
	l->since = now;
	l->received_at = now;
	l->sent_at = now;
	l->closing = 0;
	l->report_up = true;
	wire_report(w, l);
	w->counters.ups++;
	wire_arm(w, l);
	return true;
}

void wire_down(struct wire *w, struct wire_link *l, uint64_t now, uint8_t reason)
{
	if (!wire_is_up(l))
		return;
	l->session.mine = 0;
	l->session.his = 0;
	l->since = now;
	l->pause = 0;
	l->handshake_at = now;
	if (w->peeked == l)
		w->peeked = NULL;
	w->counters.downs++;
	if (l->report_up) {
		l->report_up = false;	/* the host has not known of the session */
	} else {
		l->report_down = true;
		l->reason = reason;
		wire_report(w, l);
	}
	wire_arm(w, l);
	wire_work(w, l);
}

void wire_restart(struct wire *w, uint64_t now, uint16_t nic)
{
	struct wire_link *l = wire_find(w, nic);

	if (l)
		wire_down(w, l, wire_now(w, now), WIRE_RESTARTED);
}

bool wire_event(struct wire *w, struct wire_event *e)
{
	struct wire_link *l;

	while (w->events.first) {
		l = w->events.first;
		wire_unreport(w, l);
		e->nic = l->nic;
		if (l->report_down) {
			l->report_down = false;
			e->event = WIRE_DOWN;
			e->reason = l->reason;
			return true;
		}
		if (l->report_up) {
			l->report_up = false;
			e->event = WIRE_UP;
			e->reason = 0;
			wire_ready(w, l);
			return true;
		}
	}
	return false;
}

void wire_close_all(struct wire *w, uint64_t now)
{
	struct wire_link *l;
	uint32_t i;

	now = wire_now(w, now);
	w->leaving = true;
	w->asking = false;
	w->reply_tail = w->reply_head;
	w->deadline = WIRE_NEVER;
	for (i = 0; i < w->count; i++) {
		l = w->links[i];
		l->report_up = false;
		l->report_down = false;
		l->next.mine = 0;
		l->until = 0;
		l->sent_at = now;
		if (wire_is_up(l))
			l->closing = 2;	/* sent twice, as one may be lost */
		wire_work(w, l);
	}
}
