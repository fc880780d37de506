package session

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/header"
)

// ErrUnknown means that a connection ended while an atomic was under way: it may
// or may not have been carried out. The error is ErrBroken or ErrClosed as well.
var ErrUnknown = errors.New("connection lost: the atomic may or may not have been executed")

// Atomic is an operation on an integer of a remote region.
type Atomic struct {
	Op      driver.AtomicOp
	Size    int    // 4 or 8 bytes
	Operand uint64 // for CompareSwap the new value
	Compare uint64 // CompareSwap: the value expected
	Fetch   bool   // whether Status.Value is wanted
}

// Kinds of operations.
const (
	opPut uint8 = iota
	opGet
	opAtomic // and the driver's number of the operation
)

// oneSided are the operations of a session, and the regions that peers may access.
type oneSided struct {
	regions map[uint64]*Region
	revoked map[*Region]struct{} // deregistered, and not released by all drivers yet
	ops     slab[*Op]            // by message
	live    []*Op                // in the order of their starts; nil: has ended, but not the last
	holes   int                  // of live, those that are nil
	pass    uint64               // number of passes over live
}

// all returns the operations in progress. The caller may end them.
func (v *oneSided) all() iter.Seq[*Op] {
	return func(yield func(*Op) bool) {
		for i := 0; i < len(v.live); i++ {
			if o := v.live[i]; o != nil && !yield(o) {
				return
			}
		}
	}
}

// any reports whether f holds for an operation in progress.
func (v *oneSided) any(f func(*Op) bool) bool {
	return slices.ContainsFunc(v.live, func(o *Op) bool { return o != nil && f(o) })
}

// compact closes the holes.
func (v *oneSided) compact() {
	if v.holes == 0 {
		return
	}
	v.live = slices.DeleteFunc(v.live, func(o *Op) bool { return o == nil })
	for i, o := range v.live {
		o.at = i
	}
	v.holes = 0
}

// gateOps are the one-sided operations of a gate.
type gateOps struct {
	live       int    // in progress
	fences     []int  // how many of those begin before each pending fence, and after the last
	fence      uint64 // the number of the first pending fence
	unanswered int    // operations by message without a reply
}

// Op is a one-sided operation in progress.
type Op struct {
	d        driver.Op
	g        *Gate
	l        *link // the driver's: native
	req      *Request
	at       int // in oneSided.live
	what     uint8
	remote   *Remote
	off      int
	buf      []byte
	atomic   Atomic
	posted   bool
	fence    uint64 // how many fences of the gate are before it
	id       uint64 // by messages
	next     int    // bytes asked for
	done     int    // bytes answered
	flying   int    // messages not answered
	err      error
	started  bool
	sent     int // messages that a driver has taken
	inDriver int // of these, messages that it has not given back
	replies  int
	dropped  bool // the connection has ended; inDriver must become 0
	again    bool // over another rail than the one that it was begun on
	nextFree *Op
}

func (s *Session) newOp() *Op {
	o := s.spare.ops
	if o == nil {
		return new(Op)
	}
	s.spare.ops = o.nextFree
	o.nextFree = nil
	return o
}

// freeOp frees an operation that no driver has. Its gate is cleared, by which other users see that it is gone.
func (s *Session) freeOp(o *Op) {
	*o = Op{nextFree: s.spare.ops}
	s.spare.ops = o
}

// Iput starts to write buf into the peer's region at byte off. When the request is done, the data is visible to the
// peer's CPU. Only Fence orders operations among each other; nothing orders them with messages: wait for the request, or
// Flush, before you send what announces the data. Iput or its request fails with driver.ErrBounds, ErrAccess or
// ErrAlignment if the operation does not fit the region, and with driver.ErrRemoteKey if the region was deregistered.
func (g *Gate) Iput(r *Remote, off int, buf []byte) (*Request, error) {
	return g.operate("put", opPut, r, off, buf, Atomic{})
}

