// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* /sys/kernel/debug/qnix/qnixN: registered processes, state of the wire, who runs the NIC. */
#include <linux/debugfs.h>
#include <linux/seq_file.h>
#include <linux/user_namespace.h>

#include "host.h"

static struct dentry *qnix_debugfs;

static void qnix_show_process(struct seq_file *m, const struct qnix_registration *reg)
{
	unsigned long interface = reg->vni->count + reg->hps->count + reg->tables_pages;

	seq_printf(m, "%u %u %u %d %u %s %lu %d %lu\n",
		   reg->index, reg->pid, reg->generation, reg->tgid,
		   from_kuid_munged(&init_user_ns, qnix_user_uid(reg->user)), reg->name,
		   interface << PAGE_SHIFT, atomic_read(&reg->translation_count),
		   atomic_long_read(&reg->translation_pages) << PAGE_SHIFT);
}

static int processes_show(struct seq_file *m, void *unused)
{
	struct qnix_nic *nic = m->private;
	struct qnix_registration *reg;

	seq_puts(m, "index pid generation tgid uid name interface translations pinned\n");
	qnix_nic_lock(nic);
	list_for_each_entry(reg, &nic->registrations, list)
		qnix_show_process(m, reg);
	qnix_nic_unlock(nic);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(processes);

static void qnix_show_link(struct seq_file *m, const struct wire_link_info *info, u64 now)
{
	char address[64];

	qnix_udp_print(address, sizeof(address), &info->address);
	seq_printf(m, "%u %s %s %llu %llu %u %u %u\n",
		   info->nic, info->up ? "up" : "down", address,
		   (now - info->since_ns) / NSEC_PER_SEC, info->rtt_ns / NSEC_PER_USEC,
		   info->window, info->flight, info->queued);
}

static int links_show(struct seq_file *m, void *unused)
{
	struct qnix_nic *nic = m->private;
	struct wire_link_info info;
	u32 i;

	seq_puts(m, "nic state address seconds rtt_us window flight queued\n");
	qnix_nic_lock(nic);
	for (i = 0; nic->wire && wire_link_info(nic->wire, i, &info); i++)
		qnix_show_link(m, &info, ktime_get_ns());
	qnix_nic_unlock(nic);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(links);

static int runs_show(struct seq_file *m, void *unused)
{
	struct qnix_nic *nic = m->private;

	qnix_nic_lock(nic);
	seq_printf(m, "caller %llu\nthread %llu\n", nic->runs_caller, nic->runs_thread);
	qnix_nic_unlock(nic);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(runs);

static void qnix_debugfs_add_nic(struct qnix_nic *nic)
{
	struct dentry *dir = debugfs_create_dir(dev_name(nic->dev), qnix_debugfs);

	debugfs_create_file("processes", 0400, dir, nic, &processes_fops);
	debugfs_create_file("links", 0400, dir, nic, &links_fops);
	debugfs_create_file("runs", 0400, dir, nic, &runs_fops);
}

/*
 * Must come after the last step of a load that can fail: an open file needs the module
 * until it is closed.
 */
void qnix_debugfs_add(void)
{
	unsigned int i;

	qnix_debugfs = debugfs_create_dir("qnix", NULL);
	for (i = 0; i < qnix_params.nics; i++)
		qnix_debugfs_add_nic(qnix_nics[i]);
}

void qnix_debugfs_exit(void)
{
	debugfs_remove_recursive(qnix_debugfs);
	qnix_debugfs = NULL;
}
