/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* State of the wire and constants of the format, which its files share. */
#ifndef _QNIX_WIRE_INTERNAL_H
#define _QNIX_WIRE_INTERNAL_H

#include "siphash.h"
#include "wire.h"

#ifdef __KERNEL__
#include <linux/limits.h>
#include <linux/string.h>
#define INT16_MAX	S16_MAX
#define UINT16_MAX	U16_MAX
#define UINT32_MAX	U32_MAX
#define UINT64_MAX	U64_MAX
#else
#include <string.h>
#endif

/* ---- Format: docs/wire.md, "QNIX datagrams" ---- */

enum {
	WIRE_HELLO = 1,		/* lower NIC: asks for a session */
	WIRE_WELCOME,		/* higher NIC: asks for a proof of the address */
	WIRE_CONFIRM,		/* lower NIC: proves the address */
	WIRE_CONNECT_REQUEST,	/* higher NIC: asks for a hello */
	WIRE_DATA,
	WIRE_CLOSE,
	WIRE_WHO,
	WIRE_HERE,
};

#define WIRE_TAG	16	/* bytes of the MAC, at the end */
#define WIRE_COMMON	24	/* bytes that all types begin with */
#define WIRE_HEADER	72	/* of WIRE_DATA, WIRE_CLOSE and all handshake messages */
#define WIRE_LEAST	(WIRE_HEADER + WIRE_TAG)
#define WIRE_WORDS	8	/* of the bitmap at most, each of 64 bits */
#define WIRE_SPARE	2	/* words for which a fragment leaves room */

/* flags of WIRE_DATA */
#define WIRE_ASKS	0x1	/* to be acknowledged at once */

#define WIRE_SKIP	0xffffffffu /* instead of a frame's length */

/* The most fragments under way: as many as the bitmap covers. */
#define WIRE_FRAGMENTS	(64 * WIRE_WORDS)
/* Number of the latest datagrams for which arrival is recorded. */
#define WIRE_REPLAY	1024

#define WIRE_REPLIES	64
/* Datagrams without a session that are hashed: burst, and time for one more. */
#define WIRE_MAX_UNAUTHENTICATED	64
#define WIRE_UNAUTHENTICATED	(100 * WIRE_US)
#define WIRE_NEVER	0xffffffffffffffffull

#define WIRE_US		1000ull
#define WIRE_MS		1000000ull
#define WIRE_LIFE	(5000 * WIRE_MS) /* of a lower NIC's attempt */
#define WIRE_ACK_DELAY	WIRE_MS	/* of an acknowledgement, at most; peers rely on it */

/* ---- State ---- */

enum {
	FRAGMENT_SENT = 1,
	FRAGMENT_LOST,		/* to be sent again */
	FRAGMENT_ACKED,
};

struct wire_fragment {
	uint64_t position;	/* in the stream of frames */
	uint64_t sent;		/* when, last */
	uint32_t size;
	uint8_t	 state;
	bool	 again;		/* was sent more than once */
};

struct wire_arrival {
	uint64_t position;
	uint64_t size;
};

struct wire_tx {
	uint8_t *ring;
	uint64_t size;		/* used bytes of the ring: the lesser of both sides' buffers */
	uint64_t tail, head;	/* positions of the unacknowledged part */
	uint64_t position;	/* of the first byte that was not sent */
	uint64_t skip_from, skip_to; /* the place where the stream jumps to the ring's start */
	uint64_t reserved;	/* where the reserved frame starts, or WIRE_NEVER */
	uint32_t room;		/* its size at most */
	bool	 ask;		/* the peer is to be asked for acknowledgement and credit */
	uint64_t credit;	/* position up to which the peer has room */
	uint64_t first, next;	/* sequence numbers: not acknowledged, not sent */
	uint64_t number;	/* of the last datagram */
	uint64_t flight;	/* bytes that count as under way */
	uint64_t lost;		/* fragments in FRAGMENT_LOST */
	struct wire_fragment *fragments;
	/* detection of losses (wire_recovery.c) */
	uint64_t newest_sent;	/* sending time of the newest fragment that arrived */
	uint64_t newest_rtt;
	uint64_t newest;	/* its sequence number */
	uint64_t highest;	/* sequence number: no fragment from here on is known to have arrived */
	uint64_t lost_at;	/* when the next fragment counts as lost */
	uint64_t probe_at;
	uint32_t backoff;
	uint32_t probes;	/* datagrams that may go beyond the window */
	uint32_t patience;	/* quarters of the least round trip that are allowed for reordering */
	uint16_t duplicates;	/* as the peer last counted */
	uint32_t no_duplicates;	/* rounds without any */
	bool	 impatient;	/* has been raised in this round */
};

