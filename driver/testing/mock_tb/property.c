// SPDX-License-Identifier: GPL-2.0
/* Property directories, as drivers build and read them. They never leave this kernel. */
#include <linux/module.h>
#include <linux/slab.h>

#include "mock.h"

struct tb_property_dir *tb_property_create_dir(const uuid_t *uuid)
{
	struct tb_property_dir *dir = kzalloc(sizeof(*dir), GFP_KERNEL);

	if (!dir)
		return NULL;
	INIT_LIST_HEAD(&dir->properties);
	if (uuid) {
		dir->uuid = kmemdup(uuid, sizeof(*uuid), GFP_KERNEL);
		if (!dir->uuid) {
			kfree(dir);
			return NULL;
		}
	}
	return dir;
}
EXPORT_SYMBOL_GPL(tb_property_create_dir);

void tb_property_remove(struct tb_property *property)
{
	list_del(&property->list);
	switch (property->type) {
	case TB_PROPERTY_TYPE_DIRECTORY:
		tb_property_free_dir(property->value.dir);
		break;
	case TB_PROPERTY_TYPE_DATA:
	case TB_PROPERTY_TYPE_TEXT:
		kfree(property->value.data);
		break;
	default:
		break;
	}
	kfree(property);
}
EXPORT_SYMBOL_GPL(tb_property_remove);

void tb_property_free_dir(struct tb_property_dir *dir)
{
	struct tb_property *property, *next;

	if (!dir)
		return;
	list_for_each_entry_safe(property, next, &dir->properties, list)
		tb_property_remove(property);
	kfree(dir->uuid);
	kfree(dir);
}
EXPORT_SYMBOL_GPL(tb_property_free_dir);

static struct tb_property *add(struct tb_property_dir *parent, const char *key,
			       enum tb_property_type type)
{
	struct tb_property *property;

	if (!key[0] || strlen(key) > TB_PROPERTY_KEY_SIZE)
		return NULL;
	property = kzalloc(sizeof(*property), GFP_KERNEL);
	if (!property)
		return NULL;
	memcpy(property->key, key, strlen(key));
	property->type = type;
	list_add_tail(&property->list, &parent->properties);
	return property;
}

int tb_property_add_immediate(struct tb_property_dir *parent, const char *key, u32 value)
{
	struct tb_property *property = add(parent, key, TB_PROPERTY_TYPE_VALUE);

	if (!property)
		return -ENOMEM;
	property->length = 1;
	property->value.immediate = value;
	return 0;
}
EXPORT_SYMBOL_GPL(tb_property_add_immediate);

static int add_block(struct tb_property_dir *parent, const char *key, const void *data, size_t size,
		     enum tb_property_type type)
{
	size_t whole = round_up(size, 4);
	struct tb_property *property;
	void *block;

	block = kzalloc(whole, GFP_KERNEL);
	if (!block)
		return -ENOMEM;
	property = add(parent, key, type);
	if (!property) {
		kfree(block);
		return -ENOMEM;
	}
	memcpy(block, data, size);
	property->length = whole / 4;
	property->value.data = block;
	return 0;
}

int tb_property_add_data(struct tb_property_dir *parent, const char *key, const void *buf,
			 size_t buflen)
{
	return add_block(parent, key, buf, buflen, TB_PROPERTY_TYPE_DATA);
}
EXPORT_SYMBOL_GPL(tb_property_add_data);

int tb_property_add_text(struct tb_property_dir *parent, const char *key, const char *text)
{
	return add_block(parent, key, text, strlen(text) + 1, TB_PROPERTY_TYPE_TEXT);
}
EXPORT_SYMBOL_GPL(tb_property_add_text);

int tb_property_add_dir(struct tb_property_dir *parent, const char *key,
			struct tb_property_dir *dir)
{
	struct tb_property *property = add(parent, key, TB_PROPERTY_TYPE_DIRECTORY);

	if (!property)
		return -ENOMEM;
	property->value.dir = dir;
	return 0;
}
EXPORT_SYMBOL_GPL(tb_property_add_dir);

struct tb_property *tb_property_find(struct tb_property_dir *dir, const char *key,
				     enum tb_property_type type)
{
	struct tb_property *property;

	list_for_each_entry(property, &dir->properties, list)
		if (property->type == type && !strcmp(property->key, key))
			return property;
	return NULL;
}
EXPORT_SYMBOL_GPL(tb_property_find);

struct tb_property *tb_property_get_next(struct tb_property_dir *dir, struct tb_property *prev)
{
	if (!prev)
		return list_first_entry_or_null(&dir->properties, struct tb_property, list);
	if (list_is_last(&prev->list, &dir->properties))
		return NULL;
	return list_next_entry(prev, list);
}
EXPORT_SYMBOL_GPL(tb_property_get_next);
