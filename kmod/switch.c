// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * NIC input and output FIFOs between the NICs of this host; frames of other hosts use the
 * wire.
 */
#include <linux/bitmap.h>
#include <linux/delay.h>
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

/* Drops the frames that another NIC has sent. The caller holds the locks of both NICs. */
static void qnix_fifo_forget(struct qnix_nic *nic, const struct qnix_nic *from)
{
	struct qnix_fifo *fifo = &nic->input;
	struct qnix_frame *frame, *next;

	spin_lock(&fifo->lock);
	list_for_each_entry_safe(frame, next, &fifo->frames, list) {
		if (frame->from != from->index)
			continue;
		list_del(&frame->list);
		qnix_put(nic, frame);
	}
	fifo->bytes[from->index] = 0;
	clear_bit(from->index, fifo->starved);
	spin_unlock(&fifo->lock);
}

/*
 * @nic has removed @other from its NIC Table: @other removes it as well, and both add each
 * other, as if they had just met. Both locks are held, so that neither gets a frame from
 * before, or one from after before it knows the other.
 */
static void qnix_meet_again(struct qnix_nic *nic, struct qnix_nic *other)
{
	struct ncp_driver_command remove = { .command = NCP_REMOVE_NIC, .nic = nic->number };
	struct ncp_driver_command add = { .command = NCP_ADD_NIC, .nic = nic->number };
	struct qnix_nic *first = nic->index < other->index ? nic : other;
	struct qnix_nic *second = first == nic ? other : nic;
	struct qnix_command_wait wait;

	qnix_nic_lock(first);
	spin_lock_nested(&second->lock, SINGLE_DEPTH_NESTING);
	if (test_and_clear_bit(other->index, nic->lost)) { /* else the other NIC's thread has done it */
		qnix_command_post(other, &remove, &wait);
		qnix_command_finish(other, &wait);
		qnix_fifo_forget(nic, other);
		qnix_fifo_forget(other, nic);
		clear_bit(nic->index, other->lost);
		qnix_command_post(other, &add, NULL);
		add.nic = other->number;
		qnix_command_post(nic, &add, NULL);
	}
	spin_unlock(&second->lock);
	qnix_nic_unlock(first);
	/* What may be done without any lock alone. */
	qnix_nic_lock(second);
	qnix_nic_unlock(second);
}

/* A message for a NIC could not be kept: @host has removed it from its NIC Table. */
void qnix_nic_lost(void *host, u16 number)
{
	struct qnix_nic *nic = host, *other = qnix_local_nic(number);

	if (!other) {
		qnix_net_lost(nic, number);
		return;
	}
	set_bit(other->index, nic->lost);
	wake_up(&nic->wakeup);
}

/* For the NIC's thread: NICs of this host meet again; those of others do so over the wire. */
void qnix_find_lost(struct qnix_nic *nic)
{
	unsigned int i;

	if (bitmap_empty(nic->lost, QNIX_MAX_NICS))
		return;
	usleep_range(1000, 2000); /* until there may be memory again */
	for_each_set_bit(i, nic->lost, QNIX_MAX_NICS)
		qnix_meet_again(nic, qnix_nics[i]);
}
