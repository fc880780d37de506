// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Receive: the life of a Receive Table entry, from the command, or from an earlier message,
 * to the doorbell.
 */
#include "internal.h"

void ncp_receive_init(struct ncp_receive *r, struct ncp_process *p)
{
	r->process = p;
	ncp_link_init(&r->at_peer);
	ncp_link_init(&r->memory);
	ncp_link_init(&r->dynamic);
	ncp_link_init(&r->drain);
}

static void done(struct ncp_receive *r)
{
	if (r->result != QNIX_DB_DONE)
		ncp_ring_receive(r, r->result, r->moved);
	else if (r->len > r->room)
		ncp_ring_receive(r, QNIX_DB_TRUNCATED, r->len);
	else
		ncp_ring_receive(r, QNIX_DB_DONE, r->len);
}

/* Reports whether deliveries from local memory, posted before @r, may be of its sender and tag. */
static bool overtakes(const struct ncp_receive *r)
{
	struct ncp_link *l, *n;
	u32 looked = 0;

	ncp_for_each(l, n, &r->process->drains) {
		const struct ncp_receive *c = ncp_entry(l, struct ncp_receive, drain);

		/* So that the work is bounded. */
		if (++looked > NCP_OVERTAKE)
			return true;
		if (c->match.peer == r->match.peer && c->match.tag == r->match.tag)
			return true;
	}
	return false;
}

/*
 * @r, which is in no table any more, is done. Doorbells of one sender and tag ring in the
 * order the receives were posted: if an earlier one still takes a message of local memory,
 * @r waits behind it, as one that has nothing to take.
 */
static void finish(struct ncp_receive *r)
{
	if (!overtakes(r)) {
		done(r);
		return;
	}
	r->state = NCP_RECEIVE_CLAIM;
	r->source = NULL;
	ncp_push(&r->process->drains, &r->drain);
	ncp_schedule(r->process);
}

/* Removes the entry from all tables; frees it if it has no context. */
static void take_out(struct ncp_receive *r)
{
	ncp_remove(&r->process->matches, &r->match);
	ncp_unlink(&r->at_peer);
	ncp_unlink(&r->drain);
	ncp_request_fed(r);
	if (r->from)
		r->from->to = NULL;
	r->from = NULL;
}

/* Frees an entry without a context, and its local memory. */
void ncp_receive_free(struct ncp_receive *r)
{
	struct ncp_process *p = r->process;
	struct ncp *ncp = p->ncp;
	struct ncp_peer *peer = r->match.peer;

	take_out(r);
	if (r->claim)
		r->claim->source = NULL;
	ncp_unlink(&r->dynamic);
	if (r->state == NCP_RECEIVE_REQUEST)
		peer->remembered--;
	if (r->buffer) {
		ncp_give(ncp, peer, NCP_MEMORY, r->size);
		ncp_free(ncp, r->buffer, r->size);
	}
	ncp_give(ncp, peer, NCP_ENTRIES, 1);
	ncp_free(ncp, r, sizeof(*r));
	if (peer->gone)
		ncp_peer_release(ncp, peer);
}

/*
 * Delivers @n bytes to the memory of @r. Bytes beyond its room, or after a fault of its
 * memory, are dropped. *@took is how many bytes are done: all, except with NCP_PAUSED.
 */
static enum ncp_moved deliver(struct ncp_receive *r, struct ncp_process *from,
			      struct ncp_map *map, u32 at, u32 n, u32 *took)
{
	struct ncp_process *to = r->buffer ? NULL : r->process;
	u32 room = at < r->room ? r->room - at : 0, before = r->moved;
	enum ncp_moved result;

	*took = n;
	n = min_t(u32, n, room);
	if (r->result != QNIX_DB_DONE || !n)
		return NCP_MOVED;
	result = ncp_move(r->process->ncp, to, &r->map, from, map, n, &r->moved);
	if (result == NCP_BAD_TO)
		r->result = QNIX_DB_FAULT;
	if (result == NCP_PAUSED)
		*took = r->moved - before;
	return result;
}

