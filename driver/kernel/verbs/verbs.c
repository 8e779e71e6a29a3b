// SPDX-License-Identifier: GPL-2.0
/* The device as the RDMA core sees it: what it can do, its port, and the small objects. */
#include <linux/slab.h>
#include <rdma/ib_mad.h>
#include <rdma/uverbs_ioctl.h>

#include "verbs/qp.h"

static int query_device(struct ib_device *ibdev, struct ib_device_attr *attr,
			struct ib_udata *udata)
{
	if (udata && (udata->inlen || udata->outlen))
		return -EINVAL;
	*attr = (struct ib_device_attr){
		.fw_ver = 1,
		.sys_image_guid = ibdev->node_guid,
		.max_mr_size = ~0ull >> 1,
		.page_size_cap = PAGE_SIZE,
		.vendor_id = 0xfe44,
		.vendor_part_id = 1,
		.hw_ver = 1,
		.max_qp = FER_MAX_QP,
		.max_qp_wr = FER_MAX_QP_WR,
		.device_cap_flags = IB_DEVICE_RC_RNR_NAK_GEN | IB_DEVICE_SYS_IMAGE_GUID |
				    IB_DEVICE_PORT_ACTIVE_EVENT,
		.kernel_cap_flags = IBK_LOCAL_DMA_LKEY,
		.max_send_sge = FER_MAX_SGE,
		.max_recv_sge = FER_MAX_SGE,
		.max_sge_rd = FER_MAX_SGE,
		.max_cq = FER_MAX_CQ,
		.max_cqe = FER_MAX_CQE,
		.max_mr = FER_MAX_MR,
		.max_pd = FER_MAX_PD,
		.max_qp_rd_atom = FER_MAX_RD_ATOM,
		.max_res_rd_atom = FER_MAX_RD_ATOM * FER_MAX_QP,
		.max_qp_init_rd_atom = FER_MAX_RD_ATOM,
		.atomic_cap = IB_ATOMIC_HCA,
		.max_ah = FER_MAX_AH,
		.max_srq = FER_MAX_SRQ,
		.max_srq_wr = FER_MAX_QP_WR,
		.max_srq_sge = FER_MAX_SGE,
		.max_pkeys = 1,
		.local_ca_ack_delay = 15,
	};
	return 0;
}

static int query_port(struct ib_device *ibdev, u32 port, struct ib_port_attr *attr)
{
	bool up = READ_ONCE(to_fer_dev(ibdev)->channel->up);

	attr->state = up ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = up ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	/* a frame carries less than 4096 bytes, and a datagram must fit into one */
	attr->max_mtu = IB_MTU_2048;
	attr->active_mtu = IB_MTU_2048;
	attr->gid_tbl_len = 128;
	attr->pkey_tbl_len = 1;
	attr->max_msg_sz = FER_MAX_MSG;
	attr->max_vl_num = 1;
	attr->active_width = IB_WIDTH_2X;
	attr->active_speed = IB_SPEED_QDR;
	attr->ip_gids = true;
	return 0;
}

static int port_immutable(struct ib_device *ibdev, u32 port, struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	immutable->gid_tbl_len = 128;
	immutable->pkey_tbl_len = 1;
	return 0;
}

/*
 * Not by ib_device_set_netdev(): soft-RoCE looks interfaces up in what that fills, and by its
 * driver id, which is ours, too. It would take the device for one of its own and write into it.
 */
static struct net_device *get_netdev(struct ib_device *ibdev, u32 port)
{
	struct net_device *netdev = to_fer_dev(ibdev)->netdev;

	dev_hold(netdev);
	return netdev;
}

static enum rdma_link_layer link_layer(struct ib_device *ibdev, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int query_pkey(struct ib_device *ibdev, u32 port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = 0xffff;
	return 0;
}

/* That it is there lets a device go while processes still have it open. */
static void disassociate_ucontext(struct ib_ucontext *uctx)
{
}

static int alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return fer_take(to_fer_dev(pd->device), udata, FER_KIND_PD, &to_fer_pd(pd)->owner);
}

static int dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	fer_give(to_fer_dev(pd->device), to_fer_pd(pd)->owner, FER_KIND_PD);
	return 0;
}

static void forget_ah(struct fer_ah *ah)
{
	struct fer_dev *dev = to_fer_dev(ah->ib.device);
	unsigned long irq;

	xa_lock_irqsave(&dev->ahs, irq);
	__xa_erase(&dev->ahs, ah->num);
	xa_unlock_irqrestore(&dev->ahs, irq);
}

