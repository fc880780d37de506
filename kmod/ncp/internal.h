/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The tables of the control program, and the functions that its files share. README.md maps
 * the specification's names to these.
 */
#ifndef _QNIX_NCP_INTERNAL_H
#define _QNIX_NCP_INTERNAL_H

#include "compat.h"
#include "list.h"
#include "ncp.h"
#include "siphash.h"

#define NCP_NOTIFY		8	/* the head is reported after so many commands */
#define NCP_POLLS		1024	/* empty polls of a Command Queue until its process must ring */
#define NCP_FLUSH		8	/* waiting system messages sent in one step */
#define NCP_MAX_BEHIND		65536	/* waiting messages for one NIC; beyond that it counts as dead */
#define NCP_MAX_REMEMBERED	8192	/* requests of one sender, at one NIC */
#define NCP_MAX_LEGS		16384	/* receivers of all broadcasts and multicasts of a process */
#define NCP_MAX_ENTRIES		65536	/* messages remembered and buffered at one NIC */
#define NCP_ACCOUNTS		1024	/* buckets of the users' table */
#define NCP_KEY			(1 + QNIX_NAME_LEN / 4) /* words of the hash key: a name has most */
#define NCP_NIC			2	/* times the rest: the most that another NIC's users may hold, */
#define NCP_NIC_ROOT		16	/* and that its root may hold */
#define NCP_FORGET		16	/* dead processes that give way to a new one at once */
#define NCP_OVERTAKE	64	/* deliveries that are compared with a receive that is done */
#define NCP_FEED		16	/* waits for local memory that are examined in one step */
#define NCP_BOUNCE		4096
#define NCP_LOOKS		64	/* processes or operations that are looked at in one step */
#define NCP_WORK		256	/* of each part of a step: a descriptor or 1 KiB is 1 */
#define NCP_BARRIERS	16	/* under way of a member of a group */
#define NCP_TURN		16	/* of requests in one step: about a packet's */
#define NCP_WEIGHT		32	/* of work: as much as a step by itself */
#define NCP_PIECE		65536	/* bytes moved at once */
#define NCP_MAX_PAYLOAD		48	/* of a system message */
#define NCP_REQUEST		28	/* bytes of a Permission_Request, */
#define NCP_EAGER		1024	/* and the most of a message that travels with it */

/* ---- table.c: FIFOs under a key: what goes between a pair under a tag ---- */

struct ncp_node {
	struct ncp_node *next_hash;	/* of a FIFO's head */
	struct ncp_node *next, *prev, *tail;	/* @tail: of a FIFO's head */
	struct ncp_peer *peer;
	u16 tag;
	bool in;
};

struct ncp_table {
	struct ncp *ncp;
	struct ncp_node **buckets;
	u32 mask;
	u32 heads;
	bool grown;		/* the buckets are a piece of memory of their own */
};

struct ncp_node *ncp_head(const struct ncp_table *t, const struct ncp_peer *peer,
			  u16 tag);
void ncp_append(struct ncp_table *t, struct ncp_node *n);
void ncp_replace(struct ncp_table *t, struct ncp_node *old, struct ncp_node *n);
void ncp_remove(struct ncp_table *t, struct ncp_node *n);
void ncp_table_free(struct ncp_table *t);

/* ---- quota.c: shares of the NIC's resources ---- */

enum ncp_resource {
	NCP_NAMES,	/* entries of the Name Table, also of the dead */
	NCP_GROUPS,	/* entries of the Group Table: for the oldest member */
	NCP_MEMBERS,
	NCP_ENTRIES,	/* Receive Table entries without a context: for the sender */
	NCP_LEGS,	/* receivers of broadcasts and multicasts */
	NCP_MEMORY,	/* bytes of local memory: for the sender */
	NCP_RESOURCES,
};

/* A user, with his processes on all NICs; or another NIC, with everything that it claims. */
struct ncp_account {
	struct ncp_account *next;
	u64 id;			/* the host's user id, or the NIC's coordinates */
	bool nic;
	u32 refs;		/* peers */
	u32 held[NCP_RESOURCES];
	/* of a user */
	struct ncp_link dead;	/* struct ncp_peer: ended, with messages here; oldest first */
	struct ncp_link hungry, at_hungry;	/* struct ncp_peer; in ncp->hungry */
	u32 fed;		/* round in which all of them have been looked at */
	struct ncp_link queue, at_queue;	/* Command Scheduling Queue; in ncp->queue */
	u32 queued, looked;	/* processes in it, and looked at without finding a command */
	struct ncp_link scheduled, at_scheduled;	/* first level Scheduling Queue */
	u32 passed;		/* cycle in which none of them could go on */
};

