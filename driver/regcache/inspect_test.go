//go:build linux && !(386 || arm || mips || mipsle)

package regcache

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
)

// isFreed reports whether the collector took the buffer.
func (x registration) isFreed() bool {
	select {
	case <-x.freed:
		return true
	default:
		return false
	}
}

// inspect describes the first byte at which an object is not what it should be, while a device has the registration x:
// whether the collector has freed the registered memory (a pinning bug), and the page frames, which distinguish a frame
// that the kernel gave away (the device still has it) from one that changed under a pin.
func inspect(x registration, o canary, want []byte) string {
	lo, hi := span(o.mem)
	for i, b := range o.mem {
		if b == want[i] {
			continue
		}
		var before, now uint64
		if all := frames(lo, hi); all != nil && o.frames != nil {
			k := (int(lo)+i)/page - int(lo)/page
			before, now = o.frames[k], all[k]
		}
		return fmt.Sprintf("object at %#x, byte %d is %#x, not %#x; registered memory at %#x, freed: %v; page frame %#x before, %#x now, which the device has: %v",
			lo, i, b, want[i], x.at, x.isFreed(), before, now, slices.Contains(x.frames, now))
	}
	return fmt.Sprintf("object at %#x: every byte is right by now", lo)
}

// frames returns the page frame of each page of [lo, hi), 0 for those that are not present; nil where the kernel does
// not report it: without CAP_SYS_ADMIN every frame reads as 0.
func frames(lo, hi uintptr) []uint64 {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil
	}
	defer f.Close()
	first, end := lo/pageSize, (hi+pageSize-1)/pageSize
	raw := make([]byte, 8*(end-first))
	if _, err := f.ReadAt(raw, int64(8*first)); err != nil {
		return nil
	}
	const present, frame = 1 << 63, 1<<55 - 1
	all := make([]uint64, end-first)
	reported := false
	for i := range all {
		if v := binary.NativeEndian.Uint64(raw[8*i:]); v&present != 0 {
			all[i] = v & frame
			reported = reported || all[i] != 0
		}
	}
	if !reported {
		return nil
	}
	return all
}
