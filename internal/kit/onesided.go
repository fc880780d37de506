package kit

import (
	"fmt"

	"github.com/bywash/bywash/driver"
)

// OpKind is which call of [driver.OneSided] posted an operation.
type OpKind uint8

// The kinds of operations.
const (
	OpPut OpKind = iota
	OpGet
	OpAtomic
)

// String returns the name for errors.
func (k OpKind) String() string { return [...]string{"put", "get", "atomic"}[k%3] }

// CheckOp returns how many bytes of the peer's region an operation touches, or why it cannot be posted. Op.Remote was
// imported on this instance; can is what the context announces; base is the region's address, from which the alignment
// of an atomic follows.
func CheckOp(op *driver.Op, kind OpKind, can *driver.OneSidedCapabilities, base uint64) (n int, err error) {
	n, limit, need := len(op.Local), can.MaxPut, driver.RemoteWrite
	switch kind {
	case OpGet:
		limit, need = can.MaxGet, driver.RemoteRead
	case OpAtomic:
		n, limit, need = op.Size, 8, driver.RemoteAtomic
	}
	r := op.Remote
	switch {
	case op.Driver.Phase != driver.Idle:
		err = fmt.Errorf("%w: the operation is posted already, or its outcome was not polled", driver.ErrInvalid)
	case kind == OpAtomic && !(n == 4 && can.Atomics32.Has(op.Atomic) || n == 8 && can.Atomics64.Has(op.Atomic)):
		err = fmt.Errorf("%w: atomic %v of %d bytes", driver.ErrUnsupported, op.Atomic, n)
	case n > limit:
		err = fmt.Errorf("%w: %d bytes, limit is %d", driver.ErrTooLong, n, limit)
	case r.Access()&need == 0:
		err = driver.ErrAccess
	case op.Offset < 0 || op.Offset > r.Len() || n > r.Len()-op.Offset:
		err = fmt.Errorf("%w: %d bytes at %d of %d", driver.ErrBounds, n, op.Offset, r.Len())
	case kind == OpAtomic && (base+uint64(op.Offset))%uint64(n) != 0:
		err = fmt.Errorf("%w: atomic of %d bytes at offset %d", driver.ErrAlignment, n, op.Offset)
	}
	return n, err
}

// CountOp counts an operation.
func (t *Tallies) CountOp(k OpKind) {
	switch k {
	case OpPut:
		t.Puts.Add(1)
	case OpGet:
		t.Gets.Add(1)
	default:
		t.Atomics.Add(1)
	}
}