static int create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init, struct ib_udata *udata)
{
	struct fer_dev *dev = to_fer_dev(ibah->device);
	const struct ib_global_route *grh = rdma_ah_read_grh(init->ah_attr);
	struct fer_ah *ah = to_fer_ah(ibah);
	struct rxe_create_ah_resp resp = {};
	unsigned long irq;
	int err;

	if ((udata && udata->outlen < sizeof(resp)) || !grh->sgid_attr)
		return -EINVAL;
	ah->pd = to_fer_pd(ibah->pd);
	ah->sgid = grh->sgid_attr->gid;
	ah->dgid = grh->dgid;
	err = fer_take(dev, udata, FER_KIND_AH, &ah->owner);
	if (err)
		return err;
	xa_lock_irqsave(&dev->ahs, irq); /* users in the kernel may be in an interrupt */
	err = __xa_alloc(&dev->ahs, &ah->num, ah, XA_LIMIT(1, 2 * FER_MAX_AH), GFP_ATOMIC);
	xa_unlock_irqrestore(&dev->ahs, irq);
	if (err)
		goto put_count;
	resp.ah_num = ah->num;
	err = udata ? ib_copy_to_udata(udata, &resp, sizeof(resp)) : 0;
	if (!err)
		return 0;
	forget_ah(ah);
put_count:
	fer_give(dev, ah->owner, FER_KIND_AH);
	return err;
}

/* The core frees it when this returns; the requester looks only under the table's lock. */
static int destroy_ah(struct ib_ah *ibah, u32 flags)
{
	forget_ah(to_fer_ah(ibah));
	fer_give(to_fer_dev(ibah->device), to_fer_ah(ibah)->owner, FER_KIND_AH);
	return 0;
}

#ifdef FER_CREATE_CQ_BUNDLE
static int dev_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr,
			 struct uverbs_attr_bundle *attrs)
{
	return fer_create_cq(cq, attr, attrs ? &attrs->driver_udata : NULL);
}
#else
#define dev_create_cq fer_create_cq
#endif

#ifdef FER_REG_MR_DMAH
static struct ib_mr *dev_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access,
				     struct ib_dmah *dmah, struct ib_udata *udata)
{
	if (dmah)
		return ERR_PTR(-EOPNOTSUPP);
	return fer_reg_user_mr(pd, start, length, iova, access, udata);
}
#else
#define dev_reg_user_mr fer_reg_user_mr
#endif

/* ---- `rdma statistic` ---- */

static const struct rdma_stat_desc stat_descs[FER_STAT_COUNT] = {
#define FER_DESC(id, text) [FER_STAT_##id] = { .name = text },
	FER_STATS(FER_DESC)
#undef FER_DESC
};

static struct rdma_hw_stats *alloc_stats(struct ib_device *ibdev, u32 port)
{
	return rdma_alloc_hw_stats_struct(stat_descs, FER_STAT_COUNT,
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

static int get_stats(struct ib_device *ibdev, struct rdma_hw_stats *stats, u32 port, int index)
{
	int i;

	if (!port)
		return -EINVAL;
	for (i = 0; i < FER_STAT_COUNT; i++)
		stats->value[i] = READ_ONCE(to_fer_dev(ibdev)->channel->stats[i]);
	return FER_STAT_COUNT;
}

const struct ib_device_ops fer_device_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_RXE, /* whose queues we speak: docs/driver.md */
	.uverbs_abi_ver = 2,
	.alloc_hw_port_stats = alloc_stats,
	.alloc_pd = alloc_pd,
	.alloc_ucontext = fer_owner_join,
	.create_ah = create_ah,
	.create_cq = dev_create_cq,
	.create_qp = fer_create_qp,
	.create_srq = fer_create_srq,
	.create_user_ah = create_ah,
	.dealloc_driver = fer_dev_dealloc,
	.dealloc_pd = dealloc_pd,
	.dealloc_ucontext = fer_owner_leave,
	.dereg_mr = fer_dereg_mr,
	.destroy_ah = destroy_ah,
	.destroy_cq = fer_destroy_cq,
	.destroy_qp = fer_destroy_qp,
	.destroy_srq = fer_destroy_srq,
	.disassociate_ucontext = disassociate_ucontext,
	.get_dma_mr = fer_get_dma_mr,
	.get_hw_stats = get_stats,
	.get_link_layer = link_layer,
	.get_netdev = get_netdev,
	.get_port_immutable = port_immutable,
	.mmap = fer_mmap,
	.mmap_free = fer_mmap_free,
	.modify_qp = fer_modify_qp,
	.modify_srq = fer_modify_srq,
	.poll_cq = fer_poll_cq,
	.post_recv = fer_post_recv,
	.post_send = fer_post_send,
	.query_device = query_device,
	.query_pkey = query_pkey,
	.query_port = query_port,
	.query_qp = fer_query_qp,
	.query_srq = fer_query_srq,
	.reg_user_mr = dev_reg_user_mr,
	.req_notify_cq = fer_req_notify_cq,

	INIT_RDMA_OBJ_SIZE(ib_ah, fer_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, fer_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, fer_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, fer_qp, ib),
	INIT_RDMA_OBJ_SIZE(ib_srq, fer_srq, ib),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, fer_ucontext, ib),
};
