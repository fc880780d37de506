package drivertest

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/bywash/bywash/driver"
)

func hasOneSided(p *driver.Properties) bool { return p.Capabilities.OneSided != nil }
func hasPut(p *driver.Properties) bool      { return hasOneSided(p) && p.Capabilities.OneSided.Put }
func hasAtomics(p *driver.Properties) bool {
	o := p.Capabilities.OneSided
	return o != nil && o.Atomics32|o.Atomics64 != 0
}

// shared is a region that a target is to register.
type shared struct {
	Size   int
	Access driver.Access
	Arena  bool
}

const allAccess = driver.RemoteRead | driver.RemoteWrite | driver.RemoteAtomic

// order is what a target must do with a region.
type order struct {
	Do     string // verify, clear, load, deregister, end
	Region int
	Offset int
	N      int
	Seed   uint64
}

// roleTarget registers memory, filled with canaries, and follows orders.
var roleTarget = role("target", func(e *end) {
	var want []shared
	e.args(&want)
	e.parent.connectPeer()
	regions := make([]driver.Region, len(want))
	for k, s := range want {
		regions[k] = e.register(s)
		e.parent.sendNote("key", regions[k].Key())
	}
	for {
		var o order
		if e.parent.recvNote("order", &o); o.Do == "end" {
			break
		}
		r := regions[o.Region]
		switch o.Do {
		case "verify": // the pattern, and canaries around it
			b := r.Bytes()
			e.noErr("region", verify(b[o.Offset:o.Offset+o.N], o.Seed))
			if disturbed(b[:o.Offset]) >= 0 || disturbed(b[o.Offset+o.N:]) >= 0 {
				e.Fatalf("memory around %d bytes at %d was written", o.N, o.Offset)
			}
			setCanary(b)
		case "clear": // that all are canaries
			if k := disturbed(r.Bytes()); k >= 0 {
				e.Fatalf("byte %d of the region was written", k)
			}
		case "load":
			e.parent.sendNote("value", atomic.LoadUint64((*uint64)(unsafe.Pointer(&r.Bytes()[o.Offset]))))
		case "deregister":
			e.deregister(r)
			e.wantErr("second deregister", r.Deregister(), driver.ErrClosed)
		}
		e.parent.sendNote("done", nil)
	}
})

// register registers fresh memory.
func (e *end) register(s shared) driver.Region {
	e.Helper()
	b := make([]byte, s.Size)
	if s.Arena || e.caps.OneSided.AtomicArenaOnly && s.Access&driver.RemoteAtomic != 0 {
		a, err := driver.NewArena(s.Size)
		e.noErr("make arena", err)
		b = a.Alloc(s.Size)
	}
	setCanary(b)
	r, err := e.context().(driver.Registrar).Register(b, s.Access)
	e.noErr("register", err)
	if n := len(r.Key()); n == 0 || n > e.caps.OneSided.KeySize {
		e.Errorf("key of %d bytes, KeySize is %d", n, e.caps.OneSided.KeySize)
	}
	if &r.Bytes()[0] != &b[0] || len(r.Bytes()) != len(b) {
		e.Errorf("Region.Bytes is not the memory that was registered")
	}
	return r
}

func (e *end) deregister(r driver.Region) {
	e.Helper()
	e.until("deregister", func() bool {
		err := r.Deregister()
		if err != nil && !errors.Is(err, driver.ErrBusy) {
			e.Fatalf("deregister: %v", err)
		}
		return err == nil
	})
}

// remote is a target seen from the test.
type remote struct {
	*peer
	c    *conn
	one  driver.OneSided
	keys [][]byte
	regs []driver.RemoteRegion
}

