// SPDX-License-Identifier: GPL-2.0
/* Stand-in for the module sfc_char: /dev/sfc_char. */
#include "standin_chrdev.h"

static struct standin_chrdev sfc_char;

static int __init sfc_char_init(void)
{
	int rc;

	sfc_resource_standin();
	rc = standin_spares_add();
	if (rc)
		return rc;
	rc = standin_chrdev_add(&sfc_char, "sfc_char");
	if (rc)
		standin_spares_remove();
	return rc;
}

static void __exit sfc_char_exit(void)
{
	standin_chrdev_remove(&sfc_char);
	standin_spares_remove();
}

/* onload.ko stands on this module too, as the real one does. */
void sfc_char_standin(void)
{
}
EXPORT_SYMBOL_GPL(sfc_char_standin);

module_init(sfc_char_init);
module_exit(sfc_char_exit);
MODULE_DESCRIPTION("Stand-in for sfc_char");
MODULE_LICENSE("GPL");
