// SPDX-License-Identifier: GPL-2.0
/* Stand-in for the module sfc_resource: AF_XDP registration and what debugfs and /proc show of a registered interface. */
#include <linux/debugfs.h>
#include <linux/kobject.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/nsproxy.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <net/net_namespace.h>

#include "standin.h"

struct nic {
	struct list_head list;
	unsigned int index;
	char name[IFNAMSIZ];
	char device[64];
	unsigned int mtu;
	u8 mac[ETH_ALEN];
	const char *devtype;
	struct dentry *debug;
	struct proc_dir_entry *proc;
};

static LIST_HEAD(nics);
static DEFINE_MUTEX(nics_lock);
static struct dentry *debug_root, *debug_nics;
static struct proc_dir_entry *proc_root;
static struct kobject *afxdp, *hardware;

static int enable_accel_by_default = 1;
module_param(enable_accel_by_default, int, 0644);

static int device_show(struct seq_file *file, void *unused)
{
	seq_printf(file, "%s\n", ((struct nic *)file->private)->device);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(device);

static int net_dev_show(struct seq_file *file, void *unused)
{
	seq_printf(file, "%s\n", ((struct nic *)file->private)->name);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(net_dev);

static int devtype_show(struct seq_file *file, void *unused)
{
	seq_printf(file, "%s\n", ((struct nic *)file->private)->devtype);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(devtype);

static int mac_addr_show(struct seq_file *file, void *unused)
{
	seq_printf(file, "%pM\n", ((struct nic *)file->private)->mac);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(mac_addr);

static int show_nothing(struct seq_file *file, void *unused)
{
	return 0;
}

static struct nic *find(const char *name)
{
	struct nic *nic;

	list_for_each_entry(nic, &nics, list)
		if (!strcmp(nic->name, name))
			return nic;
	return NULL;
}

static unsigned int free_index(void)
{
	struct nic *nic;
	unsigned int index = 0;

	list_for_each_entry(nic, &nics, list)
		index = max(index, nic->index + 1);
	return index;
}

static void show_nic(struct nic *nic)
{
	char name[4 + IFNAMSIZ];

	snprintf(name, sizeof(name), "%03u_%s", nic->index % 1000, nic->name);
	nic->debug = debugfs_create_dir(name, debug_nics);
	debugfs_create_file("dev", 0444, nic->debug, nic, &device_fops);
	debugfs_create_file("net_dev", 0444, nic->debug, nic, &net_dev_fops);
	debugfs_create_file("devtype", 0444, nic->debug, nic, &devtype_fops);
	debugfs_create_file("mac_addr", 0444, nic->debug, nic, &mac_addr_fops);
	debugfs_create_u32("mtu", 0444, nic->debug, &nic->mtu);
	nic->proc = proc_mkdir(nic->name, proc_root);
	if (nic->proc)
		proc_create_single("firewall_rules", 0444, nic->proc, show_nothing);
}

static void drop_nic(struct nic *nic)
{
	list_del(&nic->list);
	debugfs_remove_recursive(nic->debug);
	if (nic->proc)
		proc_remove(nic->proc);
	kfree(nic);
}

/* The text written is "IFNAME" or "IFNAME N", with or without a newline. */
static int word(const char *text, char *name)
{
	size_t size = strcspn(text, " \n");

	if (!size || size >= IFNAMSIZ)
		return -EINVAL;
	memcpy(name, text, size);
	name[size] = 0;
	return 0;
}

static ssize_t add_nic(const char *text, size_t size, const char *devtype)
{
	struct net_device *dev;
	struct nic *nic;
	char name[IFNAMSIZ];
	int rc = word(text, name);

	if (rc)
		return rc;
	dev = dev_get_by_name(current->nsproxy->net_ns, name);
	if (!dev)
		return -ENODEV;
	nic = kzalloc(sizeof(*nic), GFP_KERNEL);
	if (!nic) {
		dev_put(dev);
		return -ENOMEM;
	}
	strscpy(nic->name, name, sizeof(nic->name));
	strscpy(nic->device, dev->dev.parent ? dev_name(dev->dev.parent) : "no dev", sizeof(nic->device));
	nic->mtu = dev->mtu;
	memcpy(nic->mac, dev->dev_addr, ETH_ALEN);
	dev_put(dev);
	nic->devtype = devtype;

	mutex_lock(&nics_lock);
	if (find(name)) {
		mutex_unlock(&nics_lock);
		kfree(nic);
		return -EALREADY;
	}
	nic->index = free_index();
	list_add_tail(&nic->list, &nics);
	show_nic(nic);
	mutex_unlock(&nics_lock);
	return size;
}

static ssize_t register_store(struct kobject *kobj, struct kobj_attribute *attr, const char *text, size_t size)
{
	return add_nic(text, size, "5:0:0 => AF_XDP");
}

/* Not a file of the real module, which finds such an interface by itself: one of an adapter with a datapath of Onload's own. */
static ssize_t attach_store(struct kobject *kobj, struct kobj_attribute *attr, const char *text, size_t size)
{
	return add_nic(text, size, "1:0:0 => EF10");
}

static ssize_t unregister_store(struct kobject *kobj, struct kobj_attribute *attr, const char *text, size_t size)
{
	struct nic *nic;
	char name[IFNAMSIZ];
	int rc = word(text, name);

	if (rc)
		return rc;
	mutex_lock(&nics_lock);
	nic = find(name);
	if (nic)
		drop_nic(nic);
	mutex_unlock(&nics_lock);
	return nic ? size : -ENODEV;
}

/* Reading lists nothing: the real files answer with an empty line too. */
static ssize_t empty_show(struct kobject *kobj, struct kobj_attribute *attr, char *to)
{
	return sysfs_emit(to, "\n");
}

static struct kobj_attribute register_attr = __ATTR(register, 0600, empty_show, register_store);
static struct kobj_attribute unregister_attr = __ATTR(unregister, 0600, empty_show, unregister_store);
static struct attribute *afxdp_attrs[] = { &register_attr.attr, &unregister_attr.attr, NULL };
static const struct attribute_group afxdp_group = { .attrs = afxdp_attrs };

static struct kobj_attribute attach_attr = __ATTR(attach, 0600, empty_show, attach_store);
static struct attribute *hardware_attrs[] = { &attach_attr.attr, NULL };
static const struct attribute_group hardware_group = { .attrs = hardware_attrs };

static int __init sfc_resource_init(void)
{
	int rc = -ENOMEM;

	proc_root = proc_mkdir("driver/sfc_resource", NULL);
	if (!proc_root)
		return rc;
	proc_create_single("resources", 0444, proc_root, show_nothing);
	proc_mkdir("devices", proc_root);
	afxdp = kobject_create_and_add("afxdp", &THIS_MODULE->mkobj.kobj);
	if (!afxdp)
		goto proc;
	rc = sysfs_create_group(afxdp, &afxdp_group);
	if (rc)
		goto kobject;
	rc = -ENOMEM;
	hardware = kobject_create_and_add("stand_in", &THIS_MODULE->mkobj.kobj);
	if (!hardware)
		goto kobject;
	rc = sysfs_create_group(hardware, &hardware_group);
	if (rc)
		goto hardware;
	debug_root = debugfs_create_dir("sfc_resource", NULL);
	debug_nics = debugfs_create_dir("nics", debug_root);
	return 0;

hardware:
	kobject_put(hardware);
kobject:
	kobject_put(afxdp);
proc:
	proc_remove(proc_root);
	return rc;
}

static void __exit sfc_resource_exit(void)
{
	struct nic *nic, *next;

	kobject_put(hardware);
	kobject_put(afxdp);
	mutex_lock(&nics_lock);
	list_for_each_entry_safe(nic, next, &nics, list)
		drop_nic(nic);
	mutex_unlock(&nics_lock);
	debugfs_remove_recursive(debug_root);
	proc_remove(proc_root);
}

/* sfc_char and onload stand on this module: the call makes it a holder relation. */
void sfc_resource_standin(void)
{
}
EXPORT_SYMBOL_GPL(sfc_resource_standin);

module_init(sfc_resource_init);
module_exit(sfc_resource_exit);
MODULE_DESCRIPTION("Stand-in for sfc_resource");
MODULE_LICENSE("GPL");
