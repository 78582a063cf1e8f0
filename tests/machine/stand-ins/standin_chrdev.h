/* SPDX-License-Identifier: GPL-2.0 */
/* A character device with a dynamic major, minor 0, a class of its own name and mode 0666: what the real modules create. */
#ifndef STANDIN_CHRDEV_H
#define STANDIN_CHRDEV_H

#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/version.h>

#include "standin.h"

#define STANDIN_MAX_SPARES 8

struct standin_chrdev {
	const char *name;
	const struct file_operations *fops; /* none: what every node does */
	dev_t dev;
	struct cdev cdev;
	struct class *class;
};

static ssize_t standin_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	static const char text[] = "stand-in " STANDIN_CHECKSUM "\n";

	return simple_read_from_buffer(to, size, at, text, sizeof(text) - 1);
}

static const struct file_operations standin_fops = {
	.owner = THIS_MODULE,
	.open = nonseekable_open,
	.read = standin_read,
};

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
static char *standin_devnode(struct device *dev, umode_t *mode)
#else
static char *standin_devnode(const struct device *dev, umode_t *mode)
#endif
{
	if (mode)
		*mode = 0666;
	return NULL;
}

static int standin_chrdev_add(struct standin_chrdev *d, const char *name)
{
	struct device *device;
	int rc;

	d->name = name;
	rc = alloc_chrdev_region(&d->dev, 0, 1, name);
	if (rc)
		return rc;
	cdev_init(&d->cdev, d->fops ? d->fops : &standin_fops);
	d->cdev.owner = THIS_MODULE;
	rc = cdev_add(&d->cdev, d->dev, 1);
	if (rc)
		goto region;
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
	d->class = class_create(THIS_MODULE, name);
#else
	d->class = class_create(name);
#endif
	if (IS_ERR(d->class)) {
		rc = PTR_ERR(d->class);
		goto cdev;
	}
	d->class->devnode = standin_devnode;
	device = device_create(d->class, NULL, d->dev, NULL, "%s", name);
	if (IS_ERR(device)) {
		rc = PTR_ERR(device);
		goto class;
	}
	return 0;

class:
	class_destroy(d->class);
cdev:
	cdev_del(&d->cdev);
region:
	unregister_chrdev_region(d->dev, 1);
	return rc;
}

static void standin_chrdev_remove(struct standin_chrdev *d)
{
	device_destroy(d->class, d->dev);
	class_destroy(d->class);
	cdev_del(&d->cdev);
	unregister_chrdev_region(d->dev, 1);
}

/* The kernel hands out the highest free major: regions taken first push ours down. */
static dev_t standin_spares[STANDIN_MAX_SPARES];
static unsigned int spare_majors;
module_param(spare_majors, uint, 0444);
MODULE_PARM_DESC(spare_majors, "character-device regions to take before our own, so that the majors are others");

static int standin_spares_add(void)
{
	unsigned int i;
	int rc;

	spare_majors = min_t(unsigned int, spare_majors, STANDIN_MAX_SPARES);
	for (i = 0; i < spare_majors; i++) {
		rc = alloc_chrdev_region(&standin_spares[i], 0, 1, "standin_spare");
		if (rc) {
			while (i--)
				unregister_chrdev_region(standin_spares[i], 1);
			return rc;
		}
	}
	return 0;
}

static void standin_spares_remove(void)
{
	unsigned int i;

	for (i = 0; i < spare_majors; i++)
		unregister_chrdev_region(standin_spares[i], 1);
}

#endif