func (e *end) target(want ...shared) *remote {
	e.Helper()
	p, c := e.pair(roleTarget, want)
	r := &remote{peer: p, c: c, one: c.i.(driver.OneSided)}
	for k, s := range want {
		var key []byte
		p.recvNote("key", &key)
		reg, err := r.one.Import(key)
		e.noErr("import", err)
		if reg.Len() != s.Size || reg.Access() != s.Access {
			e.Errorf("region %d: length %d, access %d; want %d, %d", k, reg.Len(), reg.Access(), s.Size, s.Access)
		}
		r.keys, r.regs = append(r.keys, key), append(r.regs, reg)
	}
	return r
}

func (r *remote) order(o order) {
	r.e.Helper()
	r.sendNote("order", o)
	r.recvNote("done", nil)
}

func (r *remote) load(region, offset int) (v uint64) {
	r.e.Helper()
	r.sendNote("order", order{Do: "load", Region: region, Offset: offset})
	r.recvNote("value", &v)
	r.recvNote("done", nil)
	return v
}

func (r *remote) end() {
	r.e.Helper()
	r.sendNote("order", order{Do: "end"})
	r.join()
}

// do posts an operation and waits for its outcome.
func (c *conn) do(post func(*driver.Op) error, op *driver.Op) error {
	c.e.Helper()
	var err error
	c.e.until("post operation", func() bool { err = post(op); return err != driver.ErrBusy })
	if err != nil {
		return err
	}
	return c.opErr(op)
}

func (c *conn) opErr(op *driver.Op) (err error) {
	c.e.Helper()
	c.e.until("operation", func() (done bool) {
		done, err = c.i.(driver.OneSided).OpPoll(op)
		return done
	})
	return err
}

func (r *remote) put(b []byte, region, offset int) error {
	r.e.Helper()
	return r.c.do(r.one.PutPost, &driver.Op{Local: b, Remote: r.regs[region], Offset: offset})
}

func (r *remote) get(b []byte, region, offset int) error {
	r.e.Helper()
	return r.c.do(r.one.GetPost, &driver.Op{Local: b, Remote: r.regs[region], Offset: offset})
}

func checkPutGet(e *end) {
	o := e.caps.OneSided
	limit := func(max int) int { return min(max, 1<<20) }
	size := max(limit(o.MaxPut), limit(o.MaxGet)) + 8192
	for _, arena := range []bool{false, true} {
		r := e.target(shared{size, allAccess, arena})
		for k, n := range []int{0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, 4095, 4096, 4097, 65536, limit(o.MaxPut) - 1, limit(o.MaxPut)} {
			n = n / o.PutAlignment * o.PutAlignment
			off := []int{0, 64, 3, 4090}[k%4] / o.PutAlignment * o.PutAlignment
			b := e.room(formIOV1, n, nil)
			b.fill(uint64(k))
			if o.Put {
				e.noErr("put", r.put(b.p.IOV[0], 0, off))
			}
			if o.Put && o.Get && n <= o.MaxGet && n%o.GetAlignment == 0 && off%o.GetAlignment == 0 {
				g := e.room(formIOV1, n, nil)
				e.noErr("get", r.get(g.p.IOV[0], 0, off))
				if err := g.verify(n, uint64(k)); err != nil {
					e.Fatalf("get of %d bytes at %d: %v", n, off, err)
				}
			}
			if o.Put {
				r.order(order{Do: "verify", Offset: off, N: n, Seed: uint64(k)})
			}
			e.noErr("source of a put", b.verify(n, uint64(k)))
		}
		r.end()
	}
}

