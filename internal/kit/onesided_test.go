package kit_test

import (
	"errors"
	"math"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// field is a peer's region of 64 bytes.
type field driver.Access

func (field) Len() int                { return 64 }
func (f field) Access() driver.Access { return driver.Access(f) }

func TestCheckOp(t *testing.T) {
	can := &driver.OneSidedCapabilities{MaxPut: 32, MaxGet: 16, Atomics64: driver.AtomicsOf(driver.Add)}
	const all = field(driver.RemoteRead | driver.RemoteWrite | driver.RemoteAtomic)
	b := func(n int) []byte { return make([]byte, n) }
	for name, c := range map[string]struct {
		kind kit.OpKind
		op   driver.Op
		base uint64
		want error
	}{
		"put":                 {kit.OpPut, driver.Op{Remote: all, Local: b(32), Offset: 32}, 1, nil},
		"put that is long":    {kit.OpPut, driver.Op{Remote: all, Local: b(33)}, 0, driver.ErrTooLong},
		"get":                 {kit.OpGet, driver.Op{Remote: all, Local: b(16), Offset: 48}, 1, nil},
		"get that is long":    {kit.OpGet, driver.Op{Remote: all, Local: b(17)}, 0, driver.ErrTooLong},
		"past the end":        {kit.OpGet, driver.Op{Remote: all, Local: b(2), Offset: 63}, 0, driver.ErrBounds},
		"before the start":    {kit.OpGet, driver.Op{Remote: all, Local: b(2), Offset: -1}, 0, driver.ErrBounds},
		"offset that is huge": {kit.OpGet, driver.Op{Remote: all, Local: b(2), Offset: math.MaxInt}, 0, driver.ErrBounds},
		"posted":              {kit.OpPut, driver.Op{Remote: all, Driver: driver.OpState{Phase: driver.Posted}}, 0, driver.ErrInvalid},
		"put without right":   {kit.OpPut, driver.Op{Remote: field(driver.RemoteRead), Local: b(1)}, 0, driver.ErrAccess},
		"get without right":   {kit.OpGet, driver.Op{Remote: field(driver.RemoteWrite), Local: b(1)}, 0, driver.ErrAccess},
		"add without right":   {kit.OpAtomic, driver.Op{Remote: field(driver.RemoteRead), Size: 8}, 0, driver.ErrAccess},
		"add":                 {kit.OpAtomic, driver.Op{Remote: all, Size: 8, Offset: 8}, 8, nil},
		"add of 4 bytes":      {kit.OpAtomic, driver.Op{Remote: all, Size: 4}, 0, driver.ErrUnsupported},
		"add of no bytes":     {kit.OpAtomic, driver.Op{Remote: all}, 0, driver.ErrUnsupported},
		"or":                  {kit.OpAtomic, driver.Op{Remote: all, Size: 8, Atomic: driver.Or}, 0, driver.ErrUnsupported},
		"unknown atomic":      {kit.OpAtomic, driver.Op{Remote: all, Size: 8, Atomic: 9}, 0, driver.ErrUnsupported},
		"misaligned add":      {kit.OpAtomic, driver.Op{Remote: all, Size: 8, Offset: 4}, 0, driver.ErrAlignment},
		"misaligned region":   {kit.OpAtomic, driver.Op{Remote: all, Size: 8, Offset: 8}, 4, driver.ErrAlignment},
	} {
		n, err := kit.CheckOp(&c.op, c.kind, can, c.base)
		if !errors.Is(err, c.want) || err == nil && n != max(len(c.op.Local), c.op.Size) {
			t.Errorf("%s: %d bytes, error %v, want %v", name, n, err, c.want)
		}
	}
}
