// SPDX-License-Identifier: BSD-2-Clause
/*
 * limits - what the hardware allows between two pinned processes.
 *
 *	limits line CPU_A CPU_B ITERS
 *	limits memcpy CPU SIZE ITERS
 *
 * line bounces one cache line between two processes over shared memory and
 * prints half a round trip, the median of batches: one that was preempted
 * does not count.  memcpy copies SIZE bytes on one core over and
 * over and prints 10^6 bytes/s.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define PAGE	4096
#define BATCHES	51

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int pin(long cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		perror("limits: sched_setaffinity");
		return -1;
	}
	return 0;
}

static void await(_Atomic long *line, long v)
{
	while (atomic_load_explicit(line, memory_order_acquire) != v)
		;
}

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* The parent writes odd values, the child the even ones that follow. */
static int line(long cpu_a, long cpu_b, long iters)
{
	_Atomic long *line;
	int64_t start, batch[BATCHES];
	long i, j, n = 0, len = iters / BATCHES + 1;
	pid_t child;

	line = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (line == MAP_FAILED) {
		perror("limits: mmap");
		return 1;
	}
	child = fork();
	if (child < 0) {
		perror("limits: fork");
		return 1;
	}
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (pin(cpu_b))
			_exit(1);
		for (i = 0; i < BATCHES * len; i++) {
			await(line, 2 * i + 1);
			atomic_store_explicit(line, 2 * i + 2,
					      memory_order_release);
		}
		_exit(0);
	}
	if (pin(cpu_a)) {
		kill(child, SIGKILL);
		return 1;
	}
	for (i = 0; i < BATCHES; i++) {
		start = now_ns();
		for (j = 0; j < len; j++, n++) {
			atomic_store_explicit(line, 2 * n + 1,
					      memory_order_release);
			await(line, 2 * n + 2);
		}
		batch[i] = now_ns() - start;
	}
	qsort(batch, BATCHES, sizeof(batch[0]), compare);
	printf("test=line size=64 iters=%ld half_rtt_ns=%.2f\n", n,
	       (double)batch[BATCHES / 2] / (double)len / 2);
	waitpid(child, NULL, 0);
	return 0;
}

static int copy(long cpu, long size, long iters)
{
	long i, warmup = iters / 10 + 1;
	int64_t start = 0, ns;
	char *dst, *src;
	size_t len = ((size_t)size + PAGE - 1) / PAGE * PAGE;

	if (pin(cpu))
		return 1;
	src = aligned_alloc(PAGE, len);
	dst = aligned_alloc(PAGE, len);
	if (!src || !dst) {
		fprintf(stderr, "limits: out of memory\n");
		return 1;
	}
	memset(src, 0x5a, len);
	memset(dst, 0, len);
	for (i = 0; i < warmup + iters; i++) {
		if (i == warmup)
			start = now_ns();
		memcpy(dst, src, (size_t)size);
		/* Keeps the compiler from merging or dropping the copies. */
		__asm__ volatile("" : : "r"(dst), "r"(src) : "memory");
	}
	ns = now_ns() - start;
	printf("test=memcpy size=%ld iters=%ld mb_per_s=%.2f\n", size, iters,
	       (double)size * (double)iters * 1e3 / (double)ns);
	free(dst);
	free(src);
	return 0;
}

static long number(const char *s, long min)
{
	char *end;
	long v = strtol(s, &end, 10);

	if (*s == '\0' || *end != '\0' || v < min || v > 1L << 40) {
		fprintf(stderr, "limits: bad number '%s'\n", s);
		exit(2);
	}
	return v;
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "line"))
		return line(number(argv[2], 0), number(argv[3], 0),
			    number(argv[4], 1));
	if (argc == 5 && !strcmp(argv[1], "memcpy"))
		return copy(number(argv[2], 0), number(argv[3], 1),
			    number(argv[4], 1));
	fprintf(stderr, "usage: limits line CPU_A CPU_B ITERS\n"
			"       limits memcpy CPU SIZE ITERS\n");
	return 2;
}
