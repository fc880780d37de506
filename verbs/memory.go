//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/verbs/ibv"
)

// bounceSize is the most bytes of a message in unregistered memory that are copied to registered memory: to register
// more costs less than to copy it.
const bounceSize = 8192

// sendAccess is the access for which the pieces of a send are registered.
const sendAccess regcache.Access = 0

// recvAccess is the access for which the pieces of a receive of n bytes are registered.
func (l *large) recvAccess(n int) regcache.Access {
	if l.windowed(n) {
		return regcache.Access(ibv.AccessLocalWrite | ibv.AccessMWBind)
	}
	return regcache.Access(ibv.AccessLocalWrite | ibv.AccessRemoteWrite)
}

// memory is the memory of a packet as the device sees it: the packet's own, registered, or a copy.
type memory struct {
	n      int
	ready  int // pieces that are registered; fewer than n if uncached memory is registered in parts
	piece  [maxPieces][]byte
	fetch  [maxPieces]regcache.Fetch[*ibv.MR] // prefetches of the others
	access regcache.Access                    // for which they are registered
	region [maxPieces]*regcache.Region[*ibv.MR]
	arena  [maxPieces]*driver.Arena
	copied []byte // the only piece, if it is a copy
	bounce bool   // the copy lies in the bounce buffers
}

// collect lists the pieces of the first n bytes of a packet. It returns false if they are too many.
func (m *memory) collect(p *driver.Packet, n int) (ok bool) {
	m.n, ok = p.Pieces(m.piece[:], n)
	return ok
}

// acquire makes the first n bytes of a packet, or memory for a copy of them, accessible to the device. buffer is the
// number of the bounce buffer to use.
func (l *large) acquire(m *memory, p *driver.Packet, n, buffer int, access regcache.Access) (err error) {
	ok := m.collect(p, n)
	f, err := l.ahead.Of(p, m.piece[:m.n])
	if err != nil {
		*m = memory{}
		return err
	}
	switch {
	case n == 0:
	case ok && isUncached(m):
		err = l.registerParts(m, f, access)
	case m.isCopied(n):
		err = l.useBounce(m, n, buffer)
	case !ok:
		if m.copied, err = l.ctx.staging.Get(n); err == nil {
			m.n, m.piece[0] = 1, m.copied
			err = l.register(m, nil, access)
		}
	default:
		err = l.register(m, f, access)
	}
	if err != nil {
		l.release(m)
	}
	return err
}

// isCopied reports whether a message of n bytes is copied though its pieces could be registered.
func (m *memory) isCopied(n int) bool {
	inArena := false
	if m.n == 1 {
		_, _, inArena = driver.ArenaOf(m.piece[0])
	}
	return n <= bounceSize && !inArena
}

func (l *large) useBounce(m *memory, n, buffer int) (err error) {
	if l.bounce == nil {
		l.bounce, err = newSlab(l.ctx.pd, bounceSize, 2*transferDepth, 0, 0, ibv.AccessLocalWrite|ibv.AccessRemoteWrite)
		if err != nil {
			return err
		}
	}
	clear(m.piece[:])
	m.n, m.ready, m.copied, m.bounce = 1, 1, l.bounce.at(buffer)[:n], true
	m.piece[0] = m.copied
	return nil
}

// register registers the pieces.
func (l *large) register(m *memory, f *regcache.Fetched[*ibv.MR], access regcache.Access) error {
	for k := range m.n {
		r, err := f.Acquire(l.ctx.cache, k, m.piece[k], access)
		if err != nil {
			return err
		}
		if err := m.have(k, r); err != nil {
			return err
		}
	}
	return nil
}

// have sets the registration of the next piece, k.
func (m *memory) have(k int, r *regcache.Region[*ibv.MR]) error {
	m.region[k], m.ready = r, k+1
	if a := r.Arena(); a != nil {
		if !a.Hold() {
			return fmt.Errorf("%w: the arena is closed", driver.ErrInvalid)
		}
		m.arena[k] = a
	}
	return nil
}

// mr returns the registration of a piece.
func (l *large) mr(m *memory, k int) *ibv.MR {
	if m.bounce {
		return l.bounce.mr
	}
	return m.region[k].Handle()
}

// release gives up registrations and copies. The device does not use them any more.
func (l *large) release(m *memory) {
	for k := range m.n {
		if m.region[k] != nil {
			m.region[k].Release()
		}
		if m.arena[k] != nil {
			m.arena[k].Release()
		}
		m.fetch[k].Cancel()
	}
	if !m.bounce {
		l.ctx.staging.Put(m.copied)
	}
	*m = memory{}
}
