package kit

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// Connections holds the connections of a context, for drivers whose connections, of type C, have a [Life]. Each has a
// number while it is put, by which completions name it, and is among the open ones while its program holds it. At,
// TakeReady and Ready are for any goroutine; the other methods are called with the context's lock held.
type Connections[C any] struct {
	Ready ReadySet // of numbers

	life    func(*C) *Life
	put     [MaxInstances]atomic.Pointer[C]
	next    uint32
	open    map[*C]struct{}
	retired driver.Counters // of those that were removed
}

// Init is called once. Life returns the Life inside a connection.
func (s *Connections[C]) Init(life func(*C) *Life) { s.life, s.open = life, make(map[*C]struct{}) }

// At is the connection with a number below MaxInstances, or nil.
func (s *Connections[C]) At(num uint32) *C { return s.put[num].Load() }

// TakeReady names a connection that has something to receive to the caller; nil if there is none.
func (s *Connections[C]) TakeReady() *C {
	for {
		k, ok := s.Ready.Take()
		if !ok {
			return nil
		}
		if c := s.put[k].Load(); c != nil && s.life(c).Claim() {
			return c
		}
	}
}

// Free finds a number for the next connection. One that was in use is not given again at once.
func (s *Connections[C]) Free() (uint32, error) {
	if s.next > 128 && s.next > 2*uint32(len(s.open)) {
		s.next = 0
	}
	low := false
	for range 2 * MaxInstances {
		k := s.next
		s.next = (s.next + 1) % MaxInstances
		if s.put[k].Load() == nil {
			return k, nil
		}
		if k > 128 && !low {
			s.next, low = 0, true // low numbers keep probes short
		}
	}
	return 0, fmt.Errorf("%w: a context has at most %d connections", driver.ErrBusy, MaxInstances)
}

// Put gives a connection its number.
func (s *Connections[C]) Put(num uint32, c *C) { s.put[num].Store(c) }

// Open adds a connection to the open ones.
func (s *Connections[C]) Open(c *C) { s.open[c] = struct{}{} }

// All are the open connections.
func (s *Connections[C]) All() iter.Seq[*C] { return maps.Keys(s.open) }

// List returns the connections that All would visit now.
func (s *Connections[C]) List() []*C { return slices.Collect(s.All()) }

// Len returns the number of open connections.
func (s *Connections[C]) Len() int { return len(s.open) }

// Remove frees a connection's number, takes it out of the open ones, if it was one, and keeps what it has counted.
func (s *Connections[C]) Remove(num uint32, c *C) {
	delete(s.open, c)
	s.put[num].CompareAndSwap(c, nil)
	s.Ready.remove(num)
	s.life(c).Tally.addTo(&s.retired)
}

// Counters adds what open connections have counted, and those that were removed.
func (s *Connections[C]) Counters(to *driver.Counters) {
	to.Add(&s.retired)
	for c := range s.open {
		s.life(c).Tally.addTo(to)
	}
}
