//go:build linux && (race || xskdebug)

package xsk

import (
	"fmt"
	"sync/atomic"
)

// ownership records the owner of each chunk.
type ownership struct {
	owners []atomic.Uint32
}

const tracking = true

func newOwnership(chunks int) ownership {
	return ownership{make([]atomic.Uint32, chunks)}
}

func (o ownership) addrs(addrs []uint64, chunkSize int, from, to owner) {
	for _, a := range addrs {
		o.move(a, chunkSize, from, to)
	}
}

func (o ownership) descs(descs []Desc, chunkSize int, from, to owner) {
	for _, d := range descs {
		o.move(d.Addr, chunkSize, from, to)
	}
}

// move changes the owner of a chunk. It ignores an address outside of the UMEM, which the kernel refuses.
func (o ownership) move(addr uint64, chunkSize int, from, to owner) {
	chunk := addr / uint64(chunkSize)
	if chunk >= uint64(len(o.owners)) {
		return
	}
	if c := &o.owners[chunk]; !c.CompareAndSwap(uint32(from), uint32(to)) {
		panic(fmt.Sprintf("xsk: chunk %d (address %#x) goes from %s to %s, but belongs to %s",
			chunk, addr, from, to, owner(c.Load())))
	}
}
