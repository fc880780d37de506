// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * RX step 3: system messages of other NICs. Their payloads have fixed sizes; only behind a
 * request there may be a message of a process. A system message that contradicts the tables
 * of this NIC is a bad frame; the functions then return false.
 */
#include "internal.h"

/* Read the next field of a payload, whose size was checked before. */
static u16 get16(const u8 **at)
{
	u16 v = (u16)((*at)[0] << 8 | (*at)[1]);

	*at += 2;
	return v;
}

static u32 get32(const u8 **at)
{
	u32 high = get16(at);

	return high << 16 | get16(at);
}

static u64 get64(const u8 **at)
{
	u64 high = get32(at);

	return high << 32 | get32(at);
}

static const u8 *get_name(const u8 **at)
{
	const u8 *name = *at;

	*at += QNIX_NAME_LEN;
	return name;
}

static struct ncp_peer *get_peer(struct ncp *ncp, const struct ncp_nic *nic, const u8 **at)
{
	u16 pid = get16(at);

	return ncp_peer_of(ncp, nic->id, pid, get16(at));
}

static struct ncp_process *get_process(struct ncp *ncp, const u8 **at)
{
	u16 pid = get16(at);

	return ncp_process_of(ncp, pid, get16(at));
}

static bool late(struct ncp *ncp)
{
	ncp->stat.late_frames++;
	return true;
}

static void get_pair(const u8 *at, struct ncp_pair *pair)
{
	pair->receiver = get16(&at);
	pair->receiver_generation = get16(&at);
	pair->sender = get16(&at);
	pair->sender_generation = get16(&at);
	pair->tag = get16(&at);
	get16(&at);
	pair->id = get32(&at);
}

/* @n bytes of the message follow the request: all or none. */
static bool permission_request(struct ncp *ncp, struct ncp_nic *nic, const u8 *at, u32 n)
{
	struct ncp_request q = { .from = NULL };
	struct ncp_pair pair;
	u32 packets, result;

	get_pair(at, &pair);
	q.receiver = get_process(ncp, &at);
	q.sender = get_peer(ncp, nic, &at);
	q.tag = get16(&at);
	get16(&at);
	q.id = get32(&at);
	q.len = get32(&at);
	q.packet = get32(&at);
	packets = get32(&at);
	q.data = n == q.len ? at : NULL;
	if (!q.sender || q.tag > QNIX_MAX_TAG || q.len > QNIX_MAX_MESSAGE ||
	    q.packet > q.len || q.packet > 65536 || (q.len && !q.packet) ||
	    packets != (q.len ? (q.len - 1) / q.packet + 1 : 1) ||
	    (n && (n != q.len || n > NCP_EAGER || packets != 1)))
		return false;
	result = q.receiver ? ncp_request(ncp, &q) : QNIX_DB_GONE;
	if (result)
		ncp_emit_refused(ncp, nic, &pair, result);
	return true;
}

/* Finds the send operation of an unanswered request of this NIC. */
static struct ncp_send *requested(struct ncp_process *p, struct ncp_peer *receiver, u16 tag,
				  u32 id)
{
	struct ncp_node *head = ncp_head(&p->flows, receiver, tag);
	struct ncp_send *s = head ? container_of(head, struct ncp_send, flow) : NULL;

	if (!s || s->id != id)
		return NULL;
	return s->state == NCP_SEND_REQUESTED || s->state == NCP_SEND_EAGER ||
	       s->state == NCP_SEND_CANCELLING ? s : NULL;
}

static bool permission_reply(struct ncp *ncp, struct ncp_nic *nic, const u8 *at)
{
	struct ncp_process *p = get_process(ncp, &at);
	struct ncp_peer *receiver = get_peer(ncp, nic, &at);
	u16 tag = get16(&at), taken = get16(&at);
	struct ncp_send *s;

	if (taken > 1)
		return false;
	if (!receiver || !p)
		return late(ncp);
	s = requested(p, receiver, tag, get32(&at));
	/* The send was cancelled. The answer to a Cancel, if there is one, is still to come. */
	if (!s || (s->state == NCP_SEND_CANCELLING && !taken))
		return late(ncp);
	if (s->state == NCP_SEND_REQUESTED && taken)
		return false;
	if (taken)
		ncp_packet_sent(s, s->len);
	else
		ncp_send_granted(s);
	return true;
}

