//go:build linux

package toy

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// A key: incarnation of the context, region, length, access, checksum.
const keySize = 32

// region is registered memory. A reference keeps it; it does not move.
type region struct {
	c      *nicContext
	id     uint64
	b      []byte
	access driver.Access
}

func (c *nicContext) Register(b []byte, access driver.Access) (driver.Region, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.IsClosed() {
		return nil, wrap("register", driver.ErrClosed)
	}
	if len(b) == 0 || access > driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic {
		return nil, wrap("register", driver.ErrInvalid)
	}
	c.regionN++
	r := &region{c: c, id: c.regionN, b: b, access: access}
	c.regions[r.id] = r
	return r, nil
}

func (r *region) Bytes() []byte { return r.b }

func (r *region) Key() []byte {
	k := binary.LittleEndian.AppendUint64(nil, r.c.Incarnation)
	k = binary.LittleEndian.AppendUint64(k, r.id)
	k = binary.LittleEndian.AppendUint64(k, uint64(len(r.b)))
	k = binary.LittleEndian.AppendUint32(k, uint32(r.access))
	return binary.LittleEndian.AppendUint32(k, crc32.ChecksumIEEE(k))
}

func (r *region) Deregister() error {
	r.c.Mu.Lock()
	defer r.c.Mu.Unlock()
	if r.c.regions[r.id] != r {
		return wrap("deregister", driver.ErrClosed)
	}
	switch r.c.fault {
	case "stale-key-works":
		return nil
	case "late-write":
		b := r.b
		time.AfterFunc(10*time.Millisecond, func() { b[0] ^= 0xff })
	}
	if b := r.b; r.c.fault == "left-forgotten" && r.c.Conns.Len() == 0 {
		time.AfterFunc(10*time.Millisecond, func() { b[0] ^= 0xff })
	}
	delete(r.c.regions, r.id)
	return nil
}

// remote is a peer's region.
type remote struct {
	id     uint64
	n      int
	access driver.Access
}

func (r *remote) Len() int              { return r.n }
func (r *remote) Access() driver.Access { return r.access }

func (n *conn) Import(k []byte) (driver.RemoteRegion, error) {
	if n.State() != kit.StateUp {
		return nil, n.Failure("import")
	}
	ok := len(k) == keySize && crc32.ChecksumIEEE(k[:28]) == binary.LittleEndian.Uint32(k[28:])
	if n.c.fault != "key-trusted" && !ok || len(k) < keySize {
		return nil, n.Fault("import", driver.ErrRemoteKey)
	}
	if binary.LittleEndian.Uint64(k) != n.peerInc && n.c.fault != "stale-region" && n.c.fault != "key-trusted" {
		return nil, n.Fault("import", driver.ErrRemoteKey)
	}
	return &remote{
		id: binary.LittleEndian.Uint64(k[8:]), n: int(binary.LittleEndian.Uint64(k[16:])),
		access: driver.Access(binary.LittleEndian.Uint32(k[24:])),
	}, nil
}

// forgives reports whether a fault takes an operation of size bytes that the kit has refused.
func (c *nicContext) forgives(err error, op *driver.Op, size int) bool {
	switch c.fault {
	case "ignore-access":
		return errors.Is(err, driver.ErrAccess)
	case "any-alignment":
		return errors.Is(err, driver.ErrAlignment)
	case "bounds-overflow":
		return errors.Is(err, driver.ErrBounds) && op.Offset+size <= op.Remote.Len()
	}
	return false
}

