// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Receive: a Receive Table entry's life, from the command, or from a message
 * that came before it, to the doorbell.
 */
#include "internal.h"

void ncp_receive_init(struct ncp_receive *r, struct ncp_process *p)
{
	r->process = p;
	ncp_link_init(&r->at_peer);
	ncp_link_init(&r->memory);
	ncp_link_init(&r->dynamic);
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

/* Out of all tables; what is without a context is freed. */
static void take_out(struct ncp_receive *r)
{
	ncp_remove(&r->process->matches, &r->match);
	ncp_unlink(&r->at_peer);
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
 * Brings @n bytes to where @r wants them: what lies beyond its room, or comes
 * after a fault of its memory, is dropped.
 */
static enum ncp_moved deliver(struct ncp_receive *r, struct ncp_process *from,
			      struct ncp_map *map, u32 at, u32 n)
{
	struct ncp_process *to = r->buffer ? NULL : r->process;
	enum ncp_moved result;
	u32 room = at < r->room ? r->room - at : 0;

	n = min_t(u32, n, room);
	if (r->result != QNIX_DB_DONE || !n)
		return NCP_MOVED;
	result = ncp_move(r->process->ncp, to, &r->map, from, map, n, &r->moved);
	if (result == NCP_BAD_TO)
		r->result = QNIX_DB_FAULT;
	return result;
}

/* RX steps 2 and 4, also for what comes from this NIC. @r may be gone afterwards. */
enum ncp_moved ncp_receive_data(struct ncp_receive *r, struct ncp_process *from,
				struct ncp_map *map, u32 n)
{
	struct ncp_process *p = r->process;

	if (deliver(r, from, map, r->len - r->left, n) == NCP_BAD_FROM)
		return NCP_BAD_FROM;
	p->stat.packets_received++;
	p->stat.bytes_received += n;
	p->ncp->stat.packets_received++;
	p->ncp->stat.bytes_received += n;
	r->left -= n;
	r->counter++;
	if (r->left)
		return NCP_MOVED;
	if (r->state == NCP_RECEIVE_BUFFER) {
		r->state = NCP_RECEIVE_HELD;
		if (r->from)
			r->from->to = NULL;
		r->from = NULL;
		return NCP_MOVED;
	}
	take_out(r);
	done(r);
	return NCP_MOVED;
}

/* The rest of the message will not come. */
void ncp_receive_fail(struct ncp_receive *r, u32 result)
{
	if (!ncp_empty(&r->dynamic)) {
		ncp_receive_free(r);
		return;
	}
	take_out(r);
	ncp_ring_receive(r, result, r->moved);
}

/* The sender took its request back before it sent anything. */
void ncp_receive_unmatch(struct ncp_receive *r)
{
	if (r->state != NCP_RECEIVE_ACTIVE) {
		ncp_receive_free(r);
		return;
	}
	if (r->from)
		r->from->to = NULL;
	r->from = NULL;
	r->state = NCP_RECEIVE_POSTED;
}

/* Steps 4 to 7: a message that came before its receive, or is coming. */
static void take_buffered(struct ncp_receive *r, struct ncp_receive *b)
{
	struct ncp_process *p = r->process;
	u32 came = b->len - b->left;
	struct ncp_map map;

	r->len = b->len;
	r->left = b->left;
	r->packet = b->packet;
	r->counter = b->counter;
	r->id = b->id;
	ncp_map_memory(&map, b->buffer, came);
	deliver(r, NULL, &map, 0, came);
	if (b->state == NCP_RECEIVE_HELD) {
		ncp_receive_free(b);
		done(r);
		return;
	}
	r->state = NCP_RECEIVE_ACTIVE;
	r->from = b->from;
	b->from = NULL;
	if (r->from)
		r->from->to = r;
	ncp_replace(&p->matches, &b->match, &r->match);
	ncp_push(&r->match.peer->receives, &r->at_peer);
	ncp_receive_free(b);
}

static u32 take_context(struct ncp_process *p, struct ncp_receive *r, struct qnix_context *c)
{
	struct ncp_peer *peer;

	r->flags = (u8)(c->flags & QNIX_CTX_DOORBELL);
	r->room = c->len;
	r->moved = 0;
	r->result = QNIX_DB_DONE;
	if ((c->flags & ~(QNIX_CTX_DOORBELL | QNIX_CTX_INLINE | QNIX_CTX_POOL)) ||
	    c->len > QNIX_MAX_MESSAGE || c->tag > QNIX_MAX_TAG || !ncp_name_valid(c->process))
		return QNIX_DB_INVALID;
	if (!ncp_map_context(p, c, r->context, true, c->flags & QNIX_CTX_INLINE, &r->map))
		return QNIX_DB_INVALID;
	peer = ncp_peer_to_hear(p, c->process, c->tag);
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
	if (first && (first->state == NCP_RECEIVE_HELD || first->state == NCP_RECEIVE_BUFFER)) {
		take_buffered(r, first);
		return;
	}
	r->state = NCP_RECEIVE_POSTED;
	ncp_push(&r->match.peer->receives, &r->at_peer);
	if (first && first->state == NCP_RECEIVE_REQUEST)
		ncp_request_take(r, first);
	else
		ncp_append(&p->matches, &r->match);
}

void ncp_receive_cancel(struct ncp_receive *r)
{
	if (r->state != NCP_RECEIVE_POSTED)
		return;
	take_out(r);
	ncp_ring_receive(r, QNIX_DB_CANCELED, 0);
}

/* The process has ended: nobody is told. */
void ncp_receive_drop(struct ncp_receive *r)
{
	if (r->state != NCP_RECEIVE_FREE)
		take_out(r);
	r->state = NCP_RECEIVE_FREE;
}
