/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The wire: reliable, ordered, authenticated frames between NICs, over a
 * service that carries datagrams most of the time (UDP).
 *
 * A struct wire is one NIC's end of it: all its links to other NICs. It is a
 * pure state machine, freestanding, without clock, I/O, threads or locks:
 * datagrams and the time go in, datagrams, frames and events come out. The
 * same code runs in the kernel module, in the user-space NIC and under
 * simulators and fuzzers. docs/wire.md has the format.
 *
 * A host calls one wire's functions from one thread at a time, in a loop:
 *
 *	for each datagram that came (64 at most):
 *		wire_input; if wire_destination says 0: wire_answer, once a host
 *	if wire_timer() <= now:	wire_tick
 *	while wire_event:	tell the NIC of links that came up or went down
 *	run the NIC:		wire_reserve, wire_commit, wire_peek, wire_consume
 *	while wire_output:	send the datagram
 *	sleep until a datagram comes or wire_timer
 *
 * Times are nanoseconds of a clock that never goes back.
 *
 * What holds:
 *  - A frame arrives once, whole, in order, or the link is told to be down.
 *  - What lacks the cluster's key is dropped before anything in it is looked at.
 *  - An end that was started again is a new link: down, then up. Nothing of an old link
 *    is taken for the new one's, and nothing that others record and repeat counts.
 *  - Who has not yet shown that he has the key, and is where he says, now, is
 *    sent no more bytes than came from there, and gets no buffers.
 *  - A peer sends only what there is room for here.
 *  - A peer that is silent for the dead time is down. A host that was stopped for less, or
 *    whose peer was, loses nothing.
 *  - Nothing is allocated for a frame. A link's memory is allocated when it first
 *    comes up and given back when it is removed.
 *  - Data are not encrypted.
 */
#ifndef _QNIX_WIRE_H
#define _QNIX_WIRE_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#endif

#define WIRE_VERSION	2	/* of the format; others are not talked to */
#define WIRE_KEY	16	/* bytes of the cluster's key */
#define WIRE_MIN_DATAGRAM 512	/* bytes of UDP payload */
#define WIRE_MAX_DATAGRAM 65507
#define WIRE_ETHERNET	1452	/* UDP payload that IPv6 over Ethernet carries: the default */

/* Where datagrams go to and come from: the host's, compared and copied here, never looked into. */
struct wire_address {
	uint8_t bytes[32];
};

struct wire_ops {
	/* Zeroed memory, aligned to 8, or NULL. May be called by wire_input, wire_tick. */
	void *(*alloc)(void *host, size_t size);
	void (*free)(void *host, void *memory, size_t size);
	/* Numbers that nobody can guess. */
	uint64_t (*random)(void *host);
	/* Whether to talk to @nic, which has the key (NULL: to all): not if it is on this host. */
	bool (*wanted)(void *host, uint16_t nic);
};

/* 0 anywhere: the default. */
struct wire_config {
	uint16_t nic;			/* this NIC's coordinates, 1 .. 65535 */
	uint8_t  key[WIRE_KEY];
	uint32_t links;			/* at most; default 64 */
	uint32_t addresses;		/* at most, of wire_add_address; default 64 */
	uint32_t frame;			/* bytes of the longest frame, the same in the cluster; default 16404 */
	uint32_t datagram;		/* bytes of the longest datagram; default WIRE_ETHERNET */
	uint32_t buffer;		/* bytes, of sending and of receiving, of a link; a power
					 * of two, at least 4 frames; default 262144
					 */
	uint64_t dead_ns;		/* default 5 s; at least 10 ms */
};

struct wire;

/* NULL: no memory, or the configuration is not allowed. Its use of memory is bounded by it. */
struct wire *wire_create(const struct wire_ops *ops, void *host,
			 const struct wire_config *config, uint64_t now);
/* Frees all; pointers to frames are void. Peers learn of it by silence, or see wire_goodbye. */
void wire_destroy(struct wire *w);

/*
 * Closes all links, for good: peers are told so by the next wire_outputs. Frames that
 * are under way are lost. There are no events any more.
 */
void wire_goodbye(struct wire *w, uint64_t now);

/* ---- Who is there ---- */

/*
 * An address where NICs may be: they are asked for from now on. -1: there are
 * as many as can be. Who knows our address finds us by himself.
 */
int wire_add_address(struct wire *w, uint64_t now, const struct wire_address *a);
/* Stops asking. Links that are up stay so. */
void wire_remove_address(struct wire *w, const struct wire_address *a);

enum {
	WIRE_UP = 1,		/* frames can be sent and will come */
	WIRE_DOWN,		/* what was sent may not have arrived; what had come is gone, also the
				 * frame that was last peeked
				 */
};