// Put is Iput, and blocks until it is done.
func (g *Gate) Put(ctx context.Context, r *Remote, off int, buf []byte) error {
	_, err := waitOp(ctx)(g.Iput(r, off, buf))
	return err
}

// Iget starts to read the peer's region from byte off into buf. Errors are those of Iput.
func (g *Gate) Iget(r *Remote, off int, buf []byte) (*Request, error) {
	return g.operate("get", opGet, r, off, buf, Atomic{})
}

// Get is Iget, and blocks until it is done.
func (g *Gate) Get(ctx context.Context, r *Remote, off int, buf []byte) error {
	_, err := waitOp(ctx)(g.Iget(r, off, buf))
	return err
}

// Iatomic starts an atomic operation on the integer at byte off of the peer's region; off is a multiple of the
// integer's size. Errors are those of Iput.
func (g *Gate) Iatomic(r *Remote, off int, a Atomic) (*Request, error) {
	what := opAtomic + uint8(min(a.Op, driver.CompareSwap+1)) // an operation that does not exist is refused
	return g.operate(a.Op.String(), what, r, off, nil, a)
}

// Atomic is Iatomic, and blocks until it is done. With Fetch set it returns the previous value.
func (g *Gate) Atomic(ctx context.Context, r *Remote, off int, a Atomic) (uint64, error) {
	st, err := waitOp(ctx)(g.Iatomic(r, off, a))
	return st.Value, err
}

// FetchAdd adds to the 64-bit integer at off and returns the previous value. It blocks until the operation is done.
func (g *Gate) FetchAdd(ctx context.Context, r *Remote, off int, add uint64) (uint64, error) {
	return g.Atomic(ctx, r, off, Atomic{Op: driver.Add, Size: 8, Operand: add, Fetch: true})
}

// CompareSwap replaces the 64-bit integer at off by new if it equals old. It returns the previous value and blocks
// until the operation is done.
func (g *Gate) CompareSwap(ctx context.Context, r *Remote, off int, old, new uint64) (uint64, error) {
	return g.Atomic(ctx, r, off, Atomic{Op: driver.CompareSwap, Size: 8, Operand: new, Compare: old, Fetch: true})
}

func waitOp(ctx context.Context) func(*Request, error) (Status, error) {
	return func(r *Request, err error) (Status, error) {
		if err != nil {
			return Status{}, err
		}
		return r.Wait(ctx)
	}
}

// Fence orders one-sided operations: those that begin on this gate after the fence take effect after those before it.
// It never blocks.
func (g *Gate) Fence() {
	g.s.mu.lock()
	defer g.s.leave()
	if n := len(g.ops.fences); n > 0 && g.ops.fences[n-1] > 0 {
		g.ops.fences = append(g.ops.fences, 0)
	}
}

// fenced counts an operation that begins: it waits until none is left before the fence before it.
func (g *Gate) fenced(o *Op) {
	if len(g.ops.fences) == 0 {
		g.ops.fences = append(g.ops.fences, 0)
	}
	last := len(g.ops.fences) - 1
	g.ops.fences[last]++
	o.fence = g.ops.fence + uint64(last)
}

// unfenced counts down an operation that is over.
func (g *Gate) unfenced(o *Op) {
	g.ops.fences[o.fence-g.ops.fence]--
	for len(g.ops.fences) > 1 && g.ops.fences[0] == 0 {
		g.ops.fences = g.ops.fences[:copy(g.ops.fences, g.ops.fences[1:])]
		g.ops.fence++
	}
}

// Flush blocks until all one-sided operations on this gate are done, or ctx ends. Requests of these operations must
// still be given back with Wait or Test.
func (g *Gate) Flush(ctx context.Context) error {
	return g.fault("flush", g.s.await(ctx, func() bool { return g.ops.live == 0 }))
}

