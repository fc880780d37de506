// SPDX-License-Identifier: BSD-2-Clause
/* Devices, memory and events. */
#include "lib.h"

#if BW_HEADERS

#include <endian.h>
#include <string.h>

int bw_devices(struct bw_device *devs, int max)
{
	struct ibv_device **list;
	int i, n = 0;

	errno = 0;
	list = bw_verbs.ibv_get_device_list(&n);
	if (!list)
		return bw_errno();
	for (i = 0; i < n && i < max; i++) {
		memset(&devs[i], 0, sizeof(devs[i]));
		strncpy(devs[i].name, bw_verbs.ibv_get_device_name(list[i]), sizeof(devs[i].name) - 1);
		devs[i].transport = list[i]->transport_type;
	}
	bw_verbs.ibv_free_device_list(list);
	return i;
}

int bw_open(const char *name, void **ctx, int *async_fd)
{
	struct ibv_context *c = NULL;
	struct ibv_device **list;
	int i, n = 0, r = -ENODEV;

	errno = 0;
	list = bw_verbs.ibv_get_device_list(&n);
	if (!list)
		return bw_errno();
	for (i = 0; i < n; i++) {
		if (strcmp(bw_verbs.ibv_get_device_name(list[i]), name))
			continue;
		errno = 0;
		c = bw_verbs.ibv_open_device(list[i]);
		r = c ? 0 : bw_errno();
		break;
	}
	bw_verbs.ibv_free_device_list(list);
	if (r == 0) {
		*ctx = c;
		*async_fd = c->async_fd;
	}
	return r;
}

int bw_close(void *ctx)
{
	return bw_ret(bw_verbs.ibv_close_device(ctx));
}

int bw_query_device(void *ctx, struct bw_device_attr *to)
{
	struct ibv_device_attr a;
	int r = bw_ret(bw_verbs.ibv_query_device(ctx, &a));

	if (r)
		return r;
	*to = (struct bw_device_attr){
		.max_mr_size = a.max_mr_size,
		.vendor_id = a.vendor_id,
		.cap_flags = a.device_cap_flags,
		.atomic_cap = a.atomic_cap,
		.max_qp = a.max_qp,
		.max_qp_wr = a.max_qp_wr,
		.max_sge = a.max_sge,
		.max_cq = a.max_cq,
		.max_cqe = a.max_cqe,
		.max_mr = a.max_mr,
		.max_mw = a.max_mw,
		.max_qp_rd_atom = a.max_qp_rd_atom,
		.max_qp_init_rd_atom = a.max_qp_init_rd_atom,
		.max_srq = a.max_srq,
		.max_srq_wr = a.max_srq_wr,
		.max_srq_sge = a.max_srq_sge,
		.ports = a.phys_port_cnt,
		.comp_vectors = ((struct ibv_context *)ctx)->num_comp_vectors,
	};
	memcpy(to->fw_ver, a.fw_ver, sizeof(to->fw_ver) - 1);
	return 0;
}

/*
 * rdma-core 54 and later append the speed to struct ibv_port_attr, as the old field ends at NDR. Headers may be older
 * than the library, which fills as much as it knows, and zeroes the rest.
 */
union port_attr {
	struct ibv_port_attr a;
	struct {
		unsigned char before[52];
		uint32_t active_speed_ex; /* 0: active_speed has it */
	};
};

_Static_assert(offsetof(struct ibv_port_attr, port_cap_flags2) == 48, "active_speed_ex follows port_cap_flags2");

/* The header's inline ibv_query_port would need the library at link time. */
static int query_port(struct ibv_context *ctx, int port, union port_attr *p)
{
	struct verbs_context *v = verbs_get_ctx_op(ctx, query_port);

	memset(p, 0, sizeof(*p));
	if (v)
		return v->query_port(ctx, port, &p->a, sizeof(*p));
	return (bw_verbs.ibv_query_port)(ctx, port, (struct _compat_ibv_port_attr *)&p->a);
}

