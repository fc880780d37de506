// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * FIFOs under a key: the sends of a process to one receiver under one tag, and the Receive
 * Table's entries of one sender and tag. The hash table contains the first entry of each
 * FIFO. The hash is keyed because users choose the tags. The table grows because a process
 * may have more operations under way than contexts.
 */
#include "internal.h"

static struct ncp_node **bucket_of(const struct ncp_table *t, const struct ncp_peer *peer,
				   u16 tag)
{
	const u32 w[2] = { (u32)peer->nic << 16 | peer->pid, (u32)peer->generation << 16 | tag };

	return &t->buckets[ncp_hash(t->ncp, w, 2) & t->mask];
}

static struct ncp_node **slot_of(const struct ncp_table *t, const struct ncp_peer *peer,
				 u16 tag)
{
	struct ncp_node **slot = bucket_of(t, peer, tag);

	while (*slot && ((*slot)->peer != peer || (*slot)->tag != tag))
		slot = &(*slot)->next_hash;
	return slot;
}

struct ncp_node *ncp_head(const struct ncp_table *t, const struct ncp_peer *peer, u16 tag)
{
	return *slot_of(t, peer, tag);
}

void ncp_table_free(struct ncp_table *t)
{
	if (t->grown)
		ncp_free(t->ncp, t->buckets, (t->mask + 1) * sizeof(*t->buckets));
	t->grown = false;
}

/* Doubles the buckets. Without memory the table keeps its size and gets slower. */
static void grow(struct ncp_table *t)
{
	struct ncp_table to = { .ncp = t->ncp, .mask = 2 * t->mask + 1, .heads = t->heads };
	struct ncp_node *n, *next, **slot;
	u32 i;

	to.buckets = ncp_alloc(t->ncp, (to.mask + 1) * sizeof(*to.buckets));
	if (!to.buckets)
		return;
	to.grown = true;
	for (i = 0; i <= t->mask; i++) {
		for (n = t->buckets[i]; n; n = next) {
			next = n->next_hash;
			slot = bucket_of(&to, n->peer, n->tag);
			n->next_hash = *slot;
			*slot = n;
		}
	}
	ncp_table_free(t);
	*t = to;
}

void ncp_append(struct ncp_table *t, struct ncp_node *n)
{
	struct ncp_node **slot = slot_of(t, n->peer, n->tag);
	struct ncp_node *head = *slot;

	n->next = NULL;
	n->in = true;
	if (head) {
		n->prev = head->tail;
		head->tail->next = n;
		head->tail = n;
		return;
	}
	n->prev = NULL;
	n->tail = n;
	n->next_hash = NULL;
	*slot = n;
	if (++t->heads > 2 * t->mask)
		grow(t);
}

/* Replaces @old by @n, which has the same key. */
void ncp_replace(struct ncp_table *t, struct ncp_node *old, struct ncp_node *n)
{
	struct ncp_node **slot = slot_of(t, old->peer, old->tag);
	struct ncp_node *head = *slot;

	n->next = old->next;
	n->prev = old->prev;
	n->in = true;
	old->in = false;
	if (n->next)
		n->next->prev = n;
	if (head != old) {
		n->prev->next = n;
		if (head->tail == old)
			head->tail = n;
		return;
	}
	n->next_hash = old->next_hash;
	n->tail = old->tail == old ? n : old->tail;
	*slot = n;
}

void ncp_remove(struct ncp_table *t, struct ncp_node *n)
{
	struct ncp_node **slot, *head;

	if (!n->in)
		return;
	n->in = false;
	slot = slot_of(t, n->peer, n->tag);
	head = *slot;
	if (head != n) {
		n->prev->next = n->next;
		if (n->next)
			n->next->prev = n->prev;
		else
			head->tail = n->prev;
	} else if (n->next) {
		n->next->prev = NULL;
		n->next->tail = n->tail;
		n->next->next_hash = n->next_hash;
		*slot = n->next;
	} else {
		*slot = n->next_hash;
		t->heads--;
	}
}