func (o *Op) check() error {
	n := len(o.buf)
	need := driver.RemoteWrite
	switch {
	case o.what == opGet:
		need = driver.RemoteRead
	case o.what >= opAtomic:
		need, n = driver.RemoteAtomic, o.atomic.Size
		if o.atomic.Op > driver.CompareSwap || n != 4 && n != 8 {
			return fmt.Errorf("%w: no such atomic", ErrInvalid)
		}
		if o.off%n != 0 {
			return driver.ErrAlignment
		}
	}
	switch {
	case o.remote == nil || o.remote.g != o.g:
		return fmt.Errorf("%w: the region is not of this gate's peer", ErrInvalid)
	case o.remote.access&need == 0:
		return driver.ErrAccess
	case o.off < 0 || n > o.remote.n || o.off > o.remote.n-n:
		return driver.ErrBounds
	}
	return nil
}

func (g *Gate) operate(name string, what uint8, remote *Remote, off int, buf []byte, atomic Atomic) (*Request, error) {
	s := g.s
	s.mu.lock()
	defer s.leave()
	if err := g.ready(name); err != nil {
		return nil, err
	}
	o := s.newOp()
	o.g, o.what, o.remote, o.off, o.buf, o.atomic = g, what, remote, off, buf, atomic
	if err := o.check(); err != nil {
		s.freeOp(o)
		return nil, g.fault(name, err)
	}
	r := s.request(name)
	r.g, r.remote = g, true
	o.req = r
	g.ops.live++
	g.fenced(o)
	o.at = len(s.oneSided.live)
	s.oneSided.live = append(s.oneSided.live, o)
	s.oneSided.pass++
	if g.state == gateIdle {
		g.connect()
	}
	if !o.move(s) {
		s.kickMover()
	}
	return r, nil
}

func (s *Session) removeOp(o *Op) {
	v := &s.oneSided
	v.live[o.at] = nil
	v.holes++
	for n := len(v.live); n > 0 && v.live[n-1] == nil; n-- {
		v.live = v.live[:n-1]
		v.holes--
	}
	o.g.unfenced(o)
}

// moveOps moves on all operations under way.
func (s *Session) moveOps() bool {
	moved := false
	s.oneSided.pass++
	for o := range s.oneSided.all() {
		moved = o.move(s) || moved
	}
	s.oneSided.compact()
	return moved
}

// move takes the next step of an operation. True when it is over, and gone.
func (o *Op) move(s *Session) bool {
	g := o.g
	if o.dropped {
		return false
	}
	if !o.started {
		if o.fence != g.ops.fence {
			return false // one from before the fence is under way
		}
		if g.state != gateUp || g.pausing.state != notPaused || o.again && !g.clear {
			return false
		}
		if !g.lead.helloReceived {
			return false // Hello says whether keys from before hold
		}
		o.started = true
		o.choose()
	}
	if o.l == nil {
		return o.send(s)
	}
	if !o.posted {
		if o.l.full == s.oneSided.pass {
			return false
		}
		var err error
		switch o.what {
		case opPut:
			err = o.l.one.PutPost(&o.d)
		case opGet:
			err = o.l.one.GetPost(&o.d)
		default:
			err = o.l.one.AtomicPost(&o.d)
		}
		if err == driver.ErrBusy {
			o.l.full = s.oneSided.pass
			return false
		}
		if err != nil && isGone(err) && g.others(o.l) {
			return o.repeat(s, err) // nothing was done
		}
		if err != nil {
			o.l.ends(err)
			o.end(s, err)
			return true
		}
		o.posted = true
	}
	done, err := o.l.one.OpPoll(&o.d)
	if !done {
		return false
	}
	if err != nil && o.err == nil && o.what < opAtomic && isGone(err) && g.others(o.l) {
		return o.repeat(s, err)
	}
	o.l.ends(err)
	o.req.status.Value = o.d.Result
	o.end(s, err)
	return true
}

