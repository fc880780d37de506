package session

import (
	"slices"

	"github.com/bywash/bywash/session/internal/rdv"
)

// Some drivers have to register the memory of long messages, which can take as long as the transfer. The session has
// them begin before the post, in the background: for a send when its RTS leaves, for a receive when it is posted before
// its message. What is not needed after all (a short message arrives, another mode is chosen, the request is cancelled)
// is released again.
//
// A receive is prefetched if it names its peer and the message is likely to take the large track as a whole: the buffer
// is long enough, the gate has one rail, and the last receive that was prefetched was used (arriving.prefetchMissed), so that
// programs with long buffers for short messages register nothing.

// prefetches reports whether a message of n bytes is registered ahead on the link.
func (l *link) prefetches(n int) bool {
	s := l.g.s
	return l.fetcher != nil && n > 0 && n >= l.nic.longFrom && n <= l.nic.lcaps.MaxMessage && len(l.g.links) == 1 &&
		s.cfg.Mode == nil && s.cfg.Chunk == 0 && !s.cfg.NoPrefetch
}

// prefetch begins the registration of a message that is about to be offered.
func (o *outgoing) prefetch(l *link) {
	s := o.g.s
	if o.early != nil || !l.prefetches(o.total) {
		return
	}
	pc := s.newPiece(l)
	pc.kind, pc.chunk = pieceSend, rdv.Chunk{Len: o.total}
	pc.aim(o.buf, o.layout)
	if l.fetcher.SendPrefetch(&pc.p) != nil {
		s.freePiece(pc)
		return
	}
	s.stats.Prefetched++
	o.early, pc.ahead = pc, true
}

// unfetch releases the registration that prefetch began.
func (o *outgoing) unfetch() {
	if pc := o.early; pc != nil {
		o.early = nil
		o.g.s.freePiece(pc)
	}
}

// prefetch begins the registration of a receive from g that was posted.
func (r *Request) prefetch(g *Gate) {
	l, n := g.lead, r.room()
	if g.in.prefetchMissed || g.closing() || n <= l.eager || !l.prefetches(n) {
		return
	}
	s := r.s
	pc := s.newPiece(l)
	pc.kind, pc.chunk = pieceRecv, rdv.Chunk{Len: n}
	pc.aim(r.buf, r.layout)
	if l.fetcher.RecvPrefetch(&pc.p) != nil {
		s.freePiece(pc)
		return
	}
	s.stats.Prefetched++
	r.early, pc.ahead = pc, true
	l.early = append(l.early, r)
}

// takeEarly returns the piece that was prefetched for a receive and may be posted for the chunk, or nil.
func (r *Request) takeEarly(l *link, c rdv.Chunk) *piece {
	pc := r.early
	if pc == nil || pc.l != l || c.Off != 0 {
		return nil
	}
	l.forgetEarly(r)
	return pc
}

// unfetch releases the registration that was begun for a receive.
func (r *Request) unfetch() {
	if pc := r.early; pc != nil {
		pc.l.forgetEarly(r)
		r.s.freePiece(pc)
	}
}

func (l *link) forgetEarly(r *Request) {
	k := slices.Index(l.early, r)
	l.early = slices.Delete(l.early, k, k+1)
	r.early = nil
}

// unfetchReceives releases the registrations that were begun for receives on the link, which is about to end.
func (l *link) unfetchReceives() {
	for len(l.early) > 0 {
		l.early[0].unfetch()
	}
}

// unfetchAll releases the registrations that were begun on a connection that is about to end, for messages whose
// transfer has not begun.
func (g *Gate) unfetchAll() {
	g.s.transfers.outs.each(func(_ uint64, o *outgoing) {
		if o.g == g {
			o.unfetch()
		}
	})
	for _, l := range g.links {
		l.unfetchReceives()
	}
}

// unfetchPiece has the driver release what it has prefetched for a piece.
func (l *link) unfetchPiece(pc *piece) {
	l.g.s.stats.Unfetched++
	if pc.kind == pieceRecv {
		_ = l.fetcher.RecvUnfetch(&pc.p)
	} else {
		_ = l.fetcher.SendUnfetch(&pc.p)
	}
}
