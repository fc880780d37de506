// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The wire between this host's NICs and those of other hosts. Each NIC has an end of its
 * own, guarded by its lock. The wire exists as long as there is a key.
 */
#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/srcu.h>
#include <linux/string.h>

#include "host.h"
#include "trace.h"

DEFINE_MUTEX(qnix_net_lock); /* guards key and peers */

static u8 qnix_key[WIRE_KEY];
static bool qnix_keyed;		/* there is a key, and a socket */

/* NICs for which datagrams have arrived; used by the receiving thread only. */
static DECLARE_BITMAP(qnix_net_came, QNIX_MAX_NICS);

/* Held while a datagram is sent, so that the socket outlives it. */
DEFINE_STATIC_SRCU(qnix_net_sending);

static void *qnix_net_alloc(void *host, size_t size)
{
	return qnix_get(host, size, __GFP_ZERO);
}

static void qnix_net_free(void *host, void *memory, size_t size)
{
	qnix_put(host, memory);
}

static u64 qnix_net_random(void *host)
{
	return get_random_u64();
}

static bool qnix_net_wanted(void *host, u16 number)
{
	return !qnix_local_nic(number);
}

static const struct wire_ops qnix_wire_ops = {
	.alloc = qnix_net_alloc,
	.free = qnix_net_free,
	.random = qnix_net_random,
	.wanted = qnix_net_wanted,
};

static void qnix_net_notify(struct qnix_nic *nic, u32 code, u16 number)
{
	struct ncp_driver_command command = {
		.command = code,
		.nic = number,
	};

	qnix_command_post(nic, &command, NULL);
}

static void qnix_net_event(struct qnix_nic *nic, const struct wire_event *event)
{
	bool up = event->event == WIRE_UP;

	trace_qnix_link(nic->number, event->nic, up, event->reason);
	if (up == test_bit(event->nic, nic->remote))
		return;
	__change_bit(event->nic, nic->remote);
	WRITE_ONCE(nic->remotes, nic->remotes + (up ? 1 : -1));
	qnix_net_notify(nic, up ? NCP_ADD_NIC : NCP_REMOVE_NIC, event->nic);
}

/* Before the NIC runs: handles timers and events of the wire. */
void qnix_net_prepare(struct qnix_nic *nic)
{
	struct wire_event event;
	u64 now;

	if (!nic->wire)
		return;
	now = ktime_get_ns();
	if (wire_timer(nic->wire) <= now)
		wire_tick(nic->wire, now);
	while (wire_event(nic->wire, &event))
		qnix_net_event(nic, &event);
}

void qnix_net_lost(struct qnix_nic *nic, u16 number)
{
	if (nic->wire)
		wire_restart(nic->wire, ktime_get_ns(), number);
}

static u32 qnix_net_output(struct qnix_nic *nic, struct wire_address *to, void *datagram)
{
	u32 size = 0;

	qnix_nic_lock(nic);
	if (nic->wire) {
		size = wire_output(nic->wire, ktime_get_ns(), to, datagram, qnix_params.datagram);
		if (!size)
			qnix_nic_set_alarm(nic);
	}
	qnix_nic_unlock(nic);
	return size;
}

/*
 * After the NIC has run: sends its datagrams, without the lock, because that may sleep.
 * Threads may do so at the same time; each has one datagram, so that one that is held up
 * delays no other. Returns whether there may be more than the caller has to send: the
 * NIC's thread does that.
 */
bool qnix_net_flush(struct qnix_nic *nic)
{
	unsigned int left = QNIX_SENDS;
	struct wire_address to;
	void *datagram;
	int reading;
	u32 size;

	if (!READ_ONCE(nic->wire))
		return false;
	reading = srcu_read_lock(&qnix_net_sending);
	datagram = xchg(&nic->datagram, NULL);
	if (!datagram)
		datagram = kvmalloc(qnix_params.datagram, GFP_KERNEL | __GFP_NOWARN);
	while (datagram && left && (size = qnix_net_output(nic, &to, datagram))) {
		qnix_udp_send(&to, datagram, size);
		left--;
	}
	if (datagram)
		kvfree(xchg(&nic->datagram, datagram));
	srcu_read_unlock(&qnix_net_sending, reading);
	if (!left)
		qnix_nic_wake(nic);
	return !left;
}

/* Returns when the wire's next timer is due. */
u64 qnix_net_due(struct qnix_nic *nic)
{
	return nic->wire ? wire_timer(nic->wire) : U64_MAX;
}

static void qnix_net_answer(const struct wire_address *to, const void *datagram, u32 size)
{
	u16 numbers[QNIX_MAX_NICS];
	u8 answer[WIRE_ANSWER];
	unsigned int i;

	for (i = 0; i < qnix_params.nics; i++)
		numbers[i] = qnix_nics[i]->number;
	size = wire_answer(qnix_key, numbers, i, datagram, size, answer);
	if (size)
		qnix_udp_send(to, answer, size);
}

/* Returns false if the datagram lacks the key, so that the NIC need not run for it. */
static bool qnix_net_take(struct qnix_nic *nic, const struct wire_address *from,
			  const void *datagram, u32 size)
{
	struct wire_counters before, after;

	wire_counters(nic->wire, &before);
	wire_input(nic->wire, ktime_get_ns(), from, datagram, size);
	wire_counters(nic->wire, &after);
	return after.unauthenticated == before.unauthenticated;
}

/*
 * Handles a datagram, which anyone may have sent. Only the receiving thread calls this and
 * qnix_net_ran.
 */