func checkBounds(e *end) {
	const size = 4096
	r := e.target(shared{size, allAccess, false})
	o := e.caps.OneSided
	b := make([]byte, 64)
	for _, off := range []int{-8, -64, math.MinInt, math.MaxInt - 7, math.MaxInt - 63, size - 56, size, size + 8, math.MaxInt / 2} {
		for _, op := range []struct {
			has bool
			f   func([]byte, int, int) error
		}{{o.Put, r.put}, {o.Get, r.get}} {
			if op.has {
				e.wantErr("operation of 64 bytes at "+itoa(off)+" of 4096", op.f(b, 0, off), driver.ErrBounds)
			}
		}
		if o.Atomics64.Has(driver.Add) && off != size-56 {
			a := &driver.Op{Atomic: driver.Add, Size: 8, Operand: 1, Remote: r.regs[0], Offset: off}
			e.wantErr("atomic at "+itoa(off)+" of 4096", r.c.do(r.one.AtomicPost, a), driver.ErrBounds)
		}
	}
	if o.Put && o.MaxPut < 1<<30 {
		if err := r.put(make([]byte, o.MaxPut+1), 0, 0); !errors.Is(err, driver.ErrInvalid) && !errors.Is(err, driver.ErrBounds) {
			e.Errorf("put of MaxPut+1 bytes: got %v, want %v", err, driver.ErrInvalid)
		}
	}
	r.order(order{Do: "clear"})
	if o.Put {
		fill(b, 3)
		e.noErr("put after errors", r.put(b, 0, size-64))
		r.order(order{Do: "verify", Offset: size - 64, N: 64, Seed: 3})
	}
	r.end()
}

func checkKeyDamaged(e *end) {
	r := e.target(shared{4096, allAccess, false}, shared{4096, allAccess, false})
	key := r.keys[0]
	try := func(what string, bad []byte) {
		e.Helper()
		reg, err := r.one.Import(bad)
		if err == nil {
			err = r.c.do(r.one.PutPost, &driver.Op{Local: make([]byte, 8), Remote: reg})
			e.Errorf("import of %s: no error, want %v (a put with it: %v)", what, driver.ErrRemoteKey, err)
			return
		}
		e.wantErr("import of "+what, err, driver.ErrRemoteKey)
	}
	try("no key", nil)
	for n := range key {
		try("a truncated key", key[:n])
	}
	try("a key with more bytes", slices.Concat(key, []byte{0}))
	try("zeros", make([]byte, len(key)))
	for k := range key {
		for _, x := range []byte{1, 0x80, 0xff} {
			bad := slices.Clone(key)
			bad[k] ^= x
			try("a key with byte "+itoa(k)+" changed", bad)
		}
	}
	own := e.register(shared{Size: 4096, Access: allAccess})
	try("a key of another context", own.Key())
	e.deregister(own)
	r.order(order{Do: "clear"})
	r.c.doPut(r.regs[0])
	r.end()
}

// doPut puts eight bytes, which must succeed.
func (c *conn) doPut(reg driver.RemoteRegion) {
	c.e.Helper()
	c.e.noErr("put", c.do(c.i.(driver.OneSided).PutPost, &driver.Op{Local: make([]byte, 8), Remote: reg}))
}

func checkKeyExpired(e *end) {
	if e.caps.OneSided.RevokedKeyBreaks {
		for _, arena := range []bool{false, true} {
			checkKeyBreaks(e, arena, true)
			if e.caps.OneSided.Get {
				checkKeyBreaks(e, arena, false)
			}
		}
		return
	}
	r := e.target(shared{4096, allAccess, false}, shared{4096, allAccess, true}, shared{4096, allAccess, false})
	b := make([]byte, 64)
	for k := range 2 {
		fill(b, 1)
		e.noErr("put", r.put(b, k, 0))
		r.order(order{Do: "verify", Region: k, N: 64, Seed: 1})
		r.order(order{Do: "deregister", Region: k})
		for range 3 {
			e.wantErr("put to a region that is gone", r.put(b, k, 0), driver.ErrRemoteKey)
			if e.caps.OneSided.Get {
				e.wantErr("get from a region that is gone", r.get(b, k, 0), driver.ErrRemoteKey)
			}
		}
		r.order(order{Do: "clear", Region: k})
	}
	fill(b, 2)
	e.noErr("put to a region that is there", r.put(b, 2, 0))
	r.order(order{Do: "verify", Region: 2, N: 64, Seed: 2})
	r.end()
}

