// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* /dev/qnixN: open, ioctls, close. */
#include <linux/bitmap.h>
#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "host.h"

static dev_t qnix_numbers;
static struct cdev *qnix_cdev;	/* of all devices; NULL: none can be opened */

struct class qnix_class = {
	.name = "qnix",
	.dev_groups = qnix_groups,
};

static int qnix_open(struct inode *inode, struct file *file)
{
	unsigned int index = iminor(inode) - MINOR(qnix_numbers);
	struct qnix_file *qf;

	if (index >= qnix_params.nics)
		return -ENXIO;
	qf = qnix_file_create(qnix_nics[array_index_nospec(index, qnix_params.nics)]);
	if (!qf)
		return -ENOMEM;
	file->private_data = qf;
	return nonseekable_open(inode, file);
}

static int qnix_release(struct inode *inode, struct file *file)
{
	qnix_file_release(file->private_data);
	return 0;
}

static int qnix_ioctl_info(struct qnix_nic *nic, void __user *arg)
{
	struct qnix_info info = {
		.abi_version = QNIX_ABI_VERSION,
		.nic = nic->number,
		.nics = qnix_params.nics + READ_ONCE(nic->remotes),
		.packet_size = qnix_params.packet_size,
		.local_memory = qnix_params.local_memory,
		.max_processes = qnix_params.processes,
		.max_per_user = READ_ONCE(qnix_params.max_per_user),
		.max_contexts = QNIX_MAX_CONTEXTS,
		.max_commands = QNIX_MAX_COMMANDS,
		.max_region = QNIX_MAX_REGION,
		.max_pool = QNIX_MAX_POOL,
		.max_message = QNIX_MAX_MESSAGE,
		.max_translations = qnix_params.max_translations,
		.size_command = sizeof(struct qnix_command),
		.size_context = sizeof(struct qnix_context),
		.size_descriptor = sizeof(struct qnix_descriptor),
		.size_memory_info = sizeof(struct qnix_memory_info),
		.size_status = sizeof(struct qnix_vni_status),
		.size_doorbell = sizeof(struct qnix_doorbell),
	};
	return copy_to_user(arg, &info, sizeof(info)) ? -EFAULT : 0;
}

static int qnix_ioctl_register(struct qnix_file *file, void __user *arg)
{
	struct qnix_register r;
	int err;

	if (copy_from_user(&r, arg, sizeof(r)))
		return -EFAULT;
	err = qnix_register(file, &r);
	if (err)
		return err;
	if (!copy_to_user(arg, &r, sizeof(r)))
		return 0;
	qnix_deregister(file);
	return -EFAULT;
}

static int qnix_ioctl_translate(struct qnix_registration *reg, void __user *arg)
{
	struct qnix_translate t;
	int err;

	if (copy_from_user(&t, arg, sizeof(t)))
		return -EFAULT;
	err = qnix_translate(reg, &t);
	if (err)
		return err;
	if (!copy_to_user(arg, &t, sizeof(t)))
		return 0;
	qnix_untranslate(reg, t.handle);
	return -EFAULT;
}

static int qnix_ioctl_untranslate(struct qnix_registration *reg, void __user *arg)
{
	struct qnix_untranslate u;

	if (copy_from_user(&u, arg, sizeof(u)))
		return -EFAULT;
	return u.pad ? -EINVAL : qnix_untranslate(reg, u.handle);
}

static int qnix_ioctl_group(struct qnix_registration *reg, void __user *arg, bool join)
{
	struct qnix_group g;

	if (copy_from_user(&g, arg, sizeof(g)))
		return -EFAULT;
	return join ? qnix_join(reg, &g) : qnix_leave(reg, &g);
}

static int qnix_ioctl_wait(struct qnix_file *file, struct qnix_registration *reg, void __user *arg)
{
	struct qnix_wait w;

	if (copy_from_user(&w, arg, sizeof(w)))
		return -EFAULT;
	return qnix_wait(file, reg, &w);
}

static int qnix_ioctl_statistics(struct qnix_registration *reg, void __user *arg)
{
	struct qnix_statistics s = {};
	bool known;

	qnix_nic_lock(reg->nic);
	known = !reg->ended && ncp_process_statistics(reg->nic->ncp, reg->index, &s);
	qnix_nic_unlock(reg->nic);
	if (!known)
		return -ENOTCONN;
	return copy_to_user(arg, &s, sizeof(s)) ? -EFAULT : 0;
}

static int qnix_ioctl_eventfd(struct qnix_registration *reg, void __user *arg)
{
	struct qnix_eventfd e;

	if (copy_from_user(&e, arg, sizeof(e)))
		return -EFAULT;
	return qnix_eventfd(reg, &e);
}

