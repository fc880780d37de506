//go:build linux && !(386 || arm || mips || mipsle) && !race

package shm

import "sync/atomic"

// store64 is a store-release: earlier writes are visible to a thread that sees v. On amd64 every store is one (Intel
// SDM 3A 8.2.2, AMD64 APM 2 7.2), and the compiler keeps stores in program order; atomic.StoreUint64 would be an XCHG,
// which stalls until the line is ours: some 20 ns a message.
func store64(p *uint64, v uint64) { *p = v }

// store32 is a store-release.
func store32(p *uint32, v uint32) { *p = v }

// load64 is a load-acquire.
func load64(p *uint64) uint64 { return atomic.LoadUint64(p) }

// load32 is a load-acquire.
func load32(p *uint32) uint32 { return atomic.LoadUint32(p) }
