//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
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
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/rights"
)

// wakePage is a page of a context that all its peers can write: where threads that
// wait for any peer sleep.
type wakePage struct {
	raised uint32 // a thread sleeps on seq, or is about to
	_      [60]byte
	seq    uint32 // futex
	_      [60]byte
}

const wakePageBytes = 4096

// hostContext is the host, opened.
type hostContext struct {
	kit.Context[conn]
	opts     options
	key      *kit.Key // of the secret
	path     string   // of the socket
	place    place    // as published
	listener *net.UnixListener
	barrier  bool // peers may count on membarrier
	fences   bool // this process cannot register for it

	waits   pageWaits
	watch   kit.Watch
	pageFD  int
	regions regionTable
	nonce   *[nonceBytes]byte // peers read it to try CMA
	pinned  runtime.Pinner    // holds nonce
	prober  prober
	refused atomic.Uint64
	bad     atomic.Uint64
	inside  atomic.Uint64 // deregistrations that found a peer inside
	tasks   sync.WaitGroup

	// Guarded by Mu.
	hazards        map[*segment]*hazardPointer // by which peers may access regions
	waiting        map[uint64][]*conn          // listening side: Connect was called, no dialer yet
	arrived        map[uint64][]*pendingDialer // dialers without a connection here
	sockets        map[*net.UnixConn]struct{}  // that have not become connections
	turns          map[uint64]chan struct{}    // dialing: the last connection in turn, by peer
	watched        map[uint64][]*pendingDialer // by peers that expect this side to dial
	onRequest      func()
	pendingDialers pendingDialers
	shown          map[*driver.Arena]int // that have regions in them
	old            map[uint64]int        // closing connections, by peer
	released       bool                  // the context is closed: the last hazard pointer that goes unpins
}

// smallContext and largeContext give a context the methods of its track only.
type smallContext struct {
	*hostContext
	kit.Prober[conn]
}
type largeContext struct{ *hostContext }

var (
	_ driver.Prober                 = smallContext{}
	_ driver.Registrar              = smallContext{}
	_ driver.Registrar              = largeContext{}
	_ driver.ConnectRequestReceiver = smallContext{}
	_ driver.ConnectRequestReceiver = largeContext{}
	_ kit.Looker                    = smallContext{}
)

func openContext(props driver.Properties, o options, a driver.Attributes) (*hostContext, error) {
	key, err := kit.NewKey(a.Secret)
	if err != nil {
		return nil, err
	}
	c := &hostContext{
		opts: o, key: key, pageFD: -1,
		waiting: make(map[uint64][]*conn), arrived: make(map[uint64][]*pendingDialer),
		sockets: make(map[*net.UnixConn]struct{}), shown: make(map[*driver.Arena]int), turns: make(map[uint64]chan struct{}),
		watched: make(map[uint64][]*pendingDialer), pendingDialers: newPendingDialers(), old: make(map[uint64]int),
		hazards: make(map[*segment]*hazardPointer),
		nonce:   new([nonceBytes]byte),
	}
	api := driver.Context(largeContext{c})
	if props.Track == driver.Small {
		api = smallContext{c, c.Prober()}
	}
	c.Init(c, func(n *conn) *kit.Conn { return &n.Conn }, api, props, URLVersion, a)
	c.watch = kit.Watch{Device: &c.waits, Spins: spins, Long: true}
	c.Anyone.Watch = &c.watch
	_, _ = rand.Read(c.nonce[:]) // never fails
	c.pinned.Pin(c.nonce)
	// Regardless of the option: closing a connection executes a barrier, too.
	c.fences = !registerBarrier()
	c.barrier = !o.noBarrier && !c.fences
	c.waits.all, c.waits.asym = &c.Anyone, c.barrier
	if !o.noPtracer && !o.noCMA {
		rights.AdmitAttach()
	}
	if err = c.makeShared(); err == nil {
		err = c.listen()
	}
	if err != nil {
		c.release()
		return nil, err
	}
	c.tasks.Go(c.serve)
	return c, nil
}

func (c *hostContext) makeShared() error {
	fd, p, err := sharedMemory("bywash-wake-page", wakePageBytes)
	if err != nil {
		return err
	}
	c.pageFD, c.waits.page = fd, (*wakePage)(p)
	if err := sealSeals(fd); err != nil {
		return err
	}
	return c.regions.create()
}

