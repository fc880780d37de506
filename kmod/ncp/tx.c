// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * TX: one packet of one send operation, one barrier that was posted early, then one command
 * of one process. Operations and processes take turns.
 */
#include "internal.h"

static void header(struct ncp_send *s, struct ncp_frame *frame, u32 n)
{
	struct ncp_process *p = s->process;
	struct ncp_peer *peer = s->flow.peer;

	frame->receiver_generation = cpu_to_be16(peer->generation);
	frame->sender_generation = cpu_to_be16(p->peer->generation);
	frame->header.destination_nic = cpu_to_be16(peer->nic);
	frame->header.receiver = cpu_to_be16(peer->pid);
	frame->header.source_nic = cpu_to_be16(p->ncp->id);
	frame->header.sender = cpu_to_be16(p->peer->pid);
	frame->header.tag = cpu_to_be16(s->flow.tag);
	frame->header.length_high = cpu_to_be16((u16)(n >> 16));
	frame->header.length_low = cpu_to_be16((u16)n);
	frame->header.counter = cpu_to_be16(s->counter);
}

static enum ncp_sent give_up(struct ncp_send *s, u32 result)
{
	ncp_emit_given_up(s, QNIX_DB_FAULT);
	ncp_send_end(s, result);
	return NCP_SENT_ALL;
}

/*
 * Begins a packet whose descriptors are too many for one step. The bytes of it in @frame go
 * to a buffer, one for each process, and later steps add the rest. Returns false without
 * memory.
 */
static bool begin_gather(struct ncp_send *s, const u8 *bytes, u32 moved)
{
	struct ncp_process *p = s->process;

	if (!p->gather)
		p->gather = ncp_alloc(p->ncp, p->ncp->limits.packet_size);
	if (!p->gather)
		return false;
	memcpy(p->gather, bytes, moved);
	p->gathering = s;
	p->gathered = moved;
	return true;
}

static enum ncp_sent gather(struct ncp_send *s, u32 n)
{
	struct ncp_process *p = s->process;
	struct ncp *ncp = p->ncp;
	struct ncp_frame *frame;
	struct ncp_map map;
	enum ncp_moved result;

	ncp_map_memory(&map, p->gather + p->gathered, n - p->gathered);
	result = ncp_move(ncp, NULL, &map, p, &s->map, n - p->gathered, &p->gathered);
	if (result == NCP_PAUSED)
		return NCP_SENT_PART;
	if (result != NCP_MOVED)
		return give_up(s, QNIX_DB_FAULT);
	frame = ncp_frame_reserve(ncp, s->flow.peer->at, sizeof(*frame) + n);
	if (!frame)
		return NCP_SENT_FULL;
	header(s, frame, n);
	memcpy(frame + 1, p->gather, n);
	ncp->ops->tx_commit(ncp->host, s->flow.peer->nic, sizeof(*frame) + n);
	p->gathering = NULL;
	return NCP_SENT_MORE;
}

/* Copies the bytes of a packet into the NIC output FIFO. */
static enum ncp_sent to_network(struct ncp_send *s, u32 n)
{
	struct ncp_process *p = s->process;
	struct ncp_map map, before = s->map;
	struct ncp *ncp = p->ncp;
	struct ncp_frame *frame;
	enum ncp_moved result;
	bool busy, gathers;
	u32 moved = 0;

	if (p->gathering == s)
		return gather(s, n);
	frame = ncp_frame_reserve(ncp, s->flow.peer->at, sizeof(*frame) + n);
	if (!frame)
		return NCP_SENT_FULL;
	header(s, frame, n);
	ncp_map_memory(&map, frame + 1, n);
	result = ncp_move(ncp, NULL, &map, p, &s->map, n, &moved);
	if (result == NCP_MOVED) {
		ncp->ops->tx_commit(ncp->host, s->flow.peer->nic, sizeof(*frame) + n);
		return NCP_SENT_MORE;
	}
	busy = p->gathering;
	gathers = result == NCP_PAUSED && !busy && begin_gather(s, (const u8 *)(frame + 1), moved);
	ncp->ops->tx_commit(ncp->host, s->flow.peer->nic, 0); /* the frame may be freed */
	if (gathers)
		return NCP_SENT_PART;
	if (result != NCP_PAUSED)
		return give_up(s, QNIX_DB_FAULT);
	if (!busy)
		return give_up(s, QNIX_DB_NO_MEMORY);
	s->map = before;
	return NCP_SENT_FULL;
}

