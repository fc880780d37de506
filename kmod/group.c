// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Joining and leaving groups by ioctl; names. */
#include <linux/string.h>

#include "host.h"

bool qnix_name_empty(const u8 *name)
{
	return !memchr_inv(name, 0, QNIX_NAME_LEN);
}

static int qnix_group_command(struct qnix_registration *reg, const struct qnix_group *arg,
			      u32 code, struct qnix_command_wait *wait)
{
	struct ncp_driver_command command = {
		.command = code,
		.index = reg->index,
		.size = arg->size,
	};

	lockdep_assert_held(&reg->nic->lock);
	if (reg->ended)
		return -ENOTCONN;
	memcpy(command.group, arg->name, sizeof(command.group));
	qnix_command_post(reg->nic, &command, wait);
	return 0;
}

int qnix_leave(struct qnix_registration *reg, const struct qnix_group *arg)
{
	struct qnix_command_wait wait;
	int err;

	if (!ncp_name_valid(arg->name) || arg->size || arg->timeout_ms || arg->pad)
		return -EINVAL;
	qnix_nic_lock(reg->nic);
	err = qnix_group_command(reg, arg, NCP_LEAVE_GROUP, &wait);
	if (!err)
		err = qnix_command_finish(reg->nic, &wait);
	qnix_nic_unlock(reg->nic);
	qnix_nic_run(reg->nic);
	return err;
}

/* Returns when the group is whole: @arg->size processes have joined. */
int qnix_join(struct qnix_registration *reg, const struct qnix_group *arg)
{
	struct qnix_command_wait wait;
	int err;

	if (!ncp_name_valid(arg->name) || !arg->size || arg->pad)
		return -EINVAL;
	qnix_nic_lock(reg->nic);
	err = qnix_group_command(reg, arg, NCP_JOIN_GROUP, &wait);
	qnix_nic_unlock(reg->nic);
	return err ? err : qnix_command_wait(reg->nic, &wait, arg->timeout_ms);
}
