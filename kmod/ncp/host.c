// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* See host.h. Not part of the kernel module. */
#include <stdlib.h>
#include <string.h>

#include "host.h"
#include "internal.h"

/* Frames in a ring, each in one piece behind a word that says how long it is. */
struct fifo {
	uint8_t *ring;
	uint32_t size, head, tail, used;
};

struct record {
	uint32_t size;		/* 0: the next one is at the start */
	uint32_t nic;
};

struct output {
	struct fifo fifo;
	uint16_t nic;
};

struct host_nic {
	struct ncp *ncp;
	uint16_t id;
	uint32_t fifo_size;
	struct fifo in;
	void *room;		/* the latest reservation, */
	uint32_t room_size;	/* of so many bytes */
	struct output **out;
	uint32_t outputs;
	uint64_t allocated;
	uint64_t taken_early;
	int64_t fail_after;
	uint16_t lost;
	uint64_t random;
	struct host_doorbell *doorbells;
	uint32_t doorbell_count, doorbell_room;
};

static uint32_t whole(uint32_t size)
{
	return (uint32_t)sizeof(struct record) + ((size + 7) & ~7u);
}

static bool fifo_open(struct fifo *f, uint32_t size)
{
	memset(f, 0, sizeof(*f));
	f->size = (size + 7) & ~7u;
	f->ring = malloc(f->size);
	return f->ring;
}

static void *fifo_reserve(struct fifo *f, uint32_t size)
{
	uint32_t need = whole(size), end = f->size - f->tail;

	if (!f->used)
		f->head = f->tail = 0, end = f->size;
	if (f->used + need > f->size)
		return NULL;
	if (f->tail >= f->head && need > end) {
		if (f->used + end + need > f->size)
			return NULL;
		((struct record *)(f->ring + f->tail))->size = 0;
		f->used += end;
		f->tail = 0;
	}
	return f->ring + f->tail + sizeof(struct record);
}

static void fifo_commit(struct fifo *f, uint16_t nic, uint32_t size)
{
	struct record *r = (struct record *)(f->ring + f->tail);

	r->size = size;
	r->nic = nic;
	f->used += whole(size);
	f->tail = (f->tail + whole(size)) % f->size;
}

static struct record *fifo_head(struct fifo *f)
{
	struct record *r = (struct record *)(f->ring + f->head);

	if (f->used && !r->size) {
		f->used -= f->size - f->head;
		f->head = 0;
		r = (struct record *)f->ring;
	}
	return f->used ? r : NULL;
}

static void fifo_consume(struct fifo *f)
{
	struct record *r = fifo_head(f);

	f->used -= whole(r->size);
	f->head = (f->head + whole(r->size)) % f->size;
}

static void *op_alloc(void *host, size_t size)
{
	struct host_nic *h = host;
	void *memory;

	if (h->fail_after >= 0 && h->fail_after-- <= 0) {
		h->fail_after = 0;
		return NULL;
	}
	memory = calloc(1, size);
	if (memory)
		h->allocated += size;
	return memory;
}

static void op_free(void *host, void *memory, size_t size)
{
	struct host_nic *h = host;

	h->allocated -= size;
	free(memory);
}

static uint8_t *at(void *process, uint32_t handle, uint64_t offset, uint32_t len,
		   uint32_t access)
{
	struct host_process *p = process;
	struct host_memory *m;

	if (!handle || handle > HOST_HANDLES)
		return NULL;
	m = &p->memory[handle - 1];
	if (!(m->access & access) || offset > m->len || len > m->len - offset)
		return NULL;
	return m->base + offset;
}

static int op_read(void *host, void *process, uint32_t handle, uint64_t offset, void *to,
		   uint32_t len)
{
	uint8_t *from = at(process, handle, offset, len, QNIX_ACCESS_READ);

	(void)host;
	if (!from)
		return -1;
	memcpy(to, from, len);
	return 0;
}

static int op_write(void *host, void *process, uint32_t handle, uint64_t offset,
		    const void *from, uint32_t len)
{
	uint8_t *to = at(process, handle, offset, len, QNIX_ACCESS_WRITE);

	(void)host;
	if (!to)
		return -1;
	memcpy(to, from, len);
	return 0;
}

static int op_copy(void *host, void *to, uint32_t to_handle, uint64_t to_offset, void *from,
		   uint32_t from_handle, uint64_t from_offset, uint32_t len)
{
	uint8_t *source = at(from, from_handle, from_offset, len, QNIX_ACCESS_READ);
	uint8_t *target = at(to, to_handle, to_offset, len, QNIX_ACCESS_WRITE);

	(void)host;
	if (!source || !target)
		return -1;
	memmove(target, source, len);
	return 0;
}