// repeat lets a put or get, which may be carried out twice, begin again over another rail, once the peer has reported
// over that rail (Resume) that it has given this rail up. Without that, bytes still on their way here could overwrite
// later puts.
func (o *Op) repeat(s *Session, err error) bool {
	l := o.l
	l.down(err)
	o.l, o.posted, o.started, o.again = nil, false, false, true
	if l.pieces--; l.dead {
		s.releaseLink(l)
	}
	return false
}

// choose takes the driver where it can do the operation, else messages.
func (o *Op) choose() {
	l := o.g.lead
	region, flags := o.remote.over(l)
	if region == nil || o.g.s.cfg.Emulate {
		return
	}
	one := l.nic.oneSided()
	switch n := len(o.buf); {
	case o.what == opPut && (!one.Put || n > one.MaxPut || (o.off|n)%max(one.PutAlignment, 1) != 0),
		o.what == opGet && (!one.Get || n > one.MaxGet || (o.off|n)%max(one.GetAlignment, 1) != 0),
		o.what >= opAtomic && flags&keyAtomics == 0:
		return
	}
	o.l = l
	l.pieces++
	o.d = driver.Op{
		Local: o.buf, Remote: region, Offset: o.off,
		Atomic: o.atomic.Op, Size: o.atomic.Size, Operand: o.atomic.Operand, Compare: o.atomic.Compare, Fetch: o.atomic.Fetch,
	}
}

