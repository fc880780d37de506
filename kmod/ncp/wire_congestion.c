// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Congestion control: how many bytes may be under way. It evaluates two signs once a round
 * trip:
 *
 * Delay: if even the fastest datagram of a round waited in queues for longer than a target,
 * the window shrinks by an eighth. The target is TARGET plus half the least round trip, and
 * higher for small windows, so that flows that share a queue get equal windows.
 *
 * Losses: some paths always lose datagrams; others lose them because a queue overflows. An
 * experiment distinguishes the two: if more is lost than the path is known to lose by
 * itself, the window shrinks for SETTLE rounds. The losses of these rounds are the path's.
 * If they are not much lower, the window is restored, so that the path's losses have cost
 * no more than those rounds.
 *
 * Otherwise the window grows if it held the sender back: it doubles until the first sign of
 * congestion, and then grows by a datagram.
 */
#include "wire_internal.h"

#define TARGET		(500 * WIRE_US)
#define TARGET_SMALL	(2000 * WIRE_US) /* more, of the least window */
/* Shares of losses, in 1024ths */
#define LOSS_STAY	16	/* beyond the path's losses: the window does not grow any more */
#define LOSS_SHRINK	64	/* shrinks at once */
#define LOSS_PATH	160	/* the most that a path may lose by itself */
/* Rounds */
#define SETTLE		5	/* of an experiment; the first one still shows earlier losses */
#define STAY		8	/* without growth, until an experiment begins */
#define TRUST		64	/* until the next experiment */
/* The fewest fragments from which a share is computed */
#define JUDGED		32
#define SETTLED		128	/* in an experiment */
#define FIRST		16	/* datagrams */
#define LEAST		4
#define MOST		(64ull << 20)
#define FORGET		(10000 * WIRE_MS) /* after which the least round trip is measured anew */

void wire_congestion_init(struct wire_congestion *c, uint32_t datagram, uint64_t now)
{
	memset(c, 0, sizeof(*c));
	c->window = (uint64_t)FIRST * datagram;
	c->starting = true;
	c->round_at = now;
	c->round_rtt = WIRE_NEVER;
}

static void note_least(struct wire_congestion *c, uint64_t rtt, uint64_t now)
{
	if (!c->least || rtt <= c->least) {
		c->least = rtt;
		c->least_at = now;
		c->next_least = WIRE_NEVER;
	} else if (now - c->least_at > FORGET / 2 && rtt < c->next_least) {
		c->next_least = rtt;
	}
	if (now - c->least_at > FORGET && c->next_least != WIRE_NEVER) {
		c->least = c->next_least;
		c->next_least = WIRE_NEVER;
		c->least_at = now;
	}
}

void wire_congestion_rtt(struct wire_congestion *c, uint64_t rtt, uint64_t now)
{
	uint64_t off;

	note_least(c, rtt, now);
	c->round_rtt = wire_least(c->round_rtt, rtt);
	if (!c->srtt) {
		c->srtt = rtt;
		c->variance = rtt / 2;
		return;
	}
	off = rtt > c->srtt ? rtt - c->srtt : c->srtt - rtt;
	c->variance = (3 * c->variance + off) / 4;
	c->srtt = (7 * c->srtt + rtt) / 8;
}

static void shrink(struct wire_congestion *c, uint64_t by, uint32_t datagram)
{
	c->starting = false;
	c->window = wire_most(c->window - by, (uint64_t)LEAST * datagram);
}

static uint32_t loss(const struct wire_congestion *c)
{
	uint32_t all = c->arrived_sum + c->lost_sum;

	return all ? (uint32_t)(((uint64_t)c->lost_sum << 10) / all) : 0;
}

static void experiment(struct wire_congestion *c, uint32_t share, uint32_t datagram)
{
	bool starting = c->starting;

	c->settling = SETTLE;
	c->before_loss = share;
	c->before_window = c->window;
	shrink(c, c->starting ? c->window / 2 : c->window / 4, datagram);
	c->starting = starting;
	c->held = 0;
	c->trusted = 0;
}

static void settle(struct wire_congestion *c, uint32_t share)
{
	if (--c->settling == SETTLE - 1) {
		c->arrived_sum = 0;
		c->lost_sum = 0;
	}
	if (!c->settling && c->arrived_sum + c->lost_sum < SETTLED)
		c->settling = 1;
	if (c->settling)
		return;
	c->path_loss = share < LOSS_PATH ? share : LOSS_PATH;
	if (c->before_loss < LOSS_PATH && 2 * c->path_loss >= c->before_loss)
		c->window = c->before_window;
	else
		c->starting = false;
}

/* Evaluates losses. Returns true if the window must not grow. */
static bool hindered(struct wire_congestion *c, uint32_t datagram)
{
	bool judged = c->arrived_sum + c->lost_sum >= JUDGED;
	uint32_t share = loss(c);

	if (c->settling) {
		settle(c, share);
		return true;
	}
	if (share < c->path_loss)
		c->path_loss -= (c->path_loss - share + 7) / 8;
	if (share > c->path_loss + LOSS_STAY)
		c->held += c->limited;
	else
		c->held = 0;
	if (c->path_loss > LOSS_STAY)
		c->trusted++;
	if (judged && ((c->lost && share > c->path_loss + LOSS_SHRINK) ||
		       c->held >= STAY || c->trusted >= TRUST)) {
		experiment(c, share, datagram);
		return true;
	}
	return c->held > 0;
}

static bool late(const struct wire_congestion *c, uint32_t datagram)
{
	uint32_t windows = (uint32_t)c->window / (LEAST * datagram);
	uint64_t small = (uint32_t)TARGET_SMALL / (windows ? windows : 1);

	return c->round_rtt != WIRE_NEVER &&
	       c->round_rtt > c->least + c->least / 2 + TARGET + small;
}

void wire_congestion_round(struct wire_congestion *c, uint32_t datagram, uint64_t now)
{
	if (!c->settling) {	/* the weight of earlier rounds decreases */
		c->arrived_sum -= c->arrived_sum / 4;
		c->lost_sum -= c->lost_sum / 4;
	}
	c->arrived_sum += c->arrived;
	c->lost_sum += c->lost;
	if (hindered(c, datagram)) {
		/* the window does not grow */
	} else if (late(c, datagram)) {
		shrink(c, c->window / 8, datagram);
	} else if (c->limited) {
		c->window += c->starting ? c->window : datagram;
		c->window = wire_least(c->window, MOST);
	}
	c->limited = false;
	c->arrived = 0;
	c->lost = 0;
	c->round_rtt = WIRE_NEVER;
	c->round_at = now;
}

void wire_congestion_collapse(struct wire_congestion *c, uint32_t datagram, uint64_t now)
{
	c->window = (uint64_t)LEAST * datagram;
	c->starting = true;	/* the path may have changed */
	c->limited = false;
	c->arrived = 0;
	c->lost = 0;
	c->arrived_sum = 0;
	c->lost_sum = 0;
	c->round_at = now;
}