/* ---- NIC Table ---- */

struct ncp_nic {
	u16 id;			/* coordinates; 0: the entry is free */
	bool full;		/* its output FIFO was, in step @looked */
	bool gone;		/* it is being removed */
	bool lost;		/* a message for it could not be kept: it is removed next */
	u64 looked;
	u64 stamp;		/* the NICs that have got a barrier's message */
	u32 behind_count;
	struct ncp_link peers;
	struct ncp_link late;	/* in ncp->late, while messages wait */
	struct ncp_link behind;	/* struct ncp_message: messages that wait for room */
};

/* ---- Name Table ---- */

struct ncp_peer {
	struct ncp_chain named;	/* in ncp->by_name or, once it is gone, ncp->dead_by_name */
	struct ncp_chain numbered;	/* in ncp->by_id, until it is gone */
	struct ncp_link at_nic;
	u8 name[QNIX_NAME_LEN];
	u16 nic, pid, generation;
	bool gone;		/* it has ended, and only buffered messages keep the entry */
	u32 remembered;		/* requests of it */
	struct ncp_account *user;
	struct ncp_account *from;	/* the NIC that announced it; NULL: this one */
	u32 held[NCP_RESOURCES];
	struct ncp_link dead;	/* in its user's list, once it is gone */
	struct ncp_link hungry, at_hungry;	/* its requests that wait for local memory */
	u32 fed;		/* round in which the oldest was looked at */
	struct ncp_nic *at;	/* NULL: this NIC */
	struct ncp_process *process;
	struct ncp_link sends;	/* to it, from here: struct ncp_send */
	struct ncp_link receives;	/* from it, here: struct ncp_receive */
	struct ncp_link members;	/* its memberships */
};

/* ---- map.c: Descriptor Maps ---- */

/*
 * The place of the next byte of a message: in memory of the NIC or in a Context Region
 * (@memory), or in memory that a list of descriptors names. As the network keeps order,
 * only the element of a Descriptor Map for the next packet is ever needed; this is that
 * element.
 */
struct ncp_map {
	u8 *memory;
	const struct qnix_descriptor *list;	/* NULL: @memory */
	u32 count;		/* descriptors not yet read */
	u32 handle;		/* the descriptor in use, read once */
	u32 room;		/* bytes left in it, or at @memory */
	u64 offset;
};

/* ---- Scheduling Queue entries ---- */

enum ncp_send_state {
	NCP_SEND_FREE,
	NCP_SEND_BEHIND,	/* another one to that receiver and tag is first */
	NCP_SEND_START,		/* in the Scheduling Queue: Permission Flag 0, not requested */
	NCP_SEND_REQUESTED,
	NCP_SEND_EAGER,		/* the same, and the message went with the request */
	NCP_SEND_CANCELLING,	/* the same, and the receiver's NIC says whether it has it */
	NCP_SEND_GRANTED,	/* in the Scheduling Queue: Permission Flag set */
	NCP_SEND_PARENT,	/* a broadcast or multicast whose legs are on their way */
	NCP_SEND_NAMES,		/* a multicast whose names are not all read */
	NCP_SEND_JOIN,
	NCP_SEND_EARLY,		/* a barrier that waits for its group to be whole */
	NCP_SEND_BARRIER,
};

struct ncp_send {
	struct ncp_node flow;
	struct ncp_link queue;	/* second level Scheduling Queue; or of a group */
	u32 passed;		/* cycle in which it could not go on */
	struct ncp_link at_peer;
	struct ncp_process *process;
	struct ncp_send *parent;	/* of a leg; a leg's Context field is invalid */
	struct ncp_receive *to;	/* the receive with the request, if it is on this NIC */
	struct ncp_map map;
	u32 id;			/* of the request */
	u32 len, left;		/* of the message; still to come, also from local memory */
	u32 packet;		/* bytes of each packet but the last */
	u16 context, counter;
	u8 state, flags;
	bool urgent;		/* *_SHORT */

