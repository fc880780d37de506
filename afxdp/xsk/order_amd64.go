//go:build linux && !race

package xsk

// storeRelease makes what was written, and the slots that were read, before it
// come first for whoever sees v. On amd64 every store does (Intel SDM 3A 8.2.2,
// AMD64 APM 2 7.2), and the compiler keeps loads and stores before a store;
// atomic.StoreUint32 would be an XCHG, a full barrier, which only needWakeup needs.
func storeRelease(p *uint32, v uint32) { *p = v }
