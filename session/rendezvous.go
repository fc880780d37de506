package session

import (
	"bytes"
	"errors"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/rdv"
)

// ready handles an RTR.
func (l *link) ready(h *header.Header, body, data []byte) error {
	var rtr header.Ready
	if err := rtr.Parse(body); err != nil {
		return err
	}
	s, g := l.g.s, l.g
	o, ok := s.transfers.outs.get(h.Tag)
	if !ok || o.g != g {
		s.stats.Bad++ // late: the message was cancelled, or has failed
		g.done(rtr.ID, statusFailed, false)
		return nil
	}
	if !o.rtsTaken {
		return errUnrequested
	}
	c := rdv.Chunk{ID: rtr.Chunk, Rail: rtr.Rail, Off: int(rtr.Offset), Len: int(rtr.Length)}
	mode := rdv.Mode(rtr.Mode)
	if mode >= rdv.Modes || mode == rdv.Get || !contiguous(o.layout) && mode == rdv.Put {
		return rdv.ErrProtocol
	}
	if l = g.rail(rtr.Rail); l == nil || !l.modes().Has(mode) {
		return rdv.ErrProtocol
	}
	start, err := o.Asked(c, int(rtr.Want))
	if err != nil {
		return err
	}
	if !start {
		return nil
	}
	if l.dead && mode != rdv.Null {
		o.Left(c.Len, false) // the receiver notices the lost rail, too
		s.settleOut(o)
		return nil
	}
	o.peer = rtr.ID
	o.begin(l, c, mode, data)
	return nil
}

// begin posts a chunk at the sender, or queues it until the driver has room.
func (o *outgoing) begin(l *link, c rdv.Chunk, mode rdv.Mode, data []byte) {
	s := o.g.s
	if e := o.early; e != nil && (mode != rdv.Cooperative || e.l != l || e.chunk.Len != c.Len || c.Off != 0) {
		o.unfetch()
	}
	pc := o.early
	if o.early = nil; pc == nil {
		pc = s.newPiece(l)
		pc.chunk = c
		pc.aim(o.buf, o.layout)
	}
	pc.out, pc.chunk = o, c
	pc.rdv = append(pc.rdv[:0], data...)
	pc.charge(pieceCost + cap(pc.rdv))
	switch mode {
	case rdv.Cooperative:
		pc.kind = pieceSend
	case rdv.Put:
		pc.kind = piecePut
		pc.op.Local = span(o.buf, o.layout, c.Off, c.Len)
	case rdv.Null:
		pc.kind = pieceFrags
		o.next, o.limit = c.Off, c.Off+c.Len
	}
	s.addPiece(pc)
	if pc.kind == pieceFrags {
		return
	}
	if err := s.repostFailed(pc, pc.post()); err != nil {
		o.Left(c.Len, false)
		o.lostChunk(l, err)
		s.settleOut(o)
	}
}

// lostChunk handles a chunk that was not sent. If the rail is gone, or the receiver has cancelled the chunk, the
// receiver decides whether to request it again. Otherwise the message fails, and the receiver is notified.
func (o *outgoing) lostChunk(l *link, err error) {
	if o.Confirmable() && o.err == nil {
		if errors.Is(err, ErrCanceled) {
			return
		}
		if l.dead || isGone(err) && o.g.others(l) {
			l.down(err)
			return
		}
	}
	l.ends(err)
	o.fail(err)
	if !l.dead { // else the receiver has lost the connection, too
		o.g.done(o.peer, statusFailed, false) // nothing more comes
	}
}

// fragment handles a fragment of a message in mode Null.
func (l *link) fragment(h *header.Header, body, data []byte) error {
	s := l.g.s
	in, ok := s.transfers.ins.get(h.Tag)
	if !ok || in.g != l.g {
		s.stats.Bad++
		return nil
	}
	off := header.Uint64(body)
	c, under := in.First() // the chunk in progress
	if in.mode != rdv.Null || !under || off != uint64(in.moved) || len(data) > c.Off+c.Len-in.moved {
		return rdv.ErrProtocol
	}
	if r := in.req; r.layout == nil {
		copy(r.buf[in.moved:], data)
	} else {
		p := driver.Packet{Data: r.layout}
		cur := p.Cursor()
		cur.Seek(in.moved)
		cur.Scatter(data)
	}
	if in.moved += len(data); in.moved == c.Off+c.Len {
		in.Done(c.ID)
		s.advance(in)
	}
	return nil
}