// checkKeyBreaks is for drivers with RevokedKeyBreaks: the operation names the
// key, and the connection is broken.
func checkKeyBreaks(e *end, arena, put bool) {
	e.Helper()
	r := e.target(shared{4096, allAccess, arena})
	b := make([]byte, 64)
	fill(b, 1)
	e.noErr("put", r.put(b, 0, 0))
	r.order(order{Do: "verify", N: 64, Seed: 1})
	r.order(order{Do: "deregister"})
	access := r.get
	if put {
		access = r.put
	}
	e.wantErr("access to a region that is gone", access(b, 0, 0), driver.ErrRemoteKey)
	e.wantErr("access after that", access(b, 0, 0), driver.ErrBroken)
	r.order(order{Do: "clear"})
	r.end()
}

func checkAccess(e *end) {
	o := e.caps.OneSided
	var regions []shared
	for a := range allAccess + 1 {
		regions = append(regions, shared{4096, a, a&1 == 0})
	}
	r := e.target(regions...)
	b := make([]byte, 8)
	for k, s := range regions {
		allowed := func(what string, need driver.Access, has bool, err func() error) {
			switch {
			case !has:
			case s.Access&need != 0:
				e.noErr(what+" that is allowed", err())
			default:
				e.wantErr(what+" that is not allowed", err(), driver.ErrAccess)
			}
		}
		allowed("get", driver.RemoteRead, o.Get, func() error { return r.get(b, k, 0) })
		setCanary(b)
		allowed("put", driver.RemoteWrite, o.Put, func() error { return r.put(b, k, 0) })
		allowed("atomic", driver.RemoteAtomic, o.Atomics64.Has(driver.Add), func() error {
			return r.c.do(r.one.AtomicPost, &driver.Op{Atomic: driver.Add, Size: 8, Remote: r.regs[k]})
		})
		r.order(order{Do: "clear", Region: k})
	}
	r.end()
}

// rolePutter puts to the test's region until that is gone, again and again.
var rolePutter = role("putter", func(e *end) {
	var rounds int
	e.args(&rounds)
	b := make([]byte, min(64<<10, e.caps.OneSided.MaxPut))
	var c *conn
	for k := range rounds {
		if k == 0 || e.caps.OneSided.RevokedKeyBreaks {
			c = e.parent.connectPeer()
		}
		one := c.i.(driver.OneSided)
		var key []byte
		e.parent.recvNote("key", &key)
		reg, err := one.Import(key)
		e.noErr("import", err)
		for k := 0; ; k++ {
			err := c.do(one.PutPost, &driver.Op{Local: b, Remote: reg})
			if k == 0 {
				e.parent.sendNote("putting", nil)
			}
			if err != nil {
				e.wantErr("put to a region that is deregistered", err, driver.ErrRemoteKey)
				break
			}
		}
		e.parent.sendNote("refused", nil)
	}
})

func checkDeregisterBusy(e *end) {
	rounds := e.times(20, 10)
	size := min(64<<10, e.caps.OneSided.MaxPut)
	p := e.peer(rolePutter, rounds)
	for k := range rounds {
		if k == 0 || e.caps.OneSided.RevokedKeyBreaks {
			p.connectPeer()
		}
		r := e.register(shared{size, driver.RemoteWrite, k%2 == 0})
		p.sendNote("key", r.Key())
		p.recvNote("putting", nil)
		e.deregister(r)
		setCanary(r.Bytes())
		p.recvNote("refused", nil)
		e.within(moment, func() bool { return disturbed(r.Bytes()) >= 0 })
		if k := disturbed(r.Bytes()); k >= 0 {
			e.Fatalf("byte %d was written after Deregister returned nil", k)
		}
	}
	p.join()
}