static struct fifo *output(struct host_nic *h, uint16_t nic)
{
	uint32_t i;

	for (i = 0; i < h->outputs; i++)
		if (h->out[i]->nic == nic)
			return &h->out[i]->fifo;
	return NULL;
}

static void *op_tx_reserve(void *host, uint16_t nic, uint32_t size)
{
	struct host_nic *h = host;
	struct fifo *f = output(h, nic);
	struct output *o;

	h->room_size = size;
	if (f)
		return h->room = fifo_reserve(f, size);
	o = malloc(sizeof(*o));
	h->out = realloc(h->out, (h->outputs + 1) * sizeof(*h->out));
	if (!o || !h->out || !fifo_open(&o->fifo, h->fifo_size))
		abort();
	o->nic = nic;
	h->out[h->outputs++] = o;
	return h->room = fifo_reserve(&o->fifo, size);
}

static void op_tx_commit(void *host, uint16_t nic, uint32_t size)
{
	struct host_nic *h = host;

	if (size)
		fifo_commit(output(h, nic), h->id, size);
	else /* as a host does that frees it */
		memset(h->room, 0xdd, h->room_size);
}

static const void *op_rx_peek(void *host, uint16_t *nic, uint32_t *size)
{
	struct host_nic *h = host;
	struct record *r = fifo_head(&h->in);

	if (!r)
		return NULL;
	*nic = (uint16_t)r->nic;
	*size = r->size;
	return r + 1;
}

static void op_rx_consume(void *host)
{
	fifo_consume(&((struct host_nic *)host)->in);
}

static void op_notify(void *host, void *process)
{
	(void)host;
	((struct host_process *)process)->notified++;
}

static void op_driver_doorbell(void *host, uint64_t cookie, int result)
{
	struct host_nic *h = host;

	if (h->doorbell_count == h->doorbell_room) {
		h->doorbell_room = h->doorbell_room * 2 + 16;
		h->doorbells = realloc(h->doorbells,
				       h->doorbell_room * sizeof(*h->doorbells));
		if (!h->doorbells)
			abort();
	}
	h->doorbells[h->doorbell_count].cookie = cookie;
	h->doorbells[h->doorbell_count++].result = result;
}

static void op_nic_lost(void *host, uint16_t nic)
{
	((struct host_nic *)host)->lost = nic;
}

/* No attacker guesses these numbers, and a simulation must be reproducible. */
static uint64_t op_random(void *host)
{
	struct host_nic *h = host;

	h->random += 0x9e3779b97f4a7c15ull + h->id;
	return h->random * 0xd6e8feb86659fd93ull;
}

static const struct ncp_ops ops = {
	.alloc = op_alloc,
	.free = op_free,
	.read = op_read,
	.write = op_write,
	.copy = op_copy,
	.tx_reserve = op_tx_reserve,
	.tx_commit = op_tx_commit,
	.rx_peek = op_rx_peek,
	.rx_consume = op_rx_consume,
	.notify = op_notify,
	.driver_doorbell = op_driver_doorbell,
	.nic_lost = op_nic_lost,
	.random = op_random,
};

struct host_nic *host_create(uint16_t nic, const struct ncp_limits *limits, uint32_t fifo)
{
	struct host_nic *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->id = nic;
	h->fail_after = -1;
	h->fifo_size = fifo;
	if (fifo_open(&h->in, fifo))
		h->ncp = ncp_create(&ops, h, nic, limits);
	if (h->ncp)
		return h;
	free(h->in.ring);
	free(h);
	return NULL;
}

void host_drop(struct host_nic *h, uint16_t nic)
{
	struct fifo *f = output(h, nic);

	if (f)
		f->used = f->head = f->tail = 0;
}

uint64_t host_destroy(struct host_nic *h)
{
	uint64_t leaked;
	uint32_t i;

	ncp_destroy(h->ncp);
	leaked = h->allocated;
	for (i = 0; i < h->outputs; i++) {
		free(h->out[i]->fifo.ring);
		free(h->out[i]);
	}
	free(h->out);
	free(h->in.ring);
	free(h->doorbells);
	free(h);
	return leaked;
}

struct ncp *host_ncp(struct host_nic *h)
{
	return h->ncp;
}

uint16_t host_id(const struct host_nic *h)
{
	return h->id;
}

