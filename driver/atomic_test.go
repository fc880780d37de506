package driver_test

import (
	"testing"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

func TestAtomicsReturnTheOldValueAndChangeNothingElse(t *testing.T) {
	for _, c := range []struct {
		op                             driver.AtomicOp
		before, operand, compare, want uint64
	}{
		{driver.Add, 0xffff_ffff_ffff_fff0, 0x20, 0, 0x10},
		{driver.And, 0xff00_ff00_ff00_ff00, 0x0ff0_0ff0_0ff0_0ff0, 0, 0x0f00_0f00_0f00_0f00},
		{driver.Or, 0xff00_ff00_ff00_ff00, 0x0ff0_0ff0_0ff0_0ff0, 0, 0xfff0_fff0_fff0_fff0},
		{driver.Xor, 0xff00_ff00_ff00_ff00, 0x0ff0_0ff0_0ff0_0ff0, 0, 0xf0f0_f0f0_f0f0_f0f0},
		{driver.Swap, 1, 0x1234_5678_9abc_def0, 7, 0x1234_5678_9abc_def0},
		{driver.CompareSwap, 0x5_0000_0005, 0x6_0000_0006, 0x5_0000_0005, 0x6_0000_0006},
		{driver.CompareSwap, 0x5_0000_0005, 0x6_0000_0006, 0x4_0000_0004, 0x5_0000_0005},
	} {
		mem := [3]uint64{^uint64(0), c.before, ^uint64(0)}
		at := unsafe.Pointer(&mem[1])
		if old := c.op.Apply(at, 8, c.operand, c.compare); old != c.before {
			t.Errorf("%v: returns %#x as the old value, not %#x", c.op, old, c.before)
		}
		if want := [3]uint64{^uint64(0), c.want, ^uint64(0)}; mem != want {
			t.Errorf("%v of 8 bytes: got %#x, want %#x", c.op, mem, want)
		}
		half := [3]uint32{^uint32(0), uint32(c.before), ^uint32(0)}
		if old := c.op.Apply(unsafe.Pointer(&half[1]), 4, c.operand, c.compare); old != c.before&0xffff_ffff {
			t.Errorf("%v of 4 bytes: returns %#x as the old value, not %#x", c.op, old, uint32(c.before))
		}
		if want := [3]uint32{^uint32(0), uint32(c.want), ^uint32(0)}; half != want {
			t.Errorf("%v of 4 bytes: got %#x, want %#x", c.op, half, want)
		}
	}
}
