/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The wire: reliable, ordered, authenticated frames between NICs, over a
 * service that carries datagrams most of the time (UDP).
 *
 * A struct wire is one NIC's end of the wire, with all its links to other NICs. It is a
 * pure state machine, freestanding, without clock, I/O, threads or locks: datagrams and the
 * time go in, datagrams, frames and events come out. The same code runs in the kernel
 * module, in the user-space NIC and under simulators and fuzzers. docs/wire.md has the
 * format.
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
 *  - A frame arrives once, whole and in order, or the link is reported as down.
 *  - A datagram without a valid MAC under the cluster's key is dropped before its contents
 *    are read.
 *  - An end that was started again makes a new link: down, then up. No datagram of an old
 *    link is accepted on the new one, and replayed datagrams have no effect.
 *  - Until a peer has proven that it has the key, and receives at its address now, it is
 *    sent no more bytes than came from there, and gets no buffers.
 *  - A peer sends only as much as there is room for here.
 *  - The link of a peer that is silent for the dead time goes down. If a host or its peer
 *    was stopped for less, nothing is lost.
 *  - A frame causes no allocation. A link's memory is allocated when it first comes up and
 *    freed when it is removed.
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

#define WIRE_VERSION	3	/* of the format; a NIC of another version gets no link */
#define WIRE_KEY	16	/* bytes of the cluster's key */
#define WIRE_MIN_DATAGRAM 512	/* bytes of UDP payload */
#define WIRE_MAX_DATAGRAM 65507
#define WIRE_ETHERNET	1452	/* UDP payload that IPv6 over Ethernet carries: the default */

/* Address of datagrams. The host defines its contents; the wire only compares and copies it. */
struct wire_address {
	uint8_t bytes[32];
};

struct wire_ops {
	/* Zeroed memory, aligned to 8, or NULL. May be called by wire_input, wire_tick. */
	void *(*alloc)(void *host, size_t size);
	void (*free)(void *host, void *memory, size_t size);
	/* Returns an unpredictable number. */
	uint64_t (*random)(void *host);
	/*
	 * Returns whether to make a link to @nic, which has the key: not if it is on this
	 * host. NULL: to all.
	 */
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
					 * of two, at least 4 frames; default 262144,
					 * or what 4 frames take
					 */
	uint64_t dead_ns;		/* default 5 s; at least 10 ms */
};

struct wire;

/*
 * Returns NULL without memory or for an invalid configuration. The configuration bounds its
 * memory.
 */
struct wire *wire_create(const struct wire_ops *ops, void *host,
			 const struct wire_config *config, uint64_t now);
/*
 * Frees everything, including frames. Peers notice it by silence, unless wire_close_all was
 * called before.
 */
void wire_destroy(struct wire *w);

/*
 * Closes all links for good: the next calls of wire_output tell the peers. Frames under way
 * are lost. There are no more events.
 */
void wire_close_all(struct wire *w, uint64_t now);

/*
 * Takes the link to @nic down, if it is up. Both ends get WIRE_DOWN, and WIRE_UP when there
 * is a new link.
 */
void wire_restart(struct wire *w, uint64_t now, uint16_t nic);

/* ---- Who is there ---- */

/*
 * Adds an address where NICs may be, which the wire asks for from now on. Returns -1 if
 * there are too many addresses. It is enough that one side knows the other's address.
 */
int wire_add_address(struct wire *w, uint64_t now, const struct wire_address *a);
/* Stops asking at an address. Links that are up stay up. */
void wire_remove_address(struct wire *w, const struct wire_address *a);

enum {
	WIRE_UP = 1,		/* frames can be sent and will come */
	WIRE_DOWN,		/* sent frames may not have arrived; received frames are gone, also the frame that was last peeked */
};

/* wire_event.reason, of WIRE_DOWN */
enum {
	WIRE_SILENT = 1,	/* nothing received for the dead time */
	WIRE_RESTARTED,		/* one end has begun a new link */
	WIRE_CLOSED,		/* the peer has closed the link */
	WIRE_NONSENSE,		/* the peer has the key and breaks the protocol */
};

struct wire_event {
	uint16_t nic;
	uint8_t  event;
	uint8_t  reason;
};

/*
 * Returns the next event. The events of a NIC alternate, beginning with WIRE_UP. Until an
 * event is taken, no frame goes to or comes from that NIC.
 */
bool wire_event(struct wire *w, struct wire_event *e);

/* ---- Frames ---- */

