// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Permission_Request at the receiver's NIC, from the network or from a process here: a
 * posted receive grants it, or local memory does, or it is remembered.
 */
#include "internal.h"

/* Returns the entry that packets of @sender with @tag belong to, or that requests them. */
struct ncp_receive *ncp_receive_last(struct ncp_process *p, struct ncp_peer *sender, u16 tag)
{
	struct ncp_node *head = ncp_head(&p->matches, sender, tag);
	struct ncp_receive *r;

	if (!head)
		return NULL;
	r = container_of(head, struct ncp_receive, match);
	/* Posted receives are behind the one that is being filled, */
	if (r->state == NCP_RECEIVE_POSTED || r->state == NCP_RECEIVE_ACTIVE || r->claim)
		return r;
	/* messages are behind those that wait for a receive. */
	return container_of(head->tail, struct ncp_receive, match);
}

static void reply(struct ncp_receive *r)
{
	if (r->from)
		ncp_send_granted(r->from);
	else
		ncp_emit_reply(r->process, r->match.peer, r->match.tag, r->id, false);
}

/*
 * Permits a request. A message that came with it is delivered, unless that is more than is
 * left of this step's work: then it comes again, from its beginning.
 */
static void grant(struct ncp_receive *r, const struct ncp_request *q)
{
	struct ncp_map map, before = r->map;

	if (!q->data) {
		reply(r);
		return;
	}
	/* The frame is read only: moving from it does not write. */
	ncp_map_memory(&map, (u8 *)(uintptr_t)q->data, q->len);
	if (ncp_receive_data(r, NULL, &map, q->len) != NCP_PAUSED) {
		ncp_emit_reply(q->receiver, q->sender, q->tag, q->id, true);
		return;
	}
	r->map = before;
	r->moved = 0;
	r->partial = 0;
	reply(r);
}

static void fill(struct ncp_receive *r, const struct ncp_request *q)
{
	r->from = q->from;
	if (q->from)
		q->from->to = r;
	r->id = q->id;
	r->len = q->len;
	r->left = q->len;
	r->packet = q->packet;
	r->counter = 0;
}

/* A receive that was just posted takes the remembered request @old. */
void ncp_request_take(struct ncp_receive *r, struct ncp_receive *old)
{
	ncp_receive_replace(r, old);
	reply(r);
}

/* Makes an entry without a context. Returns NULL, and the reason in *@result, if it cannot. */
static struct ncp_receive *entry(struct ncp *ncp, const struct ncp_request *q, u32 *result)
{
	struct ncp_receive *r;

	*result = QNIX_DB_NO_MEMORY;
	if (q->sender->remembered >= NCP_MAX_REMEMBERED)
		return NULL;
	r = ncp_alloc(ncp, sizeof(*r));
	if (!r)
		return NULL;
	if (ncp_take(ncp, q->sender, NCP_ENTRIES, 1)) {
		ncp_free(ncp, r, sizeof(*r));
		return NULL;
	}
	ncp_receive_init(r, q->receiver);
	r->state = NCP_RECEIVE_REQUEST;
	r->result = QNIX_DB_DONE;
	r->match.peer = q->sender;
	r->match.tag = q->tag;
	fill(r, q);
	ncp_push(&q->receiver->dynamic, &r->dynamic);
	ncp_push(&q->sender->receives, &r->at_peer);
	ncp_append(&q->receiver->matches, &r->match);
	q->sender->remembered++;
	return r;
}

/* A long message would keep others from the local memory, and hold up a step. */
static bool fits_ever(const struct ncp *ncp, u32 len)
{
	return len <= ncp->limits.local_memory / 4;
}

/* Returns false if it cannot do so now. */
static bool buffer(struct ncp *ncp, struct ncp_receive *r)
{
	/* Even an empty message takes some, so that their number is bounded. */
	u32 size = max_t(u32, r->len, 64);

	if (ncp_take(ncp, r->match.peer, NCP_MEMORY, size))
		return false;
	r->buffer = ncp_alloc(ncp, size);
	if (!r->buffer) {
		ncp_give(ncp, r->match.peer, NCP_MEMORY, size);
		ncp->retry = true;
		return false;
	}
	r->size = size;
	r->room = r->len;
	ncp_map_memory(&r->map, r->buffer, r->len);
	r->match.peer->remembered--;
	r->state = NCP_RECEIVE_BUFFER;
	ncp_request_fed(r);
	r->process->stat.requests_buffered++;
	ncp->stat.requests_buffered++;
	return true;
}

/* ---- Waits for local memory: users take turns, and so do the processes of each ---- */

void ncp_feed_again(struct ncp *ncp)
{
	ncp->feeding = true;
	ncp->feed_round++;
}