func checkFlush(e *end) {
	o := e.caps.OneSided
	n := min(o.Depth, 32)
	size := min(o.MaxPut, 64<<10)
	r := e.target(shared{n * size, allAccess, true})
	ctx, cancel := e.bound()
	defer cancel()
	e.noErr("flush of nothing", r.one.Flush(ctx))
	b := make([]byte, n*size)
	fill(b, 4)
	for range e.times(20, 5) {
		ops := make([]driver.Op, n)
		posted := 0
		for k := range ops {
			ops[k] = driver.Op{Local: b[k*size : (k+1)*size], Remote: r.regs[0], Offset: k * size}
			if err := r.one.PutPost(&ops[k]); err == driver.ErrBusy {
				break
			} else if err != nil {
				e.Fatalf("put: %v", err)
			}
			posted++
		}
		e.noErr("flush", r.one.Flush(ctx))
		for k := range ops[:posted] {
			if done, err := r.one.OpPoll(&ops[k]); !done || err != nil {
				e.Fatalf("operation %d after flush: done %v, error %v; want done at once", k, done, err)
			}
		}
		r.order(order{Do: "verify", N: posted * size, Seed: 4})
	}
	r.end()
}

// roleFenced waits, with its CPU, for the flag of each round, and then wants
// the round's data.
var roleFenced = role("fenced", func(e *end) {
	var a struct{ Rounds, Size int }
	e.args(&a)
	e.parent.connectPeer()
	r := e.register(shared{a.Size + 64, driver.RemoteWrite, true})
	flag := (*uint64)(unsafe.Pointer(&r.Bytes()[0]))
	atomic.StoreUint64(flag, 0)
	e.parent.sendNote("key", r.Key())
	for k := range a.Rounds {
		e.until("flag", func() bool { return atomic.LoadUint64(flag) == uint64(k+1) })
		if err := verify(r.Bytes()[64:], uint64(k+1)); err != nil {
			e.Fatalf("flag of round %d is there, its data are not: %v", k, err)
		}
		e.parent.sendNote("seen", nil)
	}
})

func checkFence(e *end) {
	rounds, size := e.times(200, 60), min(e.caps.OneSided.MaxPut, 32<<10)
	if raceEnabled {
		rounds = 40
	}
	p, c := e.pair(roleFenced, map[string]int{"Rounds": rounds, "Size": size})
	one := c.i.(driver.OneSided)
	var key []byte
	p.recvNote("key", &key)
	reg, err := one.Import(key)
	e.noErr("import", err)
	data, flag := make([]byte, size), make([]byte, 8)
	for k := range rounds {
		fill(data, uint64(k+1))
		binary.NativeEndian.PutUint64(flag, uint64(k+1))
		first := &driver.Op{Local: data, Remote: reg, Offset: 64}
		second := &driver.Op{Local: flag, Remote: reg}
		e.noErr("put data", one.PutPost(first))
		e.noErr("fence", one.Fence())
		e.noErr("put flag", one.PutPost(second))
		p.recvNote("seen", nil)
		e.noErr("data", c.opErr(first))
		e.noErr("flag", c.opErr(second))
	}
	p.join()
}

func checkOpDepth(e *end) {
	o := e.caps.OneSided
	n := 2*o.Depth + 3
	r := e.target(shared{8 * n, allAccess, true})
	b := make([]byte, 8*n)
	fill(b, 6)
	ops := make([]driver.Op, n)
	first := 0 // not polled
	for k := range ops {
		ops[k] = driver.Op{Local: b[8*k : 8*k+8], Remote: r.regs[0], Offset: 8 * k}
		for {
			err := r.one.PutPost(&ops[k])
			if err == nil {
				break
			}
			if err != driver.ErrBusy || first == k {
				e.Fatalf("put with %d posted: %v", k-first, err)
			}
			e.noErr("put", r.c.opErr(&ops[first]))
			first++
		}
	}
	for k := first; k < n; k++ {
		e.noErr("put", r.c.opErr(&ops[k]))
	}
	r.order(order{Do: "verify", N: 8 * n, Seed: 6})
	r.end()
}
