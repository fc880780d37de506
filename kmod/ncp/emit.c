// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Builds system messages. README.md has their layouts. */
#include "internal.h"

static u8 *put16(u8 *at, u16 v)
{
	at[0] = (u8)(v >> 8);
	at[1] = (u8)v;
	return at + 2;
}

static u8 *put32(u8 *at, u32 v)
{
	return put16(put16(at, (u16)(v >> 16)), (u16)v);
}

static u8 *put64(u8 *at, u64 v)
{
	return put32(put32(at, (u32)(v >> 32)), (u32)v);
}

static u8 *put_name(u8 *at, const u8 *name)
{
	memcpy(at, name, QNIX_NAME_LEN);
	return at + QNIX_NAME_LEN;
}

static u8 *put_process(u8 *at, const struct ncp_peer *p)
{
	return put16(put16(at, p->pid), p->generation);
}

/* Writes the common beginning of messages about a transfer, from @from to @to. */
static u8 *put_flow(u8 *at, const struct ncp_peer *to, const struct ncp_peer *from, u16 tag,
		    u16 what, u32 id)
{
	at = put_process(put_process(at, to), from);
	return put32(put16(put16(at, tag), what), id);
}

/*
 * Requests permission. Returns whether the message went with the request: a short one does,
 * unless it has to wait or its memory faults; an empty one has no bytes that could.
 */
bool ncp_emit_request(struct ncp_send *s)
{
	struct ncp *ncp = s->process->ncp;
	struct ncp_peer *to = s->flow.peer;
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;
	/* The message may have to be read again. */
	struct ncp_map map = s->map;

	at = put_flow(at, to, s->process->peer, s->flow.tag, 0, s->id);
	at = put32(at, s->len);
	at = put32(at, s->packet);
	at = put32(at, s->packet ? (s->len - 1) / s->packet + 1 : 1);
	/* No frame is longer than that of a packet. */
	if (s->len <= NCP_EAGER && NCP_REQUEST + s->len <= ncp->limits.packet_size &&
	    ncp_emit_with(ncp, to->at, NCP_MSG_PERMISSION_REQUEST, payload, at, s->process,
			 &map, s->len))
		return true;
	ncp_emit(ncp, to->at, NCP_MSG_PERMISSION_REQUEST, payload, at);
	return !s->len;
}

/* @taken: the message, which came with the request, was delivered. */
void ncp_emit_reply(struct ncp_process *p, struct ncp_peer *to, u16 tag, u32 id, bool taken)
{
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;

	at = put_flow(at, to, p->peer, tag, taken, id);
	ncp_emit(p->ncp, to->at, NCP_MSG_PERMISSION_REPLY, payload, at);
}

void ncp_emit_new_process(struct ncp *ncp, struct ncp_nic *nic, struct ncp_peer *peer)
{
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;

	at = put_name(at, peer->name);
	at = put_process(at, peer);
	at = put64(at, peer->user->id);
	ncp_emit(ncp, nic, NCP_MSG_NEW_PROCESS, payload, at);
}

void ncp_emit_new_process_ack(struct ncp *ncp, struct ncp_nic *nic, u16 pid, u16 generation,
			     u16 result)
{
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;

	at = put16(put16(at, pid), generation);
	at = put16(put16(at, result), 0);
	ncp_emit(ncp, nic, NCP_MSG_NEW_PROCESS_ACK, payload, at);
}

void ncp_emit_delete_process(struct ncp *ncp, struct ncp_nic *nic, struct ncp_peer *peer)
{
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;

	at = put_name(at, peer->name);
	at = put_process(at, peer);
	ncp_emit(ncp, nic, NCP_MSG_DELETE_PROCESS, payload, at);
}

void ncp_emit_new_group(struct ncp *ncp, struct ncp_nic *nic, const struct ncp_member *m)
{
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;

	at = put_name(at, m->group->name);
	at = put32(at, m->group->size);
	at = put_process(at, m->peer);
	at = put32(at, m->serial);
	ncp_emit(ncp, nic, NCP_MSG_NEW_GROUP, payload, at);
}

/* @result: 0 if the group is whole here, or why its member @peer is not known here. */
void ncp_emit_new_group_ack(struct ncp *ncp, const struct ncp_peer *peer, const u8 *name,
			   u32 serial, u32 result)
{
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;

	at = put_name(at, name);
	at = put_process(at, peer);
	at = put32(at, serial);
	at = put16(put16(at, (u16)result), 0);
	ncp_emit(ncp, peer->at, NCP_MSG_NEW_GROUP_ACK, payload, at);
}

void ncp_emit_barrier(struct ncp *ncp, struct ncp_nic *nic, const struct ncp_member *m)
{
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;

	at = put_name(at, m->group->name);
	at = put32(at, m->group->size);
	at = put_process(at, m->peer);
	at = put32(at, m->round);
	at = put64(at, m->view);
	ncp_emit(ncp, nic, NCP_MSG_BARRIER, payload, at);
}

void ncp_emit_leave_group(struct ncp *ncp, struct ncp_nic *nic, const struct ncp_member *m)
{
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;

	at = put_name(at, m->group->name);
	at = put_process(at, m->peer);
	at = put32(at, m->done);
	at = put64(at, m->view);
	ncp_emit(ncp, nic, NCP_MSG_LEAVE_GROUP, payload, at);
}

/* Tells the sender that its request is refused. */
void ncp_emit_refused(struct ncp *ncp, struct ncp_nic *nic, const struct ncp_pair *pair,
		     u32 result)
{
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;

	at = put16(put16(at, pair->receiver), pair->receiver_generation);
	at = put16(put16(at, pair->sender), pair->sender_generation);
	at = put16(at, pair->tag);
	at = put16(at, NCP_FOR_SENDER);
	at = put32(at, pair->id);
	at = put32(at, result);
	ncp_emit(ncp, nic, NCP_MSG_FAILURE, payload, at);
}

/* Tells the receiver that the rest of a message will not come. */
void ncp_emit_given_up(struct ncp_send *s, u32 result)
{
	struct ncp_peer *to = s->flow.peer;
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;

	at = put_flow(at, to, s->process->peer, s->flow.tag, NCP_FOR_RECEIVER, s->id);
	at = put32(at, result);
	ncp_emit(s->process->ncp, to->at, NCP_MSG_FAILURE, payload, at);
}

/* The receiver's NIC confirms only the cancel of a message that it may have delivered. */
void ncp_emit_cancel(struct ncp_send *s)
{
	struct ncp_peer *to = s->flow.peer;
	u8 payload[NCP_MAX_PAYLOAD] = { 0 }, *at = payload;

	at = put_flow(at, to, s->process->peer, s->flow.tag, s->state == NCP_SEND_EAGER, s->id);
	ncp_emit(s->process->ncp, to->at, NCP_MSG_CANCEL, payload, at);
}
