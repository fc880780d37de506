package regcache

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// verdict is the cause of bytes that are not what was written last.
type verdict string

const (
	freedWhileRegistered verdict = "the collector freed memory that was registered: a pinning bug"
	frameTaken           verdict = "the kernel gave a frame that the device still writes to another address: a pinning bug"
	wroteElsewhere       verdict = "the device wrote to memory outside its registration: a bug of the device or of its address"
	neverArrived         verdict = "the registered address has another frame than the device: the mapping was changed under a pin"
	emptiedBelow         verdict = "the frame is the same and its bytes are gone: the hypervisor took the page (balloon, free page reporting)"
	replaced             verdict = "the kernel put an empty frame there: the page was discarded or reclaimed, and no device wrote"
	emptied              verdict = "the bytes are zero, and page frames cannot be read: run as root to tell the kernel from the hypervisor"
	otherBytes           verdict = "neither zero nor what the device wrote: the program itself wrote there"
)

// evidence is what is known of a page whose bytes are wrong.
type evidence struct {
	registered bool     // the page is of the registered memory, not of another object
	freed      bool     // the collector freed the registered memory
	zero       bool     // the wrong bytes are all zero
	device     bool     // the wrong bytes are all what the device writes
	before     uint64   // page frame when the memory was registered or filled; 0 if unknown
	after      uint64   // page frame now; 0 if unknown
	deviceHas  []uint64 // page frames of the registration
	where      string
}

// verdict finds the cause. The order matters: freed memory explains everything that follows from it.
func (e evidence) verdict() verdict {
	known := e.before != 0 && e.after != 0
	switch {
	case e.freed:
		return freedWhileRegistered
	case !e.registered && known && slices.Contains(e.deviceHas, e.after):
		return frameTaken
	case e.registered && known && e.before != e.after:
		return neverArrived
	case e.device:
		return wroteElsewhere
	case e.zero && !known:
		return emptied
	case e.zero && e.before == e.after:
		return emptiedBelow
	case e.zero:
		return replaced
	default:
		return otherBytes
	}
}

func (e evidence) String() string {
	kind := "neither zero nor the device's pattern"
	if e.zero {
		kind = "zero"
	} else if e.device {
		kind = "the device's pattern"
	}
	return fmt.Sprintf("%s: %s; registered memory freed: %v; page frame %#x before, %#x now; the device's frames %#x\\nverdict: %s",
		e.where, kind, e.freed, e.before, e.after, e.deviceHas, e.verdict())
}

// isFreed reports whether the collector took the buffer.
func (x registration) isFreed() bool {
	select {
	case <-x.freed:
		return true
	default:
		return false
	}
}

// inspect says why an object has other bytes than want, while a device has the registration x. It looks at the first page
// that differs.
func inspect(x registration, o canary, want []byte) evidence {
	lo, hi := span(o.mem)
	e := evidence{freed: x.isFreed(), deviceHas: x.frames, registered: lo == x.at, zero: true, device: true}
	first := slices.IndexFunc(indices(len(o.mem)), func(i int) bool { return o.mem[i] != want[i] })
	if first < 0 {
		e.where = fmt.Sprintf("object at %#x: every byte is right by now", lo)
		return e
	}
	at := (int(lo)+first)&^(page-1) - int(lo)
	wrong, last := 0, first
	for i := max(at, 0); i < min(at+page, len(o.mem)); i++ {
		if o.mem[i] == want[i] {
			continue
		}
		wrong, last = wrong+1, i
		e.zero = e.zero && o.mem[i] == 0
	}
	e.device = !e.zero && devicePattern(o.mem[first:last+1])
	if now := frames(lo, hi); now != nil && o.frames != nil {
		k := (int(lo)+first)/page - int(lo)/page
		e.before, e.after = o.frames[k], now[k]
	}
	e.where = fmt.Sprintf("object at %#x, byte %d is %#x, not %#x (%d wrong in its page); the device has the memory at %#x",
		lo, first, o.mem[first], want[first], wrong, x.at)
	return e
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// devicePattern reports whether b is a piece of what the device writes: of any pattern, at any place.
func devicePattern(b []byte) bool {
	if len(b) < 8 {
		return false
	}
	for seed := range 256 {
		p := pattern(byte(seed), 251+len(b))
		for at := range 251 {
			if slices.Equal(p[at:at+8], b[:8]) && slices.Equal(p[at:at+len(b)], b) {
				return true
			}
		}
	}
	return false
}

// frames returns the page frame of each page of [lo, hi), 0 for those that are not present; nil where it is not told: without
// CAP_SYS_ADMIN every frame reads as 0.
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
	told := false
	for i := range all {
		if v := binary.NativeEndian.Uint64(raw[8*i:]); v&present != 0 {
			all[i] = v & frame
			told = told || all[i] != 0
		}
	}
	if !told {
		return nil
	}
	return all
}