// done handles a DONE.
func (l *link) done(h *header.Header, body []byte) error {
	var part header.Part
	if err := part.Parse(body); err != nil {
		return err
	}
	s := l.g.s
	switch {
	case part.Status == statusWithdrawn && !part.ToSender:
		l.forget(h.Tag, errWithdrawn)
	case part.ToSender:
		o, ok := s.transfers.outs.get(h.Tag)
		if !ok || o.g != l.g {
			s.stats.Bad++
			return nil
		}
		switch {
		case !o.rtsTaken:
			return errUnrequested
		case !part.All:
			return rdv.ErrProtocol
		case part.Status == statusDone:
			o.Confirmed()
		case part.Status == statusTooLong:
			o.fail(errNoMemory)
		default:
			o.fail(errRefused)
		}
		s.settleOut(o)
	default:
		return l.chunkDone(h.Tag, part)
	}
	return nil
}

// chunkDone handles the sender's DONE: it has put a chunk, or has failed.
func (l *link) chunkDone(id uint64, part header.Part) error {
	s := l.g.s
	in, ok := s.transfers.ins.get(id)
	if !ok || in.g != l.g {
		s.stats.Bad++
		return nil
	}
	if part.Status != statusDone {
		in.abort(errRefused)
		return nil
	}
	for i, pc := range s.transfers.pieces {
		if pc.in != in || pc.kind != pieceTarget || pc.number != part.Chunk {
			continue
		}
		if free, _ := tryDeregister(pc.region); !free {
			in.fail(rdv.ErrProtocol) // the chunk is reported done but still accessed: movePieces waits
			return nil
		}
		s.removePiece(i)
		s.ended(pc, nil)
		return nil
	}
	s.stats.Bad++
	return nil
}

// forget ends a message that its sender has cancelled. id is that of the sender's half.
func (l *link) forget(id uint64, why error) {
	g := l.g
	if u := g.in.rts[id]; u != nil {
		g.withdrawUnexpected(u)
	}
	g.dropPostponedRTS(id)
	g.dropWaitingActives(func(w *waitingActive) bool { return w.req.ID == id })
	if in := g.arriving(id); in != nil {
		in.abort(why)
	}
}

// arriving returns the arriving message whose sending half has that id; nil if there is none. The list is as long as
// the number of receives that have begun.
func (g *Gate) arriving(id uint64) *incoming {
	in := g.in.first
	for in != nil && in.peer != id {
		in = in.after
	}
	return in
}

// maxUpdates is how many cookies of a chunk there can be before it is posted here: no driver sends that many for a
// chunk that is not posted.
const maxUpdates = 16

// cookie handles new rdv data.
func (l *link) cookie(h *header.Header, body, data []byte) error {
	var part header.Part
	if err := part.Parse(body); err != nil {
		return err
	}
	s := l.g.s
	if !part.ToSender {
		return rdv.ErrProtocol
	}
	for _, pc := range s.transfers.pieces {
		if pc.kind != pieceSend || pc.out.id != h.Tag || pc.out.g != l.g || pc.chunk.ID != part.Chunk {
			continue
		}
		up, ok := pc.l.large.(driver.RdvUpdater)
		switch {
		case !ok:
			return rdv.ErrProtocol
		case !pc.posted && len(pc.updates) == maxUpdates:
			return rdv.ErrProtocol
		case !pc.posted:
			pc.updates = append(pc.updates, bytes.Clone(data))
			pc.charge(len(data))
			return nil
		}
		return up.SendRdvUpdate(&pc.p, data)
	}
	return nil // late: the chunk is done
}