int bw_query_port(void *ctx, int port, struct bw_port_attr *to)
{
	union port_attr p;
	int r = bw_ret(query_port(ctx, port, &p));
	const struct ibv_port_attr a = p.a;

	if (r)
		return r;
	*to = (struct bw_port_attr){
		.state = a.state,
		.max_mtu = a.max_mtu,
		.active_mtu = a.active_mtu,
		.link_layer = a.link_layer,
		.cap_flags = a.port_cap_flags,
		.max_msg_sz = a.max_msg_sz,
		.gid_tbl_len = a.gid_tbl_len,
		.pkey_tbl_len = a.pkey_tbl_len,
		.lid = a.lid,
		.active_width = a.active_width,
		.active_speed = p.active_speed_ex ? p.active_speed_ex : a.active_speed,
		.grh_required = a.flags & 1, /* IB_UVERBS_QPF_GRH_REQUIRED of the kernel */
	};
	return 0;
}

int bw_query_gids(void *ctx, struct bw_gid *gids, int max)
{
	ssize_t n = bw_verbs._ibv_query_gid_table(ctx, gids, max, 0, sizeof(*gids));

	return n < 0 ? bw_ret(n) : n;
}

int bw_query_pkey(void *ctx, int port, int index, uint16_t *pkey)
{
	__be16 be;
	int r = bw_ret(bw_verbs.ibv_query_pkey(ctx, port, index, &be));

	if (r == 0)
		*pkey = be16toh(be);
	return r;
}

/* Acknowledged at once: destroying an object waits for its events. */
int bw_get_async_event(void *ctx, struct bw_event *ev)
{
	struct ibv_async_event e;

	errno = 0;
	if (bw_verbs.ibv_get_async_event(ctx, &e))
		return bw_errno();
	*ev = (struct bw_event){ .type = e.event_type };
	switch (e.event_type) {
	case IBV_EVENT_CQ_ERR:
		ev->element = e.element.cq;
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		ev->element = e.element.srq;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		ev->element = e.element.qp;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		ev->port = e.element.port_num;
		break;
	default:
		break;
	}
	bw_verbs.ibv_ack_async_event(&e);
	return 0;
}

int bw_alloc_pd(void *ctx, void **pd)
{
	errno = 0;
	*pd = bw_verbs.ibv_alloc_pd(ctx);
	return *pd ? 0 : bw_errno();
}

int bw_dealloc_pd(void *pd)
{
	return bw_ret(bw_verbs.ibv_dealloc_pd(pd));
}

int bw_reg_mr(void *pd, uint64_t addr, uint64_t length, uint64_t iova, uint32_t access, struct bw_mr *mr)
{
	struct ibv_mr *m;

	errno = 0;
	m = bw_verbs.ibv_reg_mr_iova2(pd, (void *)(uintptr_t)addr, length, iova, access);
	if (!m)
		return bw_errno();
	*mr = (struct bw_mr){ m, m->lkey, m->rkey };
	return 0;
}

int bw_dereg_mr(void *mr)
{
	return bw_ret(bw_verbs.ibv_dereg_mr(mr));
}

int bw_alloc_mw(void *pd, struct bw_mr *mw)
{
	struct ibv_mw *m;

	errno = 0;
	m = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!m)
		return bw_errno();
	*mw = (struct bw_mr){ .mr = m, .rkey = m->rkey };
	return 0;
}

/* The library expects the caller to keep the key of a window that was bound through the send queue. */
void bw_set_rkey(void *mw, uint32_t rkey)
{
	((struct ibv_mw *)mw)->rkey = rkey;
}

int bw_dealloc_mw(void *mw)
{
	return bw_ret(ibv_dealloc_mw(mw));
}

int bw_create_channel(void *ctx, void **ch, int *fd)
{
	struct ibv_comp_channel *c;

	errno = 0;
	c = bw_verbs.ibv_create_comp_channel(ctx);
	if (!c)
		return bw_errno();
	*ch = c;
	*fd = c->fd;
	return 0;
}

int bw_destroy_channel(void *ch)
{
	return bw_ret(bw_verbs.ibv_destroy_comp_channel(ch));
}

/* Acknowledged at once: destroying a CQ waits for its events. */
int bw_get_cq_event(void *ch, void **cq)
{
	struct ibv_cq *c;
	void *ctx;

	errno = 0;
	if (bw_verbs.ibv_get_cq_event(ch, &c, &ctx))
		return bw_errno();
	*cq = c;
	bw_verbs.ibv_ack_cq_events(c, 1);
	return 0;
}

#endif
