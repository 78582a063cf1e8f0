// SPDX-License-Identifier: GPL-2.0
/* Stand-in for the module onload: two nodes, /proc/driver/onload, a module version. A process that opens /dev/onload a second time has
   a stack, as one of the real module has two such descriptors and one without a stack keeps one. Its third, which is an inode without a
   name (onload:[tcp:0:3]), does not exist. */
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "standin_chrdev.h"

struct opening {
	struct list_head list;
	struct pid *process;
	bool is_stack;
};

static LIST_HEAD(openings);
static DEFINE_MUTEX(openings_lock);

static int onload_open(struct inode *inode, struct file *file)
{
	struct opening *opening = kzalloc(sizeof(*opening), GFP_KERNEL);
	struct opening *other;
	unsigned int before = 0;

	if (!opening)
		return -ENOMEM;
	opening->process = get_pid(task_tgid(current));
	mutex_lock(&openings_lock);
	list_for_each_entry(other, &openings, list)
		before += other->process == opening->process;
	opening->is_stack = before == 1;
	list_add_tail(&opening->list, &openings);
	mutex_unlock(&openings_lock);
	file->private_data = opening;
	return nonseekable_open(inode, file);
}

static int onload_release(struct inode *inode, struct file *file)
{
	struct opening *opening = file->private_data;

	mutex_lock(&openings_lock);
	list_del(&opening->list);
	mutex_unlock(&openings_lock);
	put_pid(opening->process);
	kfree(opening);
	return 0;
}

/* The number of each stack, and the process that made it as its reader sees it. */
static int show_stacks(struct seq_file *file, void *unused)
{
	struct opening *opening;
	int number = 0;

	mutex_lock(&openings_lock);
	list_for_each_entry(opening, &openings, list)
		if (opening->is_stack)
			seq_printf(file, "%d: %d 0\n", number++, pid_vnr(opening->process));
	mutex_unlock(&openings_lock);
	return 0;
}

static const struct file_operations onload_fops = {
	.owner = THIS_MODULE,
	.open = onload_open,
	.release = onload_release,
	.read = standin_read,
};

static struct standin_chrdev onload = { .fops = &onload_fops }, onload_epoll;

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
	    !proc_create_single("stacks", 0444, dir, show_stacks) ||
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
