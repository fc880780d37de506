// SPDX-License-Identifier: BSD-2-Clause
/* The connection manager. Its functions return -1 and set errno. */
#include "lib.h"

#if BW_HEADERS

#include <string.h>

/* The result of a call: 0 or -errno. */
#define bw_cm_ret(call) (errno = 0, (call) ? bw_errno() : 0)

/* The same for an id that needs a device, whose pointer the library follows without a look at it. */
#define bw_cm_bound(id, call) (((struct rdma_cm_id *)(id))->verbs ? bw_cm_ret(call) : -ENOTCONN)

int bw_cm_channel(void **ch, int *fd)
{
	struct rdma_event_channel *c;

	errno = 0;
	c = bw_cm.rdma_create_event_channel();
	if (!c)
		return bw_errno();
	*ch = c;
	*fd = c->fd;
	return 0;
}

int bw_cm_destroy_channel(void *ch)
{
	bw_cm.rdma_destroy_event_channel(ch);
	return 0;
}

/* Acknowledged at once: destroying an id waits for its events. */
int bw_cm_get_event(void *ch, struct bw_cm_event *to)
{
	const struct rdma_conn_param *c;
	struct rdma_cm_event *e;

	errno = 0;
	if (bw_cm.rdma_get_cm_event(ch, &e))
		return bw_errno();
	c = &e->param.conn;
	*to = (struct bw_cm_event){
		.id = e->id,
		.listen_id = e->listen_id,
		.type = e->event,
		.status = e->status,
	};
	switch (e->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_DISCONNECTED:
		to->param = (struct bw_cm_param){
			.responder_resources = c->responder_resources,
			.initiator_depth = c->initiator_depth,
			.retry_count = c->retry_count,
			.rnr_retry_count = c->rnr_retry_count,
			.qpn = c->qp_num,
			.data_len = c->private_data ? c->private_data_len : 0,
		};
		memcpy(to->param.data, c->private_data ? c->private_data : "", to->param.data_len);
		break;
	default:
		break;
	}
	bw_cm.rdma_ack_cm_event(e);
	return 0;
}

int bw_cm_create_id(void *ch, void **id)
{
	struct rdma_cm_id *i;

	errno = 0;
	if (bw_cm.rdma_create_id(ch, &i, NULL, RDMA_PS_TCP))
		return bw_errno();
	*id = i;
	return 0;
}

int bw_cm_destroy_id(void *id)
{
	return bw_cm_ret(bw_cm.rdma_destroy_id(id));
}

int bw_cm_bind(void *id, const void *addr)
{
	return bw_cm_ret(bw_cm.rdma_bind_addr(id, (struct sockaddr *)addr));
}

int bw_cm_resolve_addr(void *id, const void *src, const void *dst, int ms)
{
	return bw_cm_ret(bw_cm.rdma_resolve_addr(id, (struct sockaddr *)src, (struct sockaddr *)dst, ms));
}

int bw_cm_resolve_route(void *id, int ms)
{
	return bw_cm_bound(id, bw_cm.rdma_resolve_route(id, ms));
}

int bw_cm_listen(void *id, int backlog)
{
	return bw_cm_ret(bw_cm.rdma_listen(id, backlog));
}

static struct rdma_conn_param bw_conn_param(const struct bw_cm_param *p)
{
	return (struct rdma_conn_param){
		.private_data = p->data_len ? p->data : NULL,
		.private_data_len = p->data_len,
		.responder_resources = p->responder_resources,
		.initiator_depth = p->initiator_depth,
		.flow_control = 1,
		.retry_count = p->retry_count,
		.rnr_retry_count = p->rnr_retry_count,
		.srq = p->srq,
		.qp_num = p->qpn,
	};
}

int bw_cm_connect(void *id, const struct bw_cm_param *param)
{
	struct rdma_conn_param p = bw_conn_param(param);

	return bw_cm_bound(id, bw_cm.rdma_connect(id, &p));
}

int bw_cm_accept(void *id, const struct bw_cm_param *param)
{
	struct rdma_conn_param p = bw_conn_param(param);

	return bw_cm_bound(id, bw_cm.rdma_accept(id, &p));
}

int bw_cm_establish(void *id)
{
	return bw_cm_bound(id, bw_cm.rdma_establish(id));
}

int bw_cm_reject(void *id, const void *data, int len)
{
	return bw_cm_bound(id, bw_cm.rdma_reject(id, data, len));
}

int bw_cm_disconnect(void *id)
{
	return bw_cm_bound(id, bw_cm.rdma_disconnect(id));
}

int bw_cm_init_qp(void *id, int state, struct bw_qp_attr *to)
{
	struct ibv_qp_attr a = { .qp_state = state };
	int r, mask = 0;

	r = bw_cm_bound(id, bw_cm.rdma_init_qp_attr(id, &a, &mask));
	if (r)
		return r;
	*to = (struct bw_qp_attr){
		.mask = mask,
		.state = a.qp_state,
		.path_mtu = a.path_mtu,
		.rq_psn = a.rq_psn,
		.sq_psn = a.sq_psn,
		.dest_qpn = a.dest_qp_num,
		.access = a.qp_access_flags,
		.pkey_index = a.pkey_index,
		.port = a.port_num,
		.timeout = a.timeout,
		.retry_cnt = a.retry_cnt,
		.rnr_retry = a.rnr_retry,
		.min_rnr_timer = a.min_rnr_timer,
		.max_rd_atomic = a.max_rd_atomic,
		.max_dest_rd_atomic = a.max_dest_rd_atomic,
		.is_global = a.ah_attr.is_global,
		.sgid_index = a.ah_attr.grh.sgid_index,
		.hop_limit = a.ah_attr.grh.hop_limit,
		.traffic_class = a.ah_attr.grh.traffic_class,
		.flow_label = a.ah_attr.grh.flow_label,
		.dlid = a.ah_attr.dlid,
		.sl = a.ah_attr.sl,
		.src_path_bits = a.ah_attr.src_path_bits,
		.static_rate = a.ah_attr.static_rate,
		.ah_port = a.ah_attr.port_num,
	};
	memcpy(to->dgid, a.ah_attr.grh.dgid.raw, sizeof(to->dgid));
	return 0;
}

static size_t bw_sockaddr_len(const struct sockaddr *sa)
{
	return sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

int bw_cm_info(void *id, char *dev, size_t size, int *port, void *local, void *peer)
{
	struct rdma_cm_id *i = id;
	struct sockaddr *l = rdma_get_local_addr(i), *p = rdma_get_peer_addr(i);

	*dev = 0;
	if (i->verbs)
		strncat(dev, bw_verbs.ibv_get_device_name(i->verbs->device), size - 1);
	*port = i->port_num;
	memcpy(local, l, bw_sockaddr_len(l));
	memcpy(peer, p, bw_sockaddr_len(p));
	return 0;
}

int bw_cm_set_tos(void *id, uint8_t tos)
{
	return bw_cm_ret(bw_cm.rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
}

#endif
