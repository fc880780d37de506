//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv

/*
#cgo CFLAGS: -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#cgo noescape bw_poll
#cgo nocallback bw_poll
#cgo noescape bw_progress
#cgo nocallback bw_progress
#cgo noescape bw_req_notify
#cgo nocallback bw_req_notify
#cgo noescape bw_get_cq_event
#cgo nocallback bw_get_cq_event
#include "shim.h"
*/
import "C"

import (
	"errors"
	"net"
	"unsafe"
)

// The layouts must be the same in Go and C.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(sge{})-C.sizeof_struct_bw_sge]
	_ = [1]struct{}{}[unsafe.Sizeof(SendWR{})-C.sizeof_struct_bw_send_wr]
	_ = [1]struct{}{}[unsafe.Offsetof(SendWR{}.remote)-unsafe.Offsetof(C.struct_bw_send_wr{}.remote_addr)]
	_ = [1]struct{}{}[unsafe.Offsetof(SendWR{}.maxSGE)-unsafe.Offsetof(C.struct_bw_send_wr{}.max_sge)]
	_ = [1]struct{}{}[unsafe.Offsetof(SendWR{}.mwAcc)-unsafe.Offsetof(C.struct_bw_send_wr{}.mw_access)]
	_ = [1]struct{}{}[unsafe.Sizeof(RecvWR{})-C.sizeof_struct_bw_recv_wr]
	_ = [1]struct{}{}[unsafe.Offsetof(RecvWR{}.maxSGE)-unsafe.Offsetof(C.struct_bw_recv_wr{}.max_sge)]
	_ = [1]struct{}{}[unsafe.Sizeof(WC{})-C.sizeof_struct_bw_wc]
	_ = [1]struct{}{}[unsafe.Offsetof(WC{}.Flags)-unsafe.Offsetof(C.struct_bw_wc{}.wc_flags)]
	_ = [1]struct{}{}[unsafe.Sizeof(qpAttr{})-C.sizeof_struct_bw_qp_attr]
	_ = [1]struct{}{}[unsafe.Offsetof(qpAttr{}.dgid)-unsafe.Offsetof(C.struct_bw_qp_attr{}.dgid)]
	_ = [1]struct{}{}[unsafe.Offsetof(qpAttr{}.ahPort)-unsafe.Offsetof(C.struct_bw_qp_attr{}.ah_port)]
)

// rawLoad opens the library, once.
func rawLoad() error {
	if C.BW_HEADERS == 0 {
		return errors.New("this binary was built without rdma-core's headers; " +
			"install them (Debian: libibverbs-dev librdmacm-dev) and build again with make, or go build -a: Go's cache does not notice them")
	}
	var why [256]C.char
	if C.bw_load(&why[0], C.size_t(len(why))) < 0 {
		return errors.New(C.GoString(&why[0]) + "; install it (Debian: libibverbs1 ibverbs-providers)")
	}
	return nil
}

func rawLoadCM() error {
	var why [256]C.char
	if C.bw_load_cm(&why[0], C.size_t(len(why))) < 0 {
		return errors.New(C.GoString(&why[0]) + "; install it (Debian: librdmacm1)")
	}
	return nil
}

func rawFree(p handle) { C.bw_free(p) }

func rawDevices() ([]DeviceInfo, int) {
	var buf [256]C.struct_bw_device
	n := int(C.bw_devices(&buf[0], C.int(len(buf))))
	if n < 0 {
		return nil, n
	}
	devs := make([]DeviceInfo, n)
	for i := range devs {
		d := &buf[i]
		devs[i] = DeviceInfo{Name: C.GoString(&d.name[0]), IWARP: d.transport == 1}
	}
	return devs, 0
}

func rawOpen(name string) (h handle, fd, r int) {
	cname := C.CString(name)
	defer C.bw_free(unsafe.Pointer(cname))
	var cfd C.int
	r = int(C.bw_open(cname, &h, &cfd))
	return h, int(cfd), r
}

func rawClose(h handle) int { return int(C.bw_close(h)) }

// Bits of ibv_device_attr.device_cap_flags.
const (
	capMW2A = 1 << 23
	capMW2B = 1 << 24
)

