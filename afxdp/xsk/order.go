//go:build linux && (!amd64 || race)

package xsk

import "sync/atomic"

// storeRelease makes what was written, and the slots that were read, before it
// come first for whoever sees v (STLR on arm64).
func storeRelease(p *uint32, v uint32) { atomic.StoreUint32(p, v) }