void qnix_net_input(const struct wire_address *from, const void *datagram, u32 size)
{
	int number = wire_destination(datagram, size);
	struct qnix_nic *nic;
	bool taken;

	if (number == 0)
		qnix_net_answer(from, datagram, size);
	nic = number > 0 ? qnix_local_nic(number) : NULL;
	if (!nic)
		return;
	qnix_nic_lock(nic);
	taken = nic->wire && qnix_net_take(nic, from, datagram, size);
	/* A thread that finds the lock taken leaves its work to the NIC's thread. */
	qnix_nic_unlock(nic);
	if (!taken)
		return;
	set_bit(QNIX_NIC_WORK, &nic->state);
	__set_bit(nic->index, qnix_net_came);
}

/* Datagrams have arrived: runs their NICs. */
void qnix_net_ran(void)
{
	unsigned int i;

	for_each_set_bit(i, qnix_net_came, QNIX_MAX_NICS) {
		__clear_bit(i, qnix_net_came);
		qnix_nic_run(qnix_nics[i]);
	}
}

/* Peers and keys: qnix_net_lock held. */
void qnix_net_add(const struct wire_address *address)
{
	unsigned int i;

	for (i = 0; qnix_keyed && i < qnix_params.nics; i++) {
		qnix_nic_lock(qnix_nics[i]);
		if (qnix_nics[i]->wire)
			wire_add_address(qnix_nics[i]->wire, ktime_get_ns(), address);
		qnix_nic_unlock(qnix_nics[i]);
		qnix_nic_wake(qnix_nics[i]);
	}
}

void qnix_net_remove(const struct wire_address *address)
{
	unsigned int i;

	for (i = 0; qnix_keyed && i < qnix_params.nics; i++) {
		qnix_nic_lock(qnix_nics[i]);
		if (qnix_nics[i]->wire)
			wire_remove_address(qnix_nics[i]->wire, address);
		qnix_nic_unlock(qnix_nics[i]);
	}
}

static void qnix_net_detach(struct qnix_nic *nic)
{
	unsigned int number;

	qnix_nic_lock(nic);
	if (nic->wire)
		wire_close_all(nic->wire, ktime_get_ns());
	qnix_nic_unlock(nic);
	while (qnix_net_flush(nic))
		cond_resched();
	qnix_nic_lock(nic);
	if (nic->wire) {
		wire_destroy(nic->wire);
		WRITE_ONCE(nic->wire, NULL);
		nic->from_wire = false;
	}
	for_each_set_bit(number, nic->remote, U16_MAX + 1) {
		__clear_bit(number, nic->remote);
		WRITE_ONCE(nic->remotes, nic->remotes - 1);
		qnix_net_notify(nic, NCP_REMOVE_NIC, number);
	}
	qnix_nic_unlock(nic);
	qnix_nic_wake(nic);
}

static int qnix_net_attach(struct qnix_nic *nic)
{
	struct wire_config config = {
		.nic = nic->number,
		.links = QNIX_MAX_LINKS,
		.addresses = QNIX_MAX_PEERS,
		.frame = qnix_params.packet_size + sizeof(struct ncp_frame),
		.datagram = qnix_params.datagram,
		.dead_ns = (u64)qnix_params.dead_ms * NSEC_PER_MSEC,
	};
	struct wire *wire;

	memcpy(config.key, qnix_key, sizeof(config.key));
	WRITE_ONCE(nic->creator, current);
	wire = wire_create(&qnix_wire_ops, nic, &config, ktime_get_ns());
	WRITE_ONCE(nic->creator, NULL);
	memzero_explicit(&config, sizeof(config));
	if (!wire)
		return -ENOMEM;
	qnix_nic_lock(nic);
	WRITE_ONCE(nic->wire, wire);
	qnix_peers_attach(nic);
	qnix_nic_unlock(nic);
	qnix_nic_wake(nic);
	return 0;
}

static void qnix_net_stop(void)
{
	unsigned int i;

	if (!qnix_keyed)
		return;
	qnix_keyed = false;
	for (i = 0; i < qnix_params.nics; i++) /* after a start that failed, some NICs have none */
		qnix_net_detach(qnix_nics[i]);
	synchronize_srcu(&qnix_net_sending);
	for (i = 0; i < qnix_params.nics; i++)
		kvfree(xchg(&qnix_nics[i]->datagram, NULL));
	qnix_udp_close();
}

static int qnix_net_start(void)
{
	unsigned int i;
	int err;

	err = qnix_udp_open();
	if (err)
		return err;
	qnix_keyed = true;
	for (i = 0; i < qnix_params.nics && !err; i++)
		err = qnix_net_attach(qnix_nics[i]);
	if (err)
		qnix_net_stop();
	return err;
}

/*
 * Changes the key: all links go down, and up again with NICs that have the new key. NULL:
 * no wire.
 */
int qnix_net_set_key(const u8 *key)
{
	int err;

	lockdep_assert_held(&qnix_net_lock);
	qnix_net_stop();
	memzero_explicit(qnix_key, sizeof(qnix_key));
	if (!key)
		return 0;
	memcpy(qnix_key, key, sizeof(qnix_key));
	err = qnix_net_start();
	if (err)
		memzero_explicit(qnix_key, sizeof(qnix_key));
	return err;
}

bool qnix_net_get_key(u8 *key)
{
	lockdep_assert_held(&qnix_net_lock);
	memcpy(key, qnix_key, sizeof(qnix_key));
	return qnix_keyed;
}
