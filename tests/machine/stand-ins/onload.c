// SPDX-License-Identifier: GPL-2.0
/* Stand-in for the module onload: two nodes, /proc/driver/onload, a module version. */
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "standin_chrdev.h"

static struct standin_chrdev onload, onload_epoll;

static int show_version(struct seq_file *file, void *unused)
{
	seq_puts(file, "onload_product: Onload\n");
	seq_puts(file, "onload_version: " STANDIN_VERSION "\n");
	seq_puts(file, "uk_intf_ver: " STANDIN_CHECKSUM "\n");
	return 0;
}

static int show_nothing(struct seq_file *file, void *unused)
{
	return 0;
}

static int make_proc(void)
{
	struct proc_dir_entry *dir = proc_mkdir("driver/onload", NULL);

	if (!dir)
		return -ENOMEM;
	if (!proc_create_single("version", 0444, dir, show_version) ||
	    !proc_create_single("stacks", 0444, dir, show_nothing) ||
	    !proc_create_single("stacks_ul", 0444, dir, show_nothing) ||
	    !proc_create_single("cp_server_pids", 0444, dir, show_nothing)) {
		proc_remove(dir);
		return -ENOMEM;
	}
	return 0;
}

static int __init onload_init(void)
{
	int rc;

	sfc_resource_standin();
	sfc_char_standin();
	rc = standin_spares_add();
	if (rc)
		return rc;
	rc = standin_chrdev_add(&onload, "onload");
	if (rc)
		goto spares;
	rc = standin_chrdev_add(&onload_epoll, "onload_epoll");
	if (rc)
		goto node;
	rc = make_proc();
	if (rc)
		goto epoll;
	return 0;

epoll:
	standin_chrdev_remove(&onload_epoll);
node:
	standin_chrdev_remove(&onload);
spares:
	standin_spares_remove();
	return rc;
}

static void __exit onload_exit(void)
{
	remove_proc_subtree("driver/onload", NULL);
	standin_chrdev_remove(&onload_epoll);
	standin_chrdev_remove(&onload);
	standin_spares_remove();
}

module_init(onload_init);
module_exit(onload_exit);
MODULE_DESCRIPTION("Stand-in for onload");
MODULE_VERSION(STANDIN_VERSION);
MODULE_LICENSE("GPL");