uint16_t host_lost(const struct host_nic *h)
{
	return h->lost;
}

uint32_t host_longest_chain(const struct host_nic *h)
{
	const struct ncp_chain *const *tables[] = {
		(const struct ncp_chain *const *)h->ncp->by_name, (const struct ncp_chain *const *)h->ncp->by_id,
	};
	const struct ncp_chain *c;
	uint32_t i, k, n, most = 0;

	for (i = 0; i <= h->ncp->peer_mask; i++) {
		for (k = 0; k < 2; k++) {
			n = 0;
			for (c = tables[k][i]; c; c = c->next)
				n++;
			most = n > most ? n : most;
		}
	}
	return most;
}

uint64_t host_allocated(const struct host_nic *h)
{
	return h->allocated;
}

void host_fail_after(struct host_nic *h, int64_t after)
{
	h->fail_after = after;
}

/*
 * A message that a receive has taken while it arrives gives its local memory back. A message
 * that has arrived whole does so when a doorbell rings; one that will not come, when the
 * driver or another NIC has said so.
 */
static bool step(struct host_nic *h)
{
	const struct ncp *ncp = h->ncp;
	uint32_t held = ncp->held[NCP_MEMORY], taken = ncp->taken;
	struct qnix_statistics before = ncp->stat;
	bool did = ncp_step(h->ncp);

	if (ncp->held[NCP_MEMORY] < held && ncp->taken == taken &&
	    ncp->stat.doorbells == before.doorbells &&
	    ncp->stat.system_messages == before.system_messages)
		h->taken_early++;
	return did;
}

uint32_t host_run(struct host_nic *h, uint32_t budget)
{
	uint32_t n = 0;

	while (n < budget && step(h))
		n++;
	return n;
}

uint64_t host_taken_early(const struct host_nic *h)
{
	return h->taken_early;
}

const void *host_tx_peek(struct host_nic *h, uint16_t nic, uint32_t *size)
{
	struct fifo *f = output(h, nic);
	struct record *r = f ? fifo_head(f) : NULL;

	if (!r)
		return NULL;
	*size = r->size;
	return r + 1;
}

void host_tx_consume(struct host_nic *h, uint16_t nic)
{
	fifo_consume(output(h, nic));
}

bool host_receive(struct host_nic *h, uint16_t from, const void *frame, uint32_t size)
{
	void *to = size ? fifo_reserve(&h->in, size) : NULL;

	if (!to)
		return false;
	memcpy(to, frame, size);
	fifo_commit(&h->in, from, size);
	return true;
}

uint32_t host_carry(struct host_nic *from, struct host_nic *to, uint32_t most)
{
	const void *frame;
	uint32_t n, size;

	for (n = 0; n < most; n++) {
		frame = host_tx_peek(from, to->id, &size);
		if (!frame || !host_receive(to, from->id, frame, size))
			break;
		host_tx_consume(from, to->id);
	}
	return n;
}

uint32_t host_doorbells(struct host_nic *h, struct host_doorbell *to, uint32_t most)
{
	uint32_t n = most < h->doorbell_count ? most : h->doorbell_count;

	if (!n)
		return 0;
	memcpy(to, h->doorbells, n * sizeof(*to));
	memmove(h->doorbells, h->doorbells + n, (h->doorbell_count - n) * sizeof(*to));
	h->doorbell_count -= n;
	return n;
}

uint32_t host_members(struct host_nic *h, const uint8_t *group, struct host_member *to,
		      uint32_t most)
{
	struct ncp_group *g = ncp_group_named(h->ncp, group);
	struct ncp_link *l, *n;
	uint32_t i = 0;

	if (!g)
		return 0;
	ncp_for_each(l, n, &g->members) {
		const struct ncp_member *m = ncp_entry(l, struct ncp_member, in_group);

		if (i == most)
			break;
		to[i].nic = m->peer->nic;
		to[i].pid = m->peer->pid;
		to[i].generation = m->peer->generation;
		to[i++].serial = m->serial;
	}
	return g->count;
}

void host_set_round(struct host_nic *h, const uint8_t *group, uint32_t round)
{
	struct ncp_group *g = ncp_group_named(h->ncp, group);
	struct ncp_link *l, *n;

	ncp_for_each(l, n, &g->members) {
		struct ncp_member *m = ncp_entry(l, struct ncp_member, in_group);

		m->round = round;
		m->done = round;
	}
}

bool host_input_empty(const struct host_nic *h)
{
	return !h->in.used;
}
