// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The wire's datagrams: one UDP socket for all NICs of the host. */

#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "soft_internal.h"

#define DATAGRAMS	32	/* in one system call */
#define ROUNDS		4	/* of them, before the NICs run again */

/* Both directions share this memory: all received datagrams are handled before any is sent. */
struct soft_datagrams {
	struct mmsghdr headers[DATAGRAMS];
	struct iovec data[DATAGRAMS];
	struct sockaddr_in6 names[DATAGRAMS];
	uint32_t queued, sent;	/* datagrams to send */
	uint8_t bytes[];
};

/* An address in the form that the wire compares: family, port, address, scope. */
struct address {
	uint16_t family, port;
	uint32_t scope;
	uint8_t host[16];
	uint8_t pad[8];
};

_Static_assert(sizeof(struct address) == sizeof(struct wire_address), "wire_address");

static void from_sockaddr(struct wire_address *to, const void *from)
{
	const struct sockaddr_in6 *in6 = from;
	const struct sockaddr_in *in = from;
	struct address a = { .family = in6->sin6_family };

	if (a.family == AF_INET6) {
		a.port = in6->sin6_port;
		a.scope = in6->sin6_scope_id;
		memcpy(a.host, &in6->sin6_addr, 16);
	} else {
		a.port = in->sin_port;
		memcpy(a.host, &in->sin_addr, 4);
	}
	memcpy(to, &a, sizeof(a));
}

static uint32_t to_sockaddr(struct sockaddr_in6 *to, const struct wire_address *from)
{
	struct sockaddr_in *in = (void *)to;
	struct address a;

	memcpy(&a, from, sizeof(a));
	memset(to, 0, sizeof(*to));
	if (a.family == AF_INET6) {
		to->sin6_family = AF_INET6;
		to->sin6_port = a.port;
		to->sin6_scope_id = a.scope;
		memcpy(&to->sin6_addr, a.host, 16);
		return sizeof(*to);
	}
	in->sin_family = AF_INET;
	in->sin_port = a.port;
	memcpy(&in->sin_addr, a.host, 4);
	return sizeof(*in);
}

/* Frames to the host's own NICs go through memory. */
static bool wanted(void *host, uint16_t nic)
{
	return !soft_nic_of(((struct soft_nic *)host)->soft, nic);
}

static const struct wire_ops ops = {
	.alloc = soft_alloc,
	.free = soft_free,
	.random = soft_random,
	.wanted = wanted,
};

int soft_udp_create(struct soft *s, const struct soft_config *config)
{
	struct wire_config w = {
		.frame = config->limits.packet_size + sizeof(struct ncp_frame),
		.links = config->limits.nics - config->nics + 1, /* the NIC Table has the host's own, too */
		.dead_ns = config->dead_ns,
	};
	uint32_t k;

	s->max_datagram = WIRE_ETHERNET;
	w.datagram = s->max_datagram;
	memcpy(w.key, s->key, sizeof(w.key));
	s->datagrams = calloc(1, sizeof(*s->datagrams) + DATAGRAMS * WIRE_MAX_DATAGRAM);
	if (!s->datagrams)
		return -ENOMEM;
	for (k = 0; k < s->count; k++) {
		w.nic = s->nics[k].number;
		s->nics[k].wire = wire_create(&ops, &s->nics[k], &w, soft_now());
		if (!s->nics[k].wire)
			return -ENOMEM;
	}
	return 0;
}

void soft_udp_destroy(struct soft *s)
{
	uint32_t k;

	for (k = 0; k < s->count; k++)
		if (s->nics[k].wire)
			wire_destroy(s->nics[k].wire);
	free(s->datagrams);
}

int soft_add_peer(struct soft *s, const void *sockaddr, uint32_t size)
{
	struct sockaddr_in6 name = { 0 };
	struct wire_address a;
	int err = 0;
	uint32_t k;

	if (s->udp < 0 || size < sizeof(struct sockaddr_in) || size > sizeof(name))
		return -EINVAL;
	memcpy(&name, sockaddr, size);
	from_sockaddr(&a, &name);
	soft_lock(s);
	for (k = 0; k < s->count; k++)
		if (wire_add_address(s->nics[k].wire, soft_now(), &a))
			err = -ENOSPC;
	soft_unlock(s);
	return err;
}

static void prepare(struct soft_datagrams *d, int k, uint32_t size)
{
	d->data[k] = (struct iovec){ d->bytes + (size_t)k * WIRE_MAX_DATAGRAM, size };
	d->headers[k].msg_hdr = (struct msghdr){
		.msg_name = &d->names[k], .msg_namelen = sizeof(d->names[k]),
		.msg_iov = &d->data[k], .msg_iovlen = 1,
	};
}