/* If two NICs register a name at the same time, the lower one has it. */
static bool new_process(struct ncp *ncp, struct ncp_nic *nic, const u8 *at)
{
	const u8 *name = get_name(&at);
	u16 pid = get16(&at), generation = get16(&at);
	u64 user = get64(&at);
	struct ncp_peer *mine = NULL;
	u32 result;

	if (!ncp_name_valid(name) || !pid || !generation || ncp_peer_at(ncp, nic->id, pid))
		return false;
	mine = ncp_peer_here(ncp, name);
	if (!ncp_peer_add(ncp, name, nic, pid, generation, user, &result)) {
		ncp_emit_new_process_ack(ncp, nic, pid, generation, (u16)result);
		return true;
	}
	if (mine && (nic->id > ncp->id || !ncp_registering(mine->process))) {
		ncp_emit_new_process_ack(ncp, nic, pid, generation, NCP_TAKEN);
		return true;
	}
	ncp_emit_new_process_ack(ncp, nic, pid, generation, 0);
	if (mine)
		ncp_registration_fails(ncp, mine->process, NCP_TAKEN);
	return true;
}

static bool is_full(u16 result)
{
	return result == QNIX_DB_NO_MEMORY || result == NCP_QUOTA;
}

static bool new_process_ack(struct ncp *ncp, struct ncp_nic *nic, const u8 *at)
{
	struct ncp_process *p = get_process(ncp, &at);
	u16 result = get16(&at);

	if (result && result != NCP_TAKEN && !is_full(result))
		return false;
	if (!p)
		return late(ncp);
	ncp_wait_process_ack(ncp, p, nic, result);
	return true;
}

static bool delete_process(struct ncp *ncp, struct ncp_nic *nic, const u8 *at)
{
	const u8 *name = get_name(&at);
	struct ncp_peer *peer = get_peer(ncp, nic, &at);

	/* A process for which the table had no entry is unknown. */
	if (!peer)
		return late(ncp);
	if (memcmp(peer->name, name, QNIX_NAME_LEN))
		return false;
	ncp_peer_gone(ncp, peer);
	return true;
}

static bool new_group(struct ncp *ncp, struct ncp_nic *nic, const u8 *at)
{
	const u8 *name = get_name(&at);
	u32 size = get32(&at);
	struct ncp_peer *peer = get_peer(ncp, nic, &at);

	return peer ? ncp_new_group(ncp, nic, peer, name, size, get32(&at)) : late(ncp);
}

static bool new_group_ack(struct ncp *ncp, struct ncp_nic *nic, const u8 *at)
{
	struct ncp_group *g = ncp_group_named(ncp, get_name(&at));
	struct ncp_process *p = get_process(ncp, &at);
	struct ncp_member *m = g && p ? ncp_member_of(p->peer, g) : NULL;

	u32 serial = get32(&at);
	u16 result = get16(&at);

	if (result && result != QNIX_DB_INVALID && !is_full(result))
		return false;
	if (!m || m->serial != serial)
		return late(ncp);
	ncp_wait_group_ack(ncp, m, nic, result);
	return true;
}

static bool reached_barrier(struct ncp *ncp, struct ncp_nic *nic, const u8 *at)
{
	struct ncp_group *g = ncp_group_named(ncp, get_name(&at));
	u32 size = get32(&at);
	struct ncp_peer *peer = get_peer(ncp, nic, &at);
	u32 round = get32(&at);
	struct ncp_member *m = g && peer ? ncp_member_of(peer, g) : NULL;

	if (!m)
		return late(ncp);
	if (size != g->size)
		return false;
	ncp_barrier_reached(m, get64(&at), round);
	return true;
}

static bool leave_group(struct ncp *ncp, struct ncp_nic *nic, const u8 *at)
{
	struct ncp_group *g = ncp_group_named(ncp, get_name(&at));
	struct ncp_peer *peer = get_peer(ncp, nic, &at);
	u32 done = get32(&at);
	struct ncp_member *m = g && peer ? ncp_member_of(peer, g) : NULL;

	if (!m)
		return late(ncp);
	ncp_member_remove(ncp, m, get64(&at), done);
	return true;
}

