// SPDX-License-Identifier: GPL-2.0
/* Each end of a cable sees the other one's service; a rail begins and ends with it. */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>

#include "usb4/tb.h"

#define KEY		"ferrule"
#define PROTOCOL_ID	1
#define REMOVE_MS	2000

/* cc2b7baf-2b1e-4d14-9d5d-1c55c4b3a6b0 */
const uuid_t fer_protocol = UUID_INIT(0xcc2b7baf, 0x2b1e, 0x4d14, 0x9d, 0x5d, 0x1c, 0x55, 0xc4,
				      0xb3, 0xa6, 0xb0);
static const uuid_t directory_uuid = UUID_INIT(0x0e5a5cd3, 0x9b0e, 0x4a9c, 0x8c, 0x6c, 0x21, 0x7d,
					       0x0d, 0x32, 0x5e, 0x11);
u8 fer_host_id[FER_HOST_ID];

static struct tb_property_dir *directory;
static struct workqueue_struct *queue;
static DEFINE_MUTEX(rails_lock);
static LIST_HEAD(rails);
static atomic_t handlers_busy = ATOMIC_INIT(0);

static void free_rail(struct kref *ref)
{
	struct fer_tb *tb = container_of(ref, struct fer_tb, ref);

	tb_xdomain_release_out_hopid(tb->xd, tb->out_hop);
	tb_service_put(tb->service);
	tb_xdomain_put(tb->xd);
	kfree(tb);
}

/* The work has a reference while it is queued or runs. */
static void rail_work(struct work_struct *work)
{
	struct fer_tb *tb = container_of(to_delayed_work(work), struct fer_tb, work);

	fer_tb_work(work);
	kref_put(&tb->ref, free_rail);
}

/* Have the work run in so many milliseconds, or earlier. */
void fer_tb_kick(struct fer_tb *tb, unsigned int ms)
{
	kref_get(&tb->ref);
	if (ms ? !queue_delayed_work(queue, &tb->work, msecs_to_jiffies(ms)) :
		 mod_delayed_work(queue, &tb->work, 0))
		kref_put(&tb->ref, free_rail);
}

/* ---- packets ---- */

static int handle(const void *buf, size_t size, void *data)
{
	const struct fer_packet *packet = buf;
	struct fer_tb *tb, *found = NULL;
	u64 route;

	if (size < sizeof(*packet))
		return 0;
	if (packet->op & FER_TB_ANSWER)
		return 0; /* the core matches it with the request */
	route = ((u64)packet->route_hi << 32 | packet->route_lo) & ~BIT_ULL(63);
	atomic_inc(&handlers_busy);
	mutex_lock(&rails_lock);
	list_for_each_entry(tb, &rails, node) {
		if (tb->xd->route != route || !uuid_equal(&packet->from, tb->xd->remote_uuid) ||
		    !uuid_equal(&packet->to, tb->xd->local_uuid))
			continue;
		found = tb;
		kref_get(&tb->ref);
		break;
	}
	mutex_unlock(&rails_lock);
	if (found) {
		fer_tb_hear(found, packet);
		kref_put(&found->ref, free_rail);
	}
	atomic_dec(&handlers_busy);
	return !!found;
}

static struct tb_protocol_handler handler = {
	.uuid = &fer_protocol,
	.callback = handle,
};

/* ---- the service ---- */

#ifdef FER_TB_PROBE_ALONE
static int probe(struct tb_service *service)
#else
static int probe(struct tb_service *service, const struct tb_service_id *id)
#endif
{
	struct tb_xdomain *xd = tb_service_parent(service);
	struct fer_tb *tb = kzalloc(sizeof(*tb), GFP_KERNEL);
	int hop;

	if (!tb)
		return -ENOMEM;
	hop = tb_xdomain_alloc_out_hopid(xd, -1);
	if (hop < 0) {
		kfree(tb);
		return hop;
	}
	kref_init(&tb->ref);
	tb->rail.ops = &fer_tb_ops;
	tb->service = tb_service_get(service);
	tb->xd = tb_xdomain_get(xd);
	tb->out_hop = hop;
	mutex_init(&tb->lock);
	mutex_init(&tb->busy);
	INIT_DELAYED_WORK(&tb->work, rail_work);
	tb_service_set_drvdata(service, tb);
	mutex_lock(&rails_lock);
	list_add_tail(&tb->node, &rails);
	mutex_unlock(&rails_lock);
	fer_tb_kick(tb, 0);
	return 0;
}