	/* of a parent: its legs, and of a barrier */
	struct ncp_send **legs;
	u32 legs_all, legs_made, legs_left;
	u32 result;		/* first failure of a leg, or QNIX_DB_DONE */

	struct ncp_member *member;	/* of a barrier */
	struct ncp_send *also;	/* further barriers of this epoch */
	u64 view;		/* the epoch: which members, */
	u32 round;		/* and the count of their barriers */
	u32 missing;		/* members that have not reached it */
	u64 since;		/* ncp->stamp when the first of its epoch here began */
};

/* ---- Receive Table entries ---- */

enum ncp_receive_state {
	NCP_RECEIVE_FREE,
	NCP_RECEIVE_POSTED,	/* unmatched */
	NCP_RECEIVE_ACTIVE,	/* matched, packets are coming: Descriptor Map valid */
	NCP_RECEIVE_BUFFER,	/* the same into local memory: Context field invalid */
	NCP_RECEIVE_HELD,	/* wholly in local memory */
	NCP_RECEIVE_REQUEST,	/* a request that could not be granted */
	NCP_RECEIVE_CLAIM,	/* gets what is in local memory of a message, in @source */
};

struct ncp_receive {
	struct ncp_node match;
	struct ncp_link at_peer;
	struct ncp_link memory;	/* in its sender's hungry: waits for local memory */
	struct ncp_link dynamic;	/* in its process's list: an entry without a context */
	struct ncp_process *process;
	struct ncp_send *from;	/* the sender is on this NIC */
	struct ncp_receive *source, *claim;	/* a CLAIM's message; a message's CLAIM */
	struct ncp_link drain;	/* in its process's drains: a CLAIM */
	struct ncp_map map;
	u32 id;			/* of the request */
	u32 room;		/* room that the process posted */
	u32 len, left;		/* of the message; still to come, also from local memory */
	u32 packet;
	u32 partial;		/* bytes of the packet that is coming, which were more than one step's */
	u32 moved;		/* bytes delivered */
	u32 result;
	u32 size;		/* bytes of @buffer, of the local memory */
	u8 *buffer;
	u16 context, counter;
	u8 state, flags;
};

/* ---- Process Table ---- */

struct ncp_process {
	struct ncp *ncp;
	struct ncp_peer *peer;
	void *host;		/* ncp_driver_command.process */
	struct qnix_memory_info info;
	u16 index;
	bool ended;		/* its doorbells do not ring any more */

	/* Virtual Network Interface Info */
	const struct qnix_context *send_contexts, *receive_contexts;
	u8 *send_regions, *receive_regions;
	struct qnix_descriptor *pool;

	/* Command Queue */
	struct qnix_command *commands;
	struct ncp_link queue;	/* in its user's Command Scheduling Queue, while it is looked at */
	u32 head;
	u32 idle;		/* empty looks since the last command */
	u32 names;		/* names that still belong to @multicast */
	struct ncp_send *multicast;

	/* Doorbell Info; the NIC's own copy of all that it writes */
	struct qnix_vni_status *status;
	u64 *send_doorbells, *receive_doorbells;
	u32 *ring;
	u32 ring_tail, misuse;
	struct ncp_link rung;	/* in ncp->rung, until the host is notified */

	/* Scheduling Status */
	struct ncp_link scheduled;	/* in its user's, of the first level Scheduling Queue */
	struct ncp_link urgent, ready;	/* second level: struct ncp_send */
	struct ncp_link drains;	/* struct ncp_receive, in the order they were posted */
	bool drained;		/* by turns with what it sends */
	u32 passed;		/* cycle in which nothing of it could go on */

	/* A packet of more descriptors than one step reads, until it is whole */
	u8 *gather;
	struct ncp_send *gathering;
	u32 gathered;

	struct ncp_table flows;	/* of sends */
	struct ncp_table matches;	/* Receive Table */
	struct ncp_link dynamic;	/* struct ncp_receive without a context */
	struct ncp_link waits;	/* struct ncp_wait */
	struct ncp_send *sends;	/* one of each context */
	struct ncp_receive *receives;
	size_t memory;		/* bytes of this with all tables */
	struct qnix_statistics stat;
};

/* ---- Group Table ---- */

