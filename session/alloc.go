package session

import (
	"fmt"
	"sync"

	"github.com/bywash/bywash/driver"
)

// memory is what Alloc hands out. It belongs to the process, not to a session: messages and regions may still use it
// when a session has closed.
var memory struct {
	sync.Mutex
	arena *driver.Arena
}

// allocChunk is the size of an arena from which several allocations come.
const allocChunk = 16 << 20

// Alloc returns n bytes of zeroed memory that drivers move messages and one-sided operations from and to fastest: it
// lies outside the Go heap, and is registered with a driver, or mapped by a peer, once (driver.Arena). It is aligned to
// 64 bytes, or to a page if n is at least a page. It must not hold Go pointers.
//
// The memory is never given back to the system, also not by Close: allocate buffers once and use them again. A program
// that needs to free it makes a driver.Arena of its own. Alloc fails with ErrInvalid if n is not positive, and with the
// kernel's error, with a remedy, if there are too few descriptors (one for each 16 MiB) or too little address space. It
// may be called from any goroutine and blocks for system calls only.
func (s *Session) Alloc(n int) ([]byte, error) {
	fail := func(err error) ([]byte, error) { return nil, &Error{Peer: -1, Op: "alloc", Err: err} }
	if n <= 0 {
		return fail(fmt.Errorf("%w: %d bytes, must be positive and fit in memory", ErrInvalid, n))
	}
	memory.Lock()
	defer memory.Unlock()
	if memory.arena != nil {
		if b := memory.arena.Alloc(n); b != nil {
			return b, nil
		}
	}
	a, err := driver.NewArena(max(n, allocChunk))
	if err != nil {
		return fail(err)
	}
	b := a.Alloc(n)
	if b == nil {
		return fail(fmt.Errorf("%w: %d bytes, must be positive and fit in memory", ErrInvalid, n))
	}
	if n < allocChunk {
		memory.arena = a
	}
	return b, nil
}