/* A request of this NIC is refused. */
static bool refused(struct ncp *ncp, struct ncp_nic *nic, const u8 *at)
{
	struct ncp_peer *receiver = get_peer(ncp, nic, &at);
	struct ncp_process *p = get_process(ncp, &at);
	u16 tag = get16(&at);
	struct ncp_send *s;
	u32 result;

	get16(&at);
	if (!receiver || !p)
		return late(ncp);
	s = requested(p, receiver, tag, get32(&at));
	result = get32(&at);
	if (result < QNIX_DB_UNKNOWN || result > QNIX_DB_NO_MEMORY)
		return false;
	if (!s)
		return late(ncp);
	if (result == QNIX_DB_CANCELED && s->state != NCP_SEND_CANCELLING)
		return false;
	ncp_send_end(s, result);
	return true;
}

/* The rest of a message to this NIC will not come. */
static bool given_up(struct ncp *ncp, struct ncp_nic *nic, const u8 *at)
{
	struct ncp_process *p = get_process(ncp, &at);
	struct ncp_peer *sender = get_peer(ncp, nic, &at);
	u16 tag = get16(&at);
	struct ncp_receive *r;

	get16(&at);
	if (!p || !sender)
		return late(ncp);
	r = ncp_receive_last(p, sender, tag);
	if (!r || r->id != get32(&at) ||
	    (r->state != NCP_RECEIVE_ACTIVE && r->state != NCP_RECEIVE_BUFFER))
		return false;
	ncp_receive_fail(r, QNIX_DB_FAULT);
	return true;
}

static bool failure(struct ncp *ncp, struct ncp_nic *nic, const u8 *at)
{
	const u8 *role = at + 10;

	switch (get16(&role)) {
	case NCP_FOR_SENDER:
		return refused(ncp, nic, at);
	case NCP_FOR_RECEIVER:
		return given_up(ncp, nic, at);
	}
	return false;
}

static bool cancel(struct ncp *ncp, struct ncp_nic *nic, const u8 *payload)
{
	const u8 *at = payload;
	struct ncp_pair pair;
	struct ncp_process *p = get_process(ncp, &at);
	struct ncp_peer *sender = get_peer(ncp, nic, &at);
	u16 tag = get16(&at), confirm = get16(&at);

	get_pair(payload, &pair);
	if (confirm > 1)
		return false;
	if (!p || !sender)
		return late(ncp);
	if (ncp_request_cancel(p, sender, tag, get32(&at)) && confirm)
		ncp_emit_refused(ncp, nic, &pair, QNIX_DB_CANCELED);
	return true;
}

static const struct {
	bool (*does)(struct ncp *ncp, struct ncp_nic *nic, const u8 *payload);
	u32 size;
} messages[NCP_MSG_COUNT] = {
	[NCP_MSG_PERMISSION_REPLY - NCP_MSG_FIRST] = { permission_reply, 16 },
	[NCP_MSG_NEW_PROCESS - NCP_MSG_FIRST] = { new_process, 32 },
	[NCP_MSG_NEW_PROCESS_ACK - NCP_MSG_FIRST] = { new_process_ack, 8 },
	[NCP_MSG_NEW_GROUP - NCP_MSG_FIRST] = { new_group, 32 },
	[NCP_MSG_NEW_GROUP_ACK - NCP_MSG_FIRST] = { new_group_ack, 32 },
	[NCP_MSG_BARRIER - NCP_MSG_FIRST] = { reached_barrier, 40 },
	[NCP_MSG_DELETE_PROCESS - NCP_MSG_FIRST] = { delete_process, 24 },
	[NCP_MSG_LEAVE_GROUP - NCP_MSG_FIRST] = { leave_group, 36 },
	[NCP_MSG_FAILURE - NCP_MSG_FIRST] = { failure, 20 },
	[NCP_MSG_CANCEL - NCP_MSG_FIRST] = { cancel, 16 },
};

bool ncp_system_message(struct ncp *ncp, struct ncp_nic *nic, u16 code, const u8 *payload,
			u32 size)
{
	u32 i = (u32)code - NCP_MSG_FIRST;

	if (code == NCP_MSG_PERMISSION_REQUEST) {
		if (size < NCP_REQUEST)
			return false;
		ncp->stat.system_messages++;
		return permission_request(ncp, nic, payload, size - NCP_REQUEST);
	}
	if (code < NCP_MSG_FIRST || i >= NCP_MSG_COUNT || size != messages[i].size)
		return false;
	i = (u32)array_index_nospec(i, NCP_MSG_COUNT);
	ncp->stat.system_messages++;
	return messages[i].does(ncp, nic, payload);
}
