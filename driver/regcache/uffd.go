package regcache

import "encoding/binary"

// The part of linux/userfaultfd.h that is needed.
const (
	uffdUserModeOnly = 1 // Linux 5.11: no privilege is needed, as no kernel faults are asked for

	uffdAPI        = 0xaa
	uffdioAPI      = 0xc018aa3f
	uffdioRegister = 0xc020aa00
	uffdioUnreg    = 0x8010aa01
	uffdioWP       = 0xc018aa06

	uffdModeWP = 1 << 1

	uffdFeatureRemap  = 1 << 2
	uffdFeatureRemove = 1 << 3
	uffdFeatureUnmap  = 1 << 6

	uffdEventRemap  = 0x14
	uffdEventRemove = 0x15
	uffdEventUnmap  = 0x16

	uffdMessageSize = 32
)

// uffd is a userfaultfd that reports what happens to mappings, and nothing that
// happens inside them.
type uffd struct{ fd int }

// uffdEvent is a mapping that went: [lo, hi). For a remap, its pages are at to.
type uffdEvent struct {
	kind   byte
	lo, hi uintptr
	to     uintptr
}

func parseEvent(m []byte) uffdEvent {
	arg := func(i int) uintptr { return uintptr(binary.NativeEndian.Uint64(m[8+8*i:])) }
	e := uffdEvent{kind: m[0], lo: arg(0), hi: arg(1)}
	if e.kind == uffdEventRemap {
		e.to, e.hi = arg(1), arg(0)+arg(2)
	}
	return e
}