// sharedMemory makes a sealed memfd and maps it.
func sharedMemory(name string, size int) (int, unsafe.Pointer, error) {
	fd, err := newMemfd(name, int64(size), sizeSeals)
	if err != nil {
		return -1, nil, err
	}
	p, err := mapShared(fd, size, unix.PROT_READ|unix.PROT_WRITE)
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
func (c *hostContext) listen() error {
	dir, err := socketDir(c.opts.dir)
	if err != nil {
		return err
	}
	sweep(dir)
	base := fmt.Sprintf("%s/%016x", dir, c.Incarnation)
	c.path = base + socketSuffix
	at, err := placeAt(c.path, &c.opts)
	if err != nil {
		return err
	}
	c.place = at.fit(driver.MaxURL - len(driver.URL{Driver: Name, Version: URLVersion}.String()))
	err = c.Publish(c.place.String(), c.place.domain())
	if err != nil || len(base)+len(bindingSuffix) > maxPath {
		return fmt.Errorf("%w: the name of directory %s is too long for a socket in it (set the option dir)", driver.ErrInvalid, dir)
	}
	c.listener, err = rights.Listen(base + bindingSuffix)
	if err != nil {
		c.path = ""
		return resourceError(opListen, errors.Unwrap(err))
	}
	c.listener.SetUnlinkOnClose(false)
	if err := os.Rename(base+bindingSuffix, c.path); err != nil {
		_ = os.Remove(base + bindingSuffix)
		return resourceError(opListen, err)
	}
	if len(c.opts.allowUIDs) > 0 {
		// Credentials decide which processes may connect.
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

// sweepDials is the number of sockets that one context looks at: each wakes a process that lives.
const sweepDials = 32

// sweep removes sockets of processes that were killed, of many those that chance chooses.
func sweep(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	mathrand.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	dials := 0
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
		if dials++; dials > sweepDials {
			return
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

// Dial implements kit.ContextHooks.
func (c *hostContext) Dial(num uint32, peer string, to driver.URL) (*conn, error) {
	at, err := parsePlace(to)
	if err != nil {
		return nil, err
	}
	if err := c.tooManyClosing(to.Incarnation); err != nil {
		return nil, err
	}
	n := c.newConn(to.Incarnation)
	n.apart = c.place.apart(&at)
	c.Add(n, num, peer, n.track, n.track)
	n.UseGate(n.track)
	n.Waits = &n.watching
	switch {
	case n.peerInc == c.Incarnation:
		c.tasks.Go(n.connectSelf)
	case c.Incarnation < n.peerInc:
		n.before, n.turn = c.turns[n.peerInc], make(chan struct{})
		c.turns[n.peerInc] = n.turn
		c.tasks.Go(func() { n.dial(at.path) })
	default:
		c.tasks.Go(func() { n.watch(at.path) })
		c.expect(n)
	}
	return n, nil
}

// Drain implements kit.ContextHooks: a probe looks into the rings itself.
func (c *hostContext) Drain() bool { return false }

// Count implements kit.ContextHooks.
func (c *hostContext) Count(sum *driver.Counters) {
	sum.Refused += c.refused.Load()
	sum.BadFrames += c.bad.Load()
	sum.DeregisterBusy += c.inside.Load()
}

// Release implements kit.ContextHooks.
func (c *hostContext) Release() error {
	c.Mu.Lock()
	for s := range c.sockets {
		rights.HangUp(s) // its reader closes it
	}
	c.Mu.Unlock()
	c.regions.revoke()
	_ = os.Remove(c.path)
	rights.Interrupt(c.listener) // serve closes it
	c.tasks.Wait()
	c.release()
	return nil
}

// release frees what is the context's alone.
func (c *hostContext) release() {
	if c.listener != nil {
		c.listener.Close()
		_ = os.Remove(c.path)
	}
	c.waits.close()
	c.Mu.Lock()
	c.released = true
	last := len(c.hazards) == 0
	c.Mu.Unlock()
	if last {
		c.unpin()
	}
	if c.pageFD >= 0 {
		unix.Close(c.pageFD)
		c.pageFD = -1
	}
}

// unpin lets go of the memory that peers could reach.
func (c *hostContext) unpin() {
	c.regions.destroy()
	c.pinned.Unpin()
}
