// SPDX-License-Identifier: BSD-2-Clause
/*
 * xskpeer - AF_XDP in C, to measure afxdp/xsk beside
 *
 * Ping-pong and one-way rate of 64-byte frames between two processes, each
 * spinning on a core of its own, with nothing but the kernel's interface: what
 * it costs without Go.  The benchmarks of afxdp/xsk build and run it.
 *
 *	xskpeer ROLE DEVICE skb|native CPU SECONDS
 *
 * ROLE is ping or pong, send or recv.  Each process says "ready" once it is
 * bound and starts when its standard input says so.  ping then prints
 * nanoseconds a round trip, recv frames a second.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SOL_XDP
#define SOL_XDP		283
#endif
#ifndef AF_XDP
#define AF_XDP		44
#endif

#define RING		2048
#define CHUNK		4096
#define CHUNKS		4096
#define BATCH		64
#define FRAME		64
#define ETHER_TYPE	0x88b5

struct ring {
	uint32_t *producer;
	uint32_t *consumer;
	uint32_t *flags;
	void *slots;
	uint32_t prod;
	uint32_t cons;
};

struct port {
	int fd;
	uint8_t *umem;
	struct ring fill, comp, rx, tx;
};

static void die(const char *what)
{
	fprintf(stderr, "xskpeer: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* Free slots, by the producer. */
static uint32_t ring_free(struct ring *r, uint32_t want)
{
	uint32_t n = RING - (r->prod - r->cons);

	if (n < want) {
		r->cons = __atomic_load_n(r->consumer, __ATOMIC_ACQUIRE);
		n = RING - (r->prod - r->cons);
	}
	return n < want ? n : want;
}

/* Slots to be read, by the consumer. */
static uint32_t ring_pending(struct ring *r, uint32_t want)
{
	uint32_t n = r->prod - r->cons;

	if (n < want) {
		r->prod = __atomic_load_n(r->producer, __ATOMIC_ACQUIRE);
		n = r->prod - r->cons;
	}
	return n < want ? n : want;
}

static void ring_publish(struct ring *r, uint32_t n)
{
	r->prod += n;
	__atomic_store_n(r->producer, r->prod, __ATOMIC_RELEASE);
}

static void ring_release(struct ring *r, uint32_t n)
{
	r->cons += n;
	__atomic_store_n(r->consumer, r->cons, __ATOMIC_RELEASE);
}

static uint64_t *ring_addr(struct ring *r, uint32_t i)
{
	return (uint64_t *)r->slots + (i & (RING - 1));
}

static struct xdp_desc *ring_desc(struct ring *r, uint32_t i)
{
	return (struct xdp_desc *)r->slots + (i & (RING - 1));
}

static void ring_map(struct ring *r, int fd, off_t page, const struct xdp_ring_offset *off, size_t slot)
{
	uint8_t *mem;

	mem = mmap(NULL, off->desc + RING * slot, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, page);
	if (mem == MAP_FAILED)
		die("map a ring");
	r->producer = (uint32_t *)(mem + off->producer);
	r->consumer = (uint32_t *)(mem + off->consumer);
	r->flags = (uint32_t *)(mem + off->flags);
	r->slots = mem + off->desc;
}

