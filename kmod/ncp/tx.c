// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * TX: one packet of one send operation, then one command of one process; both
 * by turns.
 */
#include "internal.h"

/* The bytes of a packet into the NIC output FIFO. */
static enum ncp_sent to_network(struct ncp_send *s, u32 n)
{
	struct ncp_process *p = s->process;
	struct ncp_peer *peer = s->flow.peer;
	struct ncp *ncp = p->ncp;
	struct ncp_frame *frame;
	struct ncp_map map;
	u32 moved = 0;

	frame = ncp_frame_reserve(ncp, peer->at, sizeof(*frame) + n);
	if (!frame)
		return NCP_SENT_FULL;
	frame->receiver_generation = cpu_to_be16(peer->generation);
	frame->sender_generation = cpu_to_be16(p->peer->generation);
	frame->header.destination_nic = cpu_to_be16(peer->nic);
	frame->header.receiver = cpu_to_be16(peer->pid);
	frame->header.source_nic = cpu_to_be16(ncp->id);
	frame->header.sender = cpu_to_be16(p->peer->pid);
	frame->header.tag = cpu_to_be16(s->flow.tag);
	frame->header.length_high = cpu_to_be16((u16)(n >> 16));
	frame->header.length_low = cpu_to_be16((u16)n);
	frame->header.counter = cpu_to_be16(s->counter);
	ncp_map_memory(&map, frame + 1, n);
	if (ncp_move(ncp, NULL, &map, p, &s->map, n, &moved) != NCP_MOVED) {
		ncp->ops->tx_commit(ncp->host, peer->nic, 0);
		ncp_say_given_up(s, QNIX_DB_FAULT);
		ncp_send_end(s, QNIX_DB_FAULT);
		return NCP_SENT_ALL;
	}
	ncp->ops->tx_commit(ncp->host, peer->nic, sizeof(*frame) + n);
	return NCP_SENT_MORE;
}

/* The bytes of a packet to another process of this NIC. */
static enum ncp_sent to_neighbour(struct ncp_send *s, u32 n)
{
	struct ncp_receive *to = s->to;

	if (ncp_receive_data(to, s->process, &s->map, n) != NCP_BAD_FROM)
		return NCP_SENT_MORE;
	s->to = NULL;
	ncp_receive_fail(to, QNIX_DB_FAULT);
	ncp_send_end(s, QNIX_DB_FAULT);
	return NCP_SENT_ALL;
}

/* Steps 3, 4 and 7. After NCP_SENT_ALL the entry is gone. */
enum ncp_sent ncp_send_packet(struct ncp_send *s)
{
	struct ncp_process *p = s->process;
	u32 n = min_t(u32, s->left, s->packet);
	enum ncp_sent sent = s->flow.peer->at ? to_network(s, n) : to_neighbour(s, n);

	if (sent != NCP_SENT_MORE)
		return sent;
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

/*
 * Step 2: the first operation of a process that can go on. Those that have not
 * asked for permission ask, and wait elsewhere for the answer. Operations to a
 * NIC whose output FIFO is full are passed by.
 */
static bool of_process(struct ncp_process *p)
{
	struct ncp_link *l, *n;

	ncp_for_each(l, n, &p->ready) {
		struct ncp_send *s = ncp_entry(l, struct ncp_send, queue);

		if (s->state == NCP_SEND_START) {
			ncp_unlink(l);
			if (ncp_empty(&p->ready))
				ncp_unlink(&p->scheduled);
			ncp_send_request(s);
			return true;
		}
		switch (ncp_send_packet(s)) {
		case NCP_SENT_MORE:
			ncp_to_tail(&p->ready, l);
			return true;
		case NCP_SENT_ALL:
			return true;
		case NCP_SENT_FULL:
			break;
		}
	}
	return false;
}

/* Steps 1 and 2, over the processes that have something to send. */
static bool send_packet(struct ncp *ncp)
{
	struct ncp_link *l, *n;

	ncp_for_each(l, n, &ncp->scheduled) {
		if (!of_process(ncp_entry(l, struct ncp_process, scheduled)))
			continue;
		/* Unless that was all it had, the process goes to the tail. */
		if (!ncp_empty(l))
			ncp_to_tail(&ncp->scheduled, l);
		return true;
	}
	return false;
}

bool ncp_tx(struct ncp *ncp)
{
	bool did = ncp_flush(ncp);

	did |= ncp_feed(ncp);
	did |= send_packet(ncp);
	did |= ncp_read_command(ncp);
	return did;
}
