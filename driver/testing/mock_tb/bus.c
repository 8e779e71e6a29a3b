// SPDX-License-Identifier: GPL-2.0
/* The bus: which driver takes which service, and what sysfs tells of the other host. */
#include <linux/module.h>
#include <linux/slab.h>

#include "mock.h"

#define SHOW(name, type, format, field) \
static ssize_t name##_show(struct device *dev, struct device_attribute *attr, char *buf) \
{ return sysfs_emit(buf, format "\n", container_of(dev, struct type, dev)->field); }

SHOW(device_name, tb_xdomain, "%s", device_name)
static DEVICE_ATTR_RO(device_name);
SHOW(vendor_name, tb_xdomain, "%s", vendor_name)
static DEVICE_ATTR_RO(vendor_name);
SHOW(unique_id, tb_xdomain, "%pUb", remote_uuid)
static DEVICE_ATTR_RO(unique_id);
SHOW(speed, tb_xdomain, "%u.0 Gb/s", link_speed)
static DEVICE_ATTR(rx_speed, 0444, speed_show, NULL);
static DEVICE_ATTR(tx_speed, 0444, speed_show, NULL);
SHOW(lanes, tb_xdomain, "%u", link_width)
static DEVICE_ATTR(rx_lanes, 0444, lanes_show, NULL);
static DEVICE_ATTR(tx_lanes, 0444, lanes_show, NULL);

static struct attribute *xdomain_attrs[] = {
	&dev_attr_device_name.attr,
	&dev_attr_vendor_name.attr,
	&dev_attr_unique_id.attr,
	&dev_attr_rx_speed.attr,
	&dev_attr_tx_speed.attr,
	&dev_attr_rx_lanes.attr,
	&dev_attr_tx_lanes.attr,
	NULL
};
ATTRIBUTE_GROUPS(xdomain);

SHOW(key, tb_service, "%s", key)
static DEVICE_ATTR_RO(key);

static struct attribute *service_attrs[] = {
	&dev_attr_key.attr,
	NULL
};
ATTRIBUTE_GROUPS(service);

static void service_release(struct device *dev)
{
	struct tb_service *service = container_of(dev, struct tb_service, dev);

#if SINCE(7, 2)
	tb_property_free_dir(service->local_properties);
	tb_property_free_dir(service->remote_properties);
#endif
	kfree(container_of(service, struct mock_service, service));
}

static void xdomain_release(struct device *dev)
{
	kfree(container_of(dev, struct tb_xdomain, dev));
}

MOCK_CONST struct device_type tb_service_type = {
	.name = "thunderbolt_service",
	.groups = service_groups,
	.release = service_release,
};
EXPORT_SYMBOL_GPL(tb_service_type);

MOCK_CONST struct device_type tb_xdomain_type = {
	.name = "thunderbolt_xdomain",
	.groups = xdomain_groups,
	.release = xdomain_release,
};
EXPORT_SYMBOL_GPL(tb_xdomain_type);

static bool matches(const struct tb_service *service, const struct tb_service_id *id)
{
	u32 flags = id->match_flags;

	return (!(flags & TBSVC_MATCH_PROTOCOL_KEY) || !strcmp(id->protocol_key, service->key)) &&
	       (!(flags & TBSVC_MATCH_PROTOCOL_ID) || id->protocol_id == service->prtcid) &&
	       (!(flags & TBSVC_MATCH_PROTOCOL_VERSION) ||
		id->protocol_version == service->prtcvers) &&
	       (!(flags & TBSVC_MATCH_PROTOCOL_REVISION) ||
		id->protocol_revision == service->prtcrevs);
}

static const struct tb_service_id *find_id(struct tb_service *service,
					   const struct tb_service_driver *driver)
{
	const struct tb_service_id *id;

	for (id = driver->id_table; id && id->match_flags; id++)
		if (matches(service, id))
			return id;
	return NULL;
}

#if SINCE(6, 11)
static int bus_match(struct device *dev, const struct device_driver *driver)
#else
static int bus_match(struct device *dev, struct device_driver *driver)
#endif
{
	struct tb_service *service = tb_to_service(dev);

	return service && find_id(service, container_of(driver, struct tb_service_driver, driver));
}

static struct tb_service_driver *driver_of(struct device *dev)
{
	return container_of(dev->driver, struct tb_service_driver, driver);
}

static int bus_probe(struct device *dev)
{
	struct tb_service_driver *driver = driver_of(dev);
	struct tb_service *service = tb_to_service(dev);
	const struct tb_service_id *id = find_id(service, driver);

	if (!id)
		return -ENODEV;
#if SINCE(7, 3)
	return driver->probe(service);
#else
	return driver->probe(service, id);
#endif
}

static void bus_remove(struct device *dev)
{
	struct tb_service_driver *driver = driver_of(dev);

	if (driver->remove)
		driver->remove(tb_to_service(dev));
}

MOCK_CONST struct bus_type mock_bus_type = {
	.name = "thunderbolt",
	.match = bus_match,
	.probe = bus_probe,
	.remove = bus_remove,
};

int tb_register_service_driver(struct tb_service_driver *driver)
{
	driver->driver.bus = &mock_bus_type;
	return driver_register(&driver->driver);
}
EXPORT_SYMBOL_GPL(tb_register_service_driver);

void tb_unregister_service_driver(struct tb_service_driver *driver)
{
	driver_unregister(&driver->driver);
}
EXPORT_SYMBOL_GPL(tb_unregister_service_driver);