/* wire_event.reason, of WIRE_DOWN */
enum {
	WIRE_SILENT = 1,	/* nothing heard for the dead time */
	WIRE_RESTARTED,		/* the peer has begun a new link */
	WIRE_CLOSED,		/* the peer has said goodbye */
	WIRE_NONSENSE,		/* the peer has the key and breaks the protocol */
};

struct wire_event {
	uint16_t nic;
	uint8_t  event;
	uint8_t  reason;
};

/*
 * The next event. Of one NIC they alternate, beginning with WIRE_UP. Until an event is
 * taken no frame goes to or comes from that NIC.
 */
bool wire_event(struct wire *w, struct wire_event *e);

/* ---- Frames ---- */

/*
 * Room for a frame of @size bytes to @nic, aligned to 4 and not to 8 (so that what follows the
 * 20 bytes of an ncp_frame is), or NULL: no room, no link, or longer than a frame may be. It
 * holds until the next wire_commit, _input or _tick. wire_commit sends its first @size bytes; 0 gives it back.
 */
void *wire_reserve(struct wire *w, uint16_t nic, uint32_t size);
void wire_commit(struct wire *w, uint64_t now, uint16_t nic, uint32_t size);

/*
 * The next frame that has come, of one NIC after the other, or NULL. It stays
 * where and as it is until wire_consume, or until WIRE_DOWN of its NIC has been taken; wire_peek returns
 * it again until then, unless the link went down.
 */
const void *wire_peek(struct wire *w, uint64_t now, uint16_t *nic, uint32_t *size);
void wire_consume(struct wire *w, uint64_t now);

/* ---- Datagrams ---- */

/* The NIC that a datagram is for; 0: whoever is there, see wire_answer; -1: it is none. Nothing is proven by it. */
int wire_destination(const void *datagram, uint32_t size);

void wire_input(struct wire *w, uint64_t now, const struct wire_address *from,
		const void *datagram, uint32_t size);

/* The next datagram to send; 0: none now. @room: at least the configuration's datagram. */
uint32_t wire_output(struct wire *w, uint64_t now, struct wire_address *to,
		     void *datagram, uint32_t room);

/* When wire_tick is to be called, if not before; 2^64 - 1: never. */
uint64_t wire_timer(const struct wire *w);
void wire_tick(struct wire *w, uint64_t now);

#define WIRE_ANSWER 160	/* bytes, at most, of what wire_answer writes */

/*
 * Answers a datagram for NIC 0, "who is there?", for a whole host: with its
 * @count NICs, ascending. The size of the answer, which goes to where the question
 * came from and is no longer than that; 0: none is due.
 */
uint32_t wire_answer(const uint8_t key[WIRE_KEY], const uint16_t *nics, uint32_t count,
		     const void *question, uint32_t size, void *answer);

/* ---- Figures ---- */

struct wire_counters {
	uint64_t datagrams_out;
	uint64_t datagrams_in;		/* all that came */
	uint64_t bytes_out;		/* of datagrams */
	uint64_t bytes_in;
	uint64_t frames_out;
	uint64_t frames_in;
	uint64_t unauthenticated;	/* dropped: wrong key, corrupted, truncated, forged, or not worth the look */
	uint64_t wrong_version;		/* dropped: of a NIC with the key and another version */
	uint64_t wrong_limits;		/* refused: a NIC whose frames have another size */
	uint64_t misdirected;		/* dropped: for another NIC, or from our own number */
	uint64_t malformed;		/* dropped: with the key, but nonsense */
	uint64_t stale;			/* dropped: of a link that is not any more */
	uint64_t replayed;		/* dropped: had come before, or is too old to tell */
	uint64_t overrun;		/* dropped: more than there was room for */
	uint64_t refused;		/* no memory, too many links, or not wanted */
	uint64_t unanswered;		/* more greetings at once than are answered */
	uint64_t retransmitted;		/* pieces sent again */
	uint64_t duplicates;		/* pieces that came again: sent again in vain, or stayed long */
	uint64_t timeouts;		/* of waiting for an acknowledgement */
	uint64_t ups;
	uint64_t downs;
	uint64_t hashed;		/* bytes that came, whose MAC was computed */
};

void wire_counters(const struct wire *w, struct wire_counters *c);

struct wire_link_info {
	uint16_t nic;
	bool	 up;
	struct wire_address address;
	uint64_t since_ns;		/* up or down, on the host's clock */
	uint64_t rtt_ns;		/* smoothed; 0: not known */
	uint64_t least_rtt_ns;
	uint32_t window;		/* of congestion, bytes */
	uint32_t flight;		/* bytes under way */
	uint32_t queued;		/* bytes that were committed and have not arrived yet */
	uint32_t datagram;		/* bytes of the longest datagram */
};

/* Of the link at @index, in any order; false: there are only so many. */
bool wire_link_info(const struct wire *w, uint32_t index, struct wire_link_info *info);

#endif /* _QNIX_WIRE_H */
