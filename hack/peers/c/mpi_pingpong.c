// SPDX-License-Identifier: BSD-2-Clause
/*
 * mpi_pingpong - latency, bandwidth and message rate between two MPI ranks.
 *
 *	mpi_pingpong lat|bw SIZE ITERS WARMUP WINDOW
 *
 * lat sends SIZE bytes to and fro ITERS times and prints half a round trip;
 * WINDOW is ignored.  bw has rank 0 send ITERS windows of WINDOW messages,
 * both sides non-blocking, and rank 1 answer each window with an empty
 * message.  Rank 0 prints one line of key=value pairs; mb_per_s is 10^6 bytes.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TAG_DATA	1
#define TAG_ACK		2
#define PAGE		4096

struct bench {
	int rank;
	int size;
	int window;
	char *send;
	char *recv;
	MPI_Request *reqs;
};

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void pingpong(struct bench *b, long iters)
{
	long i;

	for (i = 0; i < iters; i++) {
		if (b->rank == 0) {
			MPI_Send(b->send, b->size, MPI_BYTE, 1, TAG_DATA,
				 MPI_COMM_WORLD);
			MPI_Recv(b->recv, b->size, MPI_BYTE, 1, TAG_DATA,
				 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else {
			MPI_Recv(b->recv, b->size, MPI_BYTE, 0, TAG_DATA,
				 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(b->send, b->size, MPI_BYTE, 0, TAG_DATA,
				 MPI_COMM_WORLD);
		}
	}
}

static void stream(struct bench *b, long windows)
{
	long i;
	int j;

	for (i = 0; i < windows; i++) {
		for (j = 0; j < b->window; j++) {
			if (b->rank == 0)
				MPI_Isend(b->send, b->size, MPI_BYTE, 1,
					  TAG_DATA, MPI_COMM_WORLD,
					  &b->reqs[j]);
			else
				MPI_Irecv(b->recv, b->size, MPI_BYTE, 0,
					  TAG_DATA, MPI_COMM_WORLD,
					  &b->reqs[j]);
		}
		MPI_Waitall(b->window, b->reqs, MPI_STATUSES_IGNORE);
		if (b->rank == 0)
			MPI_Recv(NULL, 0, MPI_BYTE, 1, TAG_ACK, MPI_COMM_WORLD,
				 MPI_STATUS_IGNORE);
		else
			MPI_Send(NULL, 0, MPI_BYTE, 0, TAG_ACK, MPI_COMM_WORLD);
	}
}

static void *page_alloc(size_t size)
{
	void *p;

	size = (size + PAGE - 1) / PAGE * PAGE;
	p = aligned_alloc(PAGE, size);
	if (!p) {
		fprintf(stderr, "mpi_pingpong: out of memory\n");
		MPI_Abort(MPI_COMM_WORLD, 1);
		exit(1);
	}
	memset(p, 0x5a, size);
	return p;
}

static long number(const char *s, long max)
{
	char *end;
	long v = strtol(s, &end, 10);

	return *s == '\0' || *end != '\0' || v < 1 || v > max ? -1 : v;
}

static void report(const struct bench *b, int lat, long iters, int64_t ns)
{
	double msgs;

	if (lat) {
		printf("test=lat size=%d iters=%ld half_rtt_ns=%.2f\n", b->size,
		       iters, (double)ns / (double)iters / 2);
		return;
	}
	msgs = (double)iters * b->window;
	printf("test=bw size=%d iters=%ld window=%d mb_per_s=%.2f msg_per_s=%.0f\n",
	       b->size, iters, b->window, msgs * b->size * 1e3 / (double)ns,
	       msgs * 1e9 / (double)ns);
}

int main(int argc, char **argv)
{
	struct bench b = { 0 };
	long size, iters, warmup, window;
	int lat, nranks;
	int64_t start;

	if (argc != 6)
		goto usage;
	lat = !strcmp(argv[1], "lat");
	size = number(argv[2], 1L << 30);
	iters = number(argv[3], 1L << 40);
	warmup = number(argv[4], 1L << 40);
	window = number(argv[5], 1L << 16);
	if ((!lat && strcmp(argv[1], "bw")) || size < 0 || iters < 0 ||
	    warmup < 0 || window < 0)
		goto usage;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &nranks);
	if (nranks != 2) {
		fprintf(stderr, "mpi_pingpong: needs 2 ranks, has %d\n",
			nranks);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	b.size = (int)size;
	b.window = (int)window;
	b.send = page_alloc((size_t)size);
	b.recv = page_alloc((size_t)size);
	b.reqs = page_alloc((size_t)window * sizeof(*b.reqs));

	if (lat)
		pingpong(&b, warmup);
	else
		stream(&b, warmup);
	MPI_Barrier(MPI_COMM_WORLD);
	start = now_ns();
	if (lat)
		pingpong(&b, iters);
	else
		stream(&b, iters);
	if (b.rank == 0)
		report(&b, lat, iters, now_ns() - start);

	MPI_Finalize();
	free(b.reqs);
	free(b.recv);
	free(b.send);
	return 0;
usage:
	fprintf(stderr,
		"usage: mpi_pingpong lat|bw SIZE ITERS WARMUP WINDOW\n");
	return 2;
}
