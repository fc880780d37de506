// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* /sys/class/qnix/qnixN: coordinates, and statistics/, one number a file. */
#include <linux/sysfs.h>

#include "host.h"

static struct qnix_nic *qnix_nic_of(struct device *dev)
{
	return dev_get_drvdata(dev);
}

static ssize_t coordinates_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "%u\n", qnix_nic_of(dev)->number);
}
static DEVICE_ATTR_RO(coordinates);

static ssize_t abi_version_show(struct device *dev, struct device_attribute *attr, char *text)
{
	return sysfs_emit(text, "%u\n", QNIX_ABI_VERSION);
}
static DEVICE_ATTR_RO(abi_version);

static struct attribute *qnix_attrs[] = {
	&dev_attr_coordinates.attr,
	&dev_attr_abi_version.attr,
	NULL,
};

static const struct attribute_group qnix_group = {
	.attrs = qnix_attrs,
};

static ssize_t qnix_show_number(struct device *dev, char *text, size_t offset)
{
	struct qnix_nic *nic = qnix_nic_of(dev);
	struct qnix_statistics s = {};

	qnix_nic_lock(nic);
	ncp_statistics(nic->ncp, &s);
	qnix_nic_unlock(nic);
	return sysfs_emit(text, "%llu\n", *(u64 *)((char *)&s + offset));
}

static ssize_t qnix_show_wire(struct device *dev, char *text, size_t offset)
{
	struct qnix_nic *nic = qnix_nic_of(dev);
	struct wire_counters c = {};

	qnix_nic_lock(nic);
	if (nic->wire)
		wire_counters(nic->wire, &c);
	qnix_nic_unlock(nic);
	return sysfs_emit(text, "%llu\n", *(u64 *)((char *)&c + offset));
}

#define QNIX_NUMBER(field)								\
static ssize_t field##_show(struct device *dev, struct device_attribute *attr, char *text) \
{											\
	return qnix_show_number(dev, text, offsetof(struct qnix_statistics, field));	\
}											\
static DEVICE_ATTR_RO(field)

#define QNIX_WIRE(field)								\
static ssize_t wire_##field##_show(struct device *dev, struct device_attribute *attr, char *text) \
{											\
	return qnix_show_wire(dev, text, offsetof(struct wire_counters, field));	\
}											\
static DEVICE_ATTR_RO(wire_##field)

QNIX_NUMBER(commands);
QNIX_NUMBER(packets_sent);
QNIX_NUMBER(packets_received);
QNIX_NUMBER(bytes_sent);
QNIX_NUMBER(bytes_received);
QNIX_NUMBER(doorbells);
QNIX_NUMBER(requests_sent);
QNIX_NUMBER(requests_remembered);
QNIX_NUMBER(requests_buffered);
QNIX_NUMBER(failures);
QNIX_NUMBER(misuse);
QNIX_NUMBER(system_messages);
QNIX_NUMBER(bad_frames);
QNIX_NUMBER(late_frames);
QNIX_NUMBER(processes);
QNIX_NUMBER(local_memory);
QNIX_WIRE(datagrams_out);
QNIX_WIRE(datagrams_in);
QNIX_WIRE(bytes_out);
QNIX_WIRE(bytes_in);
QNIX_WIRE(frames_out);
QNIX_WIRE(frames_in);
QNIX_WIRE(unauthenticated);
QNIX_WIRE(wrong_version);
QNIX_WIRE(wrong_limits);
QNIX_WIRE(misdirected);
QNIX_WIRE(malformed);
QNIX_WIRE(stale);
QNIX_WIRE(replayed);
QNIX_WIRE(overrun);
QNIX_WIRE(refused);
QNIX_WIRE(unanswered);
QNIX_WIRE(retransmitted);
QNIX_WIRE(duplicates);
QNIX_WIRE(timeouts);
QNIX_WIRE(ups);
QNIX_WIRE(downs);

static struct attribute *qnix_statistics_attrs[] = {
	&dev_attr_commands.attr,
	&dev_attr_packets_sent.attr,
	&dev_attr_packets_received.attr,
	&dev_attr_bytes_sent.attr,
	&dev_attr_bytes_received.attr,
	&dev_attr_doorbells.attr,
	&dev_attr_requests_sent.attr,
	&dev_attr_requests_remembered.attr,
	&dev_attr_requests_buffered.attr,
	&dev_attr_failures.attr,
	&dev_attr_misuse.attr,
	&dev_attr_system_messages.attr,
	&dev_attr_bad_frames.attr,
	&dev_attr_late_frames.attr,
	&dev_attr_processes.attr,
	&dev_attr_local_memory.attr,
	&dev_attr_wire_datagrams_out.attr,
	&dev_attr_wire_datagrams_in.attr,
	&dev_attr_wire_bytes_out.attr,
	&dev_attr_wire_bytes_in.attr,
	&dev_attr_wire_frames_out.attr,
	&dev_attr_wire_frames_in.attr,
	&dev_attr_wire_unauthenticated.attr,
	&dev_attr_wire_wrong_version.attr,
	&dev_attr_wire_wrong_limits.attr,
	&dev_attr_wire_misdirected.attr,
	&dev_attr_wire_malformed.attr,
	&dev_attr_wire_stale.attr,
	&dev_attr_wire_replayed.attr,
	&dev_attr_wire_overrun.attr,
	&dev_attr_wire_refused.attr,
	&dev_attr_wire_unanswered.attr,
	&dev_attr_wire_retransmitted.attr,
	&dev_attr_wire_duplicates.attr,
	&dev_attr_wire_timeouts.attr,
	&dev_attr_wire_ups.attr,
	&dev_attr_wire_downs.attr,
	NULL,
};

static const struct attribute_group qnix_statistics_group = {
	.name = "statistics",
	.attrs = qnix_statistics_attrs,
};

const struct attribute_group *qnix_groups[] = {
	&qnix_group,
	&qnix_statistics_group,
	NULL,
};