/*
 * wire_reserve returns room for a frame of @size bytes to @nic, or NULL without room or
 * link or if the frame is too long. The room is aligned to 4 and not to 8, so that the
 * payload behind the 20 bytes of an ncp_frame is aligned to 8. It is valid until the next
 * wire_commit, wire_input or wire_tick. wire_commit sends its first @size bytes; 0 gives it
 * back.
 */
void *wire_reserve(struct wire *w, uint16_t nic, uint32_t size);
void wire_commit(struct wire *w, uint64_t now, uint16_t nic, uint32_t size);

/*
 * wire_peek returns the next received frame, of one NIC after the other, or NULL. The frame
 * does not move or change until wire_consume, or until WIRE_DOWN of its NIC has been taken.
 * Until then wire_peek returns it again, unless the link went down.
 */
const void *wire_peek(struct wire *w, uint64_t now, uint16_t *nic, uint32_t *size);
void wire_consume(struct wire *w, uint64_t now);

/* ---- Datagrams ---- */

/*
 * Returns the NIC that a datagram is for; 0: the host, see wire_answer; -1: it is no
 * datagram of the wire. The datagram is not authenticated.
 */
int wire_destination(const void *datagram, uint32_t size);

void wire_input(struct wire *w, uint64_t now, const struct wire_address *from,
		const void *datagram, uint32_t size);

/*
 * Returns the size of the next datagram to send; 0: none now. @room: at least the
 * configuration's datagram.
 */
uint32_t wire_output(struct wire *w, uint64_t now, struct wire_address *to,
		     void *datagram, uint32_t room);

/* Returns when wire_tick must be called at the latest; 2^64 - 1: never. */
uint64_t wire_timer(const struct wire *w);
void wire_tick(struct wire *w, uint64_t now);

#define WIRE_ANSWER 160	/* bytes of the longest answer of wire_answer */

/*
 * Answers a datagram for NIC 0, which asks for the NICs of the host, with its @count NICs
 * in ascending order. Returns the size of the answer, or 0 if none is due. The answer goes
 * to the question's sender and is no longer than the question.
 */
uint32_t wire_answer(const uint8_t key[WIRE_KEY], const uint16_t *nics, uint32_t count,
		     const void *question, uint32_t size, void *answer);

/* ---- Figures ---- */

struct wire_counters {
	uint64_t datagrams_out;
	uint64_t datagrams_in;		/* all that arrived */
	uint64_t bytes_out;		/* of datagrams */
	uint64_t bytes_in;
	uint64_t frames_out;
	uint64_t frames_in;
	uint64_t unauthenticated;	/* dropped: wrong key, corrupted, truncated, forged, or beyond the limit of hashes */
	uint64_t wrong_version;		/* dropped: of a NIC with the key and another version */
	uint64_t wrong_limits;		/* refused: a NIC whose frames have another size */
	uint64_t misdirected;		/* dropped: for another NIC, or from this NIC's own number */
	uint64_t malformed;		/* dropped: with the key, but malformed */
	uint64_t stale;			/* dropped: of an earlier link */
	uint64_t replayed;		/* dropped: received before, or too old to know */
	uint64_t overrun;		/* dropped: no room */
	uint64_t refused;		/* no memory, too many links, or refused by the host */
	uint64_t unanswered;		/* more handshake messages at once than are answered */
	uint64_t retransmitted;		/* pieces sent again */
	uint64_t duplicates;		/* pieces that arrived again: sent again needlessly, or delayed */
	uint64_t timeouts;		/* of waiting for an acknowledgement */
	uint64_t ups;
	uint64_t downs;
	uint64_t hashed;		/* bytes received whose MAC was computed */
};

void wire_counters(const struct wire *w, struct wire_counters *c);

struct wire_link_info {
	uint16_t nic;
	bool	 up;
	struct wire_address address;
	uint64_t since_ns;		/* when it went up or down, by the host's clock */
	uint64_t rtt_ns;		/* smoothed; 0: not known */
	uint64_t least_rtt_ns;
	uint32_t window;		/* of congestion, bytes */
	uint32_t flight;		/* bytes under way */
	uint32_t queued;		/* bytes that were committed and have not arrived yet */
	uint32_t datagram;		/* bytes of the longest datagram */
};

/* Returns the state of the link at @index, in any order, and false beyond the last one. */
bool wire_link_info(const struct wire *w, uint32_t index, struct wire_link_info *info);

#endif /* _QNIX_WIRE_H */