func rawQueryDevice(h handle, a *DeviceAttr) int {
	var c C.struct_bw_device_attr
	if r := int(C.bw_query_device(h, &c)); r < 0 {
		return r
	}
	*a = DeviceAttr{
		Firmware: C.GoString(&c.fw_ver[0]), VendorID: uint32(c.vendor_id),
		Ports: int(c.ports), MaxMRSize: uint64(c.max_mr_size), MaxMR: int(c.max_mr),
		MaxMW: int(c.max_mw), MaxQP: int(c.max_qp), MaxCQ: int(c.max_cq), MaxCQE: int(c.max_cqe), MaxQPWR: int(c.max_qp_wr),
		MaxSGE: int(c.max_sge),
		MaxSRQ: int(c.max_srq), MaxSRQWR: int(c.max_srq_wr), MaxSRQSGE: int(c.max_srq_sge),
		MaxQPRdAtom: int(c.max_qp_rd_atom), MaxQPInitAtom: int(c.max_qp_init_rd_atom),
		CompVectors: int(c.comp_vectors), Atomic: AtomicCap(c.atomic_cap),
		MemoryWindow2: c.cap_flags&(capMW2A|capMW2B) != 0,
	}
	return 0
}

func rawQueryPort(h handle, port int, a *PortAttr) int {
	var c C.struct_bw_port_attr
	if r := int(C.bw_query_port(h, C.int(port), &c)); r < 0 {
		return r
	}
	if c.max_msg_sz == 0 { // the kernel module mana_ib left it out until 2026; this is its limit
		c.max_msg_sz = 16 << 20
	}
	*a = PortAttr{
		State: PortState(c.state), LinkLayer: LinkLayer(c.link_layer), MaxMTU: MTU(c.max_mtu), ActiveMTU: MTU(c.active_mtu),
		MaxMessage: uint32(c.max_msg_sz), GIDs: int(c.gid_tbl_len), PKeys: int(c.pkey_tbl_len),
		LID:   uint16(c.lid),
		Width: lanes(uint32(c.active_width)), Speed: laneSpeed(uint32(c.active_speed)),
		GRHRequired: c.grh_required != 0,
	}
	return 0
}

func rawQueryPKey(h handle, port, index int) (uint16, int) {
	var pkey C.uint16_t
	r := int(C.bw_query_pkey(h, C.int(port), C.int(index), &pkey))
	return uint16(pkey), r
}

func rawQueryGIDs(h handle) ([]GIDEntry, int) {
	buf := make([]C.struct_bw_gid, 1024) // an ioctl attribute has at most 64 KiB
	n := int(C.bw_query_gids(h, &buf[0], C.int(len(buf))))
	if n < 0 {
		return nil, n
	}
	gids := make([]GIDEntry, n)
	for i := range gids {
		g := &buf[i]
		gids[i] = GIDEntry{GID: *(*GID)(unsafe.Pointer(&g.raw)), Port: int(g.port), Index: int(g.index),
			Type: GIDType(g._type), NetDev: netDev(int(g.ifindex))}
	}
	return gids, 0
}

func rawAsyncEvent(h handle) (typ EventType, port int, element handle, r int) {
	var ev C.struct_bw_event
	r = int(C.bw_get_async_event(h, &ev))
	return EventType(ev._type), int(ev.port), ev.element, r
}

func rawAllocPD(ctx handle) (pd handle, r int) {
	r = int(C.bw_alloc_pd(ctx, &pd))
	return pd, r
}

func rawDeallocPD(pd handle) int { return int(C.bw_dealloc_pd(pd)) }

func rawRegMR(pd handle, addr, length, iova uint64, access Access) (rawKeys, int) {
	var mr C.struct_bw_mr
	r := int(C.bw_reg_mr(pd, C.uint64_t(addr), C.uint64_t(length), C.uint64_t(iova), C.uint32_t(access), &mr))
	return rawKeys{mr.mr, uint32(mr.lkey), uint32(mr.rkey)}, r
}

func rawDeregMR(mr handle) int { return int(C.bw_dereg_mr(mr)) }

func rawAllocMW(pd handle) (rawKeys, int) {
	var mw C.struct_bw_mr
	r := int(C.bw_alloc_mw(pd, &mw))
	return rawKeys{h: mw.mr, rkey: uint32(mw.rkey)}, r
}

func rawDeallocMW(mw handle) int { return int(C.bw_dealloc_mw(mw)) }

func rawCreateChannel(ctx handle) (ch handle, fd, r int) {
	var cfd C.int
	r = int(C.bw_create_channel(ctx, &ch, &cfd))
	return ch, int(cfd), r
}

