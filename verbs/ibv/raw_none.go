//go:build !(cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x))

package ibv

import (
	"errors"
	"syscall"
)

// rawLoad returns why there is no library to load. Since it fails, no object is ever made, and the other functions are
// never called.
func rawLoad() error {
	return errors.New("this binary was built without cgo, or for a platform without it; " +
		"build on 64-bit Linux with CGO_ENABLED=1, a C compiler and rdma-core's headers " +
		"(Debian: gcc libibverbs-dev librdmacm-dev)")
}

const no = -int(syscall.ENOSYS)

func rawLoadCM() error                                                     { return rawLoad() }
func rawFree(handle)                                                       {}
func rawDevices() ([]DeviceInfo, int)                                      { return nil, no }
func rawOpen(string) (handle, int, int)                                    { return nil, 0, no }
func rawClose(handle) int                                                  { return no }
func rawQueryDevice(handle, *DeviceAttr) int                               { return no }
func rawQueryPort(handle, int, *PortAttr) int                              { return no }
func rawQueryPKey(handle, int, int) (uint16, int)                          { return 0, no }
func rawQueryGIDs(handle) ([]GIDEntry, int)                                { return nil, no }
func rawAsyncEvent(handle) (t EventType, port int, h handle, r int)        { return t, 0, nil, no }
func rawAllocPD(handle) (handle, int)                                      { return nil, no }
func rawDeallocPD(handle) int                                              { return no }
func rawRegMR(handle, uint64, uint64, uint64, Access) (k rawKeys, r int)   { return k, no }
func rawDeregMR(handle) int                                                { return no }
func rawAllocMW(handle) (k rawKeys, r int)                                 { return k, no }
func rawSetKey(handle, uint32)                                             {}
func rawDeallocMW(handle) int                                              { return no }
func rawCreateChannel(handle) (handle, int, int)                           { return nil, 0, no }
func rawDestroyChannel(handle) int                                         { return no }
func rawCQEvent(handle) (handle, int)                                      { return nil, no }
func rawCreateCQ(handle, int, handle, int, bool) (q, key handle, n, r int) { return nil, nil, 0, no }
func rawResizeCQ(handle, int) (int, int)                                   { return 0, no }
func rawDestroyCQ(handle) int                                              { return no }
func rawReqNotify(handle, bool) int                                        { return no }
func rawDropSRQ(handle, handle)                                            {}
func rawCreateSRQ(handle, int, int) (q, key handle, r int)                 { return nil, nil, no }
func rawSetSRQLimit(handle, int) int                                       { return no }
func rawDestroySRQ(handle) int                                             { return no }
func rawModifyQP(handle, *qpAttr) int                                      { return no }
func rawQPState(handle) (QPState, int)                                     { return 0, no }
func rawDestroyQP(handle) int                                              { return no }
func rawPoll(handle, *WC, int) int                                         { return no }
func rawProgress(w *workArgs, _ *WC)                                       { w.polled = int32(no) }
func rawCMChannel() (handle, int, int)                                     { return nil, 0, no }
func rawCMDestroyChannel(handle) int                                       { return no }
func rawCMEvent(handle, *CMEvent) (id, listen handle, r int)               { return nil, nil, no }
func rawCMCreateID(handle) (handle, int)                                   { return nil, no }
func rawCMDestroyID(handle) int                                            { return no }
func rawCMBind(handle, *syscall.RawSockaddrInet6) int                      { return no }
func rawCMResolveRoute(handle, int) int                                    { return no }
func rawCMListen(handle, int) int                                          { return no }
func rawCMConnect(handle, *CMParam, uint32, bool) int                      { return no }
func rawCMAccept(handle, *CMParam, uint32, bool) int                       { return no }
func rawCMEstablish(handle) int                                            { return no }
func rawCMReject(handle, []byte) int                                       { return no }
func rawCMDisconnect(handle) int                                           { return no }
func rawCMInitQP(handle, QPState, *qpAttr) int                             { return no }
func rawCMInfo(handle, *CMInfo) int                                        { return no }
func rawCMSetTOS(handle, uint8) int                                        { return no }

func rawCreateQP(_, _, _, _ handle, _ *QPInit) (q, key handle, n uint32, c QPCaps, r int) {
	return nil, nil, 0, c, no
}

func rawCMResolveAddr(handle, *syscall.RawSockaddrInet6, *syscall.RawSockaddrInet6, int) int {
	return no
}
