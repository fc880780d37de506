//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// hostileNICs are what FuzzSharedMemory connects, over and over.
type hostileNICs struct {
	small, large [2]driver.Context
	arena        *driver.Arena
	mem          []byte
	regions      []driver.Region
}

// Attach is off: the peer is this process, and an address of a hostile peer
// would be one of ours. TestWildAddress has it.
func openHostile(t testing.TB) *hostileNICs {
	h := &hostileNICs{}
	opts := map[string]string{"path": "arena", "dir": t.TempDir()}
	for i := range 2 {
		h.small[i] = open(t, driver.Small, opts)
		h.large[i] = open(t, driver.Large, opts)
	}
	var err error
	if h.arena, err = driver.NewArena(1 << 20); err != nil {
		t.Fatal(err)
	}
	h.mem = h.arena.Alloc(1 << 20)
	for _, c := range []driver.Context{h.small[1], h.large[1]} {
		r, err := c.(driver.Registrar).Register(h.mem[:1<<16], driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic)
		if err != nil {
			t.Fatal(err)
		}
		h.regions = append(h.regions, r)
	}
	return h
}

// Whatever a peer writes into shared memory, at any moment, no call panics, faults or loops, and no buffer overflows.
// Invalid values break the connection and count as bad frames.
func FuzzSharedMemory(f *testing.F) {
	h := openHostile(f)
	rnd := rand.New(rand.NewPCG(1, 2))
	scripts := 36
	if testing.Short() {
		scripts = 9
	}
	for k := range scripts { // each kind of step alone, and all together
		kind := k % 9
		script := make([]byte, 32*stepLen)
		for i := range script {
			script[i] = byte(rnd.Uint32())
			if i%stepLen == 0 && kind < 8 {
				script[i] = byte(kind)
			}
			if i%stepLen >= 6 && i/stepLen%2 == 0 {
				script[i] = 0 // small values as well
			}
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) < stepLen || len(script) > 256*stepLen {
			return
		}
		attackSmall(t, h, script)
		attackLarge(t, h, script)
	})
}

func attackSmall(t *testing.T, h *hostileNICs, script []byte) {
	a, b := join(t, h.small[0], h.small[1])
	p := attackedOf(t, b, h.small[1])
	sa, sb := a.(*small), b.(*small)
	seed := binary.LittleEndian.Uint64(script)
	rnd := rand.New(rand.NewPCG(seed, 7))
	var bufs []guarded
	var packets []*driver.Packet
	var polls []func(*driver.Packet) (bool, error)
	post := func(i driver.Instance, recv bool, n int) {
		g := guard(n)
		q := &driver.Packet{IOV: [][]byte{g.b}}
		if n%3 == 0 {
			q.IOV = [][]byte{g.b[:n/3], nil, g.b[n/3:]}
		}
		do, poll := i.SendPost, i.SendPoll
		if recv {
			do, poll = i.RecvPost, i.RecvPoll
		}
		err := do(q)
		contractError(t, err)
		if err == nil {
			bufs, packets, polls = append(bufs, g), append(packets, q), append(polls, poll)
		}
	}
	p.onslaught(script, func() {
		for k := range 12 {
			if k >= 4 { // at first, buffers are received
				post(sb, true, rnd.IntN(maxSmall))
			}
			post(sa, false, rnd.IntN(maxSmall))
			p.step(script[rnd.IntN(len(script)/stepLen)*stepLen:])
			post(sa, false, rnd.IntN(80))
			useBuffers(t, sa, sb)
			_, err := h.small[1].(driver.Prober).RecvProbeAny()
			contractError(t, err)
			runtime.Gosched()
		}
		oneSided(t, sa, h.regions[0], rnd)
		sleepIn(t, h.small[1], sb)
		for i, q := range packets {
			if !settle(t, q, polls[i]) {
				contractError(t, sb.RecvCancel(q))
			}
		}
		for _, i := range []driver.Instance{a, b} {
			if err := i.Disconnect(); err == nil {
				p.step(script)
			}
		}
	})
	finally(t, a, b, p, packets, polls)
	for i := range bufs {
		bufs[i].check(t)
	}
}