// The diagnosis of TestHeapMemoryIsKeptWhileRegistered names the right cause for each cause that can be made.
func TestEvidence(t *testing.T) {
	d := newDMA(t)
	c := New(d, Config{})
	defer closeCache(t, c)
	x := registerAndForget(t, c, false)
	defer x.region.Release()
	root := x.frames != nil
	const v = 5
	k := 3 * page
	for _, tt := range []struct {
		name     string
		spoil    func(t *testing.T, o *canary, x *registration)
		want     verdict
		unknowns verdict // without page frames
	}{
		{"a byte that the program alters", func(_ *testing.T, o *canary, _ *registration) { o.mem[k+7] = 99 }, otherBytes, otherBytes},
		{"bytes that vanish from their frame", func(_ *testing.T, o *canary, _ *registration) {
			clear(aligned(o.mem)[k:][:page])
		}, emptiedBelow, emptied},
		{"a page that the kernel discards", func(t *testing.T, o *canary, _ *registration) {
			discard(t, aligned(o.mem)[k:][:page])
		}, replaced, emptied},
		{"a device that writes to another registration", func(t *testing.T, o *canary, _ *registration) {
			if err := d.receive(c, o.mem[k:][:100], 77); err != nil {
				t.Fatal(err)
			}
		}, wroteElsewhere, wroteElsewhere},
		{"a frame that the device still has", func(t *testing.T, o *canary, x *registration) {
			x.frames = o.frames
			o.mem[k] = 99
		}, frameTaken, otherBytes},
		{"a registered page that is replaced", func(t *testing.T, o *canary, x *registration) {
			discard(t, aligned(o.mem)[k:][:page])
			x.at, _ = span(o.mem)
		}, neverArrived, emptied},
		{"freed memory", func(_ *testing.T, o *canary, x *registration) {
			x.freed = make(chan struct{})
			close(x.freed)
			o.mem[k] = 0
		}, freedWhileRegistered, freedWhileRegistered},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, reg := canary{mem: filled8(v)}, x
			lo, hi := span(o.mem)
			o.frames = frames(lo, hi)
			tt.spoil(t, &o, &reg)
			want := tt.want
			if !root {
				want = tt.unknowns
			}
			e := inspect(reg, o, filled8(v))
			if got := e.verdict(); got != want {
				t.Errorf("verdict: %s\nwant:    %s\n%v", got, want, e)
			}
			if !strings.Contains(e.String(), string(want)) {
				t.Errorf("the verdict is not in the message: %v", e)
			}
		})
	}
}

// An object that is registered but not pinned is really freed, and the diagnosis says so.
func TestEvidenceOfAnUnpinnedObject(t *testing.T) {
	d := newDMA(t)
	slot, at, freed := registerUnpinned(t, d)
	x := registration{at: at, freed: freed, frames: frames(at, at+heapBuffer)}
	waitFreed(t, freed)
	collect()
	o := canary{mem: filled8(5)}
	o.mem[9] = 6
	if got := inspect(x, o, filled8(5)).verdict(); got != freedWhileRegistered {
		t.Errorf("verdict: %s", got)
	}
	if err := d.Deregister(slot); err != nil {
		t.Fatal(err)
	}
}

// aligned is b from its first whole page on.
func aligned(b []byte) []byte {
	lo, _ := span(b)
	return b[-lo&(pageSize-1):]
}

// discard gives the page b back to the kernel, and has it get another frame.
func discard(t *testing.T, b []byte) {
	t.Helper()
	lo, hi := span(b)
	for old := frames(lo, hi); ; {
		if err := unix.Madvise(b, unix.MADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
		clear(mapping(t, 16*page)) // takes the frame that became free
		clear(b)
		if old == nil || frames(lo, hi)[0] != old[0] {
			return
		}
	}
}