static void port_open(struct port *p, unsigned int ifindex)
{
	static const int options[] = {
		XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING, XDP_TX_RING,
	};
	struct xdp_umem_reg reg = { .len = (uint64_t)CHUNK * CHUNKS, .chunk_size = CHUNK };
	struct sockaddr_xdp addr = {
		.sxdp_family = AF_XDP, .sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP, .sxdp_ifindex = ifindex,
	};
	struct xdp_mmap_offsets off;
	socklen_t len = sizeof(off);
	int size = RING;
	size_t i;

	p->fd = socket(AF_XDP, SOCK_RAW, 0);
	if (p->fd < 0)
		die("socket");
	p->umem = mmap(NULL, reg.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (p->umem == MAP_FAILED)
		die("map the UMEM");
	reg.addr = (uintptr_t)p->umem;
	if (setsockopt(p->fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg)))
		die("register the UMEM");
	for (i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (setsockopt(p->fd, SOL_XDP, options[i], &size, sizeof(size)))
			die("make a ring");
	if (getsockopt(p->fd, SOL_XDP, XDP_MMAP_OFFSETS, &off, &len))
		die("get the layout of the rings");
	ring_map(&p->fill, p->fd, XDP_UMEM_PGOFF_FILL_RING, &off.fr, sizeof(uint64_t));
	ring_map(&p->comp, p->fd, XDP_UMEM_PGOFF_COMPLETION_RING, &off.cr, sizeof(uint64_t));
	ring_map(&p->rx, p->fd, XDP_PGOFF_RX_RING, &off.rx, sizeof(struct xdp_desc));
	ring_map(&p->tx, p->fd, XDP_PGOFF_TX_RING, &off.tx, sizeof(struct xdp_desc));
	while (bind(p->fd, (struct sockaddr *)&addr, sizeof(addr))) {
		if (errno != EBUSY)
			die("bind");
		usleep(2000);
	}
}

static int bpf(int cmd, union bpf_attr *attr)
{
	return (int)syscall(SYS_bpf, cmd, attr, sizeof(*attr));
}

/* Frames of our EtherType go to the socket, all others pass. */
static void attach(struct port *p, unsigned int ifindex, bool native)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1 };
	union bpf_attr load = { .prog_type = BPF_PROG_TYPE_XDP }, link = { 0 }, update = { 0 };
	int map_fd = bpf(BPF_MAP_CREATE, &map);
	uint32_t key = 0;
	struct bpf_insn prog[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = 6, .src_reg = 1 },
		{ .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 6, .off = 0 },
		{ .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 3, .src_reg = 6, .off = 4 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = 4, .src_reg = 2 },
		{ .code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = 4, .imm = 14 },
		{ .code = BPF_JMP | BPF_JGT | BPF_X, .dst_reg = 4, .src_reg = 3, .off = 8 },
		{ .code = BPF_LDX | BPF_MEM | BPF_H, .dst_reg = 5, .src_reg = 2, .off = 12 },
		{ .code = BPF_JMP | BPF_JNE | BPF_K, .dst_reg = 5, .off = 6, .imm = __builtin_bswap16(ETHER_TYPE) },
		{ .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 6, .off = 16 },
		{ .code = BPF_LD | BPF_IMM | BPF_DW, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = map_fd },
		{ 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_DROP },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
		{ .code = BPF_JMP | BPF_EXIT },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_EXIT },
	};

	if (map_fd < 0)
		die("create the map");
	load.insns = (uintptr_t)prog;
	load.insn_cnt = sizeof(prog) / sizeof(prog[0]);
	load.license = (uintptr_t)"BSD";
	link.link_create.prog_fd = (uint32_t)bpf(BPF_PROG_LOAD, &load);
	if ((int)link.link_create.prog_fd < 0)
		die("load the program");
	link.link_create.target_ifindex = ifindex;
	link.link_create.attach_type = BPF_XDP;
	link.link_create.flags = native ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE;
	if (bpf(BPF_LINK_CREATE, &link) < 0)
		die("attach the program");
	update.map_fd = (uint32_t)map_fd;
	update.key = (uintptr_t)&key;
	update.value = (uintptr_t)&p->fd;
	if (bpf(BPF_MAP_UPDATE_ELEM, &update))
		die("enter the socket in the map");
}

static void fill(struct port *p)
{
	uint32_t n = ring_free(&p->fill, RING), i;

	for (i = 0; i < n; i++)
		*ring_addr(&p->fill, p->fill.prod + i) = (uint64_t)i * CHUNK;
	ring_publish(&p->fill, n);
}

