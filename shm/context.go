package shm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/internal/rights"
)

// bell is a page of a context that all its peers can write: where threads that
// wait for any peer sleep.
type bell struct {
	raised uint32 // somebody sleeps on seq, or is about to
	_      [60]byte
	seq    uint32 // futex
	_      [60]byte
}

const bellBytes = 4096

// Context is the host, opened.
type Context struct {
	api      driver.Context // this context, with the methods of its track
	props    driver.Properties
	opts     options
	secret   []byte
	inc      uint64
	url      string
	path     string // of the socket
	listener *net.UnixListener
	barrier  bool // peers may count on membarrier
	fences   bool // this process cannot register for it

	bell    *bell
	bellFD  int
	regions regionTable
	nonce   *[nonceBytes]byte // peers read it to try CMA
	pinned  runtime.Pinner    // holds nonce

	mu        sync.Mutex
	closed    bool
	conns     map[*conn]struct{}
	passages  map[*segment]*passage      // by which peers may be inside regions
	waiting   map[uint64][]*conn         // listening side: Connect was called, no dialer yet
	arrived   map[uint64][]*caller       // the other way round
	sockets   map[*net.UnixConn]struct{} // that have not become connections
	turns     map[uint64]chan struct{}   // dialing: who is the last in turn, by peer
	watched   map[uint64][]*caller       // by peers that expect this side to dial
	onRequest func()
	visitors  visitors
	shown     map[*driver.Arena]int // that have regions in them
	retired   driver.Counters       // of connections that are gone
	refused   atomic.Uint64
	bad       atomic.Uint64
	waits     atomic.Uint64 // for any peer
	inside    atomic.Uint64 // deregistrations that found a peer inside
	tasks     sync.WaitGroup
	lingering int            // connections whose peer is still inside memory of ours
	old       map[uint64]int // likewise, by peer
	released  bool           // closed: the last that lingers unpins

	prober prober
}

// smallContext and largeContext give a context the methods of its track only.
type smallContext struct{ *Context }
type largeContext struct{ *Context }

var (
	_ driver.Prober                 = smallContext{}
	_ driver.Registrar              = smallContext{}
	_ driver.Registrar              = largeContext{}
	_ driver.ConnectRequestReceiver = smallContext{}
	_ driver.ConnectRequestReceiver = largeContext{}
)

func openContext(props driver.Properties, o options, a driver.Attributes) (*Context, error) {
	c := &Context{
		props: props, opts: o, secret: append([]byte(nil), a.Secret...), bellFD: -1,
		conns: make(map[*conn]struct{}), waiting: make(map[uint64][]*conn), arrived: make(map[uint64][]*caller),
		sockets: make(map[*net.UnixConn]struct{}), shown: make(map[*driver.Arena]int), turns: make(map[uint64]chan struct{}),
		watched: make(map[uint64][]*caller), visitors: newVisitors(), old: make(map[uint64]int),
		passages: make(map[*segment]*passage),
		nonce:    new([nonceBytes]byte),
	}
	c.api = driver.Context(smallContext{c})
	if props.Track == driver.Large {
		c.api = largeContext{c}
	}
	_, _ = rand.Read(c.nonce[:]) // never fails
	c.inc = kit.NewIncarnation(a)
	c.pinned.Pin(c.nonce)
	// Whatever the option says: what closes a connection does a barrier, too.
	c.fences = !registerBarrier()
	c.barrier = !o.noBarrier && !c.fences
	if !o.noPtracer {
		admitPeers()
	}
	err := c.makeShared()
	if err == nil {
		err = c.listen()
	}
	if err != nil {
		c.release()
		return nil, err
	}
	c.tasks.Go(c.serve)
	return c, nil
}

func (c *Context) makeShared() error {
	fd, p, err := sharedMemory("bywash-bell", bellBytes)
	if err != nil {
		return err
	}
	c.bellFD, c.bell = fd, (*bell)(p)
	if err := sealSeals(fd); err != nil {
		return err
	}
	return c.regions.create()
}

// sharedMemory makes a memfd of fixed size and maps it.
func sharedMemory(name string, size int) (int, unsafe.Pointer, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, resourceError("memfd_create", err)
	}
	p, err := func() (unsafe.Pointer, error) {
		if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
			return nil, resourceError("allocate shared memory", err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals); err != nil {
			return nil, fmt.Errorf("seal shared memory: %w", err)
		}
		return mapShared(fd, size, unix.PROT_READ|unix.PROT_WRITE)
	}()
	if err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, p, nil
}

// sealSeals keeps peers from adding seals, which would keep others from mapping.
func sealSeals(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal shared memory: %w", err)
	}
	return nil
}