struct wire_rx {
	uint8_t *ring;
	uint64_t read;		/* position: everything before it is consumed */
	uint64_t end;		/* everything before it has arrived */
	uint64_t granted;		/* last credit sent to the peer */
	uint64_t next;		/* sequence number: everything before it has arrived */
	uint64_t beyond;	/* nothing after it has arrived */
	uint64_t bits[WIRE_WORDS]; /* by sequence number, modulo: arrived out of order */
	struct wire_arrival *arrivals;
	uint64_t newest;	/* datagram number */
	uint64_t replay[WIRE_REPLAY / 64];
	uint64_t came_at;	/* the newest */
	uint32_t stamp;		/* its */
	uint16_t duplicates;
	uint32_t unacked;	/* fragments since the last acknowledgement */
	uint64_t ack_at;	/* when one is due */
};

/* Congestion, wire_congestion.c. */
struct wire_congestion {
	uint64_t window;
	uint64_t srtt, variance, least;
	uint64_t least_at, next_least;
	uint64_t round_at, round_rtt;
	uint32_t arrived, lost;	/* fragments of this round */
	uint32_t arrived_sum, lost_sum; /* of this and the last ones, which count less and less */
	uint32_t path_loss;	/* the path's own losses, in 1024ths */
	uint32_t before_loss;	/* before an experiment */
	uint64_t before_window;
	uint32_t settling;	/* rounds of it that are left */
	uint32_t held, trusted;	/* rounds without growth; since path_loss was found */
	bool	 starting;	/* no sign of congestion yet */
	bool	 limited;	/* the window held the sender back in this round */
};

struct wire_limits {
	uint32_t buffer;
	uint32_t datagram;
};

/* Both ends' incarnations make a session. */
struct wire_session {
	uint64_t mine, his;	/* 0: there is none */
	struct wire_address address;
	struct wire_limits limits;
};

struct wire_link {
	struct wire_link *chain; /* of the hash table */
	struct wire_link *work, *event, *ready; /* lists of the wire */
	bool	 working, reporting, readied;
	uint16_t nic;
	uint32_t index;		/* in wire.links */

	/* handshake */
	struct wire_address known; /* where to send handshake messages, if @until is not past */
	uint64_t until;
	uint64_t handshake_at;
	uint32_t pause;		/* in ms, until the next handshake message */
	uint8_t	 secret[16];	/* key of a higher NIC's incarnations */
	uint64_t attempts[2];	/* incarnations in a lower NIC's hellos */
	uint64_t attempt_at;	/* when the first of these was made */
	struct wire_session next; /* of a lower NIC: welcomed, not yet confirmed */
	uint64_t next_at;	/* since when */

	/* valid while @session.mine is not 0 */
	struct wire_session session;
	uint8_t	 closing;	/* WIRE_CLOSEs to be sent */
	bool	 report_up, report_down; /* events that the host has not taken */
	uint8_t	 reason;
	uint64_t since;
	uint64_t received_at, sent_at;
	uint64_t deadline;
	void	 *memory;	/* rings and tables, or NULL */
	struct wire_tx tx;
	struct wire_rx rx;
	struct wire_congestion congestion;
};

