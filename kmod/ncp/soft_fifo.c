// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

/* NIC output and input FIFOs: memory between the NICs of a host, the wire to others. */

#include <errno.h>
#include <stdlib.h>

#include "soft_internal.h"

/*
 * The header of a frame in the FIFO; header and frame together begin at a multiple of 8. No
 * frame wraps: a size of 0 means that the rest up to the end is skipped. A frame from NIC 0
 * was dropped.
 */
struct unit {
	uint32_t size;
	uint32_t from;
	uint32_t pad;
};

_Static_assert(sizeof(struct unit) == 12, "the frame begins 4 bytes after a multiple of 8");

static uint32_t footprint(uint32_t size)
{
	return (sizeof(struct unit) + size + 7) & ~7u;
}

static struct unit *unit_at(struct soft_fifo *f, uint32_t at)
{
	return (struct unit *)(f->data + (at & (f->size - 1)));
}

/* Bytes of the frame at @at, or of the rest that is skipped. */
static uint32_t length(struct soft_fifo *f, uint32_t at)
{
	uint32_t size = unit_at(f, at)->size;

	return size ? footprint(size) : f->size - (at & (f->size - 1));
}

int soft_fifo_init(struct soft_fifo *f, uint32_t size)
{
	f->data = aligned_alloc(64, size);
	f->size = size;
	return f->data ? 0 : -ENOMEM;
}

static void *fifo_reserve(struct soft_fifo *f, uint16_t from, uint32_t size)
{
	uint32_t need = footprint(size);
	uint32_t at = f->tail & (f->size - 1);
	uint32_t to_end = f->size - at;
	uint32_t skip = need > to_end ? to_end : 0;

	if (f->size - (f->tail - f->head) < skip + need)
		return NULL;
	if (skip) {
		*(uint32_t *)unit_at(f, f->tail) = 0;
		f->tail += skip;
	}
	f->reserved = f->tail;
	f->from = from;
	return unit_at(f, f->tail) + 1;
}

static void fifo_commit(struct soft_fifo *f, uint32_t size)
{
	struct unit *u = unit_at(f, f->reserved);

	if (!size)
		return;
	u->size = size;
	u->from = f->from;
	f->tail = f->reserved + footprint(size);
}

static const void *fifo_peek(struct soft_fifo *f, uint16_t *nic, uint32_t *size)
{
	struct unit *u;

	while (f->head != f->tail) {
		u = unit_at(f, f->head);
		if (u->size && u->from) {
			*nic = u->from;
			*size = u->size;
			return u + 1;
		}
		f->head += length(f, f->head);
	}
	return NULL;
}

/* Drops the frames of a NIC. */
void soft_fifo_forget(struct soft_fifo *f, uint16_t from)
{
	uint32_t at = f->head;

	while (at != f->tail) {
		struct unit *u = unit_at(f, at);

		if (u->size && u->from == from)
			u->from = 0;
		at += length(f, at);
	}
}

static void fifo_consume(struct soft_fifo *f)
{
	f->head += footprint(unit_at(f, f->head)->size);
}

void *soft_tx_reserve(void *host, uint16_t nic, uint32_t size)
{
	struct soft_nic *n = host;
	struct soft_nic *to = soft_nic_of(n->soft, nic);

	if (to)
		return fifo_reserve(&to->input, n->number, size);
	return n->wire ? wire_reserve(n->wire, nic, size) : NULL;
}

void soft_tx_commit(void *host, uint16_t nic, uint32_t size)
{
	struct soft_nic *n = host;
	struct soft_nic *to = soft_nic_of(n->soft, nic);

	if (to)
		fifo_commit(&to->input, size);
	else if (n->wire)
		wire_commit(n->wire, soft_now(), nic, size);
}

/* The host's own NICs and the wire take turns. */
const void *soft_rx_peek(void *host, uint16_t *nic, uint32_t *size)
{
	struct soft_nic *n = host;
	const void *frame;
	int k;

	for (k = 0; k < 2; k++) {
		n->from_wire = n->wire_next ^ k;
		if (!n->from_wire)
			frame = fifo_peek(&n->input, nic, size);
		else
			frame = n->wire ? wire_peek(n->wire, soft_now(), nic, size) : NULL;
		if (frame)
			return frame;
	}
	return NULL;
}

void soft_rx_consume(void *host)
{
	struct soft_nic *n = host;

	if (n->from_wire)
		wire_consume(n->wire, soft_now());
	else
		fifo_consume(&n->input);
	n->wire_next = !n->from_wire;
}