func useBuffers(t *testing.T, a, b *small) {
	var s, r driver.Packet
	if err := a.SendBufGet(&s); err == nil {
		contractError(t, a.SendBufPost(&s, maxSmall/2))
		_ = settle(t, &s, a.SendPoll)
	}
	if done, err := b.RecvPoll(&r); done && err == nil {
		if len(r.Buf) > maxSmall {
			t.Fatalf("a buffer receive of %d bytes, want at most %d", len(r.Buf), maxSmall)
		}
		var sum byte
		for _, c := range r.Buf { // all of it is mapped
			sum += c
		}
		_ = sum
		contractError(t, b.RecvBufRelease(&r))
	}
}

// sleepIn waits for messages that may never come.
func sleepIn(t *testing.T, c driver.Context, s *small) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	ends(t, 10*time.Second, "waits that were cancelled", func() {
		_, _ = c.(driver.Prober).RecvWaitAny(ctx)
		var p driver.Packet
		if err := s.RecvWait(ctx, &p); err == nil && p.Buf != nil {
			_ = s.RecvBufRelease(&p)
		}
	})
}

// oneSided operates on a region whose owner deregisters it and registers it again.
func oneSided(t *testing.T, i driver.OneSided, r driver.Region, rnd *rand.Rand) {
	remote, err := i.Import(r.Key())
	contractError(t, err)
	if err != nil {
		return
	}
	for range 8 {
		g := guard(rnd.IntN(5000))
		ops := [3]*driver.Op{
			{Local: g.b, Remote: remote, Offset: rnd.IntN(1 << 16)},
			{Local: g.b, Remote: remote, Offset: rnd.IntN(1 << 16)},
			{Remote: remote, Offset: rnd.IntN(1<<13) * 8, Size: 8, Atomic: driver.AtomicOp(rnd.IntN(6)), Operand: 1, Fetch: true},
		}
		for k, post := range []func(*driver.Op) error{i.PutPost, i.GetPost, i.AtomicPost} {
			if err := post(ops[k]); err != nil {
				contractError(t, err)
				continue
			}
			for range 20 {
				if done, err := i.OpPoll(ops[k]); done {
					contractError(t, err)
					break
				}
			}
		}
		g.check(t)
	}
}

func attackLarge(t *testing.T, h *hostileNICs, script []byte) {
	a, b := join(t, h.large[0], h.large[1])
	p := attackedOf(t, b, h.large[1])
	rnd := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(script), 8))
	var bufs []guarded
	var packets []*driver.Packet
	var polls []func(*driver.Packet) (bool, error)
	buffer := func(n int) []byte {
		if rnd.IntN(2) == 0 {
			o := rnd.IntN(len(h.mem) - n)
			return h.mem[o : o+n]
		}
		g := guard(n)
		bufs = append(bufs, g)
		return g.b
	}
	exchange := func(from, to driver.Instance) {
		r := &driver.Packet{IOV: [][]byte{buffer(rnd.IntN(200 << 10))}}
		s := &driver.Packet{IOV: [][]byte{buffer(rnd.IntN(200 << 10))}}
		if err := to.RecvPost(r); err != nil {
			contractError(t, err)
			return
		}
		packets, polls = append(packets, r), append(polls, to.RecvPoll)
		p.step(script[rnd.IntN(len(script)/stepLen)*stepLen:])
		s.RdvData = append([]byte(nil), r.RdvData...)
		if err := from.SendPost(s); err != nil {
			contractError(t, err)
			return
		}
		packets, polls = append(packets, s), append(polls, from.SendPoll)
	}
	p.onslaught(script, func() {
		for k := range 6 {
			exchange(a, b)
			exchange(b, a)
			p.step(script[rnd.IntN(len(script)/stepLen)*stepLen:])
			for i, q := range packets {
				if !settle(t, q, polls[i]) && (i+k)%5 == 0 {
					contractError(t, b.RecvCancel(q))
				}
			}
		}
		oneSided(t, a.(*large), h.regions[1], rnd)
		contractError(t, a.Disconnect())
		contractError(t, b.Disconnect())
	})
	finally(t, a, b, p, packets, polls)
	for i := range bufs {
		bufs[i].check(t)
	}
}
