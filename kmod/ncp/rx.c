// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * RX: one frame of the NIC input FIFO. The network has proven which NIC sent it; nothing
 * else in it is trusted.
 */
#include "internal.h"

static void bad(struct ncp *ncp)
{
	ncp->stat.bad_frames++;
}

/* Step 1: finds the Receive Table entry that a packet is for. */
static struct ncp_receive *match(struct ncp *ncp, const struct ncp_frame *f,
				 struct ncp_nic *nic)
{
	struct ncp_process *p;
	struct ncp_peer *sender;
	struct ncp_receive *r;

	p = ncp_process_of(ncp, be16_to_cpu(f->header.receiver),
			   be16_to_cpu(f->receiver_generation));
	sender = ncp_peer_of(ncp, nic->id, be16_to_cpu(f->header.sender),
			     be16_to_cpu(f->sender_generation));
	if (!p || !sender) {
		ncp->stat.late_frames++;
		return NULL;
	}
	r = ncp_receive_last(p, sender, be16_to_cpu(f->header.tag));
	if (r && (r->state == NCP_RECEIVE_ACTIVE || r->state == NCP_RECEIVE_BUFFER))
		return r;
	bad(ncp);
	return NULL;
}

/* Returns false if this step's work is done and the next step must continue the packet. */
static bool packet(struct ncp *ncp, const struct ncp_frame *f, struct ncp_nic *nic, u32 n)
{
	struct ncp_receive *r = match(ncp, f, nic);
	struct ncp_map map;

	if (!r)
		return true;
	/*
	 * Step 2: the network keeps order, so the packet is for the next element of the
	 * Descriptor Map.
	 */
	if (be16_to_cpu(f->header.counter) != r->counter ||
	    n != min_t(u32, r->left, r->packet)) {
		bad(ncp);
		return true;
	}
	/* The frame is read only: moving from it does not write. */
	ncp_map_memory(&map, (u8 *)(uintptr_t)(f + 1) + r->partial, n - r->partial);
	return ncp_receive_data(r, NULL, &map, n) != NCP_PAUSED;
}

/* Returns false if the frame must be handled again. */
static bool frame(struct ncp *ncp, const struct ncp_frame *f, u16 from, u32 size)
{
	struct ncp_nic *nic = ncp_nic_of(ncp, from);
	u32 n;

	if (!nic) {
		/* The NIC was removed, and its last frames arrive after that. */
		ncp->stat.late_frames++;
		return true;
	}
	if (size < sizeof(*f)) {
		bad(ncp);
		return true;
	}
	n = (u32)be16_to_cpu(f->header.length_high) << 16 | be16_to_cpu(f->header.length_low);
	if (n != size - sizeof(*f) || be16_to_cpu(f->header.destination_nic) != ncp->id ||
	    be16_to_cpu(f->header.source_nic) != from) {
		bad(ncp);
		return true;
	}
	if (f->header.receiver || f->header.sender)
		return packet(ncp, f, nic, n);
	if (!ncp_system_message(ncp, nic, be16_to_cpu(f->header.tag), (const u8 *)(f + 1), n))
		bad(ncp);
	return true;
}

bool ncp_rx(struct ncp *ncp)
{
	u16 from = 0;
	u32 size = 0;
	const void *f = ncp->ops->rx_peek(ncp->host, &from, &size);

	if (!f)
		return false;
	if (frame(ncp, f, from, size))
		ncp->ops->rx_consume(ncp->host);
	return true;
}
