/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Circular doubly linked lists, and chains of hash tables. */
#ifndef _QNIX_NCP_LIST_H
#define _QNIX_NCP_LIST_H

#include "compat.h"

struct ncp_link {
	struct ncp_link *next, *prev;
};

static inline void ncp_link_init(struct ncp_link *l)
{
	l->next = l;
	l->prev = l;
}

static inline bool ncp_empty(const struct ncp_link *l)
{
	return l->next == l;
}

static inline void ncp_push(struct ncp_link *head, struct ncp_link *l)
{
	l->prev = head->prev;
	l->next = head;
	head->prev->next = l;
	head->prev = l;
}

/* Takes @l out of the list it is in, if it is in one. */
static inline void ncp_unlink(struct ncp_link *l)
{
	l->next->prev = l->prev;
	l->prev->next = l->next;
	ncp_link_init(l);
}

static inline void ncp_to_tail(struct ncp_link *head, struct ncp_link *l)
{
	ncp_unlink(l);
	ncp_push(head, l);
}

/* Chains of hash tables: the newest entry is the first, and any is removed at once. */
struct ncp_chain {
	struct ncp_chain *next, **at;
};

static inline void ncp_chain_add(struct ncp_chain **slot, struct ncp_chain *c)
{
	c->next = *slot;
	c->at = slot;
	if (c->next)
		c->next->at = &c->next;
	*slot = c;
}

static inline void ncp_chain_remove(struct ncp_chain *c)
{
	*c->at = c->next;
	if (c->next)
		c->next->at = c->at;
}

#define ncp_entry(l, type, member)	container_of(l, type, member)
#define ncp_first(head, type, member)	ncp_entry((head)->next, type, member)
#define ncp_for_each(l, n, head) \
	for (l = (head)->next, n = l->next; l != (head); l = n, n = l->next)

#endif /* _QNIX_NCP_LIST_H */
