//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// Every context has a table of its regions in a page range that peers map
// read-only. A remote key names an entry and its expected content. An entry
// is revoked by changing its generation; see hazardPointer for how deregistration
// knows when no peer is inside any more.
const (
	maxRegions       = 2048
	regionTableBytes = maxRegions * 64
	keyBytes         = 48
	keyMagic         = 0x6b735942 // "BYsk"
)

type regionEntry struct {
	generation uint64 // odd: live
	addr       uint64
	length     uint64
	access     uint64
	arena      uint64 // 0: private memory
	offset     uint64 // in the arena
	_          [16]byte
}

// regionView is the table as mapped, by its owner or a peer.
type regionView [maxRegions]regionEntry

// regionTable is the owner's side.
type regionTable struct {
	fd     int
	mem    *regionView
	mu     sync.Mutex
	used   [maxRegions]*region
	gone   bool // destroyed: nothing is registered any more
	next   int
	serial uint64 // generations are never used twice in a context
}

func (t *regionTable) create() error {
	t.fd = -1
	fd, p, err := sharedMemory("bywash-regions", regionTableBytes)
	if err != nil {
		return err
	}
	// Linux 5.1; before, a hostile peer could mislead the others about
	// where our regions lie.
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
	t.fd, t.mem = fd, (*regionView)(p)
	return sealSeals(fd)
}

// revoke makes all keys invalid.
func (t *regionTable) revoke() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range &t.used {
		if r != nil {
			atomic.StoreUint64(&t.mem[i].generation, r.gen+1)
		}
	}
}

// destroy releases all regions. No peer is inside one any more.
func (t *regionTable) destroy() {
	if t.mem == nil {
		return
	}
	t.mu.Lock()
	t.gone = true
	used := t.used // a Deregister under way takes mu inside that of the region
	t.mu.Unlock()
	for _, r := range &used {
		if r == nil {
			continue
		}
		r.mu.Lock()
		if !r.gone {
			r.gone = true
			r.release()
		}
		r.mu.Unlock()
	}
	_ = unix.MunmapPtr(unsafe.Pointer(t.mem), regionTableBytes)
	unix.Close(t.fd)
	t.mem, t.fd = nil, -1
}

// region implements driver.Region.
type region struct {
	ctx   *hostContext
	mem   []byte
	index int
	gen   uint64
	key   [keyBytes]byte
	arena *driver.Arena
	pin   runtime.Pinner
	mu    sync.Mutex
	gone  bool
}

// Register implements driver.Registrar.
func (c *hostContext) Register(b []byte, access driver.Access) (driver.Region, error) {
	fail := func(err error) (driver.Region, error) {
		return nil, &driver.Error{Driver: Name, Op: "register", Err: err}
	}
	if len(b) == 0 || access > driver.RemoteRead|driver.RemoteWrite|driver.RemoteAtomic {
		return fail(fmt.Errorf("%w: %d bytes with access %#x", driver.ErrInvalid, len(b), access))
	}
	if c.IsClosed() {
		return fail(driver.ErrClosed)
	}
	r := &region{ctx: c, mem: b}
	e := regionEntry{addr: uint64(uintptr(unsafe.Pointer(&b[0]))), length: uint64(len(b)), access: uint64(access)}
	if a, off, ok := driver.ArenaOf(b); ok {
		if !a.Hold() {
			return fail(fmt.Errorf("%w: the arena is closed", driver.ErrClosed))
		}
		r.arena, e.arena, e.offset = a, a.ID(), uint64(off)
	} else {
		if access&driver.RemoteAtomic != 0 {
			return fail(fmt.Errorf("%w: remote atomics need memory in an arena, which peers map", driver.ErrUnsupported))
		}
		r.pin.Pin(&b[0])
	}
	if err := c.regions.insert(r, &e); err != nil {
		r.release()
		return fail(err)
	}
	le := binary.LittleEndian
	le.PutUint32(r.key[0:], keyMagic)
	le.PutUint32(r.key[4:], uint32(r.index))
	le.PutUint64(r.key[8:], c.Incarnation)
	le.PutUint64(r.key[16:], r.gen)
	le.PutUint64(r.key[24:], e.length)
	le.PutUint64(r.key[32:], e.access)
	if r.arena != nil {
		c.showAll(r.arena)
	}
	return r, nil
}

// insert finds a free entry and fills it.
func (t *regionTable) insert(r *region, e *regionEntry) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return driver.ErrClosed
	}
	for range maxRegions {
		i := t.next
		t.next = (t.next + 1) % maxRegions
		if t.used[i] != nil {
			continue
		}
		t.used[i] = r
		r.index = i
		x := &t.mem[i]
		t.serial += 2
		gen := t.serial
		x.addr, x.length, x.access, x.arena, x.offset = e.addr, e.length, e.access, e.arena, e.offset
		atomic.StoreUint64(&x.generation, gen+1)
		r.gen = gen + 1
		return nil
	}
	return fmt.Errorf("%w: a context has at most %d regions: register larger ones", driver.ErrBusy, maxRegions)
}