/* Copies the bytes of a packet to another process of this NIC. */
static enum ncp_sent to_neighbour(struct ncp_send *s, u32 n)
{
	struct ncp_receive *to = s->to;

	switch (ncp_receive_data(to, s->process, &s->map, n)) {
	case NCP_PAUSED:
		return NCP_SENT_PART;
	case NCP_BAD_FROM:
		s->to = NULL;
		ncp_receive_fail(to, QNIX_DB_FAULT);
		ncp_send_end(s, QNIX_DB_FAULT);
		return NCP_SENT_ALL;
	default:
		return NCP_SENT_MORE;
	}
}

/* Step 7: a packet of @n bytes has gone. After NCP_SENT_ALL the entry is freed. */
enum ncp_sent ncp_packet_sent(struct ncp_send *s, u32 n)
{
	struct ncp_process *p = s->process;

	p->stat.packets_sent++;
	p->stat.bytes_sent += n;
	p->ncp->stat.packets_sent++;
	p->ncp->stat.bytes_sent += n;
	s->counter++;
	s->left -= n;
	if (s->left)
		return NCP_SENT_MORE;
	ncp_send_end(s, QNIX_DB_DONE);
	return NCP_SENT_ALL;
}

/* Steps 3, 4 and 7. After NCP_SENT_ALL the entry is freed. */
enum ncp_sent ncp_send_packet(struct ncp_send *s)
{
	u32 n = min_t(u32, s->left, s->packet);
	enum ncp_sent sent = s->flow.peer->at ? to_network(s, n) : to_neighbour(s, n);

	return sent == NCP_SENT_MORE ? ncp_packet_sent(s, n) : sent;
}

/* ---- Turns of users, of the processes of each, and of the operations of each ---- */

/* Schedules a process with operations to send or messages to deliver. */
void ncp_schedule(struct ncp_process *p)
{
	struct ncp_account *user = p->peer->user;

	/* An operation that was passed by may be able to go on now. */
	p->ncp->cycle++;
	if (ncp_empty(&p->scheduled))
		ncp_push(&user->scheduled, &p->scheduled);
	if (ncp_empty(&user->at_scheduled))
		ncp_push(&p->ncp->scheduled, &user->at_scheduled);
}

/* Unschedules a process unless it still has work. */
void ncp_rest(struct ncp_process *p)
{
	struct ncp_account *user = p->peer->user;

	if (!ncp_empty(&p->urgent) || !ncp_empty(&p->ready) || !ncp_empty(&p->drains))
		return;
	ncp_unlink(&p->scheduled);
	if (ncp_empty(&user->scheduled))
		ncp_unlink(&user->at_scheduled);
}

/* Returns the process's next operation in this cycle, or NULL. */
static struct ncp_send *next_of(struct ncp_process *p)
{
	struct ncp_link *lists[] = { &p->urgent, &p->ready };
	struct ncp_send *s;
	u32 i;

	for (i = 0; i < 2; i++) {
		s = ncp_first(lists[i], struct ncp_send, queue);
		if (!ncp_empty(lists[i]) && s->passed != p->ncp->cycle)
			return s;
	}
	return NULL;
}

/* Returns whether a request would only wait behind other messages to that NIC. */
static bool stuck(const struct ncp_send *s)
{
	const struct ncp_nic *nic = s->flow.peer->at;

	return nic && !ncp_empty(&nic->behind);
}