struct ncp_member {
	struct ncp_link in_group, at_peer;
	struct ncp_group *group;
	struct ncp_peer *peer;
	u64 since;		/* ncp->stamp when it joined */
	u32 serial;		/* number of the join among those of its NIC */
	u64 view;		/* barriers reached: those of @view up to @round */
	u32 round;
	u32 done;		/* of a process of this NIC: barriers of @view that it has completed */
	u32 under_way;		/* of a process of this NIC: barriers that have not rung */
	bool acked;		/* its NIC knows that the group is whole here */
};

struct ncp_group {
	struct ncp_group *next;
	u8 name[QNIX_NAME_LEN];
	u32 size;		/* members that make it whole */
	u32 count;		/* members now: the specification's Size field */
	u32 elsewhere;		/* members of other NICs */
	struct ncp_peer *payer;	/* the oldest member: the entry counts for it */
	bool was_whole;
	u64 torn;		/* ncp->stamp when a NIC was lost that had a member */
	u64 view;		/* sum of the members' marks: identifies the set */
	struct ncp_link members;
	struct ncp_link barriers;	/* struct ncp_send: the first of each epoch */
	struct ncp_link early;	/* barriers that have not begun, from before it was whole or behind such */
	struct ncp_link begins;	/* in ncp->begins, while it is whole and has such */
};

/* ---- wait.c: waits for acknowledgements ---- */

struct ncp_wait {
	struct ncp_link at_process;
	struct ncp_process *process;
	struct ncp_group *group;	/* or NULL */
	struct ncp_send *send;	/* Join_Group of a process; else a driver command */
	u64 cookie;
	bool registers;		/* NEW_PROCESS */
	bool whole;		/* the group is, here */
	u32 acks;		/* still missing, with this NIC's own view of the group */
	size_t memory;
	u8 *need;		/* of each entry of the NIC Table: NCP_NEED_* */
};

#define NCP_NEED_PROCESS	1
#define NCP_NEED_GROUP		2

/* ---- the NIC ---- */

struct ncp {
	const struct ncp_ops *ops;
	void *host;
	u16 id;
	struct ncp_limits limits;
	u64 now;		/* steps */
	u64 stamp;
	u32 requests, joins;	/* numbers them */
	bool asleep;		/* ncp_need_wakeup */
	struct qnix_statistics stat;

	struct ncp_driver_command *commands;
	u32 posted, taken;

	struct ncp_process **processes;	/* NIC Process Table */
	u16 *generations;
	u32 work;		/* left in this part of the step */
	u32 weight;		/* of the last step's, used */
	u32 cycle;		/* of looking for an operation that can go on */
	u32 queued, looked;	/* processes in @queue; looked at since the last command */
	struct ncp_link queue;	/* Command Scheduling Queue: struct ncp_account */
	struct ncp_link scheduled;	/* first level Scheduling Queue: struct ncp_account */
	struct ncp_link rung;

	struct ncp_chain **by_name, **dead_by_name, **by_id;	/* Name Table */
	u32 peer_mask;
	struct ncp_group **groups;	/* Group Table */
	u32 group_mask;
	struct ncp_nic *nics;	/* NIC Table */
	u32 nic_count;
	u16 *nic_index;		/* coordinates to entry + 1 */
	struct ncp_link late;	/* NICs that have waiting messages */

	u64 key[NCP_KEY];	/* of all hashes */
	struct ncp_account **accounts;
	u32 most[NCP_RESOURCES], held[NCP_RESOURCES];
	struct ncp_link hungry;	/* users whose requests wait for local memory */
	struct ncp_link begins;	/* struct ncp_group: whole, with barriers that have not begun */
	u32 feed_round;
	bool feeding;		/* a wait may be served now */
	bool retry;		/* there was no memory for pending work */
	u8 *bounce;
};

/*
 * The hash of @n words, for tables. Multilinear hashing is strongly universal: no two
 * inputs that were chosen without knowing the key share a bucket more often than by chance.
 */
static inline u32 ncp_hash(const struct ncp *ncp, const u32 *words, u32 n)
{
	u64 h = ncp->key[0];
	u32 i;

	for (i = 0; i < n; i++)
		h += ncp->key[i + 1] * words[i];
	return h >> 32;
}

/* A request, from the wire or from a process of this NIC (@from). */
struct ncp_request {
	struct ncp_process *receiver;
	struct ncp_peer *sender;
	struct ncp_send *from;
	const u8 *data;		/* the whole message, if it came with the request, or NULL */
	u32 id, len, packet;
	u16 tag;
};

