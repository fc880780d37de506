// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Addresses of other hosts' NICs: the parameter "peers", which can change while the module
 * is loaded.
 */
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "host.h"

struct qnix_peer {
	struct list_head list;
	struct wire_address address;
	bool keep;
};

static LIST_HEAD(qnix_peers);
static unsigned int qnix_peer_count;

/* The callers of all functions here but the last hold qnix_net_lock. */
void qnix_peers_attach(struct qnix_nic *nic)
{
	struct qnix_peer *peer;

	list_for_each_entry(peer, &qnix_peers, list)
		wire_add_address(nic->wire, ktime_get_ns(), &peer->address);
}

static void qnix_peer_remove(struct qnix_peer *peer)
{
	qnix_net_remove(&peer->address);
	list_del(&peer->list);
	qnix_peer_count--;
	kfree(peer);
}

/* The last function: called when there is no wire any more. */
void qnix_peers_free(void)
{
	struct qnix_peer *peer, *next;

	list_for_each_entry_safe(peer, next, &qnix_peers, list)
		qnix_peer_remove(peer);
}

static int qnix_peer_add(const char *text)
{
	struct wire_address address;
	struct qnix_peer *peer;
	int err;

	err = qnix_udp_parse(text, &address);
	if (err)
		return err;
	list_for_each_entry(peer, &qnix_peers, list) {
		if (!memcmp(&peer->address, &address, sizeof(address))) {
			peer->keep = true;
			return 0;
		}
	}
	if (qnix_peer_count >= QNIX_MAX_PEERS)
		return -ENOSPC;
	peer = kzalloc(sizeof(*peer), GFP_KERNEL);
	if (!peer)
		return -ENOMEM;
	peer->address = address;
	peer->keep = true;
	list_add_tail(&peer->list, &qnix_peers);
	qnix_peer_count++;
	qnix_net_add(&address);
	return 0;
}

/*
 * Parses addresses separated by commas, spaces and newlines. After an error, the addresses
 * before it have been added, and none was removed.
 */
static int qnix_peers_parse(char *text)
{
	char *word;
	int err;

	while ((word = strsep(&text, ", \t\n"))) {
		err = *word ? qnix_peer_add(word) : 0;
		if (err)
			return err;
	}
	return 0;
}

/* Addresses that are not in @text are not asked any more; links that are up stay up. */
int qnix_peers_set(const char *text)
{
	struct qnix_peer *peer, *next;
	char *copy = kstrdup(text, GFP_KERNEL);
	int err;

	if (!copy)
		return -ENOMEM;
	lockdep_assert_held(&qnix_net_lock);
	list_for_each_entry(peer, &qnix_peers, list)
		peer->keep = false;
	err = qnix_peers_parse(copy);
	kfree(copy);
	if (err)
		return err;
	list_for_each_entry_safe(peer, next, &qnix_peers, list)
		if (!peer->keep)
			qnix_peer_remove(peer);
	return 0;
}

/* Writes the addresses into a page. */
int qnix_peers_get(char *text)
{
	struct qnix_peer *peer;
	int len = 0;

	list_for_each_entry(peer, &qnix_peers, list) {
		if (len)
			text[len++] = ',';
		len += qnix_udp_print(text + len, PAGE_SIZE - 2 - len, &peer->address);
	}
	text[len++] = '\n';
	return len;
}
