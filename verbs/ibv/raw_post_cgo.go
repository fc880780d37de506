//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv

// #include "shim.h"
import "C"

import "unsafe"

func cSend(w *SendWR) *C.struct_bw_send_wr { return (*C.struct_bw_send_wr)(unsafe.Pointer(w)) }
func cRecv(w *RecvWR) *C.struct_bw_recv_wr { return (*C.struct_bw_recv_wr)(unsafe.Pointer(w)) }

func rawPostSend(q handle, w *SendWR, n int) (done, r int) {
	var c C.uint32_t
	r = int(C.bw_post_send(cQP(q), cSend(w), C.uint32_t(n), &c))
	return int(c), r
}

func rawPostRecv(q handle, w *RecvWR, n int) (done, r int) {
	var c C.uint32_t
	r = int(C.bw_post_recv(cQP(q), cRecv(w), C.uint32_t(n), &c))
	return int(c), r
}

func rawPostSRQ(q handle, w *RecvWR, n int) (done, r int) {
	var c C.uint32_t
	r = int(C.bw_post_srq_recv(cSRQ(q), cRecv(w), C.uint32_t(n), &c))
	return int(c), r
}

func rawBindMW(q, mw handle, id uint64, flags SendFlags, mr handle, addr, length uint64, access Access) (uint32, int) {
	var rkey C.uint32_t
	r := int(C.bw_bind_mw(cQP(q), mw, C.uint64_t(id), C.uint32_t(flags), mr, C.uint64_t(addr), C.uint64_t(length),
		C.uint32_t(access), &rkey))
	return uint32(rkey), r
}

func rawSetKey(mw handle, rkey uint32) { C.bw_set_rkey(mw, C.uint32_t(rkey)) }

func rawPoll(q handle, wc *WC, n int) int {
	return int(C.bw_poll(cCQ(q), (*C.struct_bw_wc)(unsafe.Pointer(wc)), C.int(n)))
}

func rawProgress(a *progressArgs) progressResult {
	c := C.bw_progress(cQP(a.sqp), cSend(a.swr), C.uint32_t(a.ns), cQP(a.rqp), cSRQ(a.srq), cRecv(a.rwr),
		C.uint32_t(a.nr), cCQ(a.cq), (*C.struct_bw_wc)(unsafe.Pointer(a.wc)), C.int(a.nwc))
	return progressResult{int32(c.recv_err), int32(c.send_err), int32(c.polled), uint32(c.recvs), uint32(c.sends)}
}