/* A datagram for NIC 0 asks for the NICs of the host, which answers it. */
static void input(struct soft *s, struct soft_datagrams *d, int k, uint64_t now)
{
	const void *datagram = d->data[k].iov_base;
	uint32_t size = d->headers[k].msg_len;
	int to = wire_destination(datagram, size);
	uint8_t answer[WIRE_ANSWER];
	struct wire_address from;
	struct soft_nic *n;

	if (to > 0) {
		n = soft_nic_of(s, to);
		if (n) {
			from_sockaddr(&from, &d->names[k]);
			wire_input(n->wire, now, &from, datagram, size);
		}
	} else if (to == 0) {
		size = wire_answer(s->key, s->numbers, s->count, datagram, size, answer);
		/* If the answer is lost, the question is repeated. */
		if (size && sendto(s->udp, answer, size, MSG_DONTWAIT, (void *)&d->names[k],
				   d->headers[k].msg_hdr.msg_namelen) < 0)
			return;
	}
}

bool soft_udp_input(struct soft *s)
{
	struct soft_datagrams *d = s->datagrams;
	uint64_t now;
	bool busy = false;
	int round, k, n;
	uint32_t i;

	/* Datagrams that wait to be sent use the same memory. */
	for (round = 0; s->readable && round < ROUNDS && d->queued == d->sent; round++) {
		for (k = 0; k < DATAGRAMS; k++)
			prepare(d, k, WIRE_MAX_DATAGRAM);
		n = recvmmsg(s->udp, d->headers, DATAGRAMS, MSG_DONTWAIT, NULL);
		/* Not before: a round trip must not seem shorter because the NIC did not run. */
		now = soft_now();
		for (k = 0; k < n; k++)
			input(s, d, k, now);
		busy |= n > 0;
		s->readable = n == DATAGRAMS;
	}
	now = soft_now();
	for (i = 0; i < s->count; i++)
		if (wire_timer(s->nics[i].wire) <= now)
			wire_tick(s->nics[i].wire, now);
	return busy;
}

/* Sends queued datagrams. Returns false if the socket takes no more now. */
static bool flush(struct soft *s)
{
	struct soft_datagrams *d = s->datagrams;

	while (d->sent < d->queued) {
		int n = sendmmsg(s->udp, d->headers + d->sent, d->queued - d->sent, MSG_DONTWAIT);

		if (n > 0)
			d->sent += n;
		else if (errno == EAGAIN || errno == ENOBUFS)
			return false;
		else if (errno != EINTR)
			d->sent++;	/* unreachable: the datagram counts as lost */
	}
	d->queued = 0;
	d->sent = 0;
	return true;
}

bool soft_udp_output(struct soft *s)
{
	struct soft_datagrams *d = s->datagrams;
	uint64_t now = soft_now();
	struct wire_address to;
	bool busy = false;
	uint32_t k, size;

	if (!flush(s))
		return true;
	for (k = 0; k < s->count; k++) {
		for (;;) {
			prepare(d, d->queued, s->max_datagram);
			size = wire_output(s->nics[k].wire, now, &to,
					   d->data[d->queued].iov_base, s->max_datagram);
			if (!size)
				break;
			busy = true;
			d->data[d->queued].iov_len = size;
			d->headers[d->queued].msg_hdr.msg_namelen = to_sockaddr(&d->names[d->queued], &to);
			if (++d->queued == DATAGRAMS && !flush(s))
				return true;
		}
	}
	flush(s);
	return busy;
}

/* Tells peers that the NICs end, so that they need not wait for the dead time. */
void soft_udp_close_all(struct soft *s)
{
	uint32_t k;

	if (!s->datagrams)
		return;
	for (k = 0; k < s->count; k++)
		if (s->nics[k].wire)
			wire_close_all(s->nics[k].wire, soft_now());
		else
			return;
	soft_udp_output(s);
}

/*
 * Passes events of links to the NIC, which steps until its queue has room: frames of a NIC
 * come as soon as its event is taken, and are dropped unless the command is queued.
 */
bool soft_events(struct soft_nic *n)
{
	struct ncp_driver_command c = { 0 };
	struct wire_event event;
	bool busy = false;

	while (wire_event(n->wire, &event)) {
		c.command = event.event == WIRE_UP ? NCP_ADD_NIC : NCP_REMOVE_NIC;
		c.nic = event.nic;
		while (!ncp_post(n->ncp, &c))
			ncp_step(n->ncp);
		if (!n->place)
			n->soft->cluster += event.event == WIRE_UP ? 1 : -1;
		busy = true;
	}
	return busy;
}

uint64_t soft_timer(struct soft *s)
{
	uint64_t due = UINT64_MAX;
	uint32_t k;

	for (k = 0; k < s->count; k++)
		if (s->nics[k].wire && wire_timer(s->nics[k].wire) < due)
			due = wire_timer(s->nics[k].wire);
	return due;
}
