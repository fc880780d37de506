package session

import (
	"cmp"
	"slices"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
	"github.com/bywash/bywash/session/internal/rdv"
)

// pieceKind is what a piece does.
type pieceKind uint8

const (
	pieceSend    pieceKind = iota // on the large track
	pieceRecv                     // on the large track
	piecePut                      // one-sided, by the sender
	pieceGet                      // one-sided, by the receiver
	pieceTarget                   // registered for the sender's put
	pieceRelease                  // a region that the peer is still inside
	pieceFrags                    // cut into fragments on the small track
)

// piece is one chunk of a long message that is posted to a driver, or waits for room there.
type piece struct {
	kind    pieceKind
	posted  bool
	ahead   bool // prefetched, and not posted yet
	l       *link
	chunk   rdv.Chunk
	number  uint32    // receiving end: of the chunk in its RTR
	out     *outgoing // the sending end
	in      *incoming // the receiving end
	p       driver.Packet
	iov     [1][]byte
	part    sublayout
	op      driver.Op
	region  driver.Region
	rdv     []byte   // rdv data of the receiver's driver
	updates [][]byte // that came before the post
	cost    int      // bytes that the gate is charged with
	next    *piece
}

func (s *Session) newPiece(l *link) *piece {
	pc := s.spare.pieces
	if pc == nil {
		pc = new(piece)
	} else {
		s.spare.pieces, pc.next = pc.next, nil
	}
	if pc.l = l; l != nil {
		l.pieces++
	}
	return pc
}

// maxPooledRdv is how many bytes of rdv data a piece that is not in use may have room for.
const maxPooledRdv = 1 << 10

// charge adds to what the piece costs the gate.
func (pc *piece) charge(n int) {
	pc.cost += n
	pc.l.g.charge(n)
}

func (s *Session) freePiece(pc *piece) {
	if l := pc.l; l != nil {
		l.g.charge(-pc.cost)
		if pc.ahead {
			l.unfetchPiece(pc)
		}
		if l.pieces--; l.dead {
			s.releaseLink(l)
		}
	}
	rdv := pc.rdv[:0]
	if cap(rdv) > maxPooledRdv {
		rdv = nil
	}
	*pc = piece{rdv: rdv, next: s.spare.pieces} // it keeps no memory of the program alive
	s.spare.pieces = pc
}

// aim points the packet at the chunk's part of the memory.
func (pc *piece) aim(buf []byte, layout driver.Layout) {
	if layout == nil {
		pc.iov[0] = buf[pc.chunk.Off : pc.chunk.Off+pc.chunk.Len]
		pc.p.IOV = pc.iov[:]
		return
	}
	pc.part.set(layout, pc.chunk.Off, pc.chunk.Len)
	pc.p.IOV, pc.p.Data = nil, &pc.part
}

// contiguous reports whether memory lies in one piece.
func contiguous(layout driver.Layout) bool { return layout == nil || layout.Segments() <= 1 }

// span is a part of contiguous memory.
func span(buf []byte, layout driver.Layout, off, n int) []byte {
	if layout != nil && layout.Segments() > 0 {
		buf = layout.Segment(0)
	}
	return buf[off : off+n]
}

// begin starts a chunk at the receiver: it is posted, or waits for room, and
// asked for.
func (s *Session) begin(in *incoming, c rdv.Chunk) error {
	l := in.g.links[c.Rail]
	r := in.req
	if in.mode == rdv.Null { // by messages, whatever rail carries them
		in.moved = c.Off
		in.ask(c, nil)
		return nil
	}
	if l.dead {
		return ErrBroken
	}
	pc := r.takeEarly(l, c)
	if pc == nil {
		pc = s.newPiece(l)
	}
	pc.in, pc.chunk = in, c
	pc.charge(pieceCost)
	switch in.mode {
	case rdv.Cooperative:
		pc.kind = pieceRecv
		pc.aim(r.buf, r.layout)
	case rdv.Put:
		pc.kind = pieceTarget
		region, err := l.nic.reg.Register(span(r.buf, r.layout, c.Off, c.Len), driver.RemoteWrite)
		if err != nil {
			s.freePiece(pc)
			return err
		}
		pc.region, pc.posted = region, true
		pc.number = in.ask(c, region.Key())
	case rdv.Get:
		pc.kind = pieceGet
	}
	s.addPiece(pc)
	if pc.posted {
		return nil
	}
	return s.repostFailed(pc, pc.post())
}