/* The ids in a Permission_Request, which may be unknown. */
struct ncp_pair {
	u16 receiver, receiver_generation, sender, sender_generation, tag;
	u32 id;
};

/* ncp.c */
void *ncp_alloc(struct ncp *ncp, size_t size);
void ncp_free(struct ncp *ncp, void *memory, size_t size);
void ncp_read_once(void *to, const void *from, size_t size);
struct ncp_process *ncp_process_of(struct ncp *ncp, u16 pid, u16 generation);

/* name.c */
u32 ncp_name_hash(const struct ncp *ncp, const u8 *name);
struct ncp_peer *ncp_peer_named(struct ncp *ncp, const u8 *name);
struct ncp_peer *ncp_peer_here(struct ncp *ncp, const u8 *name);
struct ncp_peer *ncp_peer_to_receive(struct ncp_process *r, const u8 *name, u16 tag);
struct ncp_peer *ncp_peer_of(struct ncp *ncp, u16 nic, u16 pid, u16 generation);
struct ncp_peer *ncp_peer_at(struct ncp *ncp, u16 nic, u16 pid);
struct ncp_peer *ncp_peer_add(struct ncp *ncp, const u8 *name, struct ncp_nic *at, u16 pid,
			      u16 generation, u64 user, u32 *result);
void ncp_peer_gone(struct ncp *ncp, struct ncp_peer *peer);
void ncp_peer_release(struct ncp *ncp, struct ncp_peer *peer);

/* quota.c */
void ncp_quota_init(struct ncp *ncp);
bool ncp_account_open(struct ncp *ncp, struct ncp_peer *peer, u64 user);
void ncp_account_close(struct ncp *ncp, struct ncp_peer *peer);
u32 ncp_take(struct ncp *ncp, struct ncp_peer *peer, enum ncp_resource r, u32 n);
void ncp_charge(struct ncp *ncp, struct ncp_peer *peer, enum ncp_resource r, u32 n);
void ncp_give(struct ncp *ncp, struct ncp_peer *peer, enum ncp_resource r, u32 n);
u32 ncp_doorbell_of(int result);

/* nic.c */
struct ncp_nic *ncp_nic_of(struct ncp *ncp, u16 nic);
int ncp_nic_add(struct ncp *ncp, u16 id);
void ncp_nic_remove(struct ncp *ncp, struct ncp_nic *nic);

/* register.c */
void ncp_new_process(struct ncp *ncp, const struct ncp_driver_command *c);
void ncp_delete_process(struct ncp *ncp, struct ncp_process *p);

/* wait.c */
u32 ncp_wait_add(struct ncp_process *p, struct ncp_group *group, struct ncp_send *send,
		 u64 cookie, bool registers);
void ncp_wait_end(struct ncp *ncp, struct ncp_wait *w, int result);
void ncp_wait_process_ack(struct ncp *ncp, struct ncp_process *p, struct ncp_nic *nic,
			  int result);
void ncp_wait_group_ack(struct ncp *ncp, struct ncp_member *m, struct ncp_nic *nic, int result);
struct ncp_wait *ncp_wait_of(struct ncp_process *p, const struct ncp_group *group);
void ncp_wait_nic_gone(struct ncp *ncp, struct ncp_nic *nic);
void ncp_wait_abandon(struct ncp *ncp, u64 cookie);
bool ncp_registering(const struct ncp_process *p);
void ncp_registration_fails(struct ncp *ncp, struct ncp_process *p, int result);

/* driver_command.c */
bool ncp_driver_command(struct ncp *ncp);

/* command.c */
bool ncp_read_command(struct ncp *ncp);
void ncp_read_context(struct qnix_context *to, const struct qnix_context *from);
bool ncp_context_valid(const struct qnix_context *c);
void ncp_look_at(struct ncp_process *p);
void ncp_look_away(struct ncp_process *p);

/* doorbell.c */
void ncp_ring_send(struct ncp_send *s, u32 state, u32 len);
void ncp_ring_receive(struct ncp_receive *r, u32 state, u32 len);
void ncp_misuse(struct ncp_process *p);
void ncp_notify_host(struct ncp *ncp);

/* map.c */
enum ncp_moved {
	NCP_MOVED,
	NCP_BAD_FROM,
	NCP_BAD_TO,
	NCP_PAUSED,		/* this step's work is done */
};

