// SPDX-License-Identifier: GPL-2.0
/* Services: while the cable is plugged in, each property directory is one at both hosts. */
#include <linux/module.h>
#include <linux/slab.h>

#include "mock.h"

struct directory {
	struct list_head node;
	char key[TB_PROPERTY_KEY_SIZE + 1];
	struct tb_property_dir *dir;
};

static LIST_HEAD(directories);	/* mock_cable_lock */

static u32 value_of(struct tb_property_dir *dir, const char *key)
{
	struct tb_property *property = tb_property_find(dir, key, TB_PROPERTY_TYPE_VALUE);

	return property ? property->value.immediate : 0;
}

static void service_add(struct mock_side *side, const struct directory *from)
{
	struct mock_service *mock = kzalloc(sizeof(*mock), GFP_KERNEL);
	struct tb_service *service;

	if (!mock)
		return;
	service = &mock->service;
	strscpy(mock->key, from->key, sizeof(mock->key));
	service->key = mock->key;
	service->prtcid = value_of(from->dir, "prtcid");
	service->prtcvers = value_of(from->dir, "prtcvers");
	service->prtcrevs = value_of(from->dir, "prtcrevs");
	service->prtcstns = value_of(from->dir, "prtcstns");
	service->id = ida_alloc(&side->xd->service_ids, GFP_KERNEL);
#if SINCE(7, 2)
	mutex_init(&service->lock);
	service->local_properties = tb_property_create_dir(NULL);
	service->remote_properties = tb_property_create_dir(NULL);
#endif
	service->dev.bus = &mock_bus_type;
	service->dev.type = &tb_service_type;
	service->dev.parent = &side->xd->dev;
	dev_set_name(&service->dev, "%d-1.%d", side->index, service->id);
	list_add_tail(&mock->node, &side->services);
	if (device_register(&service->dev)) {
		list_del(&mock->node);
		put_device(&service->dev);
	}
}

void mock_services_add(struct mock_side *side)
{
	struct directory *each;

	list_for_each_entry(each, &directories, node)
		service_add(side, each);
}

/* Of this key, or all. */
void mock_services_remove(struct mock_side *side, const char *key)
{
	struct mock_service *each, *next;

	list_for_each_entry_safe(each, next, &side->services, node) {
		if (key && strcmp(each->key, key))
			continue;
		list_del(&each->node);
		ida_free(&side->xd->service_ids, each->service.id);
		device_unregister(&each->service.dev);
	}
}

int tb_register_property_dir(const char *key, struct tb_property_dir *dir)
{
	struct directory *added = kzalloc(sizeof(*added), GFP_KERNEL);
	int i;

	if (!added)
		return -ENOMEM;
	strscpy(added->key, key, sizeof(added->key));
	added->dir = dir;
	mutex_lock(&mock_cable_lock);
	list_add_tail(&added->node, &directories);
	for (i = 0; mock_plugged && i < 2; i++)
		service_add(mock_sides[i], added);
	mutex_unlock(&mock_cable_lock);
	return 0;
}
EXPORT_SYMBOL_GPL(tb_register_property_dir);

void tb_unregister_property_dir(const char *key, struct tb_property_dir *dir)
{
	struct directory *each, *next;
	int i;

	mutex_lock(&mock_cable_lock);
	list_for_each_entry_safe(each, next, &directories, node) {
		if (each->dir != dir || strcmp(each->key, key))
			continue;
		for (i = 0; mock_plugged && i < 2; i++)
			mock_services_remove(mock_sides[i], key);
		list_del(&each->node);
		kfree(each);
	}
	mutex_unlock(&mock_cable_lock);
}
EXPORT_SYMBOL_GPL(tb_unregister_property_dir);

#if SINCE(7, 2)
/* The other host is this kernel: it sees what is changed. */
void tb_service_properties_changed(struct tb_service *service)
{
}
EXPORT_SYMBOL_GPL(tb_service_properties_changed);
#endif