// repostFailed removes a piece whose post has failed.
func (s *Session) repostFailed(pc *piece, err error) error {
	if err == nil || err == driver.ErrBusy {
		return nil
	}
	s.forgetPiece(pc)
	s.freePiece(pc)
	return err
}

func (s *Session) addPiece(pc *piece) {
	s.transfers.pieces = append(s.transfers.pieces, pc)
	s.kickMover()
}

func (s *Session) removePiece(i int) {
	last := len(s.transfers.pieces) - 1
	s.transfers.pieces[i] = s.transfers.pieces[last]
	s.transfers.pieces[last] = nil
	s.transfers.pieces = s.transfers.pieces[:last]
}

// ask sends the RTR of a chunk. Chunks are numbered for the sender in the order
// of their RTRs, as posts may wait for room, or fail.
func (in *incoming) ask(c rdv.Chunk, data []byte) uint32 {
	number := in.asked
	in.asked++
	msg, body := in.g.s.control(header.Header{Kind: header.RTR, Tag: in.peer}, data)
	rtr := header.Ready{
		ID: in.id, Offset: uint64(c.Off), Length: uint64(c.Len), Want: uint64(in.want), Chunk: number, Mode: uint8(in.mode), Rail: c.Rail,
	}
	rtr.Put(body)
	in.g.sendControl(msg)
	return number
}

// post gives a piece to the driver. ErrBusy: not now.
func (pc *piece) post() error {
	l := pc.l
	var err error
	switch pc.kind {
	case pieceRecv:
		if err = l.large.RecvPost(&pc.p); err == nil {
			pc.posted = true // the RTR may find the gate lost, which cancels what is posted
			pc.number = pc.in.ask(pc.chunk, pc.p.RdvData)
		}
	case pieceSend:
		pc.p.RdvData = pc.rdv
		if err = l.large.SendPost(&pc.p); err == nil && len(pc.updates) > 0 {
			up := l.large.(driver.RdvUpdater)
			for _, b := range pc.updates {
				_ = up.SendRdvUpdate(&pc.p, b)
			}
			pc.updates = nil
		}
	case piecePut:
		if pc.op.Remote == nil {
			if pc.op.Remote, err = l.one.Import(pc.rdv); err != nil {
				return err
			}
		}
		err = l.one.PutPost(&pc.op)
	case pieceGet:
		if pc.op.Remote, err = l.one.Import(pc.in.key); err != nil {
			return err
		}
		pc.op.Local = span(pc.in.req.buf, pc.in.req.layout, pc.chunk.Off, pc.chunk.Len)
		pc.op.Offset = pc.chunk.Off
		err = l.one.GetPost(&pc.op)
	}
	if pc.posted = err == nil; pc.posted {
		pc.ahead = false
	}
	return err
}

// poll polls the driver; the caller removes a piece that is done.
func (pc *piece) poll(s *Session) (done bool, err error) {
	l := pc.l
	if !pc.posted && pc.kind != pieceFrags {
		if l.dead || pc.in != nil && pc.in.err != nil || pc.out != nil && pc.out.err != nil {
			return true, ErrCanceled
		}
		if err := pc.post(); err != nil {
			return err != driver.ErrBusy, err
		}
	}
	switch pc.kind {
	case pieceRecv:
		if done, err = l.large.RecvPoll(&pc.p); !done {
			pc.update()
		}
	case pieceSend:
		done, err = l.large.SendPoll(&pc.p)
	case piecePut, pieceGet:
		done, err = l.one.OpPoll(&pc.op)
	case pieceTarget:
		if pc.in.err != nil || l.dead {
			free, _ := tryDeregister(pc.region)
			return free, cmp.Or(pc.in.err, ErrBroken)
		}
	case pieceRelease:
		free, _ := tryDeregister(pc.region)
		return free, nil
	case pieceFrags:
		return pc.cut(s), nil
	}
	return done, err
}

// update carries new rdv data of the receiver's driver to the sender's.
func (pc *piece) update() {
	up, ok := pc.l.large.(driver.RdvUpdater)
	if !ok || !pc.l.nic.lcaps.RdvUpdate {
		return
	}
	for {
		b, err := up.RecvRdvUpdate(&pc.p)
		if err != nil || b == nil {
			return
		}
		pc.in.g.sendPart(header.Cookie, pc.in.peer, header.Part{Chunk: pc.number, ToSender: true}, b)
	}
}

