// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Send and Send_Short: the life of a Scheduling Queue entry, from the command to its
 * doorbell.
 */
#include "internal.h"

void ncp_send_init(struct ncp_send *s, struct ncp_process *p)
{
	s->process = p;
	ncp_link_init(&s->queue);
	ncp_link_init(&s->at_peer);
}

/*
 * Copies a Send Context into the entry @s. Returns false if it is invalid; its doorbell has
 * then rung. @c is the copy that was checked.
 */
static bool take_context(struct ncp_process *p, u16 index, bool urgent, struct ncp_send *s,
			 struct qnix_context *c)
{
	s->urgent = urgent;
	s->flags = (u8)(c->flags & QNIX_CTX_DOORBELL);
	s->len = c->len;
	s->parent = NULL;
	s->to = NULL;
	if (!ncp_context_valid(c))
		return false;
	s->flow.tag = c->tag;
	return ncp_map_context(p, c, index, false, urgent || (c->flags & QNIX_CTX_INLINE),
			       &s->map);
}

bool ncp_send_context(struct ncp_process *p, u16 index, bool urgent, struct ncp_send *s,
		      u8 *name)
{
	struct qnix_context c;

	ncp_read_context(&c, &p->send_contexts[index]);
	memcpy(name, c.process, QNIX_NAME_LEN);
	if (take_context(p, index, urgent, s, &c))
		return true;
	ncp_ring_send(s, QNIX_DB_INVALID, 0);
	return false;
}

void ncp_send_command(struct ncp_process *p, u16 index, bool urgent)
{
	struct ncp_send *s = &p->sends[index];
	u8 name[QNIX_NAME_LEN];
	struct ncp_peer *peer;

	if (!ncp_send_context(p, index, urgent, s, name))
		return;
	if (!ncp_name_valid(name)) {
		ncp_ring_send(s, QNIX_DB_INVALID, 0);
		return;
	}
	peer = ncp_peer_named(p->ncp, name);
	if (peer)
		ncp_send_to(s, peer);
	else
		ncp_ring_send(s, QNIX_DB_UNKNOWN, 0);
}

static void schedule(struct ncp_send *s)
{
	if (ncp_empty(&s->queue))
		ncp_push(s->urgent ? &s->process->urgent : &s->process->ready, &s->queue);
	ncp_schedule(s->process);
}

/* An entry whose context was taken goes to @peer, behind others under its tag. */
static void enqueue(struct ncp_send *s, struct ncp_peer *peer)
{
	struct ncp_process *p = s->process;

	s->flow.peer = peer;
	s->left = s->len;
	s->counter = 0;
	s->packet = min_t(u32, s->len, p->ncp->limits.packet_size);
	ncp_push(&peer->sends, &s->at_peer);
	ncp_append(&p->flows, &s->flow);
	s->state = s->flow.prev ? NCP_SEND_BEHIND : NCP_SEND_START;
}

/* Queues a send, which requests permission when its turn comes. */
void ncp_send_later(struct ncp_send *s, struct ncp_peer *peer)
{
	enqueue(s, peer);
	if (s->state == NCP_SEND_START)
		schedule(s);
}

void ncp_send_to(struct ncp_send *s, struct ncp_peer *peer)
{
	enqueue(s, peer);
	if (s->state != NCP_SEND_START)
		return;
	/* A process must not make the list of messages for a slow NIC arbitrarily long. */
	if (peer->at && !ncp_empty(&peer->at->behind))
		schedule(s);
	else
		ncp_send_request(s);
}

/* Requests permission from the other NIC, or from the receiver's table here. */
void ncp_send_request(struct ncp_send *s)
{
	struct ncp_process *p = s->process;
	struct ncp *ncp = p->ncp;
	struct ncp_peer *peer = s->flow.peer;
	struct ncp_request q;
	u32 result;

	s->state = NCP_SEND_REQUESTED;
	s->id = ++ncp->requests;
	ncp->stat.requests_sent++;
	p->stat.requests_sent++;
	if (peer->at) {
		s->state = ncp_emit_request(s) ? NCP_SEND_EAGER : NCP_SEND_REQUESTED;
		return;
	}
	q.receiver = peer->process;
	q.sender = p->peer;
	q.from = s;
	q.data = NULL;
	q.id = s->id;
	q.len = s->len;
	q.packet = s->packet;
	q.tag = s->flow.tag;
	result = ncp_request(ncp, &q);
	if (result)
		ncp_send_end(s, result);
}

/*
 * The permission has arrived. A short message, or a packet to another process here, is sent
 * at once, as far as one step's work allows; the rest takes its turn.
 */
void ncp_send_granted(struct ncp_send *s)
{
	bool near = !s->flow.peer->at;
	enum ncp_sent sent = NCP_SENT_MORE;

	s->state = NCP_SEND_GRANTED;
	while (sent == NCP_SENT_MORE && (s->urgent || (near && s->left <= s->packet)))
		sent = ncp_send_packet(s);
	if (sent != NCP_SENT_ALL)
		schedule(s);
}

/* Takes the entry out of all tables; the next one to that receiver and tag may ask. */
static void take_out(struct ncp_send *s)
{
	struct ncp_process *p = s->process;
	struct ncp_node *next;

	ncp_unlink(&s->queue);
	ncp_unlink(&s->at_peer);
	ncp_rest(p);
	if (p->gathering == s)
		p->gathering = NULL;
	if (s->to)
		s->to->from = NULL;
	s->to = NULL;
	if (!s->flow.in)
		return;
	ncp_remove(&p->flows, &s->flow);
	if (s->flow.prev)
		return;
	next = ncp_head(&p->flows, s->flow.peer, s->flow.tag);
	if (next) {
		struct ncp_send *n = container_of(next, struct ncp_send, flow);

		n->state = NCP_SEND_START;
		schedule(n);
	}
}

/* Ends a send or a leg. @s may be freed. */
void ncp_send_end(struct ncp_send *s, u32 result)
{
	take_out(s);
	if (s->parent)
		ncp_leg_end(s, result);
	else
		ncp_ring_send(s, result, s->len - s->left);
}

/* The process has ended: no doorbell rings. */
void ncp_send_drop(struct ncp_send *s)
{
	if (s->state == NCP_SEND_PARENT || s->state == NCP_SEND_NAMES)
		ncp_legs_drop(s);
	else if (s->state != NCP_SEND_FREE)
		take_out(s);
	s->state = NCP_SEND_FREE;
}

/* Cancels a send without permission; a send with permission continues. */
void ncp_send_cancel(struct ncp_send *s)
{
	struct ncp_process *p = s->process;

	if (s->state == NCP_SEND_JOIN)
		ncp_join_cancel(s);
	if (s->state == NCP_SEND_PARENT)
		ncp_legs_cancel(s);
	if (s->state == NCP_SEND_EAGER) {
		/* The receiver may have the message, or get it before this arrives. */
		ncp_emit_cancel(s);
		s->state = NCP_SEND_CANCELLING;
		return;
	}
	if (s->state != NCP_SEND_BEHIND && s->state != NCP_SEND_START &&
	    s->state != NCP_SEND_REQUESTED)
		return;
	if (s->state == NCP_SEND_REQUESTED) {
		if (s->flow.peer->at)
			ncp_emit_cancel(s);
		else
			ncp_request_cancel(s->flow.peer->process, p->peer, s->flow.tag, s->id);
	}
	ncp_send_end(s, QNIX_DB_CANCELED);
}
