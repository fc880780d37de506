// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * TX steps 5 and 6: handle a command of the next process with one, of the next user.
 *
 * TX polls only processes that posted recently. The others must ring, so that they cost
 * nothing while they are idle.
 */
#include "internal.h"

/* A Send or Receive Context, each byte of it read once. */
void ncp_read_context(struct qnix_context *to, const struct qnix_context *from)
{
	ncp_read_once(to, from, sizeof(*to));
}

static bool clear(const u8 *field, size_t size)
{
	u64 words[4] = {};

	memcpy(words, field, size);
	return !(words[0] | words[1] | words[2] | words[3]);
}

/* Fields without a meaning must be 0: a later version may give them one. */
bool ncp_context_valid(const struct qnix_context *c)
{
	return !(c->flags & ~(QNIX_CTX_DOORBELL | QNIX_CTX_INLINE | QNIX_CTX_POOL)) &&
	       c->len <= QNIX_MAX_MESSAGE && c->tag <= QNIX_MAX_TAG &&
	       clear(c->pad, sizeof(c->pad));
}

static bool command_valid(const struct qnix_command *c)
{
	return !c->reserved && clear(c->pad, sizeof(c->pad));
}

void ncp_look_at(struct ncp_process *p)
{
	struct ncp_account *user = p->peer->user;
	struct ncp *ncp = p->ncp;

	p->idle = 0;
	ncp->looked = 0;
	if (!ncp_empty(&p->queue))
		return;
	ncp_push(&user->queue, &p->queue);
	user->queued++;
	ncp->queued++;
	if (ncp_empty(&user->at_queue))
		ncp_push(&ncp->queue, &user->at_queue);
	if (!ncp->asleep)
		WRITE_ONCE(p->status->need_wakeup, 0);
}

void ncp_look_away(struct ncp_process *p)
{
	struct ncp_account *user = p->peer->user;

	if (ncp_empty(&p->queue))
		return;
	ncp_unlink(&p->queue);
	user->queued--;
	p->ncp->queued--;
	if (ncp_empty(&user->queue))
		ncp_unlink(&user->at_queue);
}

/* Makes the process ring from now on. Returns true if it has just posted a command. */
static bool dismiss(struct ncp_process *p, const struct qnix_command *c)
{
	WRITE_ONCE(p->status->need_wakeup, 1);
	/*
	 * The process reads need_wakeup after a post, so at least one of both sees the
	 * other's store.
	 */
	smp_mb();
	if (READ_ONCE(c->command)) {
		p->idle = 0;
		if (!p->ncp->asleep)
			WRITE_ONCE(p->status->need_wakeup, 0);
		return true;
	}
	ncp_look_away(p);
	return false;
}

static bool send_index(struct ncp_process *p, u16 index)
{
	if (index < p->info.sends &&
	    p->sends[array_index_nospec(index, p->info.sends)].state == NCP_SEND_FREE)
		return true;
	ncp_misuse(p);
	return false;
}

/* Commands of a Send Context. */
static void of_send_context(struct ncp_process *p, u32 command, const struct qnix_command *c)
{
	u16 index = c->context;

	if (!send_index(p, index))
		return;
	index = (u16)array_index_nospec(index, p->info.sends);
	p->sends[index].flags = QNIX_CTX_DOORBELL;
	switch (command) {
	case QNIX_CMD_SEND:
	case QNIX_CMD_SEND_SHORT:
		ncp_send_command(p, index, command == QNIX_CMD_SEND_SHORT);
		break;
	case QNIX_CMD_BROADCAST:
	case QNIX_CMD_BROADCAST_SHORT:
		ncp_broadcast(p, index, c->name, command == QNIX_CMD_BROADCAST_SHORT);
		break;
	case QNIX_CMD_MULTICAST:
	case QNIX_CMD_MULTICAST_SHORT:
		ncp_multicast(p, index, c->size, command == QNIX_CMD_MULTICAST_SHORT);
		break;
	case QNIX_CMD_JOIN_GROUP:
		ncp_join_command(p, index, c->name, c->size);
		break;
	case QNIX_CMD_LEAVE_GROUP:
		ncp_leave_command(p, index, c->name);
		break;
	case QNIX_CMD_BARRIER:
		ncp_barrier(p, index, c->name, c->size);
		break;
	}
}