// sendPart sends a Done or Cookie, the latter with new rdv data or a new key, to the half of a message with that id.
func (g *Gate) sendPart(kind header.Kind, to uint64, part header.Part, data []byte) {
	msg, body := g.s.control(header.Header{Kind: kind, Tag: to}, data)
	part.Put(body)
	g.sendControl(msg)
}

// Fragments of one message that are on their way out at most. Those of a message of up to evenFrags bytes are short, so
// that both ends copy at the same time.
const (
	maxFrags  = 16
	evenFrag  = 8 << 10
	evenFrags = 64 << 10
)

// cut sends fragments of mode Null. True when all of the chunk are on their way.
func (pc *piece) cut(s *Session) bool {
	o, g := pc.out, pc.out.g
	if o.err != nil || g.lead == nil {
		return true
	}
	at := header.Size + header.BodySize(header.Frag)
	for o.frags < maxFrags && o.next < o.limit && (g.queues.control.n == 0 || !g.nearQuota()) {
		n := min(o.limit-o.next, g.lead.eager-at)
		if o.limit <= evenFrags {
			n = min(n, evenFrag)
		}
		size := at
		if o.layout != nil {
			size += n
		}
		f := s.newOutMsg(size)
		h := header.Header{Kind: header.Frag, Tag: o.peer, Length: uint32(n)}
		h.Put(f.buf)
		header.PutUint64(f.buf[header.Size:], uint64(o.next))
		if o.layout != nil {
			p := driver.Packet{Data: o.layout}
			c := p.Cursor()
			c.Seek(o.next)
			c.Gather(f.buf[at:])
		} else {
			f.iov[1] = o.buf[o.next : o.next+n]
		}
		o.next += n
		o.frags++
		f.frag = o
		g.sendControl(f)
		if g.lead == nil || o.err != nil {
			return true
		}
	}
	return o.next == o.limit && o.frags == 0
}

// movePieces posts and polls what is under way.
func (s *Session) movePieces() bool {
	moved := false
	for i := 0; i < len(s.transfers.pieces); i++ {
		pc := s.transfers.pieces[i]
		frags := 0
		if pc.kind == pieceFrags {
			frags = pc.out.next
		}
		done, err := pc.poll(s)
		if !done {
			moved = moved || pc.kind == pieceFrags && pc.out.next != frags
			continue
		}
		moved = true
		if i < len(s.transfers.pieces) && s.transfers.pieces[i] == pc {
			s.removePiece(i)
			i--
		} else {
			s.forgetPiece(pc)
		}
		s.ended(pc, err)
	}
	return moved
}

// forgetPiece removes a piece whose index has changed.
func (s *Session) forgetPiece(pc *piece) {
	if i := slices.Index(s.transfers.pieces, pc); i >= 0 {
		s.removePiece(i)
	}
}

// ended notifies the halves of the message that the driver has given a piece back.
func (s *Session) ended(pc *piece, err error) {
	in, out, c, kind, l := pc.in, pc.out, pc.chunk, pc.kind, pc.l
	if kind == piecePut && err == nil {
		out.g.sendPart(header.Done, out.peer, header.Part{Chunk: c.ID}, nil)
	}
	s.freePiece(pc)
	switch {
	case kind == pieceRelease:
		out.releasing = false
		s.settleOut(out)
	case in != nil && err == nil:
		in.Done(c.ID)
		s.advance(in)
	case in != nil:
		in.Failed(c.ID)
		if in.continuesWithout(l, err) {
			s.advance(in)
			return
		}
		in.fail(err)
		s.cancelPieces(in)
		s.settleIn(in)
	default:
		out.Left(c.Len, err == nil)
		if err != nil {
			out.lostChunk(l, err)
		}
		s.settleOut(out)
	}
}

// cancelPieces asks the drivers for a message's memory back.
func (s *Session) cancelPieces(in *incoming) {
	for _, pc := range s.transfers.pieces {
		if pc.in == in && pc.kind == pieceRecv && pc.posted {
			_ = pc.l.large.RecvCancel(&pc.p)
		}
	}
}