func (r *region) Bytes() []byte { return r.mem }

func (r *region) Key() []byte { return r.key[:] }

// Deregister implements driver.Region. After the context was closed it still returns ErrBusy while a peer is inside.
func (r *region) Deregister() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return &driver.Error{Driver: Name, Op: "deregister", Err: driver.ErrClosed}
	}
	c := r.ctx
	c.Mu.Lock()
	defer c.Mu.Unlock()
	atomic.StoreUint64(&c.regions.mem[r.index].generation, r.gen+1)
	if c.occupied(r.index) {
		c.inside.Add(1)
		return driver.ErrBusy
	}
	c.regions.mu.Lock()
	c.regions.used[r.index] = nil
	c.regions.mu.Unlock()
	if a := r.arena; a != nil {
		if c.shown[a]--; c.shown[a] == 0 {
			delete(c.shown, a)
		}
	}
	r.gone = true
	r.release()
	return nil
}

func (r *region) release() {
	if r.arena != nil {
		r.arena.Release()
		r.arena = nil
	}
	r.pin.Unpin()
}

// showAll shows an arena to all peers, present and future, which need it for
// one-sided access without this side's help.
func (c *hostContext) showAll(a *driver.Arena) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.shown[a]++
	for n := range c.Conns.All() {
		if n.State() == kit.StateUp {
			n.show(a)
		}
	}
}

// remoteRegion implements driver.RemoteRegion.
type remoteRegion struct {
	conn  *conn
	entry regionEntry // as it was when imported
	index int
	self  *region   // on a connection to oneself
	until time.Time // when the arena must be there
}

func (r *remoteRegion) Len() int { return int(r.entry.length) }

func (r *remoteRegion) Access() driver.Access { return driver.Access(r.entry.access) }

// Import implements driver.OneSided. The peer has sent the region's arena when it registered the region. Where it is not
// mapped yet, put and get go by CMA, and what cannot waits for the mapping.
func (n *conn) Import(key []byte) (driver.RemoteRegion, error) {
	if !n.Enter() {
		return nil, n.Failure("import")
	}
	r, err := n.parseKey(key)
	n.Leave()
	if err == nil && r.entry.arena == 0 && !n.toSelf && !n.attaches {
		err = fmt.Errorf("%w: the region is private memory of a process that cannot be attached to (see bywash doctor); register memory in an arena", driver.ErrUnsupported)
	}
	if err != nil {
		return nil, n.Fault("import", err)
	}
	r.until = time.Now().Add(arenaTime)
	return r, nil
}

// arenaTime bounds how long operations wait for a mapping that the peer has sent.
const arenaTime = 2 * time.Second

func (n *conn) parseKey(key []byte) (*remoteRegion, error) {
	le := binary.LittleEndian
	if len(key) != keyBytes || le.Uint32(key) != keyMagic || le.Uint64(key[40:]) != 0 {
		return nil, fmt.Errorf("%w: not a key of this driver", driver.ErrRemoteKey)
	}
	index, gen := le.Uint32(key[4:]), le.Uint64(key[16:])
	if le.Uint64(key[8:]) != n.peerInc {
		return nil, fmt.Errorf("%w: key of another context", driver.ErrRemoteKey)
	}
	if index >= maxRegions || gen&1 == 0 {
		return nil, fmt.Errorf("%w: damaged key", driver.ErrRemoteKey)
	}
	x := &n.remote[index]
	if atomic.LoadUint64(&x.generation) != gen {
		return nil, n.expired()
	}
	r := &remoteRegion{conn: n, index: int(index), entry: regionEntry{
		generation: gen,
		addr:       load64(&x.addr), length: load64(&x.length), access: load64(&x.access),
		arena: load64(&x.arena), offset: load64(&x.offset),
	}}
	if atomic.LoadUint64(&x.generation) != gen { // meanwhile
		return nil, n.expired()
	}
	if r.entry.length != le.Uint64(key[24:]) || r.entry.access != le.Uint64(key[32:]) || r.entry.length > 1<<46 {
		return nil, fmt.Errorf("%w: damaged key", driver.ErrRemoteKey)
	}
	if n.toSelf {
		n.ctx.regions.mu.Lock()
		r.self = n.ctx.regions.used[index]
		n.ctx.regions.mu.Unlock()
		if r.self == nil || r.self.gen != gen {
			return nil, fmt.Errorf("%w: the region was deregistered", driver.ErrRemoteKey)
		}
	}
	return r, nil
}
