package verbs

import (
	"fmt"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/verbs/ibv"
)

// prefetch is what was begun for a packet ahead of its post. Prefetching takes
// turns in a ring of them; what does not fit is simply not prefetched.
type prefetch struct {
	n     int
	piece [maxPieces][]byte
	fetch [maxPieces]regcache.Fetch[*ibv.MR]
	used  bool
}

// notFetched stands for no access at all.
const notFetched = ^regcache.Access(0)

// SendPrefetch implements driver.Prefetcher.
func (l *large) SendPrefetch(p *driver.Packet) error { return l.prefetch(p, sendAccess) }

// RecvPrefetch implements driver.Prefetcher.
func (l *large) RecvPrefetch(p *driver.Packet) error { return l.prefetch(p, l.recvAccess()) }

// SendUnfetch implements driver.Prefetcher.
func (l *large) SendUnfetch(p *driver.Packet) error { return l.unfetch(p) }

// RecvUnfetch implements driver.Prefetcher.
func (l *large) RecvUnfetch(p *driver.Packet) error { return l.unfetch(p) }

func (l *large) prefetch(p *driver.Packet, access regcache.Access) error {
	if !l.enter() {
		return l.failure("prefetch")
	}
	defer l.leave()
	if l.state.Load() != stateUp {
		return l.failure("prefetch")
	}
	if p.Driver.Phase != driver.Idle {
		return l.misuse("prefetch", p)
	}
	var f *prefetch
	for k := range l.fetches {
		if !l.fetches[k].used {
			f = &l.fetches[k]
			break
		}
	}
	if f == nil {
		l.tally.Busy.Add(1)
		return driver.ErrBusy
	}
	n := p.Len()
	var m memory
	m.collect(p, n)
	f.n, f.piece = m.n, m.piece
	if n <= bounceSize && !(m.n == 1 && inArena(m.piece[0])) {
		access = notFetched // it is copied
	}
	for k := range f.n {
		if access != notFetched {
			// A full queue leaves the registration to the post.
			f.fetch[k], _ = l.ctx.cache.Prefetch(f.piece[k], access)
		}
	}
	f.used = true
	p.Driver.Phase, p.Driver.Prefetch = driver.Prefetched, f
	return nil
}

func (l *large) unfetch(p *driver.Packet) error {
	f, ok := p.Driver.Prefetch.(*prefetch)
	if p.Driver.Phase != driver.Prefetched || !ok {
		return l.fault("unfetch", fmt.Errorf("%w: the packet was not prefetched", driver.ErrInvalid))
	}
	l.forgetPrefetch(p, f)
	return nil
}

// takePrefetch finds what was prefetched for a packet whose pieces are in m.
func (l *large) takePrefetch(p *driver.Packet, m *memory) (*prefetch, error) {
	f, ok := p.Driver.Prefetch.(*prefetch)
	if !ok {
		return nil, nil
	}
	same := f.n >= m.n // a send that is truncated needs less
	for k := 0; same && k < m.n; k++ {
		same = len(f.piece[k]) >= len(m.piece[k]) && unsafe.SliceData(f.piece[k]) == unsafe.SliceData(m.piece[k])
	}
	if same {
		return f, nil
	}
	return nil, fmt.Errorf("%w: the packet names other memory than was prefetched: unfetch first", driver.ErrInvalid)
}

func (l *large) forgetPrefetch(p *driver.Packet, f *prefetch) {
	for k := range f.n {
		if f.fetch[k].Active() {
			f.fetch[k].Cancel()
		}
	}
	*f = prefetch{}
	p.Driver.Phase, p.Driver.Prefetch = driver.Idle, nil
}