struct wire_place {
	struct wire_address address;
	bool	 used;
	uint16_t after;		/* the question is for NICs above it */
	uint32_t pause;		/* ms */
	uint64_t nonce;
	uint64_t ask_at;
	bool	 asking;
};

struct wire_reply {
	struct wire_address to;
	uint64_t mine, his, current;
	uint16_t nic;
	uint8_t	 type;
};

/* Singly linked; taken from the front, added at the back. */
struct wire_list {
	struct wire_link *first, *last;
};

struct wire {
	const struct wire_ops *ops;
	void	 *host;
	struct wire_config config;
	uint64_t now;		/* the latest time from the host */
	uint64_t deadline;
	uint64_t ticked;
	uint32_t count;		/* of links */
	uint32_t buckets;	/* a power of two */
	struct wire_link **links;
	struct wire_link **table;
	struct wire_place *places;
	bool	 asking;		/* one of them is to be asked */
	bool	 leaving;
	struct wire_list work, events, ready;
	struct wire_link *peeked;
	struct wire_reply replies[WIRE_REPLIES];
	uint32_t reply_head, reply_tail;
	uint64_t unauthenticated;	/* end of the budget for datagrams without a session; see wire.c */
	struct wire_counters counters;
};

/* Bytes of a frame in the stream. */
static inline uint64_t wire_record(uint32_t size)
{
	return ((uint64_t)size + 4 + 7) & ~7ull;
}

/* ---- Bytes: all numbers are big-endian ---- */

static inline uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t get32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 |
	       (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t get64(const uint8_t *p)
{
	return (uint64_t)get32(p) << 32 | get32(p + 4);
}

static inline void put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static inline void put32(uint8_t *p, uint32_t v)
{
	put16(p, (uint16_t)(v >> 16));
	put16(p + 2, (uint16_t)v);
}

static inline void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)(v >> 32));
	put32(p + 4, (uint32_t)v);
}

static inline uint64_t wire_least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t wire_most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* A host may have read its clock before another call; the wire's time does not go back. */
static inline uint64_t wire_now(struct wire *w, uint64_t now)
{
	w->now = wire_most(w->now, now);
	return w->now;
}

static inline bool wire_lower(const struct wire *w, const struct wire_link *l)
{
	return w->config.nic < l->nic;
}

static inline bool wire_is_up(const struct wire_link *l)
{
	return l->session.mine;
}

/* Returns whether the host may exchange frames: the link is up, and the host knows it. */
static inline bool wire_is_open(const struct wire_link *l)
{
	return l->session.mine && !l->report_up && !l->report_down;
}

/* wire_list.c */
void wire_work(struct wire *w, struct wire_link *l);
void wire_report(struct wire *w, struct wire_link *l);
void wire_ready(struct wire *w, struct wire_link *l);
/* and out of these lists again */
void wire_rest(struct wire *w, struct wire_link *l);
void wire_unreport(struct wire *w, struct wire_link *l);
void wire_unready(struct wire *w, struct wire_link *l);
void wire_forget(struct wire *w, struct wire_link *l);
struct wire_link *wire_find(const struct wire *w, uint16_t nic);
/* Returns the link, which it makes if necessary, or NULL if it cannot. */
struct wire_link *wire_link(struct wire *w, uint64_t now, uint16_t nic);
void wire_remove(struct wire *w, struct wire_link *l);
void wire_new_secret(struct wire *w, struct wire_link *l);
uint64_t wire_random(struct wire *w);	/* never 0 */

/* wire_session.c */
/* Begins a session. Returns false without memory. */
bool wire_open(struct wire *w, struct wire_link *l, uint64_t now,
	       const struct wire_session *s);
void wire_down(struct wire *w, struct wire_link *l, uint64_t now, uint8_t reason);
size_t wire_link_memory(const struct wire *w);

