//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibv

// #include "shim.h"
import "C"

import "unsafe"

var _ = [1]struct{}{}[unsafe.Sizeof(workArgs{})-C.sizeof_struct_bw_work]

// rawProgress performs w. The caller keeps the objects alive that w names.
func rawProgress(w *workArgs, wc *WC) {
	C.bw_progress((*C.struct_bw_work)(unsafe.Pointer(w)), (*C.struct_bw_wc)(unsafe.Pointer(wc)))
}

func rawSetKey(mw handle, rkey uint32) { C.bw_set_rkey(mw, C.uint32_t(rkey)) }

func rawPoll(q handle, wc *WC, n int) int {
	return int(C.bw_poll(C.uint64_t(uintptr(q)), (*C.struct_bw_wc)(unsafe.Pointer(wc)), C.int(n)))
}