bool ncp_map_context(struct ncp_process *p, const struct qnix_context *c, u16 index,
		     bool receive, bool inline_data, struct ncp_map *map);
void ncp_map_memory(struct ncp_map *map, void *memory, u32 len);
enum ncp_moved ncp_move(struct ncp *ncp, struct ncp_process *to, struct ncp_map *to_map,
			struct ncp_process *from, struct ncp_map *from_map, u32 len,
			u32 *moved);

/* send.c */
void ncp_send_init(struct ncp_send *s, struct ncp_process *p);
bool ncp_send_context(struct ncp_process *p, u16 index, bool urgent, struct ncp_send *s,
		      u8 *name);
void ncp_send_command(struct ncp_process *p, u16 index, bool urgent);
void ncp_send_later(struct ncp_send *s, struct ncp_peer *peer);
void ncp_send_to(struct ncp_send *s, struct ncp_peer *peer);
void ncp_send_request(struct ncp_send *s);
void ncp_send_granted(struct ncp_send *s);
void ncp_send_end(struct ncp_send *s, u32 result);
void ncp_send_cancel(struct ncp_send *s);
void ncp_send_drop(struct ncp_send *s);

/* tx.c */
enum ncp_sent {
	NCP_SENT_MORE,		/* a packet has gone, more are to come */
	NCP_SENT_ALL,		/* the operation has ended */
	NCP_SENT_ASKED,		/* for permission */
	NCP_SENT_PART,		/* this step's work is done */
	NCP_SENT_FULL,		/* the NIC output FIFO has no room */
};

bool ncp_tx(struct ncp *ncp);
void ncp_schedule(struct ncp_process *p);
void ncp_rest(struct ncp_process *p);
enum ncp_sent ncp_send_packet(struct ncp_send *s);
enum ncp_sent ncp_packet_sent(struct ncp_send *s, u32 n);

/* rx.c */
bool ncp_rx(struct ncp *ncp);

/* receive.c */
void ncp_receive_init(struct ncp_receive *r, struct ncp_process *p);
void ncp_receive_command(struct ncp_process *p, u16 index);
void ncp_receive_cancel(struct ncp_receive *r);
enum ncp_moved ncp_receive_data(struct ncp_receive *r, struct ncp_process *from,
				struct ncp_map *map, u32 n);
void ncp_receive_fail(struct ncp_receive *r, u32 result);
void ncp_receive_unmatch(struct ncp_receive *r);
void ncp_receive_free(struct ncp_receive *r);
void ncp_receive_replace(struct ncp_receive *r, struct ncp_receive *old);
void ncp_receive_drop(struct ncp_receive *r);
void ncp_drain(struct ncp_process *p);

/* request.c */
struct ncp_receive *ncp_receive_last(struct ncp_process *p, struct ncp_peer *sender, u16 tag);
u32 ncp_request(struct ncp *ncp, const struct ncp_request *q);
void ncp_request_take(struct ncp_receive *r, struct ncp_receive *old);
bool ncp_request_cancel(struct ncp_process *p, struct ncp_peer *sender, u16 tag, u32 id);
bool ncp_feed(struct ncp *ncp);
void ncp_feed_again(struct ncp *ncp);
void ncp_request_fed(struct ncp_receive *r);

/* multicast.c */
void ncp_broadcast(struct ncp_process *p, u16 index, const u8 *name, bool urgent);
void ncp_multicast(struct ncp_process *p, u16 index, u32 size, bool urgent);
void ncp_multicast_names(struct ncp_process *p, const struct qnix_command *c);
void ncp_multicast_cut(struct ncp_process *p);
void ncp_leg_end(struct ncp_send *leg, u32 result);
void ncp_legs_cancel(struct ncp_send *s);
void ncp_legs_drop(struct ncp_send *s);

/* group.c */
struct ncp_group *ncp_group_named(struct ncp *ncp, const u8 *name);
struct ncp_member *ncp_member_of(const struct ncp_peer *peer, const struct ncp_group *g);
u32 ncp_group_check(struct ncp *ncp, const u8 *name, u32 size);
u32 ncp_join(struct ncp_process *p, const u8 *name, u32 size, struct ncp_send *send,
	     u64 cookie, bool registers);
