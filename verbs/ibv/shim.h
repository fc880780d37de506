/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The functions that package ibv calls. Nothing here needs rdma-core's headers, so that the
 * Go side compiles without them; shim*.c use them where they exist.
 *
 * Functions return 0 or a count, and -errno when they fail.
 */
#ifndef BYWASH_IBV_SHIM_H
#define BYWASH_IBV_SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#if !defined(BW_NO_HEADERS) && __has_include(<infiniband/verbs.h>) && __has_include(<rdma/rdma_cma.h>)
#define BW_HEADERS 1
#define BW_FN
#else
/* Not there, and never called: bw_load has failed before. */
#define BW_HEADERS 0
#define BW_FN __attribute__((weak))
#endif

#define BW_CM_DATA 256

/* The layouts of ibv_sge, ibv_recv_wr, ibv_send_wr and ibv_wc with flat names. */
struct bw_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct bw_recv_wr {
	uint64_t wr_id;
	struct bw_recv_wr *next;
	struct bw_sge *sg_list;
	int32_t num_sge;
	uint32_t max_sge;	/* padding to the library */
};

struct bw_send_wr {
	uint64_t wr_id;
	struct bw_send_wr *next;
	struct bw_sge *sg_list;
	int32_t num_sge;
	uint32_t opcode;
	uint32_t send_flags;
	uint32_t imm;		/* big endian, or the key to invalidate */
	uint64_t remote_addr;
	uint64_t compare_add;	/* its first half is the key of reads and writes */
	uint64_t swap;
	uint32_t atomic_rkey;
	uint32_t max_sge;	/* padding to the library */
	uint32_t srqn;
	uint32_t max_inline;	/* padding to the library */
	void *mw;
	uint32_t mw_rkey;
	uint32_t mw_pad;
	void *mr;
	uint64_t mw_addr;
	uint64_t mw_length;
	uint32_t mw_access;
	uint32_t tail_pad;
};

struct bw_wc {
	uint64_t wr_id;
	uint32_t status;
	uint32_t opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm;
	uint32_t qp_num;
	uint32_t tag;		/* src_qp, which RC does not use */
	uint32_t wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
	uint16_t tail_pad;
};

struct bw_device {
	char name[64];
	int32_t transport;
};

struct bw_device_attr {
	char fw_ver[64];
	uint64_t max_mr_size;
	uint32_t vendor_id, cap_flags, atomic_cap;
	int32_t max_qp, max_qp_wr, max_sge, max_cq, max_cqe, max_mr, max_mw;
	int32_t max_qp_rd_atom, max_qp_init_rd_atom;
	int32_t max_srq, max_srq_wr, max_srq_sge;
	int32_t ports, comp_vectors;
};

struct bw_port_attr {
	uint32_t state, max_mtu, active_mtu, link_layer, cap_flags, max_msg_sz;
	int32_t gid_tbl_len, pkey_tbl_len;
	uint32_t lid, active_width, active_speed, grh_required;
};

/* The layout of ibv_gid_entry, which older headers lack. */
struct bw_gid {
	uint8_t raw[16];
	uint32_t index, port, type, ifindex;
};

struct bw_mr {
	void *mr;
	uint32_t lkey, rkey;
};

struct bw_event {
	uint32_t type;
	uint32_t port;
	void *element;
};

struct bw_qp_init {
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline;
	uint32_t tag;
};

/* Path and attributes of every state step; mask says which ones count. */
struct bw_qp_attr {
	uint32_t mask;
	uint32_t state, path_mtu, rq_psn, sq_psn, dest_qpn, access;
	uint32_t pkey_index, port, timeout, retry_cnt, rnr_retry, min_rnr_timer;
	uint32_t max_rd_atomic, max_dest_rd_atomic;
	uint8_t dgid[16];
	uint32_t is_global, sgid_index, hop_limit, traffic_class, flow_label;
	uint32_t dlid, sl, src_path_bits, static_rate, ah_port;
};

/*
 * The work of one crossing, and its results. Addresses are integers, here and in bw_poll: cgo would look at each
 * pointer, and at what it points to, in every call. Only memory of C is named so: a stack of Go may move.
 */
struct bw_work {
	uint64_t sqp, swr, rqp, srq, rwr, cq;
	uint32_t ns, nr;
	int32_t nwc;
	int32_t recv_err, send_err, polled;
	uint32_t recvs, sends;
};

/* Opaque: the verbs object, a lock, and the count of outstanding work. */
struct bw_qp;
struct bw_cq;
struct bw_srq;

BW_FN int bw_load(char *why, size_t size);
BW_FN int bw_load_cm(char *why, size_t size);

