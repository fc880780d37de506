//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv

// #include "shim.h"
import "C"

import (
	"net/netip"
	"syscall"
	"unsafe"
)

func rawCMChannel() (ch handle, fd, r int) {
	var cfd C.int
	r = int(C.bw_cm_channel(&ch, &cfd))
	return ch, int(cfd), r
}

func rawCMDestroyChannel(ch handle) int { return int(C.bw_cm_destroy_channel(ch)) }

func rawCMEvent(ch handle, ev *CMEvent) (id, listen handle, r int) {
	var c C.struct_bw_cm_event
	if r = int(C.bw_cm_get_event(ch, &c)); r < 0 {
		return nil, nil, r
	}
	p := &c.param
	*ev = CMEvent{Type: CMEventType(c._type), Status: int(c.status), QPN: uint32(p.qpn), Param: CMParam{
		ResponderResources: int(p.responder_resources), InitiatorDepth: int(p.initiator_depth),
		RetryCount: int(p.retry_count), RNRRetryCount: int(p.rnr_retry_count),
		Data: C.GoBytes(unsafe.Pointer(&p.data[0]), C.int(p.data_len)),
	}}
	return c.id, c.listen_id, 0
}

func rawCMCreateID(ch handle) (id handle, r int) {
	r = int(C.bw_cm_create_id(ch, &id))
	return id, r
}

func rawCMDestroyID(id handle) int { return int(C.bw_cm_destroy_id(id)) }

func rawCMBind(id handle, sa *syscall.RawSockaddrInet6) int {
	return int(C.bw_cm_bind(id, unsafe.Pointer(sa)))
}

// rawCMResolveAddr takes nil for src if there is none.
func rawCMResolveAddr(id handle, src, dst *syscall.RawSockaddrInet6, ms int) int {
	return int(C.bw_cm_resolve_addr(id, unsafe.Pointer(src), unsafe.Pointer(dst), C.int(ms)))
}

func rawCMResolveRoute(id handle, ms int) int { return int(C.bw_cm_resolve_route(id, C.int(ms))) }
func rawCMListen(id handle, backlog int) int  { return int(C.bw_cm_listen(id, C.int(backlog))) }

func cmParam(p *CMParam, qpn uint32, srq bool) (c C.struct_bw_cm_param) {
	c = C.struct_bw_cm_param{
		data_len: C.uint32_t(len(p.Data)), responder_resources: C.uint32_t(p.ResponderResources),
		initiator_depth: C.uint32_t(p.InitiatorDepth), retry_count: C.uint32_t(p.RetryCount),
		rnr_retry_count: C.uint32_t(p.RNRRetryCount), qpn: C.uint32_t(qpn),
	}
	if srq {
		c.srq = 1
	}
	copy((*[C.BW_CM_DATA]byte)(unsafe.Pointer(&c.data))[:], p.Data)
	return c
}

func rawCMConnect(id handle, p *CMParam, qpn uint32, srq bool) int {
	c := cmParam(p, qpn, srq)
	return int(C.bw_cm_connect(id, &c))
}

func rawCMAccept(id handle, p *CMParam, qpn uint32, srq bool) int {
	c := cmParam(p, qpn, srq)
	return int(C.bw_cm_accept(id, &c))
}

func rawCMEstablish(id handle) int { return int(C.bw_cm_establish(id)) }

func rawCMReject(id handle, data []byte) int {
	return int(C.bw_cm_reject(id, unsafe.Pointer(unsafe.SliceData(data)), C.int(len(data))))
}

func rawCMDisconnect(id handle) int { return int(C.bw_cm_disconnect(id)) }

func rawCMInitQP(id handle, to QPState, a *qpAttr) int {
	return int(C.bw_cm_init_qp(id, C.int(to), (*C.struct_bw_qp_attr)(unsafe.Pointer(a))))
}

func rawCMInfo(id handle, info *CMInfo) int {
	var dev [64]C.char
	var port C.int
	var local, peer syscall.RawSockaddrInet6
	r := int(C.bw_cm_info(id, &dev[0], C.size_t(len(dev)), &port, unsafe.Pointer(&local), unsafe.Pointer(&peer)))
	*info = CMInfo{Device: C.GoString(&dev[0]), Port: int(port), Local: addrPort(&local), Peer: addrPort(&peer)}
	return r
}

func rawCMSetTOS(id handle, tos uint8) int { return int(C.bw_cm_set_tos(id, C.uint8_t(tos))) }

// addrPort returns the address in sa, or the zero value for other families.
func addrPort(sa *syscall.RawSockaddrInet6) netip.AddrPort {
	b := (*[2]byte)(unsafe.Pointer(&sa.Port))
	port := uint16(b[0])<<8 | uint16(b[1])
	switch sa.Family {
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4((*syscall.RawSockaddrInet4)(unsafe.Pointer(sa)).Addr), port)
	case syscall.AF_INET6:
		ip := netip.AddrFrom16(sa.Addr)
		if sa.Scope_id != 0 {
			ip = ip.WithZone(netDev(int(sa.Scope_id)))
		}
		return netip.AddrPortFrom(ip, port)
	}
	return netip.AddrPort{}
}