// end completes an operation that no driver has, and gives it back.
func (o *Op) end(s *Session, err error) {
	s.removeOp(o)
	g, r := o.g, o.req
	g.ops.live--
	if l := o.l; l != nil {
		o.l = nil
		if l.pieces--; l.dead {
			s.releaseLink(l)
		}
	}
	if o.id != 0 {
		s.oneSided.ops.remove(o.id)
	}
	if err != nil && o.what >= opAtomic && isGone(err) && (o.posted || o.sent > 0) {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	s.freeOp(o)
	g.ended()
	s.complete(r, g.fault(r.op, err))
}

// How many messages of one operation are unanswered at most, and how many of all those on a gate: so that a peer that
// takes no answers cannot have this process keep more of them than that.
const (
	maxFlying     = 16
	maxUnanswered = 256
)

// send asks the peer's CPU to do it. True when all is answered.
func (o *Op) send(s *Session) bool {
	g := o.g
	if o.id == 0 {
		o.id = s.oneSided.ops.add(o)
	}
	if o.answered() {
		return false // until the driver has given the memory back
	}
	most := min(g.lead.eager, s.eager) - header.Size - header.BodySize(header.Op)
	for o.err == nil && o.flying < maxFlying && g.ops.unanswered < maxUnanswered &&
		(o.next < len(o.buf) || o.next == 0 && o.flying == 0 && o.done == 0) {
		n := min(len(o.buf)-o.next, most)
		op := header.Operation{
			ID: o.id, Region: o.remote.id, Offset: uint64(o.off + o.next), Length: uint32(n), What: o.what,
			Size: uint8(o.atomic.Size), Operand: o.atomic.Operand, Compare: o.atomic.Compare,
		}
		msg := s.newOutMsg(header.Size + header.BodySize(header.Op))
		h := header.Header{Kind: header.Op}
		if o.what == opPut {
			h.Length = uint32(n)
			if n > 0 {
				msg.iov[1] = o.buf[o.next : o.next+n]
			}
		}
		h.Put(msg.buf)
		op.Put(msg.buf[header.Size:])
		msg.id = o.id
		o.next += n
		o.flying++
		g.ops.unanswered++
		if n == 0 {
			o.done = -1 // asked for
		}
		g.sendControlInOrder(msg)
		if o.g == nil { // with the gate
			return false
		}
	}
	return false // replies end it
}

// Statuses of a reply.
var opErrors = [...]error{nil, driver.ErrRemoteKey, driver.ErrAccess, driver.ErrBounds, driver.ErrAlignment, driver.ErrInvalid}

// operation does what a peer asks for.
func (l *link) operation(body, data []byte) error {
	s, g := l.g.s, l.g
	var op header.Operation
	if err := op.Parse(body); err != nil {
		return err
	}
	if g.replies() >= maxUnanswered {
		return fmt.Errorf("%w: %w: peer has more than %d unanswered operations (limit of the protocol: no option raises it)",
			ErrBroken, ErrLimit, maxUnanswered)
	}
	most := l.eager - header.Size - header.BodySize(header.Reply)
	if op.What == opPut && int(op.Length) != len(data) || op.What != opPut && len(data) > 0 || int(op.Length) > most {
		return header.ErrMalformed
	}
	a := answer{kind: header.Reply, to: op.ID}
	if op.What == opGet { // read when the reply leaves: a waiting reply is small
		a.get, a.region, a.value, a.length = true, op.Region, op.Offset, op.Length
	} else {
		var out header.Outcome
		_, err := s.carryOut(&op, data, &out)
		a.status, a.value = opStatus(err), out.Result
	}
	g.answer(a)
	return nil
}

// carryOut checks and does an operation. It returns one of opErrors.
func (s *Session) carryOut(op *header.Operation, data []byte, out *header.Outcome) (answer []byte, err error) {
	r, ok := s.oneSided.regions[op.Region]
	if !ok {
		return nil, driver.ErrRemoteKey
	}
	n, need := uint64(op.Length), driver.RemoteWrite
	switch {
	case op.What == opGet:
		need = driver.RemoteRead
	case op.What >= opAtomic:
		n, need = uint64(op.Size), driver.RemoteAtomic
		if n != 4 && n != 8 || driver.AtomicOp(op.What-opAtomic) > driver.CompareSwap {
			return nil, driver.ErrInvalid
		}
	}
	switch {
	case r.access&need == 0:
		return nil, driver.ErrAccess
	case n > uint64(len(r.mem)) || op.Offset > uint64(len(r.mem))-n:
		return nil, driver.ErrBounds
	}
	mem := r.mem[op.Offset : op.Offset+n]
	switch {
	case op.What == opPut:
		copy(mem, data)
	case op.What == opGet:
		answer = mem
	case uintptr(unsafe.Pointer(&mem[0]))%uintptr(n) != 0:
		return nil, driver.ErrAlignment
	default:
		out.Result = driver.AtomicOp(op.What-opAtomic).Apply(unsafe.Pointer(&mem[0]), len(mem), op.Operand, op.Compare)
	}
	return answer, nil
}

// reply takes the answer to an operation.
func (l *link) reply(h *header.Header, body, data []byte) error {
	s := l.g.s
	var out header.Outcome
	if err := out.Parse(body); err != nil {
		return err
	}
	o, ok := s.oneSided.ops.get(h.Tag)
	if !ok || o.g != l.g {
		s.stats.Bad++
		return nil
	}
	if o.replies == o.sent {
		return errUnrequested
	}
	o.replies++
	o.flying--
	l.g.ops.unanswered--
	if int(out.Status) >= len(opErrors) {
		return header.ErrMalformed
	}
	if err := opErrors[out.Status]; err != nil {
		o.err = err
	}
	o.done = max(o.done, 0)
	if o.what == opGet && o.err == nil {
		if len(data) > o.next-o.done {
			return header.ErrMalformed
		}
		o.done += copy(o.buf[o.done:], data)
	}
	o.req.status.Value = out.Result
	if !o.answered() {
		o.send(s)
	} else if o.inDriver == 0 {
		o.end(s, o.err)
	}
	return nil
}

// dropOps fails the operations on a gate. Native operations are polled until the driver no longer uses their memory.
func (s *Session) dropOps(g *Gate, err error) {
	for o := range s.oneSided.all() {
		if o.g != g {
			continue
		}
		if o.l != nil && o.posted {
			o.err = err // another connection is not its
			continue
		}
		if g.close.finishing && !o.started {
			continue // the next connection's
		}
		if o.inDriver > 0 {
			o.dropped, o.err = true, err
			continue
		}
		o.end(s, err)
	}
}
