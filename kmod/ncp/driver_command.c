// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The Driver Command Queue. */
#include "internal.h"

bool ncp_post(struct ncp *ncp, const struct ncp_driver_command *command)
{
	if (ncp->posted - ncp->taken >= NCP_DRIVER_COMMANDS)
		return false;
	ncp->commands[ncp->posted++ % NCP_DRIVER_COMMANDS] = *command;
	return true;
}

static struct ncp_process *process_at(struct ncp *ncp, u16 index)
{
	return index < ncp->limits.processes ? ncp->processes[index] : NULL;
}

static void join(struct ncp *ncp, const struct ncp_driver_command *c)
{
	struct ncp_process *p = process_at(ncp, c->index);
	u32 result = QNIX_DB_INVALID;

	if (p)
		result = ncp_join(p, c->group, c->size, NULL, c->cookie, false);
	if (result)
		ncp->ops->driver_doorbell(ncp->host, c->cookie, (int)result);
}

static int leave(struct ncp *ncp, const struct ncp_driver_command *c)
{
	struct ncp_process *p = process_at(ncp, c->index);

	return p ? (int)ncp_leave(p, c->group) : QNIX_DB_INVALID;
}

static void execute(struct ncp *ncp, const struct ncp_driver_command *c)
{
	struct ncp_process *p;
	struct ncp_nic *nic;
	int result = 0;

	switch (c->command) {
	case NCP_NEW_PROCESS:
		ncp_new_process(ncp, c);
		return;
	case NCP_JOIN_GROUP:
		join(ncp, c);
		return;
	case NCP_ABANDON:
		ncp_wait_abandon(ncp, c->cookie);
		return;
	case NCP_DELETE_PROCESS:
		p = process_at(ncp, c->index);
		if (p)
			ncp_delete_process(ncp, p);
		break;
	case NCP_LEAVE_GROUP:
		result = leave(ncp, c);
		break;
	case NCP_ADD_NIC:
		result = ncp_nic_add(ncp, c->nic);
		break;
	case NCP_REMOVE_NIC:
		nic = ncp_nic_of(ncp, c->nic);
		if (nic)
			ncp_nic_remove(ncp, nic);
		else
			result = QNIX_DB_INVALID;
		break;
	default:
		result = QNIX_DB_INVALID;
	}
	ncp->ops->driver_doorbell(ncp->host, c->cookie, result);
}

/* Reads the command at the head, if there is one. */
bool ncp_driver_command(struct ncp *ncp)
{
	struct ncp_driver_command *c;

	if (ncp->taken == ncp->posted)
		return false;
	c = &ncp->commands[ncp->taken % NCP_DRIVER_COMMANDS];
	execute(ncp, c);
	ncp->taken++;
	return true;
}
