package kit

import (
	"math/bits"
	"os"
	"sync"

	"github.com/bywash/bywash/driver"
)

// Staging is memory in arenas, for drivers that copy what a NIC cannot reach. The zero value is empty. Its methods may
// be called by many goroutines at once.
type Staging struct {
	mu    sync.Mutex
	spare [48][]*driver.Arena // not in use, by the power of two of their sizes
	used  int                 // bytes of those in use
}

// Arenas of a size that are kept for the next use: keptStaging, but only one of those of more than keptBytes.
const (
	keptStaging = 4
	keptBytes   = 4 << 20
)

func stagingClass(n int) int {
	return bits.Len(uint(max(n, os.Getpagesize()) - 1))
}

// Get returns n bytes, which are the caller's until Put.
func (s *Staging) Get(n int) (b []byte, err error) {
	class := stagingClass(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	var a *driver.Arena
	if list := s.spare[class]; len(list) > 0 {
		a = list[len(list)-1]
		s.spare[class] = list[:len(list)-1]
	} else if a, err = driver.NewArena(1 << class); err != nil {
		return nil, err
	}
	s.used += len(a.Bytes())
	return a.Bytes()[:n], nil
}

// Used returns how many bytes are in use.
func (s *Staging) Used() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// Put takes memory back; nil is nothing. Registrations of it have been released.
func (s *Staging) Put(b []byte) {
	if b == nil {
		return
	}
	a, _, ok := driver.ArenaOf(b[:cap(b)])
	if !ok {
		return
	}
	class := stagingClass(len(a.Bytes()))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= len(a.Bytes())
	if n := len(s.spare[class]); n == 0 || n < keptStaging && 1<<class <= keptBytes {
		s.spare[class] = append(s.spare[class], a)
		return
	}
	_ = a.Close() // which caches learn of
}

// Close frees what is not in use.
func (s *Staging) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, list := range s.spare {
		for _, a := range list {
			_ = a.Close()
		}
		s.spare[k] = nil
	}
}
