package verbs

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/verbs/ibv"
)

// bounceSize is up to what length a message in memory that is not registered
// is copied through memory that is: registering costs more.
const bounceSize = 8192

// sendAccess is what the pieces of a message that is sent are registered for.
const sendAccess regcache.Access = 0

// recvAccess is what those of a receive are registered for.
func (l *large) recvAccess() regcache.Access {
	if l.hasWindows() {
		return regcache.Access(ibv.AccessLocalWrite | ibv.AccessMWBind)
	}
	return regcache.Access(ibv.AccessLocalWrite | ibv.AccessRemoteWrite)
}

// memory is where the device finds a packet: the packet's own memory,
// registered, or a copy.
type memory struct {
	n      int
	ready  int // pieces that are registered; more to come if it is cold
	piece  [maxPieces][]byte
	fetch  [maxPieces]regcache.Fetch[*ibv.MR] // of those that are not
	access regcache.Access                    // that they are registered for
	region [maxPieces]*regcache.Region[*ibv.MR]
	arena  [maxPieces]*driver.Arena
	copied []byte // the one piece, if it is a copy
	bounce bool   // which lies in the bounce buffers
}

// collect lists the pieces of the first n bytes of a packet. False: there are
// too many.
func (m *memory) collect(p *driver.Packet, n int) (ok bool) {
	m.n, ok = p.Pieces(m.piece[:], n)
	return ok
}

// acquire makes the first n bytes of a packet, or room for a copy of them,
// reachable for the device. The buffer is the one to bounce in.
func (l *large) acquire(m *memory, p *driver.Packet, n, buffer int, access regcache.Access) (err error) {
	ok := m.collect(p, n)
	f, err := l.ahead.Of(p, m.piece[:m.n])
	if err != nil {
		*m = memory{}
		return err
	}
	switch {
	case n == 0:
	case ok && f == nil && isCold(m):
		err = l.registerCold(m, access)
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
		return err
	}
	f.Forget(p)
	return nil
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

// have makes r the registration of piece k, the next one.
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

// mr is the registration of a piece.
func (l *large) mr(m *memory, k int) *ibv.MR {
	if m.bounce {
		return l.bounce.mr
	}
	return m.region[k].Handle()
}

// release gives everything back. The device does not use it any more.
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