/* ---- Receive, steps 4 to 7: a receive takes a message of local memory ---- */

/*
 * @r takes the place of @old: a request, or the rest of a message that is arriving. @old is
 * freed, with its local memory.
 */
void ncp_receive_replace(struct ncp_receive *r, struct ncp_receive *old)
{
	r->state = NCP_RECEIVE_ACTIVE;
	r->from = old->from;
	if (r->from)
		r->from->to = r;
	old->from = NULL;
	r->id = old->id;
	r->len = old->len;
	r->left = old->left;
	r->packet = old->packet;
	r->partial = old->partial;
	r->counter = old->counter;
	ncp_push(&r->match.peer->receives, &r->at_peer);
	ncp_replace(&r->process->matches, &old->match, &r->match);
	ncp_receive_free(old);
}

/*
 * Step 6: delivers the bytes that are in local memory. More may arrive there meanwhile; once
 * the receive has all of them, the rest of the message goes to its memory. Step 7: rings if
 * that was the whole message. Returns false if this step's work is done; it then takes turns
 * with the process's sends.
 */
static bool drain(struct ncp_receive *r)
{
	struct ncp_receive *b = r->source;
	u32 at = r->len - r->left, n, took;
	struct ncp_map map;

	if (!b) {
		ncp_unlink(&r->drain);
		done(r);
		return true;
	}
	n = b->len - b->left + b->partial - at;
	ncp_map_memory(&map, b->buffer + at, n);
	deliver(r, NULL, &map, at, n, &took);
	r->left -= took;
	if (took < n)
		return false;
	ncp_unlink(&r->drain);
	if (b->state == NCP_RECEIVE_BUFFER) {
		ncp_receive_replace(r, b);
		return true;
	}
	ncp_receive_free(b);
	done(r);
	return true;
}

void ncp_drain(struct ncp_process *p)
{
	if (drain(ncp_first(&p->drains, struct ncp_receive, drain)))
		ncp_rest(p);
}

/* A receive takes a message that arrived, or began to arrive, before it. */
static void claim(struct ncp_receive *r, struct ncp_receive *b)
{
	struct ncp_process *p = r->process;

	r->state = NCP_RECEIVE_CLAIM;
	r->source = b;
	b->claim = r;
	r->len = b->len;
	r->left = b->len;
	if (b->state == NCP_RECEIVE_HELD)
		ncp_remove(&p->matches, &b->match);
	/* The order of the receives is kept. */
	if (ncp_empty(&p->drains) && drain(r))
		return;
	ncp_push(&p->drains, &r->drain);
	ncp_schedule(p);
}

/* The message that @r takes will not come. */
static void unclaim(struct ncp_receive *r)
{
	ncp_unlink(&r->drain);
	ncp_rest(r->process);
}

/*
 * RX steps 2 and 4, also for packets of this NIC: handles a packet of @n bytes. The first
 * r->partial bytes were moved before, and @map starts behind them. @r may be freed.
 */
enum ncp_moved ncp_receive_data(struct ncp_receive *r, struct ncp_process *from,
				struct ncp_map *map, u32 n)
{
	struct ncp_process *p = r->process;
	enum ncp_moved result;
	u32 took;

	result = deliver(r, from, map, r->len - r->left + r->partial, n - r->partial, &took);
	if (result == NCP_PAUSED)
		r->partial += took;
	if (result == NCP_PAUSED || result == NCP_BAD_FROM)
		return result;
	p->stat.packets_received++;
	p->stat.bytes_received += n;
	p->ncp->stat.packets_received++;
	p->ncp->stat.bytes_received += n;
	r->partial = 0;
	r->left -= n;
	r->counter++;
	if (r->left)
		return NCP_MOVED;
	if (r->state == NCP_RECEIVE_BUFFER) {
		r->state = NCP_RECEIVE_HELD;
		if (r->from)
			r->from->to = NULL;
		r->from = NULL;
		/* A receive has taken it: the next message of that sender and tag may come. */
		if (r->claim)
			ncp_remove(&p->matches, &r->match);
		return NCP_MOVED;
	}
	take_out(r);
	finish(r);
	return NCP_MOVED;
}

