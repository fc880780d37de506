// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * NIC input and output FIFOs between the NICs of this host; frames of other hosts use the
 * wire.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "host.h"

/* Bytes that one NIC may have in another's input FIFO; one more frame may exceed it. */
#define QNIX_FIFO_BYTES	0x100000U

void qnix_fifo_init(struct qnix_fifo *fifo)
{
	spin_lock_init(&fifo->lock);
	INIT_LIST_HEAD(&fifo->frames);
}

/* The NIC does not run any more. */
void qnix_fifo_drain(struct qnix_fifo *fifo)
{
	struct qnix_frame *frame, *next;

	list_for_each_entry_safe(frame, next, &fifo->frames, list)
		kvfree(frame);
	INIT_LIST_HEAD(&fifo->frames);
}

static bool qnix_fifo_has_room(struct qnix_fifo *fifo, unsigned int from)
{
	bool room;

	spin_lock(&fifo->lock);
	room = fifo->bytes[from] < QNIX_FIFO_BYTES;
	if (!room)
		set_bit(from, fifo->starved);
	spin_unlock(&fifo->lock);
	return room;
}

void *qnix_tx_reserve(void *host, u16 number, u32 size)
{
	struct qnix_nic *nic = host, *to = qnix_local_nic(number);
	struct qnix_frame *frame;

	if (!to)
		return nic->wire ? wire_reserve(nic->wire, number, size) : NULL;
	if (!qnix_fifo_has_room(&to->input, nic->index))
		return NULL;
	frame = qnix_get(nic, struct_size(frame, data, size), 0);
	if (!frame) {
		nic->retry = true;
		return NULL;
	}
	frame->source = nic->number;
	frame->from = nic->index;
	nic->reserved = frame;
	return frame->data;
}

void qnix_tx_commit(void *host, u16 number, u32 size)
{
	struct qnix_nic *nic = host, *to = qnix_local_nic(number);
	struct qnix_frame *frame = nic->reserved;

	if (!to) {
		if (nic->wire)
			wire_commit(nic->wire, ktime_get_ns(), number, size);
		return;
	}
	nic->reserved = NULL;
	if (!size) {
		qnix_put(nic, frame);
		return;
	}
	frame->size = size;
	spin_lock(&to->input.lock);
	list_add_tail(&frame->list, &to->input.frames);
	to->input.bytes[frame->from] += size;
	spin_unlock(&to->input.lock);
	set_bit(QNIX_NIC_WORK, &to->state);
	__set_bit(to->index, nic->kick);
}

static const void *qnix_fifo_peek(struct qnix_nic *nic, u16 *number, u32 *size)
{
	struct qnix_frame *frame;

	spin_lock(&nic->input.lock);
	frame = list_first_entry_or_null(&nic->input.frames, struct qnix_frame, list);
	spin_unlock(&nic->input.lock);
	if (!frame)
		return NULL;
	*number = frame->source;
	*size = frame->size;
	return frame->data;
}

static const void *qnix_peek_at(struct qnix_nic *nic, bool wire, u16 *number, u32 *size)
{
	if (!wire)
		return qnix_fifo_peek(nic, number, size);
	return nic->wire ? wire_peek(nic->wire, ktime_get_ns(), number, size) : NULL;
}

/* NICs of this host and the wire take turns; a frame that was returned stays the first. */
const void *qnix_rx_peek(void *host, u16 *number, u32 *size)
{
	struct qnix_nic *nic = host;
	const void *frame = qnix_peek_at(nic, nic->from_wire, number, size);

	if (frame)
		return frame;
	frame = qnix_peek_at(nic, !nic->from_wire, number, size);
	if (frame)
		nic->from_wire = !nic->from_wire;
	return frame;
}

static void qnix_fifo_consume(struct qnix_nic *nic)
{
	struct qnix_fifo *fifo = &nic->input;
	struct qnix_frame *frame;
	bool starved;

	spin_lock(&fifo->lock);
	frame = list_first_entry(&fifo->frames, struct qnix_frame, list);
	list_del(&frame->list);
	fifo->bytes[frame->from] -= frame->size;
	starved = fifo->bytes[frame->from] < QNIX_FIFO_BYTES / 2 &&
		  test_and_clear_bit(frame->from, fifo->starved);
	spin_unlock(&fifo->lock);
	if (starved) {
		set_bit(QNIX_NIC_WORK, &qnix_nics[frame->from]->state);
		__set_bit(frame->from, nic->kick);
	}
	qnix_put(nic, frame);
}

void qnix_rx_consume(void *host)
{
	struct qnix_nic *nic = host;

	if (nic->from_wire)
		wire_consume(nic->wire, ktime_get_ns());
	else
		qnix_fifo_consume(nic);
	nic->from_wire = !nic->from_wire;
}