/* Send until the ring is empty, or nothing more is taken. */
static void kick(struct port *p)
{
	while (__atomic_load_n(p->tx.flags, __ATOMIC_ACQUIRE) & XDP_RING_NEED_WAKEUP) {
		uint32_t before = __atomic_load_n(p->tx.consumer, __ATOMIC_ACQUIRE);

		if (before == p->tx.prod)
			return;
		if (sendto(p->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 &&
		    errno != EAGAIN && errno != EBUSY && errno != ENOBUFS)
			die("send");
		if (__atomic_load_n(p->tx.consumer, __ATOMIC_ACQUIRE) == before)
			return;
	}
}

static void header(uint8_t *frame)
{
	memset(frame, 0, FRAME);
	memset(frame, 0xff, 6);
	frame[6] = 2;
	frame[12] = ETHER_TYPE >> 8;
	frame[13] = ETHER_TYPE & 0xff;
}

/* Take one frame back from the receive ring to the fill ring. */
static bool take(struct port *p)
{
	uint64_t addr;

	if (!ring_pending(&p->rx, 1))
		return false;
	addr = ring_desc(&p->rx, p->rx.cons)->addr;
	ring_release(&p->rx, 1);
	if (ring_free(&p->fill, 1)) {
		*ring_addr(&p->fill, p->fill.prod) = addr;
		ring_publish(&p->fill, 1);
	}
	return true;
}

static void put(struct port *p, uint64_t addr)
{
	struct xdp_desc *d = ring_desc(&p->tx, p->tx.prod);

	d->addr = addr;
	d->len = FRAME;
	d->options = 0;
	ring_publish(&p->tx, 1);
	kick(p);
	while (!ring_pending(&p->comp, 1))
		;
	ring_release(&p->comp, 1);
}

static void ping(struct port *p, uint64_t time)
{
	uint64_t addr = (uint64_t)RING * CHUNK, start = now(), end = start + time, rounds = 0;

	while (rounds % 256 || now() < end) {
		put(p, addr);
		while (!take(p))
			;
		rounds++;
	}
	printf("%.1f\n", (double)(now() - start) / (double)rounds);
}

static void pong(struct port *p, uint64_t time)
{
	uint64_t addr = (uint64_t)RING * CHUNK, end = now() + time + 500000000, spins = 0;

	while (++spins % 4096 || now() < end)
		if (take(p))
			put(p, addr);
}

static void send_all(struct port *p, uint64_t time)
{
	static uint64_t chunks[RING];
	uint64_t end = now() + time;
	uint32_t have = RING, n, i;

	for (i = 0; i < RING; i++) {
		chunks[i] = (uint64_t)(RING + i) * CHUNK;
		header(p->umem + chunks[i]);
	}
	while (now() < end) {
		n = ring_free(&p->tx, have < BATCH ? have : BATCH);
		for (i = 0; i < n; i++) {
			struct xdp_desc *d = ring_desc(&p->tx, p->tx.prod + i);

			d->addr = chunks[--have];
			d->len = FRAME;
			d->options = 0;
		}
		ring_publish(&p->tx, n);
		kick(p);
		n = ring_pending(&p->comp, BATCH);
		for (i = 0; i < n; i++)
			chunks[have++] = *ring_addr(&p->comp, p->comp.cons + i);
		ring_release(&p->comp, n);
	}
}

static void receive_all(struct port *p, uint64_t time)
{
	uint64_t count = 0, start = 0, t = 0;
	uint32_t n, i;

	while (!start || (t = now()) < start + time) {
		n = ring_pending(&p->rx, BATCH);
		if (!n)
			continue;
		if (!start)
			start = now();
		n = ring_free(&p->fill, n);
		for (i = 0; i < n; i++)
			*ring_addr(&p->fill, p->fill.prod + i) = ring_desc(&p->rx, p->rx.cons + i)->addr;
		ring_release(&p->rx, n);
		ring_publish(&p->fill, n);
		count += n;
	}
	printf("%.0f\n", (double)count * 1e9 / (double)(t - start));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(struct port *p, uint64_t time);
	} roles[] = { { "ping", ping }, { "pong", pong }, { "send", send_all }, { "recv", receive_all } };
	struct port port = { 0 };
	unsigned int ifindex;
	cpu_set_t cpus;
	size_t i;

	if (argc != 6) {
		fprintf(stderr, "usage: xskpeer ping|pong|send|recv DEVICE skb|native CPU SECONDS\n");
		return 2;
	}
	ifindex = if_nametoindex(argv[2]);
	if (!ifindex)
		die(argv[2]);
	CPU_ZERO(&cpus);
	CPU_SET((size_t)atoi(argv[4]), &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		die("pin to a CPU");
	port_open(&port, ifindex);
	attach(&port, ifindex, !strcmp(argv[3], "native"));
	fill(&port);
	header(port.umem + (uint64_t)RING * CHUNK);
	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		return 1;
	for (i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
		if (!strcmp(roles[i].name, argv[1])) {
			roles[i].run(&port, (uint64_t)(atof(argv[5]) * 1e9));
			return 0;
		}
	}
	fprintf(stderr, "xskpeer: no role %s\n", argv[1]);
	return 2;
}