/* The rest of the message will not come. */
void ncp_receive_fail(struct ncp_receive *r, u32 result)
{
	struct ncp_receive *c = r->claim;

	if (!ncp_empty(&r->dynamic)) {
		ncp_receive_free(r);
		if (c) {
			unclaim(c);
			ncp_ring_receive(c, result, c->moved);
		}
		return;
	}
	take_out(r);
	r->result = result;
	finish(r);
}

/* The sender has cancelled its request before it sent anything. */
void ncp_receive_unmatch(struct ncp_receive *r)
{
	struct ncp_receive *c = r->claim;

	if (c) {
		unclaim(c);
		c->state = NCP_RECEIVE_POSTED;
		ncp_push(&r->match.peer->receives, &c->at_peer);
		ncp_replace(&r->process->matches, &r->match, &c->match);
	}
	if (r->state != NCP_RECEIVE_ACTIVE) {
		ncp_receive_free(r);
		return;
	}
	if (r->from)
		r->from->to = NULL;
	r->from = NULL;
	r->state = NCP_RECEIVE_POSTED;
}

static u32 take_context(struct ncp_process *p, struct ncp_receive *r, struct qnix_context *c)
{
	struct ncp_peer *peer;

	r->flags = (u8)(c->flags & QNIX_CTX_DOORBELL);
	r->room = c->len;
	r->moved = 0;
	r->partial = 0;
	r->source = NULL;
	r->result = QNIX_DB_DONE;
	if (!ncp_context_valid(c) || !ncp_name_valid(c->process))
		return QNIX_DB_INVALID;
	if (!ncp_map_context(p, c, r->context, true, c->flags & QNIX_CTX_INLINE, &r->map))
		return QNIX_DB_INVALID;
	peer = ncp_peer_to_receive(p, c->process, c->tag);
	if (!peer)
		return QNIX_DB_UNKNOWN;
	r->match.peer = peer;
	r->match.tag = c->tag;
	return 0;
}

void ncp_receive_command(struct ncp_process *p, u16 index)
{
	struct ncp_receive *r = &p->receives[index];
	struct ncp_receive *first;
	struct ncp_node *head;
	struct qnix_context c;
	u32 result;

	ncp_read_context(&c, &p->receive_contexts[index]);
	result = take_context(p, r, &c);
	if (result) {
		ncp_ring_receive(r, result, 0);
		return;
	}
	head = ncp_head(&p->matches, r->match.peer, r->match.tag);
	first = head ? container_of(head, struct ncp_receive, match) : NULL;
	if (first && !first->claim &&
	    (first->state == NCP_RECEIVE_HELD || first->state == NCP_RECEIVE_BUFFER)) {
		claim(r, first);
		return;
	}
	if (first && first->state == NCP_RECEIVE_REQUEST) {
		ncp_request_take(r, first);
		return;
	}
	r->state = NCP_RECEIVE_POSTED;
	ncp_push(&r->match.peer->receives, &r->at_peer);
	ncp_append(&p->matches, &r->match);
}

/* A matched receive continues, also one that takes a message of local memory. */
void ncp_receive_cancel(struct ncp_receive *r)
{
	if (r->state != NCP_RECEIVE_POSTED)
		return;
	take_out(r);
	ncp_ring_receive(r, QNIX_DB_CANCELED, 0);
}

/* The process has ended: no doorbell rings. */
void ncp_receive_drop(struct ncp_receive *r)
{
	if (r->state != NCP_RECEIVE_FREE)
		take_out(r);
	r->state = NCP_RECEIVE_FREE;
}
