// SPDX-License-Identifier: GPL-2.0
/* Loading and unloading. */
#include <linux/module.h>

#include "ferrule_rdma.h"

static unsigned int loopback;
module_param(loopback, uint, 0444);
MODULE_PARM_DESC(loopback, "devices that are wired to themselves, for tests (at most 8)");

static int __init ferrule_init(void)
{
	unsigned int i;
	int err = ib_register_client(&fer_client);

	if (err)
		return err;
	fer_debugfs = debugfs_create_dir("ferrule_rdma", NULL);
	for (i = 0; i < min(loopback, 8u) && !err; i++)
		err = fer_dev_add(NULL, "ferrule%d", NULL, NULL);
	if (!err)
		err = fer_service_init();
	if (!err)
		return 0;
	fer_dev_remove_all();
	debugfs_remove_recursive(fer_debugfs);
	ib_unregister_client(&fer_client);
	return err;
}

static void __exit ferrule_exit(void)
{
	fer_service_exit();
	fer_dev_remove_all();
	debugfs_remove_recursive(fer_debugfs);
	ib_unregister_client(&fer_client);
}

module_init(ferrule_init);
module_exit(ferrule_exit);

MODULE_DESCRIPTION("RDMA verbs over a USB4 cable");
MODULE_AUTHOR("The Ferrule authors");
MODULE_LICENSE("GPL");
MODULE_SOFTDEP("pre: ib_uverbs");
#ifdef FER_RELEASE
MODULE_VERSION(__stringify(FER_RELEASE));
#endif