/* wire_seal.c */
void wire_begin(uint8_t *p, uint8_t type, uint16_t from, uint16_t to,
		uint64_t mine, uint64_t his);
uint32_t wire_seal(const uint8_t key[WIRE_KEY], uint8_t *p, uint32_t size);
bool wire_genuine(const uint8_t key[WIRE_KEY], const uint8_t *p, uint32_t size);

/* wire_handshake.c */
void wire_handshake_input(struct wire *w, struct wire_link *l, uint64_t now,
		      const struct wire_address *from, const uint8_t *p);
uint32_t wire_handshake_output(struct wire *w, struct wire_link *l, uint64_t now,
			   struct wire_address *to, uint8_t *p);
uint32_t wire_reply_output(struct wire *w, struct wire_address *to, uint8_t *p);
uint64_t wire_handshake_timer(const struct wire *w, const struct wire_link *l);
/* A datagram of @l belongs to no known session: ask for the present one. */
void wire_handshake_stale(struct wire *w, struct wire_link *l, uint64_t now,
		      const struct wire_address *from);

/* wire_discovery.c */
void wire_here_input(struct wire *w, uint64_t now, const uint8_t *p, uint32_t size);
uint32_t wire_discovery_output(struct wire *w, struct wire_address *to, uint8_t *datagram);
void wire_discovery_tick(struct wire *w, uint64_t now);
uint64_t wire_discovery_timer(const struct wire *w);

/* wire_data.c */
void wire_data_input(struct wire *w, struct wire_link *l, uint64_t now,
		     const struct wire_address *from, const uint8_t *p, uint32_t size);
uint32_t wire_data_output(struct wire *w, struct wire_link *l, uint64_t now, uint8_t *p);
uint32_t wire_close_output(struct wire *w, struct wire_link *l, uint64_t now, uint8_t *p);
void wire_data_tick(struct wire *w, struct wire_link *l, uint64_t now);
void wire_arm(struct wire *w, struct wire_link *l);

/* wire_rx.c */
bool wire_fresh(struct wire_rx *rx, uint64_t number);
void wire_fragment_input(struct wire *w, struct wire_link *l, uint64_t now,
			 uint64_t sequence, uint32_t low, const uint8_t *p, uint32_t size);
bool wire_frame_ready(struct wire *w, struct wire_link *l, uint64_t now, uint32_t *size);

/* wire_tx.c */
/* Chooses the fragment to send. Returns false if none is due or may be sent now. */
bool wire_pick(struct wire *w, struct wire_link *l, uint64_t *sequence);
bool wire_wants(const struct wire_link *l);
/* Returns whether window or credit hold back a fragment. */
bool wire_blocked(const struct wire_link *l);

/* wire_recovery.c */
void wire_acked(struct wire *w, struct wire_link *l, uint64_t now, const uint8_t *bits,
		uint32_t words, uint64_t ack, uint16_t duplicates);
/* Notes that a fragment was sent. Returns true if it asks for an acknowledgement at once. */
bool wire_sent(struct wire *w, struct wire_link *l, uint64_t now, struct wire_fragment *f);
void wire_find_lost(struct wire_link *l, uint64_t now);
void wire_probe(struct wire *w, struct wire_link *l, uint64_t now);
void wire_arm_probe(struct wire *w, struct wire_link *l, uint64_t now);

/* wire_congestion.c */
void wire_congestion_init(struct wire_congestion *c, uint32_t datagram, uint64_t now);
void wire_congestion_rtt(struct wire_congestion *c, uint64_t rtt, uint64_t now);
/* To be called after acknowledgements. */
void wire_congestion_round(struct wire_congestion *c, uint32_t datagram, uint64_t now);
/* Nothing has been received for long. */
void wire_congestion_collapse(struct wire_congestion *c, uint32_t datagram, uint64_t now);

#endif /* _QNIX_WIRE_INTERNAL_H */