void bw_free(void *p);

/* shim.c */
BW_FN int bw_devices(struct bw_device *devs, int max);
BW_FN int bw_open(const char *name, void **ctx, int *async_fd);
BW_FN int bw_close(void *ctx);
BW_FN int bw_query_device(void *ctx, struct bw_device_attr *attr);
BW_FN int bw_query_port(void *ctx, int port, struct bw_port_attr *attr);
BW_FN int bw_query_gids(void *ctx, struct bw_gid *gids, int max);
BW_FN int bw_query_pkey(void *ctx, int port, int index, uint16_t *pkey);
BW_FN int bw_get_async_event(void *ctx, struct bw_event *ev);
BW_FN int bw_alloc_pd(void *ctx, void **pd);
BW_FN int bw_dealloc_pd(void *pd);
BW_FN int bw_reg_mr(void *pd, uint64_t addr, uint64_t length, uint64_t iova, uint32_t access, struct bw_mr *mr);
BW_FN int bw_dereg_mr(void *mr);
BW_FN int bw_alloc_mw(void *pd, struct bw_mr *mw);
BW_FN int bw_dealloc_mw(void *mw);
BW_FN void bw_set_rkey(void *mw, uint32_t rkey);
BW_FN int bw_create_channel(void *ctx, void **ch, int *fd);
BW_FN int bw_destroy_channel(void *ch);
BW_FN int bw_get_cq_event(void *ch, void **cq);

/* shim_queue.c */
BW_FN int bw_create_cq(void *ctx, int cqe, void *ch, int vector, int kernel_flags, struct bw_cq **cq, void **key,
			int *got);
BW_FN int bw_resize_cq(struct bw_cq *cq, int cqe, int *got);
BW_FN int bw_destroy_cq(struct bw_cq *cq);
BW_FN int bw_req_notify(struct bw_cq *cq, int solicited);
BW_FN void bw_cq_drop_srq(struct bw_cq *cq, struct bw_srq *srq);
BW_FN int bw_create_srq(void *pd, uint32_t wr, uint32_t sge, struct bw_srq **srq, void **key);
BW_FN int bw_set_srq_limit(struct bw_srq *srq, uint32_t limit);
BW_FN int bw_destroy_srq(struct bw_srq *srq);
BW_FN int bw_create_qp(void *pd, struct bw_cq *scq, struct bw_cq *rcq, struct bw_srq *srq, struct bw_qp_init *init,
		       struct bw_qp **qp, void **key, uint32_t *qpn);
BW_FN int bw_modify_qp(struct bw_qp *qp, const struct bw_qp_attr *attr);
BW_FN int bw_qp_state(struct bw_qp *qp, uint32_t *state);
BW_FN int bw_destroy_qp(struct bw_qp *qp);

/* shim_post.c: the data path */
BW_FN int bw_poll(uint64_t cq, struct bw_wc *wc, int n);
BW_FN void bw_progress(struct bw_work *w, struct bw_wc *wc);

/* shim_cm.c */
struct bw_cm_param {
	uint32_t responder_resources, initiator_depth, retry_count, rnr_retry_count, srq, qpn;
	uint32_t data_len;
	uint8_t data[BW_CM_DATA];
};

struct bw_cm_event {
	void *id, *listen_id;
	uint32_t type;
	int32_t status;
	struct bw_cm_param param;
};

BW_FN int bw_cm_channel(void **ch, int *fd);
BW_FN int bw_cm_destroy_channel(void *ch);
BW_FN int bw_cm_get_event(void *ch, struct bw_cm_event *ev);
BW_FN int bw_cm_create_id(void *ch, void **id);
BW_FN int bw_cm_destroy_id(void *id);
BW_FN int bw_cm_bind(void *id, const void *addr);
BW_FN int bw_cm_resolve_addr(void *id, const void *src, const void *dst, int ms);
BW_FN int bw_cm_resolve_route(void *id, int ms);
BW_FN int bw_cm_listen(void *id, int backlog);
BW_FN int bw_cm_connect(void *id, const struct bw_cm_param *param);
BW_FN int bw_cm_accept(void *id, const struct bw_cm_param *param);
BW_FN int bw_cm_establish(void *id);
BW_FN int bw_cm_reject(void *id, const void *data, int len);
BW_FN int bw_cm_disconnect(void *id);
BW_FN int bw_cm_init_qp(void *id, int state, struct bw_qp_attr *attr);
BW_FN int bw_cm_info(void *id, char *dev, size_t size, int *port, void *local, void *peer);
BW_FN int bw_cm_set_tos(void *id, uint8_t tos);

#endif
