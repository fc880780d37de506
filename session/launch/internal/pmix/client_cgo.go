//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package pmix

/*
#cgo CFLAGS: -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"io"
	"math"
	"os"
	"sync"
	"unsafe"
)

var load = sync.OnceValue(func() error {
	var why [256]C.char
	if C.bw_pmix_load(&why[0], C.size_t(len(why))) < 0 {
		return errors.New(C.GoString(&why[0]) + "; install it (Debian: libpmix2)")
	}
	return nil
})

func fault(call string, status C.int) error {
	if status >= 0 {
		return nil
	}
	return &Error{call: call, Status: Status(status), text: C.GoString(C.bw_pmix_error(status))}
}

// Init joins the namespace that the environment names, and returns this process's rank, the number of ranks, and how
// many of them the server has on this host (0: unknown). It fails without libpmix, or where no PMIx server started
// this process. From then on the loss of the server is noticed, see WaitLost.
func Init() (rank, size, local int, err error) {
	if err := load(); err != nil {
		return 0, 0, 0, err
	}
	var r, n, l C.uint32_t
	if err := fault("PMIx_Init", C.bw_pmix_init(&r, &n, &l)); err != nil {
		return 0, 0, 0, err
	}
	return int(r), int(n), int(l), nil
}

// Put sets a value, which others see after the next Fence. The key is shorter than 512 bytes.
func Put(key string, value []byte) error {
	k := C.CString(key)
	defer C.free(unsafe.Pointer(k))
	return fault("PMIx_Put", C.bw_pmix_put(k, unsafe.Pointer(unsafe.SliceData(value)), C.size_t(len(value))))
}

// Fence returns when all ranks have called it.
func Fence() error { return fault("PMIx_Fence", C.bw_pmix_fence()) }

// Get returns what a rank has put. It waits for that up to timeout seconds (0: without limit), if the server supports
// such limits.
func Get(rank int, key string, timeout int) ([]byte, error) {
	k := C.CString(key)
	defer C.free(unsafe.Pointer(k))
	var p unsafe.Pointer
	var n C.size_t
	if err := fault("PMIx_Get", C.bw_pmix_get(C.uint32_t(rank), k, C.int(timeout), &p, &n)); err != nil {
		return nil, err
	}
	defer C.free(p)
	if n > math.MaxInt32 {
		return nil, &Error{call: "PMIx_Get", Status: ErrNotFound, text: "value too long"}
	}
	return C.GoBytes(p, C.int(n)), nil
}

// Abort asks the server to end all processes of the namespace. It may not return.
func Abort(code int, why string) error {
	w := C.CString(why)
	defer C.free(unsafe.Pointer(w))
	return fault("PMIx_Abort", C.bw_pmix_abort(C.int(code), w))
}

// WaitLost blocks until the server is gone, and then returns an error that is
// Lost; it returns nil after Finalize. One goroutine calls it, after Init.
func WaitLost() error {
	fd := C.bw_pmix_events()
	if fd < 0 {
		return nil
	}
	// A file of the runtime's poller: no thread waits.
	f := os.NewFile(uintptr(fd), "pmix events")
	defer f.Close()
	var status int32
	b := unsafe.Slice((*byte)(unsafe.Pointer(&status)), 4)
	if _, err := io.ReadFull(f, b); err != nil || status == 0 {
		return nil
	}
	return fault("PMIx event", C.int(status))
}

// Finalize leaves the namespace in order.
func Finalize() error { return fault("PMIx_Finalize", C.bw_pmix_finalize()) }
