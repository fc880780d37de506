//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

// attacked is all that a hostile peer can write: the segment, the wake-up page of our
// context, and the region table that it shows us.
type attacked struct {
	ctl, page, regions []byte
	slots, data, table [2][]byte
}

func attackedOf(t testing.TB, victim driver.Instance, peer driver.Context) *attacked {
	n := connOf(victim)
	p := &attacked{
		ctl:     again(t, unsafe.Pointer(n.seg.ctl), controlBytes),
		page:    again(t, unsafe.Pointer(n.ctx.waits.page), wakePageBytes),
		regions: again(t, unsafe.Pointer(core(peer).regions.mem), regionTableBytes),
	}
	for d := range 2 {
		p.slots[d] = again(t, n.seg.ring[d].slots, ringSlots*slotBytes)
		p.data[d] = again(t, n.seg.ring[d].data, int(n.seg.ring[d].size))
		if n.seg.table[d] != nil {
			p.table[d] = again(t, unsafe.Pointer(n.seg.table[d]), tableBytes)
		}
	}
	return p
}

func (p *attacked) areas() [][]byte {
	all := [][]byte{p.ctl, p.page, p.regions, p.slots[0], p.slots[1], p.data[0], p.data[1]}
	if p.table[0] != nil {
		all = append(all, p.table[0], p.table[1])
	}
	return all
}

func put64(b []byte, off int, v uint64) { atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[off])), v) }
func get64(b []byte, off int) uint64    { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[off]))) }

// stepLen is the length of one step of an attacker's script.
const stepLen = 8

// step carries out one step: random bytes, or values that nearly
// make sense in the place where they are put.
func (p *attacked) step(s []byte) {
	v := uint64(binary.LittleEndian.Uint32(s[4:]))
	d, at := int(s[1]&1), int(binary.LittleEndian.Uint16(s[2:]))
	odd := [...]uint64{v, 0, 1, v & 0xff, v << 32, 1 << 63, ^uint64(0), ^v, maxSmall, maxTransfer, v << 16, -v, 1<<38 + v}
	value := odd[int(s[1]>>1)%len(odd)]
	switch s[0] % 8 {
	case 0: // anything anywhere
		areas := p.areas()
		a := areas[int(s[1])%len(areas)]
		put64(a, at%(len(a)/8)*8, v*0x9e3779b97f4a7c15)
	case 1: // the header of messages to come, with a lap that may be right
		for k := range 64 {
			put64(p.slots[d], k*slotBytes, (v&1+1)<<lapShift|(v>>2&3)<<kindShift|value&lenMask)
		}
	case 2: // how much of a progressive message is there
		put64(p.slots[d], at%ringSlots*slotBytes+8, value)
	case 3: // progress of the consumer
		put64(p.ctl, int(unsafe.Offsetof(control{}.cons))+d*slotBytes+at%2*8, value)
	case 4: // flags and counters
		put64(p.ctl, at%(int(unsafe.Sizeof(control{}))/8)*8, value)
	case 5: // a field of all transfers
		for k := range p.table[d][:min(len(p.table[d]), transferSlots)] {
			put64(p.table[d], k*int(unsafe.Sizeof(transferSlot{}))+at%16*8, value)
		}
	case 6: // claims, with their right tags
		for k := range p.table[d][:min(len(p.table[d]), transferSlots)] {
			o := k*int(unsafe.Sizeof(transferSlot{})) + int(unsafe.Offsetof(transferSlot{}.claim))
			put64(p.table[d], o, get64(p.table[d], o)>>claimTag<<claimTag|value&(1<<claimTag-1))
		}
	case 7: // the published description of a region
		put64(p.regions, at%(regionTableBytes/8)*8, value)
	}
}

// letGo undoes claims, so that closing connections end.
func (p *attacked) letGo() {
	for _, t := range p.table {
		clear(t)
	}
	clear(p.ctl)
}

// onslaught plays a script over and over while f runs.
func (p *attacked) onslaught(script []byte, f func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			for s := script; len(s) >= stepLen; s = s[stepLen:] {
				p.step(s)
			}
			select {
			case <-stop:
				return
			default:
				runtime.Gosched()
			}
		}
	}()
	f()
	close(stop)
	<-done
}

const canary = 0xa5

// guarded is a buffer between bytes that must not be written.
type guarded struct{ all, b []byte }

func guard(n int) guarded {
	g := guarded{all: make([]byte, n+128)}
	for i := range g.all {
		g.all[i] = canary
	}
	g.b = g.all[64 : 64+n]
	return g
}

func (g *guarded) check(t testing.TB) {
	t.Helper()
	for i, c := range g.all {
		if (i < 64 || i >= 64+len(g.b)) && c != canary {
			t.Fatalf("byte %d outside of a buffer of %d was written", i-64, len(g.b))
		}
	}
}

// settle polls a packet for a while, and accepts every outcome of the contract.
func settle(t testing.TB, p *driver.Packet, poll func(*driver.Packet) (bool, error)) (done bool) {
	t.Helper()
	for range 40 {
		d, err := poll(p)
		if d {
			contractError(t, err)
			return true
		}
	}
	return false
}

func contractError(t testing.TB, err error) {
	t.Helper()
	for _, e := range []error{nil, driver.ErrBroken, driver.ErrClosed, driver.ErrInvalid, driver.ErrBusy, driver.ErrAgain,
		driver.ErrCanceled, driver.ErrTruncated, driver.ErrTooLong, driver.ErrRemoteKey, driver.ErrAccess, driver.ErrBounds,
		driver.ErrAlignment, driver.ErrUnsupported, driver.ErrVersion, driver.ErrAuth} {
		if errors.Is(err, e) {
			return
		}
	}
	t.Fatalf("got error %v, which the contract does not have", err)
}

// finally closes both ends as Close does, and checks that packets come back
// once the attacker lets go.
func finally(t testing.TB, a, b driver.Instance, p *attacked, packets []*driver.Packet, polls []func(*driver.Packet) (bool, error)) {
	t.Helper()
	for _, i := range []driver.Instance{a, b} {
		ends(t, 10*time.Second, "close", func() { connOf(i).Shut() })
	}
	p.letGo()
	within(t, 10*time.Second, "memory is let go", func() bool { return connOf(a).free.Load() && connOf(b).free.Load() })
	for k, q := range packets {
		if q.Driver.Phase != driver.Posted && q.Driver.Phase != driver.Canceling {
			continue
		}
		if done, err := polls[k](q); !done || !errors.Is(err, driver.ErrClosed) {
			t.Fatalf("poll after close: got %v, %v, want done and ErrClosed", done, err)
		}
	}
}
