// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The links of a wire: a table by NIC, and queues of work. */
#include "wire_internal.h"

/* The lists: a link is in each of them at most once. */

#define LIST_ADD(list, link, member, flag)			\
	do {							\
		if ((link)->flag)				\
			break;					\
		(link)->flag = true;				\
		(link)->member = NULL;				\
		if ((list)->last)				\
			(list)->last->member = (link);		\
		else						\
			(list)->first = (link);			\
		(list)->last = (link);				\
	} while (0)

#define LIST_DROP(list, link, member, flag)			\
	do {							\
		struct wire_link **at = &(list)->first;		\
		struct wire_link *before = NULL;		\
								\
		if (!(link)->flag)				\
			break;					\
		(link)->flag = false;				\
		while (*at != (link)) {				\
			before = *at;				\
			at = &before->member;			\
		}						\
		*at = (link)->member;				\
		if ((list)->last == (link))			\
			(list)->last = before;			\
	} while (0)

/* Queues a link that may have something to send. */
void wire_work(struct wire *w, struct wire_link *l)
{
	LIST_ADD(&w->work, l, work, working);
}

/* Queues a link that has an event. */
void wire_report(struct wire *w, struct wire_link *l)
{
	LIST_ADD(&w->events, l, event, reporting);
}

void wire_unreport(struct wire *w, struct wire_link *l)
{
	LIST_DROP(&w->events, l, event, reporting);
}

void wire_rest(struct wire *w, struct wire_link *l)
{
	LIST_DROP(&w->work, l, work, working);
}

void wire_unready(struct wire *w, struct wire_link *l)
{
	LIST_DROP(&w->ready, l, ready, readied);
}

/* Queues a link that may have a received frame. */
void wire_ready(struct wire *w, struct wire_link *l)
{
	LIST_ADD(&w->ready, l, ready, readied);
}

void wire_forget(struct wire *w, struct wire_link *l)
{
	LIST_DROP(&w->work, l, work, working);
	LIST_DROP(&w->events, l, event, reporting);
	LIST_DROP(&w->ready, l, ready, readied);
	if (w->peeked == l)
		w->peeked = NULL;
}

static struct wire_link **bucket(const struct wire *w, uint16_t nic)
{
	return &w->table[nic & (w->buckets - 1)];
}

struct wire_link *wire_find(const struct wire *w, uint16_t nic)
{
	struct wire_link *l = *bucket(w, nic);

	while (l && l->nic != nic)
		l = l->chain;
	return l;
}

uint64_t wire_random(struct wire *w)
{
	uint64_t r = w->ops->random(w->host);

	return r ? r : 1;
}

void wire_new_secret(struct wire *w, struct wire_link *l)
{
	put64(l->secret, w->ops->random(w->host));
	put64(l->secret + 8, w->ops->random(w->host));
}

struct wire_link *wire_link(struct wire *w, uint64_t now, uint16_t nic)
{
	struct wire_link *l = wire_find(w, nic);

	if (l)
		return l;
	if (w->count == w->config.links || w->leaving ||
	    (w->ops->wanted && !w->ops->wanted(w->host, nic)))
		l = NULL;
	else
		l = w->ops->alloc(w->host, sizeof(*l));
	if (!l) {
		w->counters.refused++;
		return NULL;
	}
	l->nic = nic;
	l->since = now;
	l->received_at = now;
	l->handshake_at = WIRE_NEVER;
	l->deadline = WIRE_NEVER;
	wire_new_secret(w, l);
	l->chain = *bucket(w, nic);
	*bucket(w, nic) = l;
	l->index = w->count;
	w->links[w->count++] = l;
	wire_arm(w, l);
	return l;
}

void wire_remove(struct wire *w, struct wire_link *l)
{
	struct wire_link **at = bucket(w, l->nic);

	while (*at != l)
		at = &(*at)->chain;
	*at = l->chain;
	wire_forget(w, l);
	w->count--;
	w->links[l->index] = w->links[w->count];
	w->links[l->index]->index = l->index;
	w->links[w->count] = NULL;
	if (l->memory)
		w->ops->free(w->host, l->memory, wire_link_memory(w));
	w->ops->free(w->host, l, sizeof(*l));
}
