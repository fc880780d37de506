// SPDX-License-Identifier: BSD-2-Clause
/*
 * tcppeer - TCP in C, to measure the driver tcp beside
 *
 * Two processes over one connection with TCP_NODELAY, with nothing but the
 * kernel's interface: what a message costs without Go and without a driver.
 * hack/bench-tcp builds and runs it.
 *
 *	tcppeer serve ADDRESS PORT CPU
 *	tcppeer spin|sleep|push|rate ADDRESS PORT CPU SIZE SECONDS
 *
 * serve takes one connection after the other until it is killed.  The others
 * measure with SIZE bytes a message:
 *
 *	spin   ping-pong, receives do not block: nanoseconds, half a round trip
 *	sleep  ping-pong, receives block: the same
 *	push   one way: bytes a second
 *	rate   one way, a system call a message, which is read with others:
 *	       messages a second
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_SIZE	(16u << 20)
#define READ_SIZE	(128u << 10)
#define MAX_TRIPS	(1u << 22)

enum mode {
	MODE_SPIN,
	MODE_SLEEP,
	MODE_PUSH,
	MODE_RATE,
	MODES
};

static const char *const modes[MODES] = { "spin", "sleep", "push", "rate" };

/* The first bytes of a connection, in network order. */
struct order {
	uint32_t mode;
	uint32_t size;
};

static void die(const char *what)
{
	fprintf(stderr, "tcppeer: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
}

static void *buffer(size_t size)
{
	void *p = aligned_alloc(4096, (size + 4095) & ~(size_t)4095);

	if (!p)
		die("aligned_alloc");
	memset(p, 1, size);
	return p;
}

/* Returns 0, or -1 if the peer has closed. */
static int move_all(int fd, char *p, size_t n, int flags, int out)
{
	while (n) {
		ssize_t k = out ? send(fd, p, n, flags | MSG_NOSIGNAL) :
				  recv(fd, p, n, flags);

		if (k < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (k < 0)
			die(out ? "send" : "recv");
		if (k == 0)
			return -1;
		p += k;
		n -= (size_t)k;
	}
	return 0;
}

static int send_all(int fd, void *p, size_t n, int flags)
{
	return move_all(fd, p, n, flags, 1);
}

static int recv_all(int fd, void *p, size_t n, int flags)
{
	return move_all(fd, p, n, flags, 0);
}

/* Reads until the peer has closed its side, and says how many bytes came. */
static void sink(int fd, uint32_t size)
{
	size_t room = size > READ_SIZE ? size : READ_SIZE;
	char *b = buffer(room);
	uint64_t total = 0;
	ssize_t k;

	while ((k = recv(fd, b, room, 0)) > 0)
		total += (uint64_t)k;
	if (k < 0)
		die("recv");
	send_all(fd, &total, sizeof(total), 0);
	free(b);
}

static void serve_one(int fd)
{
	struct order o;
	int flags;
	char *b;

	if (recv_all(fd, &o, sizeof(o), 0))
		return;
	o.mode = ntohl(o.mode);
	o.size = ntohl(o.size);
	if (o.mode >= MODES || !o.size || o.size > MAX_SIZE) {
		fprintf(stderr, "tcppeer: malformed order\n");
		return;
	}
	if (o.mode == MODE_PUSH || o.mode == MODE_RATE) {
		sink(fd, o.size);
		return;
	}
	flags = o.mode == MODE_SPIN ? MSG_DONTWAIT : 0;
	b = buffer(o.size);
	while (!recv_all(fd, b, o.size, flags))
		send_all(fd, b, o.size, flags);
	free(b);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void ping(int fd, uint32_t size, int flags, double seconds)
{
	uint64_t *trip = buffer(MAX_TRIPS * sizeof(*trip));
	uint64_t begin = now(), last = begin, t;
	uint64_t warm = (uint64_t)(seconds * 2e8);
	uint64_t end = begin + (uint64_t)(seconds * 1e9) + warm;
	char *b = buffer(size);
	size_t n = 0;

	do {
		send_all(fd, b, size, flags);
		if (recv_all(fd, b, size, flags))
			die("the peer has closed");
		t = now();
		if (t - begin > warm)
			trip[n++] = t - last;
		last = t;
	} while (t < end && n < MAX_TRIPS);
	if (!n) {
		fprintf(stderr, "tcppeer: no round trip in that time\n");
		exit(1);
	}
	qsort(trip, n, sizeof(*trip), compare);
	printf("%.1f\n", (double)trip[n / 2] / 2);
	free(trip);
	free(b);
}

static void push(int fd, uint32_t size, int rate, double seconds)
{
	uint64_t begin = now(), end = begin + (uint64_t)(seconds * 1e9), total;
	char *b = buffer(size);

	do {
		int k;

		for (k = 0; k < (rate ? 64 : 1); k++)
			send_all(fd, b, size, 0);
	} while (now() < end);
	if (shutdown(fd, SHUT_WR))
		die("shutdown");
	if (recv_all(fd, &total, sizeof(total), 0))
		die("the peer has closed");
	printf("%.0f\n", (double)(rate ? total / size : total) * 1e9 /
			 (double)(now() - begin));
	free(b);
}

static int tcp_socket(void)
{
	int one = 1;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		die("socket");
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) ||
	    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)))
		die("setsockopt");
	return fd;
}

static void serve(struct sockaddr_in *at)
{
	int one = 1;
	int fd = tcp_socket();

	if (bind(fd, (struct sockaddr *)at, sizeof(*at)) || listen(fd, 8))
		die("listen");
	for (;;) {
		int c = accept(fd, NULL, NULL);

		if (c < 0)
			die("accept");
		if (setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
			die("setsockopt");
		serve_one(c);
		close(c);
	}
}

static void measure(struct sockaddr_in *to, uint32_t mode, uint32_t size,
		    double seconds)
{
	struct order o = { htonl(mode), htonl(size) };
	int fd = tcp_socket();

	if (connect(fd, (struct sockaddr *)to, sizeof(*to)))
		die("connect");
	send_all(fd, &o, sizeof(o), 0);
	if (mode == MODE_SPIN || mode == MODE_SLEEP)
		ping(fd, size, mode == MODE_SPIN ? MSG_DONTWAIT : 0, seconds);
	else
		push(fd, size, mode == MODE_RATE, seconds);
	close(fd);
}

static long number(const char *s, long min, long max)
{
	char *end;
	long v = strtol(s, &end, 10);

	if (!*s || *end || v < min || v > max) {
		fprintf(stderr, "tcppeer: %s: %ld to %ld\n", s, min, max);
		exit(2);
	}
	return v;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	uint32_t mode;

	if (argc < 5 || inet_pton(AF_INET, argv[2], &to.sin_addr) != 1)
		goto usage;
	to.sin_port = htons((uint16_t)number(argv[3], 1, 65535));
	pin((int)number(argv[4], 0, CPU_SETSIZE - 1));
	if (argc == 5 && !strcmp(argv[1], "serve"))
		serve(&to);
	for (mode = 0; argc == 7 && mode < MODES; mode++) {
		double seconds = atof(argv[6]);

		if (strcmp(argv[1], modes[mode]))
			continue;
		if (!(seconds > 0 && seconds < 1e6))
			goto usage;
		measure(&to, mode, (uint32_t)number(argv[5], 1, MAX_SIZE),
			seconds);
		return 0;
	}
usage:
	fprintf(stderr,
		"usage: tcppeer serve ADDRESS PORT CPU\n"
		"       tcppeer spin|sleep|push|rate ADDRESS PORT CPU SIZE SECONDS\n");
	return 2;
}
