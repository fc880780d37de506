//go:build linux && !race

package xsk

// storeRelease stores v with release order: a thread that loads v sees all earlier stores, and all earlier loads are
// complete. On amd64 every store has release order (Intel SDM 3A 8.2.2, AMD64 APM 2 7.2), and the compiler keeps loads
// and stores before a store; atomic.StoreUint32 would be an XCHG, a full barrier, which only needWakeup needs.
func storeRelease(p *uint32, v uint32) { *p = v }