static void hunger(struct ncp *ncp, struct ncp_receive *r)
{
	struct ncp_peer *peer = r->match.peer;
	struct ncp_account *user = peer->user;

	ncp_push(&peer->hungry, &r->memory);
	if (ncp_empty(&peer->at_hungry))
		ncp_push(&user->hungry, &peer->at_hungry);
	if (ncp_empty(&user->at_hungry))
		ncp_push(&ncp->hungry, &user->at_hungry);
	ncp_feed_again(ncp);
}

/* Ends its wait, if it waits. */
void ncp_request_fed(struct ncp_receive *r)
{
	struct ncp_peer *peer = r->match.peer;

	if (ncp_empty(&r->memory))
		return;
	ncp_unlink(&r->memory);
	if (ncp_empty(&peer->hungry))
		ncp_unlink(&peer->at_hungry);
	if (ncp_empty(&peer->user->hungry))
		ncp_unlink(&peer->user->at_hungry);
}

/* Returns the next sender that was not examined in this round, or NULL if all were. */
static struct ncp_peer *hungry(struct ncp *ncp)
{
	struct ncp_account *user = ncp_first(&ncp->hungry, struct ncp_account, at_hungry);
	struct ncp_peer *peer = ncp_first(&user->hungry, struct ncp_peer, at_hungry);

	/* An examined user goes to the tail: if the first was examined, all were. */
	if (user->fed == ncp->feed_round)
		return NULL;
	ncp_to_tail(&ncp->hungry, &user->at_hungry);
	ncp_to_tail(&user->hungry, &peer->at_hungry);
	peer->fed = ncp->feed_round;
	peer = ncp_first(&user->hungry, struct ncp_peer, at_hungry);
	if (peer->fed == ncp->feed_round)
		user->fed = ncp->feed_round;
	return ncp_entry(user->hungry.prev, struct ncp_peer, at_hungry);
}

/*
 * Gives free local memory to waiting requests, the oldest request of a process first.
 * Returns false if no request can have it.
 */
bool ncp_feed(struct ncp *ncp)
{
	u32 round = ncp->feed_round, i;
	struct ncp_receive *r;
	struct ncp_peer *peer;

	if (!ncp->feeding)
		return false;
	for (i = 0; i < NCP_FEED && !ncp_empty(&ncp->hungry); i++) {
		peer = hungry(ncp);
		if (!peer)
			break;
		r = ncp_first(&peer->hungry, struct ncp_receive, memory);
		if (buffer(ncp, r)) {
			reply(r);
			/* A user that was examined may have another, shorter request. */
			ncp_feed_again(ncp);
			return true;
		}
		if (ncp->retry) {
			ncp_feed_again(ncp);
			return false;
		}
	}
	if (i == NCP_FEED)
		return true;
	if (round == ncp->feed_round)
		ncp->feeding = false;
	return false;
}

/*
 * Returns 0, or a QNIX_DB_* as the reason for a refusal. A local sender may have ended
 * meanwhile.
 */
u32 ncp_request(struct ncp *ncp, const struct ncp_request *q)
{
	struct ncp_receive *r = ncp_receive_last(q->receiver, q->sender, q->tag);
	u32 result;

	if (r && r->state == NCP_RECEIVE_POSTED) {
		r->state = NCP_RECEIVE_ACTIVE;
		fill(r, q);
		grant(r, q);
		return 0;
	}
	if (r && r->state != NCP_RECEIVE_HELD)
		return QNIX_DB_INVALID;	/* one at a time */
	r = entry(ncp, q, &result);
	if (!r)
		return result;
	/* Earlier requests of this user that wait for local memory go first. */
	if (fits_ever(ncp, q->len) && ncp_empty(&q->sender->user->hungry) && buffer(ncp, r)) {
		grant(r, q);
		return 0;
	}
	if (fits_ever(ncp, q->len))
		hunger(ncp, r);
	ncp->stat.requests_remembered++;
	q->receiver->stat.requests_remembered++;
	return 0;
}

/* The sender cancels request @id. Returns false if its message came, or comes no more. */
bool ncp_request_cancel(struct ncp_process *p, struct ncp_peer *sender, u16 tag, u32 id)
{
	struct ncp_receive *r = ncp_receive_last(p, sender, tag);

	if (!r || r->id != id || r->left != r->len || r->counter)
		return false;
	if (r->state != NCP_RECEIVE_ACTIVE && r->state != NCP_RECEIVE_BUFFER &&
	    r->state != NCP_RECEIVE_REQUEST)
		return false;
	ncp_receive_unmatch(r);
	return true;
}
