// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The module: its parameters, and the NICs of this host. */
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "host.h"

struct qnix_params qnix_params = {
	.nics = 1,
	.coordinates = 1,
	.processes = 4096,
	.names = 16384,
	.groups = 1024,
	.max_per_user = 1024,
	.max_translations = 65536,
	.packet_size = 16384,
	.local_memory = 16 << 20,
	.poll_us = 50,
	.port = 24911,
	.datagram = WIRE_ETHERNET,
	.dead_ms = 5000,
};

#define QNIX_PARAM(param, mode, text)					\
	module_param_named(param, qnix_params.param, uint, mode);	\
	MODULE_PARM_DESC(param, text)

QNIX_PARAM(nics, 0444, "NICs of this host: /dev/qnix0 and on (1 .. 64)");
QNIX_PARAM(coordinates, 0444, "of the first NIC, in the cluster (1 .. 65535)");
QNIX_PARAM(processes, 0444, "entries of a NIC's Process Table (1 .. 65535)");
QNIX_PARAM(names, 0444, "entries of a NIC's Name Table: processes of the cluster");
QNIX_PARAM(groups, 0444, "entries of a NIC's Group Table");
QNIX_PARAM(max_per_user, 0644, "processes that one user may register on this host");
QNIX_PARAM(max_translations, 0444, "of one process");
QNIX_PARAM(packet_size, 0444, "bytes in a packet, the same in the cluster (1024 .. 65536)");
QNIX_PARAM(local_memory, 0444, "bytes of a NIC for messages that come before they are received");
QNIX_PARAM(poll_us, 0644, "microseconds that a NIC's thread looks for work before it sleeps");
QNIX_PARAM(port, 0444, "UDP port of the wire to other hosts");
QNIX_PARAM(datagram, 0444, "bytes of the wire's longest datagram (512 .. 65507)");
QNIX_PARAM(dead_ms, 0444, "milliseconds of silence after which another host's NIC is dead");

/*
 * Parameters can be set before the first NIC exists and after the last one. Guarded by
 * qnix_net_lock.
 */
static enum { QNIX_LOADING, QNIX_READY, QNIX_GOING } qnix_stage;
static u8 qnix_first_key[WIRE_KEY];	/* as given when the module was loaded */
static bool qnix_first_keyed;

/* @text gets the key's digits; if it is empty, there is no key, and @key does not change. */
static int qnix_key_parse(const char *value, char *text, size_t room, u8 *key)
{
	if (strscpy(text, value, room) < 0)
		return -EINVAL;
	strim(text);
	if (!*text)
		return 0;
	return strlen(text) == 2 * WIRE_KEY && !hex2bin(key, text, WIRE_KEY) ? 0 : -EINVAL;
}

static int qnix_key_set(const char *value, const struct kernel_param *kp)
{
	u8 key[WIRE_KEY] = {};
	char text[2 * WIRE_KEY + 2];
	int err;

	err = qnix_key_parse(value, text, sizeof(text), key);
	mutex_lock(&qnix_net_lock);
	if (err)
		goto end;
	if (qnix_stage == QNIX_READY) {
		err = qnix_net_set_key(*text ? key : NULL);
	} else if (qnix_stage == QNIX_LOADING) {
		qnix_first_keyed = *text;
		memcpy(qnix_first_key, key, sizeof(key));
	} else {
		err = -ENODEV;
	}
end:
	mutex_unlock(&qnix_net_lock);
	memzero_explicit(key, sizeof(key));
	memzero_explicit(text, sizeof(text));
	return err;
}

static int qnix_key_get(char *text, const struct kernel_param *kp)
{
	u8 key[WIRE_KEY];
	bool keyed;

	mutex_lock(&qnix_net_lock);
	keyed = qnix_net_get_key(key);
	mutex_unlock(&qnix_net_lock);
	if (keyed)
		text = bin2hex(text, key, sizeof(key));
	memzero_explicit(key, sizeof(key));
	*text = '\n';
	return keyed ? 2 * sizeof(key) + 1 : 1;
}

/*
 * The kernel calls this function, and that of peers, when the module ends, even if its load
 * failed.
 */
static void qnix_key_free(void *arg)
{
	memzero_explicit(qnix_first_key, sizeof(qnix_first_key));
}

static const struct kernel_param_ops qnix_key_ops = {
	.set = qnix_key_set,
	.get = qnix_key_get,
	.free = qnix_key_free,
};

module_param_cb(key, &qnix_key_ops, NULL, 0600);
MODULE_PARM_DESC(key, "the cluster's, 32 hexadecimal digits; empty: no wire to other hosts");

static int qnix_peers_param_set(const char *value, const struct kernel_param *kp)
{
	int err;

	mutex_lock(&qnix_net_lock);
	err = qnix_stage == QNIX_GOING ? -ENODEV : qnix_peers_set(value);
	mutex_unlock(&qnix_net_lock);
	return err;
}

static int qnix_peers_param_get(char *text, const struct kernel_param *kp)
{
	int len;

	mutex_lock(&qnix_net_lock);
	len = qnix_peers_get(text);
	mutex_unlock(&qnix_net_lock);
	return len;
}

