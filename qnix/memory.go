//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/qnix/nic"
)

// registrar translates memory for the cache, which has pinned memory of the Go heap.
type registrar struct{ proc *nic.Process }

func (r registrar) Register(b []byte, access regcache.Access) (nic.Handle, error) {
	if a, at, ok := driver.ArenaOf(b); ok {
		return r.proc.TranslateFile(b, a.FD(), int64(at), nic.Access(access))
	}
	return r.proc.Translate(b, nic.Access(access))
}

// Deregister implements regcache.Registrar. Once Outside is closed the NIC accesses no memory. Until then a NIC that
// was given up may still access it.
func (r registrar) Deregister(h nic.Handle) error {
	select {
	case <-r.proc.Outside():
		return nil
	default:
	}
	err := r.proc.Untranslate(h)
	if errors.Is(err, nic.ErrGone) && !r.proc.Abandoned() {
		return nil // the NIC, or the registration, has ended
	}
	return err
}

// Sizes up to which a message in untranslated memory is copied through translated memory. Translating costs more: with
// the module a system call and work for each page at each end; with a softnic several messages to another process, which
// then moves the bytes by process_vm calls, while it moves those of files by memmove. Even at 64 MiB copying takes a
// quarter of the time; the limits are for the copies' memory: what does not fit in maxCopies is translated.
const (
	bounceSize   = 16 << 10
	softCopySize = 16 << 20
	maxCopies    = 64 << 20 // bytes in use by a context
)

// bounce is translated memory for short messages, one piece for each slot of both directions.
type bounce struct {
	arena  *driver.Arena
	region *regcache.Region[nic.Handle]
}

func (l *large) makeBounce() error {
	a, err := driver.NewArena(2 * transferDepth * bounceSize)
	if err != nil {
		return err
	}
	r, err := l.ctx.cache.Acquire(a.Bytes(), regcache.Access(nic.Read|nic.Write))
	if err != nil {
		_ = a.Close()
		return err
	}
	l.bounce = &bounce{a, r}
	return nil
}

func (b *bounce) close(l *large) {
	if b != nil {
		b.region.Release()
		_ = b.arena.Close() // the cache is notified
		l.bounce = nil
	}
}

// memory is the memory of a packet as the NIC sees it: the packet's own, translated, or a copy.
type memory struct {
	n      int
	piece  [maxPieces][]byte
	desc   [maxPieces]nic.Descriptor
	region [maxPieces]*regcache.Region[nic.Handle]
	arena  [maxPieces]*driver.Arena
	copied []byte // the only piece, if it is a copy
	staged bool   // the copy is not in a bounce buffer
}

func (m *memory) descriptors() []nic.Descriptor { return m.desc[:m.n] }

// gather and scatter copy between the packet and its copy, if there is one.
func (m *memory) gather(p *driver.Packet) {
	if m.copied != nil {
		c := p.Cursor()
		c.Gather(m.copied)
	}
}

func (m *memory) scatter(p *driver.Packet) {
	if m.copied != nil {
		c := p.Cursor()
		c.Scatter(m.copied[:p.N])
	}
}

// collect lists the pieces of a packet. It returns false if they are too many.
func (m *memory) collect(p *driver.Packet, n int) (ok bool) {
	m.n, ok = p.Pieces(m.piece[:], n)
	return ok
}

// isCopied reports whether a message of n bytes is copied although its pieces could be translated.
func (l *large) isCopied(m *memory, n int) bool {
	if n > bounceSize && (n > softCopySize || !l.ctx.soft) {
		return false
	}
	return m.n != 1 || !regcache.Cachable(m.piece[0])
}

// acquire makes the n bytes of a packet, or memory for a copy of them, accessible to the NIC. buffer is the number of
// the bounce buffer to use.
func (l *large) acquire(m *memory, p *driver.Packet, n, buffer int, access nic.Access) (err error) {
	ok := m.collect(p, n)
	f, err := l.ahead.Of(p, m.piece[:m.n])
	if err != nil {
		*m = memory{}
		return err
	}
	switch {
	case n == 0:
	case n <= bounceSize && l.isCopied(m, n):
		err = l.useBounce(m, n, buffer)
	case !ok || l.isCopied(m, n) && l.ctx.staging.Used()+n <= maxCopies:
		clear(m.piece[:])
		if m.copied, err = l.ctx.staging.Get(n); err == nil {
			m.n, m.piece[0], m.staged = 1, m.copied, true
			err = l.translate(m, nil, access)
		}
	default:
		err = l.translate(m, f, access)
	}
	if err != nil {
		l.release(m)
		if errors.Is(err, nic.ErrGone) {
			l.ctx.nicFailed(err)
			err = fmt.Errorf("%w: %w", driver.ErrBroken, err)
		}
		return err
	}
	l.staged = m.copied != nil
	return nil
}

func (l *large) useBounce(m *memory, n, buffer int) error {
	if l.bounce == nil {
		if err := l.makeBounce(); err != nil {
			return err
		}
	}
	clear(m.piece[:])
	m.n, m.copied = 1, l.bounce.arena.Bytes()[buffer*bounceSize:][:n]
	m.piece[0] = m.copied
	m.describe(0, l.bounce.region)
	return nil
}

// describe makes the descriptor of a piece, which lies in region r.
func (m *memory) describe(k int, r *regcache.Region[nic.Handle]) {
	b := m.piece[k]
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - r.Addr()
	m.desc[k] = nic.Descriptor{Handle: r.Handle(), Len: uint32(len(b)), Offset: uint64(at)}
}

// translate translates the pieces.
func (l *large) translate(m *memory, f *regcache.Fetched[nic.Handle], access nic.Access) error {
	for k := range m.n {
		r, err := f.Acquire(l.ctx.cache, k, m.piece[k], regcache.Access(access))
		if err != nil {
			return err
		}
		m.region[k] = r
		if a := r.Arena(); a != nil {
			if !a.Hold() {
				return fmt.Errorf("%w: the arena is closed", driver.ErrInvalid)
			}
			m.arena[k] = a
		}
		m.describe(k, r)
	}
	return nil
}

// release gives up translations and copies. The NIC does not use them any more.
func (l *large) release(m *memory) {
	for k := range m.n {
		if m.region[k] != nil {
			m.region[k].Release()
		}
		if m.arena[k] != nil {
			m.arena[k].Release()
		}
	}
	if m.staged {
		l.ctx.staging.Put(m.copied)
	}
	*m = memory{}
}