/* The ioctls of a registered process. */
static long qnix_ioctl_registered(struct qnix_file *file, struct qnix_registration *reg,
				  unsigned int cmd, void __user *arg)
{
	switch (cmd) {
	case QNIX_IOC_DOORBELL:
		qnix_nic_ring(reg->nic, reg->index);
		return 0;
	case QNIX_IOC_WAIT:
		return qnix_ioctl_wait(file, reg, arg);
	case QNIX_IOC_TRANSLATE:
		return qnix_ioctl_translate(reg, arg);
	case QNIX_IOC_UNTRANSLATE:
		return qnix_ioctl_untranslate(reg, arg);
	case QNIX_IOC_JOIN:
		return qnix_ioctl_group(reg, arg, true);
	case QNIX_IOC_LEAVE:
		return qnix_ioctl_group(reg, arg, false);
	case QNIX_IOC_STATISTICS:
		return qnix_ioctl_statistics(reg, arg);
	case QNIX_IOC_EVENTFD:
		return qnix_ioctl_eventfd(reg, arg);
	default:
		return -ENOTTY;
	}
}

static bool qnix_ioctl_known(unsigned int cmd)
{
	switch (cmd) {
	case QNIX_IOC_DOORBELL:
	case QNIX_IOC_WAIT:
	case QNIX_IOC_TRANSLATE:
	case QNIX_IOC_UNTRANSLATE:
	case QNIX_IOC_JOIN:
	case QNIX_IOC_LEAVE:
	case QNIX_IOC_STATISTICS:
	case QNIX_IOC_EVENTFD:
		return true;
	default:
		return false;
	}
}

static long qnix_ioctl(struct file *f, unsigned int cmd, unsigned long value)
{
	void __user *arg = (void __user *)value;
	struct qnix_file *file = f->private_data;
	struct qnix_registration *reg;
	long err = -EACCES;

	switch (cmd) {
	case QNIX_IOC_INFO:
		return qnix_ioctl_info(file->nic, arg);
	case QNIX_IOC_REGISTER:
		return qnix_ioctl_register(file, arg);
	case QNIX_IOC_DEREGISTER:
		return qnix_deregister(file);
	}
	if (!qnix_ioctl_known(cmd))
		return -ENOTTY;
	reg = qnix_registration_of(file);
	if (!reg)
		return -ENOTCONN;
	if (reg->mm == current->mm)
		err = qnix_ioctl_registered(file, reg, cmd, arg);
	qnix_registration_put(reg);
	return err;
}

static const struct file_operations qnix_fops = {
	.owner = THIS_MODULE,
	.open = qnix_open,
	.release = qnix_release,
	.unlocked_ioctl = qnix_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = qnix_mmap,
	.poll = qnix_poll,
	.llseek = noop_llseek,
};

int qnix_device_init(void)
{
	int err;

	err = class_register(&qnix_class);
	if (err)
		return err;
	err = alloc_chrdev_region(&qnix_numbers, 0, QNIX_MAX_NICS, "qnix");
	if (err)
		class_unregister(&qnix_class);
	return err;
}

void qnix_device_exit(void)
{
	unregister_chrdev_region(qnix_numbers, QNIX_MAX_NICS);
	class_unregister(&qnix_class);
}

static int qnix_device_create(struct qnix_nic *nic)
{
	struct device *dev;

	dev = device_create(&qnix_class, NULL, qnix_numbers + nic->index, nic, "qnix%u",
			    nic->index);
	if (IS_ERR(dev))
		return PTR_ERR(dev);
	nic->dev = dev;
	return 0;
}

/*
 * Makes all devices visible. It must be the last part of a load that can fail: the kernel
 * frees a module whose load fails, even if a process has opened a device. No device can be
 * opened before cdev_add, which succeeds for all devices or fails. The removal of the sysfs
 * files of device_create waits for their readers.
 */
int qnix_devices_add(void)
{
	struct cdev *cdev = cdev_alloc();
	unsigned int i;
	int err = 0;

	if (!cdev)
		return -ENOMEM;
	cdev->owner = THIS_MODULE;
	cdev->ops = &qnix_fops;
	for (i = 0; i < qnix_params.nics && !err; i++)
		err = qnix_device_create(qnix_nics[i]);
	if (!err)
		err = cdev_add(cdev, qnix_numbers, qnix_params.nics);
	if (err)
		kobject_put(&cdev->kobj);
	else
		qnix_cdev = cdev;
	return err;
}

/* Afterwards no process can open a device or read a file in its sysfs directory. */
void qnix_devices_remove(void)
{
	unsigned int i;

	if (qnix_cdev)
		cdev_del(qnix_cdev);
	qnix_cdev = NULL;
	for (i = 0; i < QNIX_MAX_NICS; i++) {
		if (!qnix_nics[i] || !qnix_nics[i]->dev)
			continue;
		device_unregister(qnix_nics[i]->dev);
		qnix_nics[i]->dev = NULL;
	}
}
