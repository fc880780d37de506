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

/* The fields of struct qnix_statistics and struct wire_counters, one file each. */
#define QNIX_NUMBERS(X) \
	X(commands) X(packets_sent) X(packets_received) X(bytes_sent) \
	X(bytes_received) X(doorbells) X(requests_sent) \
	X(requests_remembered) X(requests_buffered) X(failures) X(misuse) \
	X(system_messages) X(bad_frames) X(late_frames) X(processes) \
	X(local_memory)

#define QNIX_WIRES(X) \
	X(datagrams_out) X(datagrams_in) X(bytes_out) X(bytes_in) \
	X(frames_out) X(frames_in) X(unauthenticated) X(wrong_version) \
	X(wrong_limits) X(misdirected) X(malformed) X(stale) X(replayed) \
	X(overrun) X(refused) X(unanswered) X(retransmitted) X(duplicates) \
	X(timeouts) X(ups) X(downs)

#define QNIX_NUMBER(field)								\
static ssize_t field##_show(struct device *dev, struct device_attribute *attr, char *text) \
{											\
	return qnix_show_number(dev, text, offsetof(struct qnix_statistics, field));	\
}											\
static DEVICE_ATTR_RO(field);

#define QNIX_WIRE(field)								\
static ssize_t wire_##field##_show(struct device *dev, struct device_attribute *attr, char *text) \
{											\
	return qnix_show_wire(dev, text, offsetof(struct wire_counters, field));	\
}											\
static DEVICE_ATTR_RO(wire_##field);

#define QNIX_NUMBER_ATTR(field)	&dev_attr_##field.attr,
#define QNIX_WIRE_ATTR(field)	&dev_attr_wire_##field.attr,

QNIX_NUMBERS(QNIX_NUMBER)
QNIX_WIRES(QNIX_WIRE)

static struct attribute *qnix_statistics_attrs[] = {
	QNIX_NUMBERS(QNIX_NUMBER_ATTR)
	QNIX_WIRES(QNIX_WIRE_ATTR)
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