static void cancel_send(struct ncp_process *p, u16 index)
{
	if (index >= p->info.sends)
		ncp_misuse(p);
	else
		ncp_send_cancel(&p->sends[array_index_nospec(index, p->info.sends)]);
}

static void of_receive_context(struct ncp_process *p, u32 command, u16 index)
{
	if (index >= p->info.receives) {
		ncp_misuse(p);
		return;
	}
	index = (u16)array_index_nospec(index, p->info.receives);
	if (command == QNIX_CMD_CANCEL_RECEIVE)
		ncp_receive_cancel(&p->receives[index]);
	else if (p->receives[index].state != NCP_RECEIVE_FREE)
		ncp_misuse(p);
	else
		ncp_receive_command(p, index);
}

static void execute(struct ncp_process *p, u32 command, const struct qnix_command *c)
{
	if (command == QNIX_CMD_NAMES) {
		ncp_multicast_names(p, c);
		return;
	}
	ncp_multicast_cut(p);
	if (!command_valid(c)) {
		ncp_misuse(p);
		return;
	}
	switch (command) {
	case QNIX_CMD_SEND ... QNIX_CMD_MULTICAST_SHORT:
	case QNIX_CMD_JOIN_GROUP:
	case QNIX_CMD_LEAVE_GROUP:
	case QNIX_CMD_BARRIER:
		of_send_context(p, command, c);
		break;
	case QNIX_CMD_CANCEL_SEND:
		cancel_send(p, c->context);
		break;
	case QNIX_CMD_RECEIVE:
	case QNIX_CMD_CANCEL_RECEIVE:
		of_receive_context(p, command, c->context);
		break;
	default:
		ncp_misuse(p);
	}
}

/* Step 6. Returns false if the queue is empty. */
static bool of_process(struct ncp_process *p)
{
	struct qnix_command *at = &p->commands[p->head & (p->info.commands - 1)];
	struct qnix_command c;
	/* The process writes the command last, so the rest of the entry is complete. */
	u32 command = smp_load_acquire(&at->command);

	if (!command)
		return false;
	ncp_read_once(&c, at, sizeof(c));
	/* The entry has been read: the process may fill it again. */
	smp_store_release(&at->command, QNIX_CMD_NONE);
	p->head++;
	p->idle = 0;
	p->stat.commands++;
	p->ncp->stat.commands++;
	execute(p, command, &c);
	if (p->head % NCP_NOTIFY == 0)
		WRITE_ONCE(p->status->command_queue_head, p->head);
	return true;
}

/*
 * Polls the next process of the next user. Returns true if it had, or has just posted, a
 * command.
 */
static bool look(struct ncp *ncp)
{
	struct ncp_account *user = ncp_first(&ncp->queue, struct ncp_account, at_queue);
	struct ncp_process *p = ncp_first(&user->queue, struct ncp_process, queue);
	bool found;

	ncp_to_tail(&user->queue, &p->queue);
	found = of_process(p);
	if (!found && ++p->idle >= NCP_POLLS)
		found = dismiss(p, &p->commands[p->head & (p->info.commands - 1)]);
	/* A user's turn is one command, or one poll of all his processes. */
	if (found || ++user->looked >= user->queued) {
		user->looked = 0;
		if (!ncp_empty(&user->at_queue))
			ncp_to_tail(&ncp->queue, &user->at_queue);
	}
	return found;
}

/*
 * Step 5: a process that was polled goes to the tail. Returns false if no process has a
 * command.
 */
bool ncp_read_command(struct ncp *ncp)
{
	u32 i;

	for (i = 0; i < NCP_LOOKS; i++) {
		if (ncp->looked >= ncp->queued) {
			ncp->looked = 0;
			return false;
		}
		ncp->looked++;
		if (look(ncp)) {
			ncp->looked = 0;
			return true;
		}
	}
	return true;
}