void ncp_join_command(struct ncp_process *p, u16 index, const u8 *name, u32 size);
void ncp_join_cancel(struct ncp_send *s);
u32 ncp_leave(struct ncp_process *p, const u8 *name);
void ncp_leave_command(struct ncp_process *p, u16 index, const u8 *name);
void ncp_leave_as(struct ncp *ncp, struct ncp_member *m, int wait_result);
void ncp_member_remove(struct ncp *ncp, struct ncp_member *m, u64 view, u32 done);
void ncp_members_renew(struct ncp *ncp, u64 torn);
bool ncp_new_group(struct ncp *ncp, struct ncp_nic *nic, struct ncp_peer *peer, const u8 *name,
		   u32 size, u32 serial);

/* barrier.c */
void ncp_barrier(struct ncp_process *p, u16 index, const u8 *name, u32 size);
void ncp_barrier_whole(struct ncp *ncp, struct ncp_group *g);
bool ncp_barrier_begin(struct ncp *ncp);
void ncp_barrier_reached(struct ncp_member *m, u64 view, u32 round);
void ncp_barrier_left(struct ncp_member *m, u64 view, u32 done);
u64 ncp_barrier_mark(const struct ncp_member *m);

/* system.c: messages of other NICs */
enum {
	NCP_MSG_FIRST			= 0xff80,
	NCP_MSG_PERMISSION_REQUEST	= 0xff80,
	NCP_MSG_PERMISSION_REPLY	= 0xff81,
	NCP_MSG_NEW_PROCESS		= 0xff82,
	NCP_MSG_NEW_PROCESS_ACK		= 0xff83,
	NCP_MSG_NEW_GROUP		= 0xff84,
	NCP_MSG_NEW_GROUP_ACK		= 0xff85,
	NCP_MSG_BARRIER			= 0xff86,
	NCP_MSG_DELETE_PROCESS		= 0xff87,
	NCP_MSG_LEAVE_GROUP		= 0xff88,
	NCP_MSG_FAILURE			= 0xff89,
	NCP_MSG_CANCEL			= 0xff8a,
	NCP_MSG_COUNT			= 11,
};

/* Addressees of a Failure. */
enum {
	NCP_FOR_SENDER		= 1,
	NCP_FOR_RECEIVER	= 2,
};

bool ncp_system_message(struct ncp *ncp, struct ncp_nic *nic, u16 code, const u8 *payload,
			u32 size);

/* emit.c: messages to other NICs */
bool ncp_emit_request(struct ncp_send *s);
void ncp_emit_reply(struct ncp_process *p, struct ncp_peer *to, u16 tag, u32 id, bool taken);
void ncp_emit_cancel(struct ncp_send *s);
void ncp_emit_given_up(struct ncp_send *s, u32 result);
void ncp_emit_refused(struct ncp *ncp, struct ncp_nic *nic, const struct ncp_pair *pair,
		     u32 result);
void ncp_emit_new_process(struct ncp *ncp, struct ncp_nic *nic, struct ncp_peer *peer);
void ncp_emit_new_process_ack(struct ncp *ncp, struct ncp_nic *nic, u16 pid, u16 generation,
			     u16 result);
void ncp_emit_delete_process(struct ncp *ncp, struct ncp_nic *nic, struct ncp_peer *peer);
void ncp_emit_new_group(struct ncp *ncp, struct ncp_nic *nic, const struct ncp_member *m);
void ncp_emit_new_group_ack(struct ncp *ncp, const struct ncp_peer *peer, const u8 *name,
			   u32 serial, u32 result);
void ncp_emit_barrier(struct ncp *ncp, struct ncp_nic *nic, const struct ncp_member *m);
void ncp_emit_leave_group(struct ncp *ncp, struct ncp_nic *nic, const struct ncp_member *m);

/* output.c: the way into the NIC output FIFO */
void *ncp_frame_reserve(struct ncp *ncp, struct ncp_nic *nic, u32 size);
void ncp_emit(struct ncp *ncp, struct ncp_nic *nic, u16 code, const u8 *payload, const u8 *end);
bool ncp_emit_with(struct ncp *ncp, struct ncp_nic *nic, u16 code, const u8 *payload,
		  const u8 *end, struct ncp_process *from, struct ncp_map *map, u32 len);
bool ncp_crowded(const struct ncp *ncp);
bool ncp_flush(struct ncp *ncp);
void ncp_output_free(struct ncp *ncp, struct ncp_nic *nic);

#endif /* _QNIX_NCP_INTERNAL_H */
