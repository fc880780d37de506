//go:build linux && (!amd64 || race)

package xsk

import "sync/atomic"

// storeRelease stores v with release order: a thread that loads v sees all earlier stores, and all earlier loads are
// complete (STLR on arm64).
func storeRelease(p *uint32, v uint32) { atomic.StoreUint32(p, v) }