func rawDestroyChannel(ch handle) int { return int(C.bw_destroy_channel(ch)) }

func rawCQEvent(ch handle) (key handle, r int) {
	r = int(C.bw_get_cq_event(ch, &key))
	return key, r
}

func rawCreateCQ(ctx handle, cqe int, ch handle, vector int, kernelFlags bool) (q, key handle, got, r int) {
	var cq *C.struct_bw_cq
	var cgot, flags C.int
	if kernelFlags {
		flags = 1
	}
	r = int(C.bw_create_cq(ctx, C.int(cqe), ch, C.int(vector), flags, &cq, &key, &cgot))
	return handle(cq), key, int(cgot), r
}

func cCQ(q handle) *C.struct_bw_cq   { return (*C.struct_bw_cq)(q) }
func cQP(q handle) *C.struct_bw_qp   { return (*C.struct_bw_qp)(q) }
func cSRQ(q handle) *C.struct_bw_srq { return (*C.struct_bw_srq)(q) }

func rawResizeCQ(q handle, cqe int) (got, r int) {
	var cgot C.int
	r = int(C.bw_resize_cq(cCQ(q), C.int(cqe), &cgot))
	return int(cgot), r
}

func rawDestroyCQ(q handle) int { return int(C.bw_destroy_cq(cCQ(q))) }

func rawReqNotify(q handle, solicited bool) int {
	var s C.int
	if solicited {
		s = 1
	}
	return int(C.bw_req_notify(cCQ(q), s))
}

func rawDropSRQ(cq, srq handle) { C.bw_cq_drop_srq(cCQ(cq), cSRQ(srq)) }

func rawCreateSRQ(pd handle, wr, sges int) (q, key handle, r int) {
	var srq *C.struct_bw_srq
	r = int(C.bw_create_srq(pd, C.uint32_t(wr), C.uint32_t(sges), &srq, &key))
	return handle(srq), key, r
}

func rawSetSRQLimit(q handle, limit int) int {
	return int(C.bw_set_srq_limit(cSRQ(q), C.uint32_t(limit)))
}

func rawDestroySRQ(q handle) int { return int(C.bw_destroy_srq(cSRQ(q))) }

func rawCreateQP(pd, scq, rcq, srq handle, init *QPInit) (q, key handle, num uint32, caps QPCaps, r int) {
	c := C.struct_bw_qp_init{
		max_send_wr: C.uint32_t(init.MaxSendWR), max_recv_wr: C.uint32_t(init.MaxRecvWR),
		max_send_sge: C.uint32_t(init.MaxSendSGE), max_recv_sge: C.uint32_t(init.MaxRecvSGE),
		max_inline: C.uint32_t(init.MaxInline), tag: C.uint32_t(init.Tag),
	}
	var qp *C.struct_bw_qp
	var qpn C.uint32_t
	r = int(C.bw_create_qp(pd, cCQ(scq), cCQ(rcq), cSRQ(srq), &c, &qp, &key, &qpn))
	caps = QPCaps{int(c.max_send_wr), int(c.max_recv_wr), int(c.max_send_sge), int(c.max_recv_sge), int(c.max_inline)}
	return handle(qp), key, uint32(qpn), caps, r
}

func rawModifyQP(q handle, a *qpAttr) int {
	return int(C.bw_modify_qp(cQP(q), (*C.struct_bw_qp_attr)(unsafe.Pointer(a))))
}

func rawQPState(q handle) (QPState, int) {
	var state C.uint32_t
	r := int(C.bw_qp_state(cQP(q), &state))
	return QPState(state), r
}

func rawDestroyQP(q handle) int { return int(C.bw_destroy_qp(cQP(q))) }

// netDev returns the name of network interface index.
func netDev(index int) string {
	if index == 0 {
		return ""
	}
	i, err := net.InterfaceByIndex(index)
	if err != nil {
		return ""
	}
	return i.Name
}

// lanes returns the number of lanes of a link width in the specification's code, 0 for an unknown one.
func lanes(code uint32) int {
	return map[uint32]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[code]
}

// laneSpeed returns the data rate of a lane in Mb/s for the specification's code, 0 for an unknown one.
func laneSpeed(code uint32) int {
	return map[uint32]int{1: 2500, 2: 5000, 4: 10000, 8: 10000, 16: 14000, 32: 25000, 64: 50000, 128: 100000, 256: 200000}[code]
}