/* What is gone stays gone. */
static void set_life(struct fer_tb *tb, enum fer_tb_life life)
{
	mutex_lock(&tb->lock);
	if (tb->life != FER_TB_GONE)
		WRITE_ONCE(tb->life, life);
	mutex_unlock(&tb->lock);
}

/*
 * Wait until the rail is down; but not for ever: the core may hold the domain's lock, and the
 * work may wait for just that. Then it takes the rail down when it goes on.
 */
static void wait_down(struct fer_tb *tb)
{
	unsigned long end = jiffies + msecs_to_jiffies(REMOVE_MS);

	fer_tb_kick(tb, 0);
	while (time_before(jiffies, end)) {
		if (mutex_trylock(&tb->busy)) {
			bool down = !tb->tx && tb->state == FER_TB_IDLE;

			mutex_unlock(&tb->busy);
			if (down)
				return;
		}
		usleep_range(500, 2000);
	}
	dev_warn(&tb->service->dev, "the rail is still busy\n");
}

static void remove(struct tb_service *service)
{
	struct fer_tb *tb = tb_service_get_drvdata(service);

	mutex_lock(&rails_lock);
	list_del_init(&tb->node);
	mutex_unlock(&rails_lock);
	set_life(tb, FER_TB_GONE);
	wait_down(tb);
	kref_put(&tb->ref, free_rail);
}

static void shutdown(struct tb_service *service)
{
	struct fer_tb *tb = tb_service_get_drvdata(service);

	set_life(tb, FER_TB_GONE);
	wait_down(tb);
}

/* The device stays, with its port down. */
static int __maybe_unused suspend(struct device *dev)
{
	struct fer_tb *tb = tb_service_get_drvdata(tb_to_service(dev));

	set_life(tb, FER_TB_ASLEEP);
	wait_down(tb);
	return 0;
}

static int __maybe_unused resume(struct device *dev)
{
	struct fer_tb *tb = tb_service_get_drvdata(tb_to_service(dev));

	set_life(tb, FER_TB_PRESENT);
	fer_tb_kick(tb, 0);
	return 0;
}

static SIMPLE_DEV_PM_OPS(pm_ops, suspend, resume);

static const struct tb_service_id ids[] = {
	{ TB_SERVICE(KEY, PROTOCOL_ID) },
	{ },
};
MODULE_DEVICE_TABLE(tbsvc, ids);

static struct tb_service_driver driver = {
	.driver = {
		.owner = THIS_MODULE,
		.name = "ferrule_rdma",
		.pm = &pm_ops,
	},
	.probe = probe,
	.remove = remove,
	.shutdown = shutdown,
	.id_table = ids,
};

static struct tb_property_dir *make_directory(void)
{
	struct tb_property_dir *dir = tb_property_create_dir(&directory_uuid);

	if (!dir)
		return NULL;
	if (tb_property_add_immediate(dir, "prtcid", PROTOCOL_ID) ||
	    tb_property_add_immediate(dir, "prtcvers", FER_TB_VERSION) ||
	    tb_property_add_immediate(dir, "prtcrevs", 1) ||
	    tb_property_add_immediate(dir, "prtcstns", 0)) {
		tb_property_free_dir(dir);
		return NULL;
	}
	return dir;
}

/* The core does not wait for handlers that run, nor can we see one that is just called. */
static void drop_handler(void)
{
	tb_unregister_protocol_handler(&handler);
	do {
		msleep(20);
	} while (atomic_read(&handlers_busy));
}

int fer_service_init(void)
{
	int err = -ENOMEM;

	get_random_bytes(fer_host_id, sizeof(fer_host_id));
	directory = make_directory();
	if (!directory)
		return err;
	queue = alloc_workqueue("ferrule", WQ_UNBOUND, 0);
	if (!queue)
		goto free_directory;
	err = tb_register_protocol_handler(&handler);
	if (err)
		goto free_queue;
	err = tb_register_service_driver(&driver);
	if (err)
		goto no_driver;
	err = tb_register_property_dir(KEY, directory);
	if (!err)
		return 0;
	tb_unregister_service_driver(&driver);
no_driver:
	drop_handler();
free_queue:
	destroy_workqueue(queue);
free_directory:
	tb_property_free_dir(directory);
	return err;
}

void fer_service_exit(void)
{
	tb_unregister_property_dir(KEY, directory);
	tb_unregister_service_driver(&driver);
	drop_handler();
	destroy_workqueue(queue);
	tb_property_free_dir(directory);
}