/*
 * No lock is needed: no other user is left, and lockdep does not know the locks of a module
 * that is being freed.
 */
static void qnix_peers_param_free(void *arg)
{
	qnix_peers_free();
}

static const struct kernel_param_ops qnix_peers_ops = {
	.set = qnix_peers_param_set,
	.get = qnix_peers_param_get,
	.free = qnix_peers_param_free,
};

module_param_cb(peers, &qnix_peers_ops, NULL, 0644);
MODULE_PARM_DESC(peers, "addresses of other hosts, ADDRESS[:PORT], separated by commas");

static bool qnix_params_valid(void)
{
	const struct qnix_params *p = &qnix_params;

	return p->nics >= 1 && p->nics <= QNIX_MAX_NICS &&
	       p->coordinates >= 1 && p->coordinates + p->nics - 1 <= U16_MAX &&
	       p->processes >= 1 && p->processes <= U16_MAX &&
	       p->names >= p->processes && p->names <= 1 << 20 &&
	       p->groups >= 1 && p->groups <= 1 << 16 &&
	       p->max_translations >= 1 && p->max_translations <= INT_MAX / 2 &&
	       p->packet_size >= 1024 && p->packet_size <= 65536 && p->packet_size % 8 == 0 &&
	       p->local_memory <= 1 << 30 &&
	       p->port >= 1 && p->port <= U16_MAX &&
	       p->datagram >= WIRE_MIN_DATAGRAM && p->datagram <= WIRE_MAX_DATAGRAM &&
	       p->dead_ms >= 10 && p->dead_ms <= 3600 * 1000;
}

/* Adds every NIC of this host to the others. */
static void qnix_introduce(void)
{
	unsigned int i, j;

	for (i = 0; i < qnix_params.nics; i++) {
		qnix_nic_lock(qnix_nics[i]);
		for (j = 0; j < qnix_params.nics; j++) {
			struct ncp_driver_command command = {
				.command = NCP_ADD_NIC,
				.nic = qnix_nics[j]->number,
			};

			if (i != j)
				qnix_command_post(qnix_nics[i], &command, NULL);
		}
		qnix_nic_unlock(qnix_nics[i]);
	}
}

/* The order is the reverse of qnix_begin: all users of a NIC end before the NIC. */
static void qnix_end(void)
{
	unsigned int i;

	qnix_debugfs_exit();
	qnix_devices_remove();
	mutex_lock(&qnix_net_lock);
	qnix_stage = QNIX_GOING;
	qnix_net_set_key(NULL);
	mutex_unlock(&qnix_net_lock);
	for (i = 0; i < QNIX_MAX_NICS; i++)
		if (qnix_nics[i])
			qnix_nic_halt(qnix_nics[i]);
	for (i = 0; i < QNIX_MAX_NICS; i++)
		if (qnix_nics[i])
			qnix_nic_destroy(qnix_nics[i]);
	memset(qnix_nics, 0, sizeof(qnix_nics));
}

static int qnix_nics_create(void)
{
	unsigned int i;

	for (i = 0; i < qnix_params.nics; i++) {
		struct qnix_nic *nic = qnix_nic_create(i, qnix_params.coordinates + i);

		if (IS_ERR(nic))
			return PTR_ERR(nic);
		qnix_nics[i] = nic;
	}
	qnix_introduce();
	return 0;
}

/* From here on the parameters affect the NICs. */
static int qnix_wire_begin(void)
{
	int err = 0;

	mutex_lock(&qnix_net_lock);
	qnix_stage = QNIX_READY;
	if (qnix_first_keyed)
		err = qnix_net_set_key(qnix_first_key);
	memzero_explicit(qnix_first_key, sizeof(qnix_first_key));
	mutex_unlock(&qnix_net_lock);
	return err;
}

static int qnix_nics_go(void)
{
	unsigned int i;
	int err = 0;

	for (i = 0; i < qnix_params.nics && !err; i++)
		err = qnix_nic_go(qnix_nics[i]);
	return err;
}

/*
 * No step after qnix_devices_add can fail, and nothing can be opened before it: an open
 * file holds the module, but a load that fails frees the module nevertheless.
 */
static int qnix_begin(void)
{
	int err;

	err = qnix_nics_create();
	if (!err)
		err = qnix_wire_begin();
	if (!err)
		err = qnix_nics_go();
	if (!err)
		err = qnix_devices_add();
	if (!err)
		qnix_debugfs_add();
	return err;
}

static int __init qnix_init(void)
{
	int err;

	if (!qnix_params_valid()) {
		pr_err("qnix: a parameter is out of its range: see modinfo\n");
		return -EINVAL;
	}
	err = qnix_device_init();
	if (err)
		return err;
	err = qnix_begin();
	if (err) {
		qnix_end();
		qnix_device_exit();
	}
	return err;
}

static void __exit qnix_exit(void)
{
	qnix_end();
	qnix_device_exit();
}

module_init(qnix_init);
module_exit(qnix_exit);

MODULE_DESCRIPTION("QNIX network interface");
MODULE_AUTHOR("The Bywash authors");
MODULE_LICENSE("Dual BSD/GPL");
