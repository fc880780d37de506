//go:build linux && !(386 || arm || mips || mipsle) && (!amd64 || race)

package shm

import "sync/atomic"

// store64 is a store-release (STLR on arm64).
func store64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// store32 is a store-release.
func store32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// load64 is a load-acquire.
func load64(p *uint64) uint64 { return atomic.LoadUint64(p) }

// load32 is a load-acquire.
func load32(p *uint32) uint32 { return atomic.LoadUint32(p) }