func (n *conn) postOp(op *driver.Op, kind kit.OpKind) error {
	if n.State() != kit.StateUp || !n.Enter() {
		return n.Failure(kind.String())
	}
	defer n.Leave()
	r, ok := op.Remote.(*remote)
	if !ok {
		return n.Fault(kind.String(), driver.ErrRemoteKey)
	}
	size, err := kit.CheckOp(op, kind, n.c.Props.Capabilities.OneSided, 0)
	if err != nil && !n.c.forgives(err, op, size) {
		return n.Fault(kind.String(), err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	slot := slices.Index(n.ops[:], nil)
	switch {
	case slot < 0 && n.c.fault == "op-lost":
		op.Driver = driver.OpState{Phase: driver.Posted}
		return nil
	case slot < 0:
		return n.Busy()
	case n.over:
		return n.Failure("operation")
	}
	n.opGen++
	op.Driver = driver.OpState{Phase: driver.Posted, Ticket: n.opGen*opDepth + uint64(slot)}
	n.ops[slot] = op
	n.opsBusy++
	h := header{kind: opFrames[kind], id: op.Driver.Ticket, a: r.id, b: uint64(op.Offset), size: uint8(op.Size), op: uint8(op.Atomic)}
	switch kind {
	case kit.OpPut:
		h.len = uint32(size)
	case kit.OpGet:
		h.c = uint64(size)
	case kit.OpAtomic:
		h.len, h.c = 8, op.Operand
	}
	n.Tally.CountOp(kind)
	n.ctrl = append(n.ctrl, frame{h: h, op: op})
	n.work.Signal()
	return nil
}

var opFrames = [...]kind{kit.OpPut: putFrame, kit.OpGet: getFrame, kit.OpAtomic: atomicFrame}

func (n *conn) PutPost(op *driver.Op) error { return n.postOp(op, kit.OpPut) }

func (n *conn) GetPost(op *driver.Op) error { return n.postOp(op, kit.OpGet) }

func (n *conn) AtomicPost(op *driver.Op) error { return n.postOp(op, kit.OpAtomic) }

func (n *conn) OpPoll(op *driver.Op) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch op.Driver.Phase {
	case driver.Posted:
		return false, nil
	case driver.Done:
		op.Driver.Phase = driver.Idle
		return true, op.Driver.Err
	}
	if n.State() == kit.StateClosed {
		return true, n.Failure("operation")
	}
	return true, n.Fault("operation", driver.ErrInvalid)
}

func (n *conn) Flush(ctx context.Context) error {
	wakeup := n.Sleep()
	defer n.Awake()
	for {
		n.mu.Lock()
		busy := n.opsBusy
		n.mu.Unlock()
		if err := n.Failure("flush"); err != nil || busy == 0 || n.c.fault == "flush-returns-early" {
			return err
		}
		select {
		case <-wakeup:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Fence implements driver.OneSided. The stream keeps the order.
func (n *conn) Fence() error { return n.Failure("fence") }

var statuses = [...]error{nil, driver.ErrRemoteKey, driver.ErrAccess, driver.ErrBounds, driver.ErrAlignment, driver.ErrUnsupported}

func status(err error) uint8 {
	for k, e := range statuses {
		if e == err {
			return uint8(k)
		}
	}
	return 1
}

// serve does at the target what a peer asks for.
func (n *conn) serve(h *header, data []byte) {
	c := n.c
	reply := frame{h: header{kind: replyFrame, id: h.id}}
	c.Mu.Lock()
	result, out, err := n.apply(h, data)
	c.Mu.Unlock()
	reply.h.a, reply.h.status = result, status(err)
	reply.data, reply.h.len = out, uint32(len(out))
	n.mu.Lock()
	n.ctrl = append(n.ctrl, reply)
	n.work.Signal()
	n.mu.Unlock()
}

// apply is serve under the context's lock, which Deregister takes as well.
func (n *conn) apply(h *header, data []byte) (result uint64, out []byte, err error) {
	r := n.c.regions[h.a]
	if r == nil {
		return 0, nil, driver.ErrRemoteKey
	}
	size, need := len(data), driver.RemoteWrite
	switch h.kind {
	case getFrame:
		size, need = int(h.c), driver.RemoteRead
	case atomicFrame:
		size, need = int(h.size), driver.RemoteAtomic
	}
	off := int(h.b)
	switch {
	case r.access&need == 0 && n.c.fault != "ignore-access":
		return 0, nil, driver.ErrAccess
	case n.c.fault == "bounds-overflow" && !(off >= 0 && off <= len(r.b)-size):
		return 0, nil, nil
	case off < 0 || size < 0 || off > len(r.b) || size > len(r.b)-off || size > maxPut:
		return 0, nil, driver.ErrBounds
	}
	switch h.kind {
	case putFrame:
		if n.c.fault == "put-short" && size > 0 {
			data = data[:size-1]
		}
		copy(r.b[off:], data)
	case getFrame:
		out = n.alloc(size)
		copy(out, r.b[off:off+size])
		if n.c.fault == "get-short" && size > 0 {
			out[size-1] ^= 1
		}
	case atomicFrame:
		p := unsafe.Pointer(&r.b[off])
		if uintptr(p)%uintptr(h.size) != 0 && n.c.fault != "any-alignment" {
			return 0, nil, driver.ErrAlignment
		}
		result = n.c.modify(p, h, binary.LittleEndian.Uint64(data))
	}
	return result, out, nil
}

// modify carries an operation out and returns the old value.
func (c *nicContext) modify(p unsafe.Pointer, h *header, compare uint64) uint64 {
	op, size := driver.AtomicOp(h.op), int(h.size)
	switch c.fault {
	case "atomic-torn":
		var copied uint64
		now := driver.Or.Apply(p, size, 0, 0)
		driver.Swap.Apply(unsafe.Pointer(&copied), size, now, 0)
		op.Apply(unsafe.Pointer(&copied), size, h.c, compare)
		time.Sleep(time.Microsecond) // so that operations of other peers come in between
		driver.Swap.Apply(p, size, driver.Or.Apply(unsafe.Pointer(&copied), size, 0, 0), 0)
		return now
	case "atomic-wrong-result":
		op.Apply(p, size, h.c, compare)
		return driver.Or.Apply(p, size, 0, 0)
	}
	return op.Apply(p, size, h.c, compare)
}

// complete ends an operation of ours.
func (n *conn) complete(h *header, data []byte) {
	n.mu.Lock()
	op := n.ops[h.id%opDepth]
	if op == nil || op.Driver.Ticket != h.id || int(h.status) >= len(statuses) {
		n.c.badFrames.Add(1)
		n.mu.Unlock()
		return
	}
	n.ops[h.id%opDepth] = nil
	n.opsBusy--
	if len(data) > 0 {
		copy(op.Local, data)
	}
	op.Result = h.a
	op.Driver.Phase, op.Driver.Err = driver.Done, nil
	if err := statuses[h.status]; err != nil {
		op.Driver.Err = n.Fault("operation", err)
	}
	n.mu.Unlock()
	n.ring()
}
