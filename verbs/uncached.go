//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// To register a long buffer once can cost as much as to send it. Memory that is not registered and whose registration
// cannot be cached (uncached memory) is therefore registered in parts. The first part is registered by the post, the
// others in the background, while the parts before them are transferred. A receiver puts the keys of the first part
// into the rdv data and those of the others into updates; a sender writes as far as both ends have registered.

// uncachedSize is the least length in bytes of uncached memory that is registered in parts. uncachedPart is the least
// length of a part; there are up to maxPieces.
const (
	uncachedSize = 1 << 20
	uncachedPart = 512 << 10
)

// isUncached reports whether the one piece of m is to be registered in parts.
func isUncached(m *memory) bool {
	return m.n == 1 && len(m.piece[0]) >= uncachedSize && !regcache.Cachable(m.piece[0])
}

// partSize returns the length of the parts of n bytes.
func partSize(n int) int {
	const page = 4096
	return max(uncachedPart, (n/maxPieces+page)&^(page-1))
}

// cut makes the parts of whole the pieces of m.
func (m *memory) cut(whole []byte, part int) {
	for m.n = 0; len(whole) > 0; m.n++ {
		n := min(part, len(whole))
		m.piece[m.n], whole = whole[:n:n], whole[n:]
	}
}

// registerParts cuts the piece of m into parts and registers the first. The parts are those of f, if there is one: the
// message may be shorter than what was prefetched.
func (l *large) registerParts(m *memory, f *regcache.Fetched[*ibv.MR], access regcache.Access) error {
	part := f.Part()
	if part == 0 {
		part = partSize(len(m.piece[0]))
	}
	m.cut(m.piece[0], part)
	m.access = access
	for k := range m.n {
		if m.fetch[k] = f.Take(k, m.piece[k], access); k > 0 && !m.fetch[k].Active() {
			// If the queue of prefetches is full, the part is registered when it is needed.
			m.fetch[k], _ = l.ctx.cache.Prefetch(m.piece[k], access)
		}
	}
	return l.fetchPart(m)
}

// fetchPart registers the next part, or waits for its prefetch.
func (l *large) fetchPart(m *memory) error {
	k := m.ready
	r, err := m.fetch[k].AcquireFrom(l.ctx.cache, m.piece[k], m.access)
	if err != nil {
		return err
	}
	return m.have(k, r)
}

// seek returns the piece that contains byte off of the message, and the offset within the piece.
func (m *memory) seek(off int) (piece, at int) {
	for off >= len(m.piece[piece]) {
		off -= len(m.piece[piece])
		piece++
	}
	return piece, off
}

// fetchNext makes sure that the memory of a transfer's next write is registered. It posts earlier writes first, so that
// they travel meanwhile.
func (l *large) fetchNext(t *transfer) bool {
	m := &t.memory
	k, _ := m.seek(t.posted)
	if k < m.ready {
		return true
	}
	if l.sq.chain.Len() > 0 {
		l.postOn(&l.sq)
	}
	err := l.fetchPart(m)
	if err != nil {
		l.broke(fmt.Errorf("%s: in the middle of a message: %w", l.ctx.Props.Device, err))
	}
	return err == nil
}

// RecvRdvUpdate implements driver.RdvUpdater. A receive that is being cancelled has updates, too: if the sender has
// begun, it needs them to finish.
func (l *large) RecvRdvUpdate(p *driver.Packet) ([]byte, error) {
	if !l.Enter() {
		if p.Driver.Phase == driver.Done {
			return nil, nil
		}
		return nil, l.Failure("update")
	}
	defer l.Leave()
	if p.Driver.Phase == driver.Done { // the keep-alive goroutine may have finished the packet before this call entered
		return nil, nil
	}
	if !l.Receives.Holds(p) {
		return nil, l.Fault("update", fmt.Errorf("%w: the packet is not posted on this instance", driver.ErrInvalid))
	}
	s := &l.slots[p.Driver.Slot]
	if s.keysSent == s.memory.n || s.windows.over || s.windows.bound > 0 && l.reads > 0 || l.State() != kit.StateUp {
		return nil, nil
	}
	if err := l.fetchMore(s); err != nil {
		err = fmt.Errorf("%s: in the middle of a message: %w", l.ctx.Props.Device, err)
		l.broke(err)
		return nil, l.Failure("update")
	}
	if !l.Receives.Holds(p) || s.windows.over || s.keysSent == s.memory.ready {
		return nil, nil
	}
	return l.describe(s.k, s, s.update[:]), nil
}

// fetchMore collects the prefetches of further pieces that are done.
func (l *large) fetchMore(s *slot) error {
	m := &s.memory
	for m.ready < m.n && m.fetch[m.ready].Active() {
		r, done, err := m.fetch[m.ready].TryAcquire()
		if err != nil || !done {
			break // what has failed is tried again when it is needed
		}
		if err := m.have(m.ready, r); err != nil {
			return err
		}
	}
	if m.ready == s.keysSent && !m.fetch[m.ready].Active() {
		if err := l.fetchPart(m); err != nil {
			return err
		}
	}
	if s.windows.bound == 0 || s.windows.bound == m.ready {
		return nil
	}
	return l.bindMore(s)
}

func (l *large) SendRdvUpdate(p *driver.Packet, data []byte) error {
	var more rdvData
	err := more.parse(data, l.theirs.tag, transferDepth)
	if err == nil && (more.first == 0 || more.n == 0) {
		err = errRdvDamaged
	}
	if err != nil {
		return l.Fault("update", err)
	}
	if !l.Enter() {
		if p.Driver.Phase == driver.Done {
			return nil
		}
		return l.Failure("update")
	}
	defer l.Leave()
	if p.Driver.Phase == driver.Done { // the keep-alive goroutine may have finished the packet before this call entered
		return nil
	}
	if l.State() != kit.StateUp {
		return l.Failure("update")
	}
	if !l.Sends.Holds(p) {
		return l.Fault("update", fmt.Errorf("%w: the packet is not being sent", driver.ErrInvalid))
	}
	if !l.out[p.Driver.Slot].rdv.extend(&more) {
		return l.Fault("update", errRdvForeign)
	}
	l.push()
	return nil
}