/*
 * Step 2: continues an operation. An operation that has not requested permission does so,
 * and waits outside of the Scheduling Queue for the answer. Returns NCP_SENT_FULL if it
 * cannot continue now.
 */
static enum ncp_sent go_on(struct ncp_send *s)
{
	struct ncp_process *p = s->process;
	struct ncp *ncp = p->ncp;

	if (s->state != NCP_SEND_START)
		return ncp_send_packet(s);
	if (stuck(s))
		return NCP_SENT_FULL;
	ncp_unlink(&s->queue);
	ncp_rest(p);
	ncp->work -= min_t(u32, ncp->work, 1);
	ncp_send_request(s);
	return NCP_SENT_ASKED;
}

enum turn {
	TAKEN,		/* something has been done, */
	ASKED,		/* if only for permission */
	PASSED,		/* an operation was passed by; there are others */
	NONE,		/* all have been, in this cycle */
};

static enum turn of_process(struct ncp_process *p)
{
	struct ncp_send *s = next_of(p);

	p->drained = !p->drained;
	if (!ncp_empty(&p->drains) && (p->drained || !s)) {
		ncp_drain(p);
		return TAKEN;
	}
	if (!s)
		return NONE;
	switch (go_on(s)) {
	case NCP_SENT_FULL:
		s->passed = p->ncp->cycle;
		ncp_to_tail(s->urgent ? &p->urgent : &p->ready, &s->queue);
		return PASSED;
	case NCP_SENT_ASKED:
		return ASKED;
	case NCP_SENT_MORE:
	case NCP_SENT_PART:
		ncp_to_tail(s->urgent ? &p->urgent : &p->ready, &s->queue);
		return TAKEN;
	default:
		return TAKEN;
	}
}

/*
 * Steps 1 and 2. An entry goes to the tail after its turn, and also when it is passed by;
 * it is then marked with the cycle. When the first entry has the mark, all were passed by.
 */
static bool send_packet(struct ncp *ncp)
{
	struct ncp_account *user;
	struct ncp_process *p;
	bool did = false;
	enum turn turn;
	u32 i;

	for (i = 0; i < NCP_LOOKS && !ncp_empty(&ncp->scheduled); i++) {
		user = ncp_first(&ncp->scheduled, struct ncp_account, at_scheduled);
		if (user->passed == ncp->cycle) {
			ncp->cycle++;
			return did;
		}
		p = ncp_first(&user->scheduled, struct ncp_process, scheduled);
		if (p->passed == ncp->cycle) {
			user->passed = ncp->cycle;
			ncp_to_tail(&ncp->scheduled, &user->at_scheduled);
			continue;
		}
		turn = of_process(p);
		switch (turn) {
		case TAKEN:
		case ASKED:
			/* Unless they have no more work. */
			if (!ncp_empty(&p->scheduled))
				ncp_to_tail(&user->scheduled, &p->scheduled);
			if (!ncp_empty(&user->at_scheduled))
				ncp_to_tail(&ncp->scheduled, &user->at_scheduled);
			ncp->cycle++;
			did = true;
			if (turn == TAKEN || NCP_WORK - ncp->work >= NCP_TURN)
				return true;
			break;
		case NONE:
			p->passed = ncp->cycle;
			ncp_to_tail(&user->scheduled, &p->scheduled);
			break;
		case PASSED:
			break;
		}
	}
	return did || !ncp_empty(&ncp->scheduled);
}

static void new_part(struct ncp *ncp)
{
	ncp->weight += NCP_WORK - ncp->work;
	ncp->work = NCP_WORK;
}

bool ncp_tx(struct ncp *ncp)
{
	bool did = ncp_flush(ncp);

	did |= ncp_feed(ncp);
	new_part(ncp);
	did |= ncp_barrier_begin(ncp);
	new_part(ncp);
	did |= send_packet(ncp);
	new_part(ncp);
	did |= ncp_read_command(ncp);
	new_part(ncp);
	return did;
}
