package regcache

import (
	"fmt"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// Ahead holds what a driver has prefetched for packets before their posts, for one instance. The goroutine that owns
// the instance calls its methods.
type Ahead[H any] struct{ packets []Fetched[H] }

// Fetched holds the registrations that were prefetched for one packet.
type Fetched[H any] struct {
	pieces [][]byte // of the packet
	parts  [][]byte // that are registered: the pieces, or parts of one
	fetch  []Fetch[H]
	access Access
	used   bool
}

// Init makes room for the given number of packets, with at most pieces pieces and as many parts each.
func (a *Ahead[H]) Init(packets, pieces int) {
	a.packets = make([]Fetched[H], packets)
	for k := range a.packets {
		f := &a.packets[k]
		f.pieces, f.parts, f.fetch = make([][]byte, 0, pieces), make([][]byte, 0, pieces), make([]Fetch[H], pieces)
	}
}

// Begin prefetches the memory of a packet that has the given pieces, part by part: the parts are the pieces, or the one
// piece is cut into them, or there are none, as the post will copy the message. It fails with ErrBusy if there is no
// room.
func (a *Ahead[H]) Begin(c *Cache[H], p *driver.Packet, pieces, parts [][]byte, access Access) error {
	for k := range a.packets {
		f := &a.packets[k]
		if f.used {
			continue
		}
		f.used, f.access = true, access
		f.pieces, f.parts = append(f.pieces[:0], pieces...), append(f.parts[:0], parts...)
		for j := range parts {
			f.fetch[j], _ = c.Prefetch(parts[j], access) // a full queue leaves the registration to the post
		}
		p.Driver.Phase, p.Driver.Prefetch = driver.Prefetched, f
		return nil
	}
	return driver.ErrBusy
}

// Of returns what was prefetched for a packet that is posted with these pieces, or nil. It fails with ErrInvalid if the
// packet names other memory than when it was prefetched.
func (a *Ahead[H]) Of(p *driver.Packet, pieces [][]byte) (*Fetched[H], error) {
	f, ok := p.Driver.Prefetch.(*Fetched[H])
	if !ok {
		return nil, nil
	}
	same := len(f.pieces) >= len(pieces) // a send that is truncated needs less
	for k := 0; same && k < len(pieces); k++ {
		same = len(f.pieces[k]) >= len(pieces[k]) && unsafe.SliceData(f.pieces[k]) == unsafe.SliceData(pieces[k])
	}
	if same {
		return f, nil
	}
	return nil, fmt.Errorf("%w: the packet names other memory than was prefetched: unfetch first", driver.ErrInvalid)
}

// Acquire takes the registration of piece k, whose bytes are b: the one that was prefetched for the same access, or
// another, also where the prefetch has failed, which may have been of more memory. f may be nil.
func (f *Fetched[H]) Acquire(c *Cache[H], k int, b []byte, access Access) (*Region[H], error) {
	fetch := f.Take(k, b, access)
	return fetch.AcquireFrom(c, b, access)
}

// Part is the length in bytes of the parts, of which the last may be shorter; 0 if there are none. f may be nil.
func (f *Fetched[H]) Part() int {
	if f == nil || len(f.parts) == 0 {
		return 0
	}
	return len(f.parts[0])
}

// Take passes the prefetch of part k, which begins as b, to the caller; none if it was for another access, or of fewer
// bytes. f may be nil.
func (f *Fetched[H]) Take(k int, b []byte, access Access) (fetch Fetch[H]) {
	if f != nil && f.access == access && k < len(f.parts) && len(f.parts[k]) >= len(b) {
		fetch, f.fetch[k] = f.fetch[k], Fetch[H]{}
	}
	return fetch
}

// Forget gives back the registrations that were not taken: the packet is as if it had not been prefetched. A driver
// calls it after a post has succeeded. It does nothing for a packet for which nothing was prefetched.
func (a *Ahead[H]) Forget(p *driver.Packet) {
	f, ok := p.Driver.Prefetch.(*Fetched[H])
	if !ok {
		return
	}
	for k := range f.fetch {
		if f.fetch[k].Active() {
			f.fetch[k].Cancel()
		}
		f.fetch[k] = Fetch[H]{}
	}
	clear(f.pieces)
	clear(f.parts)
	f.pieces, f.parts, f.used = f.pieces[:0], f.parts[:0], false
	p.Driver.Phase, p.Driver.Prefetch = driver.Idle, nil
}

// Undo is Forget for a packet that will not be posted. It fails with ErrInvalid if nothing was prefetched for it.
func (a *Ahead[H]) Undo(p *driver.Packet) error {
	_, ok := p.Driver.Prefetch.(*Fetched[H])
	if p.Driver.Phase != driver.Prefetched || !ok {
		return fmt.Errorf("%w: the packet was not prefetched", driver.ErrInvalid)
	}
	a.Forget(p)
	return nil
}