func mapShared(fd, size, prot int) (unsafe.Pointer, error) {
	p, err := unix.MmapPtr(fd, 0, nil, uintptr(size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, resourceError("map shared memory", err)
	}
	return p, nil
}

// listen binds the socket under a temporary name first: a socket that is bound
// but does not listen yet looks like one whose process is dead, and would be
// swept away by another process that opens now.
func (c *Context) listen() error {
	dir, err := socketDir(c.opts.dir)
	if err != nil {
		return err
	}
	sweep(dir)
	base := fmt.Sprintf("%s/%016x", dir, c.inc)
	c.path = base + socketSuffix
	u := driver.URL{Driver: Name, Version: URLVersion, Incarnation: c.inc, Rest: (&url.URL{Path: c.path}).EscapedPath()}
	c.url = u.String()
	if len(c.url) > driver.MaxURL || len(base)+len(bindingSuffix) > 107 {
		return fmt.Errorf("%w: the name of directory %s is too long for a socket in it (set the option dir)", driver.ErrInvalid, dir)
	}
	c.listener, err = rights.Listen(base + bindingSuffix)
	if err != nil {
		c.path = ""
		return resourceError("listen", errors.Unwrap(err))
	}
	c.listener.SetUnlinkOnClose(false)
	if err := os.Rename(base+bindingSuffix, c.path); err != nil {
		_ = os.Remove(base + bindingSuffix)
		return resourceError("listen", err)
	}
	if len(c.opts.allowUIDs) > 0 {
		// Who may connect is decided by credentials.
		if err := os.Chmod(c.path, 0o666); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	return nil
}

const (
	socketSuffix  = ".shm"
	bindingSuffix = ".new"
)

// sweep removes the sockets of processes that were killed.
func sweep(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		name := e.Name()
		stale := strings.HasSuffix(name, socketSuffix)
		if strings.HasSuffix(name, bindingSuffix) {
			info, err := e.Info()
			stale = err == nil && time.Since(info.ModTime()) > time.Hour
		}
		if !stale || e.Type() != os.ModeSocket {
			continue
		}
		path := filepath.Join(dir, name)
		s, err := rights.Dial(path)
		if err == nil {
			rights.Close(s)
		} else if errors.Is(err, unix.ECONNREFUSED) {
			_ = os.Remove(path)
		}
	}
}

// Properties implements driver.Context.
func (c *Context) Properties() *driver.Properties { return &c.props }

// URL implements driver.Context.
func (c *Context) URL() string { return c.url }

// Connect implements driver.Context.
func (c *Context) Connect(peer string) (driver.Instance, error) {
	u, err := kit.ParseURL(Name, URLVersion, peer, driver.MaxURL)
	var path string
	if err == nil {
		path, err = socketOf(u, filepath.Dir(c.path))
	}
	if err != nil {
		return nil, &driver.Error{Driver: Name, Op: "connect", Err: err}
	}
	n := &conn{ctx: c, peerURL: peer, peerInc: u.Incarnation, proc: noProcess, fences: c.fences}
	n.settled = make(chan struct{})
	inst := n.bind()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, &driver.Error{Driver: Name, Peer: peer, Op: "connect", Err: driver.ErrClosed}
	}
	if err := c.lingers(u.Incarnation); err != nil {
		return nil, &driver.Error{Driver: Name, Peer: peer, Op: "connect", Err: err}
	}
	c.conns[n] = struct{}{}
	switch {
	case u.Incarnation == c.inc:
		c.tasks.Go(n.connectSelf)
	case c.inc < u.Incarnation:
		n.before, n.turn = c.turns[u.Incarnation], make(chan struct{})
		c.turns[u.Incarnation] = n.turn
		c.tasks.Go(func() { n.dial(path) })
	default:
		c.tasks.Go(func() { n.watch(path) })
		c.expect(n)
	}
	return inst, nil
}

// Counters implements driver.Context.
func (c *Context) Counters(sum *driver.Counters) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum.Refused += c.refused.Load()
	sum.BadFrames += c.bad.Load()
	sum.Waits += c.waits.Load()
	sum.DeregisterBusy += c.inside.Load()
	sum.Add(&c.retired)
	for n := range c.conns {
		n.tally.AddTo(sum)
	}
}

// Close implements driver.Context.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return &driver.Error{Driver: Name, Op: "close", Err: driver.ErrClosed}
	}
	c.closed = true
	conns := make([]*conn, 0, len(c.conns))
	for n := range c.conns {
		conns = append(conns, n)
	}
	for s := range c.sockets {
		rights.HangUp(s) // who reads it closes it
	}
	c.mu.Unlock()
	driver.Closed(c.api)
	c.prober.stop(c)
	for _, n := range conns {
		n.shut(driver.ErrClosed)
	}
	c.regions.revoke()
	_ = os.Remove(c.path)
	_ = c.listener.SetDeadline(time.Now()) // serve closes it
	c.tasks.Wait()
	c.release()
	return nil
}

// release frees what is the context's alone.
func (c *Context) release() {
	if c.listener != nil {
		c.listener.Close()
		_ = os.Remove(c.path)
	}
	c.prober.close(c)
	c.mu.Lock()
	c.released = true
	lingers := c.lingering > 0
	c.mu.Unlock()
	if !lingers {
		c.unpin()
	}
	if c.bellFD >= 0 {
		unix.Close(c.bellFD)
		c.bellFD = -1
	}
}

// unpin lets go of the memory that peers could reach.
func (c *Context) unpin() {
	c.regions.destroy()
	c.pinned.Unpin()
}

// RecvProbeAny implements driver.Prober.
func (c smallContext) RecvProbeAny() (driver.Instance, error) { return c.prober.probe(c.Context) }

// RecvWaitAny implements driver.Prober.
func (c smallContext) RecvWaitAny(ctx context.Context) (driver.Instance, error) {
	return c.prober.wait(ctx, c.Context)
}

// RecvCancelAny implements driver.Prober.
func (c smallContext) RecvCancelAny() error { return c.prober.cancel(c.Context) }
