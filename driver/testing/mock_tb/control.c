// SPDX-License-Identifier: GPL-2.0
/* Control packets between the two hosts: requests, responses, and who handles them. */
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>

#include "mock.h"

/* The first words of every XDomain packet. */
struct packet_header {
	u32 route_hi;
	u32 route_lo;
	u32 length_sn;
	uuid_t uuid;
} __packed;

struct packet {
	struct list_head node;
	size_t size;
	u8 data[];
};

static unsigned int garble;
module_param(garble, uint, 0644);
MODULE_PARM_DESC(garble, "before each request so many copies of it arrive that are cut short or have wrong bytes");

static DEFINE_SPINLOCK(mock_control_lock);
static DEFINE_MUTEX(handlers_lock);
static LIST_HEAD(handlers);

int tb_register_protocol_handler(struct tb_protocol_handler *handler)
{
	mutex_lock(&handlers_lock);
	list_add_tail(&handler->list, &handlers);
	mutex_unlock(&handlers_lock);
	return 0;
}
EXPORT_SYMBOL_GPL(tb_register_protocol_handler);

void tb_unregister_protocol_handler(struct tb_protocol_handler *handler)
{
	mutex_lock(&handlers_lock);
	list_del_init(&handler->list);
	mutex_unlock(&handlers_lock);
}
EXPORT_SYMBOL_GPL(tb_unregister_protocol_handler);

/* As it looks where it arrives: with the route to where it is from. */
static void set_route(void *data, const struct tb_xdomain *xd)
{
	struct packet_header *header = data;

	header->route_hi = upper_32_bits(xd->route) | BIT(31);
	header->route_lo = lower_32_bits(xd->route);
}

static void handle(const struct packet *packet)
{
	const struct packet_header *header = (const void *)packet->data;
	struct tb_protocol_handler *handler;

	mutex_lock(&handlers_lock);
	list_for_each_entry(handler, &handlers, list)
		if (uuid_equal(handler->uuid, &header->uuid) &&
		    handler->callback(packet->data, packet->size, handler->data) > 0)
			break;
	mutex_unlock(&handlers_lock);
}

/* What stands in front of the protocol's own words stays, so that the copy reaches who handles them. */
static void handle_garbled(const struct packet *packet)
{
	const size_t head = sizeof(struct packet_header), body = packet->size - head;
	size_t size = packet->size;
	struct packet *copy;
	u32 wrong;

	if (!body)
		return;
	if (!(get_random_u32() % 4))
		size = head + get_random_u32() % body;
	copy = kmalloc(sizeof(*copy) + size, GFP_KERNEL);
	if (!copy)
		return;
	copy->size = size;
	memcpy(copy->data, packet->data, size);
	for (wrong = get_random_u32() % 8; wrong && size > head; wrong--)
		copy->data[head + get_random_u32() % (size - head)] = get_random_u32();
	handle(copy);
	kfree(copy);
}

static void control_work(struct work_struct *work)
{
	struct mock_side *side = container_of(work, struct mock_side, control_work);
	struct packet *packet;
	unsigned int i;

	for (;;) {
		spin_lock(&mock_control_lock);
		packet = list_first_entry_or_null(&side->control, struct packet, node);
		if (packet)
			list_del(&packet->node);
		spin_unlock(&mock_control_lock);
		if (!packet)
			return;
		for (i = READ_ONCE(garble); i; i--)
			handle_garbled(packet);
		handle(packet);
		kfree(packet);
	}
}

static void set_response(struct mock_side *side, void *response, size_t size)
{
	spin_lock(&side->response_lock);
	if (response)
		reinit_completion(&side->response_done);
	side->response = response;
	side->response_size = size;
	spin_unlock(&side->response_lock);
}

int tb_xdomain_request(struct tb_xdomain *xd, const void *request, size_t request_size,
		       enum tb_cfg_pkg_type request_type, void *response, size_t response_size,
		       enum tb_cfg_pkg_type response_type, unsigned int timeout_msec)
{
	struct mock_side *side = mock_xd_side(xd), *peer = side->peer;
	struct packet *packet;
	unsigned long left;

	if (request_size < sizeof(struct packet_header))
		return -EINVAL;
	packet = kmalloc(sizeof(*packet) + request_size, GFP_KERNEL);
	if (!packet)
		return -ENOMEM;
	packet->size = request_size;
	memcpy(packet->data, request, request_size);
	set_route(packet->data, peer->xd);

	mutex_lock(&side->request_lock);
	set_response(side, response, response_size);
	if (mock_is_mute(side)) {
		kfree(packet);
	} else {
		spin_lock(&mock_control_lock);
		list_add_tail(&packet->node, &peer->control);
		spin_unlock(&mock_control_lock);
	}
	queue_work(mock_wq, &peer->control_work);
	left = wait_for_completion_timeout(&side->response_done, msecs_to_jiffies(timeout_msec));
	set_response(side, NULL, 0);
	mutex_unlock(&side->request_lock);
	return left ? 0 : -ETIMEDOUT;
}
EXPORT_SYMBOL_GPL(tb_xdomain_request);

int tb_xdomain_response(struct tb_xdomain *xd, const void *response, size_t size,
			enum tb_cfg_pkg_type type)
{
	struct mock_side *side = mock_xd_side(xd), *peer = side->peer;

	spin_lock(&peer->response_lock);
	if (peer->response && !mock_is_mute(side)) {
		memcpy(peer->response, response, min(size, peer->response_size));
		if (min(size, peer->response_size) >= sizeof(struct packet_header))
			set_route(peer->response, peer->xd);
		peer->response = NULL;
		complete(&peer->response_done);
	}
	spin_unlock(&peer->response_lock);
	return 0;
}
EXPORT_SYMBOL_GPL(tb_xdomain_response);

void mock_control_init(struct mock_side *side)
{
	INIT_LIST_HEAD(&side->control);
	INIT_WORK(&side->control_work, control_work);
	mutex_init(&side->request_lock);
	spin_lock_init(&side->response_lock);
	init_completion(&side->response_done);
}
