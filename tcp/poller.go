package tcp

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver/kit"
)

// poller is the epoll instance of a context, which all its sockets are in: one system call says which of them have
// something. It is edge-triggered, so that no socket has to be changed in it while its connection stands.
type poller struct {
	fd     int
	bell   int // an eventfd that ends sleeps
	waiter sleeper
	keeper sleeper
}

// sleeper is a place to sleep until the poller has something: its descriptor, as a file of Go's own poller.
type sleeper struct {
	ctx     *share
	file    *os.File
	raw     syscall.RawConn
	look    func(uintptr) bool // made once: a closure for each sleep would allocate
	looking atomic.Bool
	woken   atomic.Bool
}

const bellToken = ^uint64(0)

func newPoller(c *share) (*poller, error) {
	p := &poller{fd: -1, bell: -1}
	var err error
	if p.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if p.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		p.close()
		return nil, os.NewSyscallError("eventfd", err)
	}
	if err = p.control(unix.EPOLL_CTL_ADD, p.bell, unix.EPOLLIN, bellToken); err == nil {
		if err = p.waiter.open(c, p.fd); err == nil {
			err = p.keeper.open(c, p.fd)
		}
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (s *sleeper) open(c *share, fd int) error {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil { // makes Go poll it
		_ = unix.Close(fd)
		return err
	}
	s.ctx, s.file = c, os.NewFile(uintptr(fd), "epoll")
	s.raw, err = s.file.SyscallConn()
	s.look = s.lookOnce
	return err
}

// lookOnce takes what there is. It reports whether the sleep is over.
func (s *sleeper) lookOnce(uintptr) bool {
	s.looking.Store(true)
	did := s.ctx.takeAll()
	s.looking.Store(false)
	return s.woken.Swap(false) || did
}

// sleep blocks until something has come, wake is called or d has passed; 0 is for ever.
func (s *sleeper) sleep(d time.Duration) {
	var until time.Time
	if d > 0 {
		until = time.Now().Add(d)
	}
	_ = s.file.SetReadDeadline(until)
	_ = s.raw.Read(s.look)
}

// mark makes the next look end the sleep. It reports whether the bell has to be rung for there to be one.
func (s *sleeper) mark() bool {
	s.woken.Store(true)
	return !s.looking.Load()
}

// wake ends sleeps.
func (p *poller) wake() {
	if w, k := p.waiter.mark(), p.keeper.mark(); w || k {
		p.ring()
	}
}

// wakeWaiter ends the sleep of a waiter. One that is taking what has come looks anyway.
func (p *poller) wakeWaiter() {
	if p.waiter.mark() {
		p.ring()
	}
}

func (p *poller) ring() {
	one := [8]byte{1}
	_, _ = unix.Write(p.bell, one[:])
}

// epollEvent is the kernel's struct epoll_event with one number as its data.
func (p *poller) control(op, fd int, events uint32, token uint64) error {
	e := unix.EpollEvent{Events: events | unix.EPOLLET&0xffffffff, Fd: int32(uint32(token)), Pad: int32(uint32(token >> 32))}
	if err := unix.EpollCtl(p.fd, op, fd, &e); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	return nil
}

// tokenOf names a connection in events: numbers are used again, and an event of the one before is harmless.
func tokenOf(i *conn) uint64 { return uint64(i.Number()) }

func (p *poller) add(i *conn) error {
	const in, out = unix.EPOLLIN | unix.EPOLLRDHUP, unix.EPOLLOUT
	if i.wire.in == i.wire.out {
		return p.control(unix.EPOLL_CTL_ADD, i.wire.in, in|out, tokenOf(i))
	}
	if err := p.control(unix.EPOLL_CTL_ADD, i.wire.in, in, tokenOf(i)); err != nil {
		return err
	}
	return p.control(unix.EPOLL_CTL_ADD, i.wire.out, out, tokenOf(i))
}

func (p *poller) remove(i *conn) {
	_ = p.control(unix.EPOLL_CTL_DEL, i.wire.in, 0, 0)
}

// ready takes events, without blocking.
func (p *poller) ready(events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&events[0])),
		uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

func (p *poller) close() {
	for _, s := range []*sleeper{&p.waiter, &p.keeper} {
		if s.file != nil {
			_ = s.file.Close()
		}
	}
	for _, fd := range []int{p.fd, p.bell} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// drainState is what a goroutine that drains has: one at a time does.
type drainState struct {
	lock   tryLock
	events [64]unix.EpollEvent
	todo   kit.ReadySet // connections that have more, or that somebody else was reading
	some   atomic.Bool  // todo may not be empty
	held   kit.ReadySet // connections whose last messages were held back to go with further ones
	holds  atomic.Bool
	round  atomic.Uint32 // changes with each drain
}

// again has the next drain look at a connection.
func (d *drainState) again(i *conn) {
	d.todo.Add(i.Number())
	d.some.Store(true)
}

// hold has the next drain flush a connection.
func (d *drainState) hold(i *conn) {
	d.held.Add(i.Number())
	d.holds.Store(true)
	holding.any.Store(true)
}

// holding are the contexts of this process, of which some may hold messages back: a program that waits for long messages
// on one context polls that one, while the short message that lets the peer begin is of another one.
var holding struct {
	any  atomic.Bool
	mu   sync.Mutex
	open []*share
}

// flushAllHeld sends what any context holds back.
func flushAllHeld() {
	if !holding.any.Load() || !holding.any.Swap(false) {
		return
	}
	if !holding.mu.TryLock() {
		holding.any.Store(true)
		return
	}
	defer holding.mu.Unlock()
	for _, c := range holding.open {
		c.flushHeld()
	}
}

// holder adds a context to those, or takes it out.
func (c *share) holder(open bool) {
	holding.mu.Lock()
	defer holding.mu.Unlock()
	if open {
		holding.open = append(holding.open, c)
	} else {
		holding.open = remove(holding.open, c)
	}
}

// end keeps everybody from draining, for good.
func (d *drainState) end() { d.lock.lock() }

// Drain implements kit.ContextHooks.
func (c *share) Drain() bool { return c.takeAll() }

// takeAll takes what has come for any connection, unless somebody else is at it. It reports whether there may have been
// something.
func (c *share) takeAll() (did bool) {
	d := &c.drain
	d.round.Add(1)
	flushAllHeld()
	if !d.lock.try() {
		return true
	}
	did = c.takeAgain()
	for {
		n := c.poll.ready(d.events[:])
		for k := range d.events[:n] {
			e := &d.events[k]
			token := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if token == bellToken {
				continue
			}
			did = true
			if i := c.Conns.At(uint32(token)); i != nil {
				c.notice(i, e.Events)
			}
		}
		if n < len(d.events) {
			break
		}
	}
	d.lock.unlock()
	return did
}

// notice takes what an event announces.
func (c *share) notice(i *conn, events uint32) {
	if events&unix.EPOLLOUT != 0 && i.blocked.Load() {
		i.flush()
		i.Wake()
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		i.hup.Store(true)
	}
	if events&^unix.EPOLLOUT != 0 && !i.receive() {
		c.drain.again(i)
	}
}

// takeAgain looks at connections that an earlier drain could not finish.
func (c *share) takeAgain() (did bool) {
	d := &c.drain
	if !d.some.Swap(false) {
		return false
	}
	for n, first, before := 0, uint32(0), uint32(0); n < 64; n++ {
		k, ok := d.todo.Take()
		if !ok {
			return did
		}
		// Numbers come in turn. Each connection has one look: a peer that always has more shall not keep others waiting.
		if n == 0 {
			first = k
		}
		turn := (k - first) % kit.MaxInstances
		if n > 0 && turn <= before {
			d.todo.Add(k)
			break
		}
		before = turn
		if i := c.Conns.At(k); i != nil {
			did = true
			if i.flush(); !i.receive() {
				d.again(i)
			}
		}
	}
	d.some.Store(true)
	return true
}

// flushHeld sends what was held back.
func (c *share) flushHeld() {
	d := &c.drain
	if !d.holds.Load() || !d.holds.Swap(false) {
		return
	}
	for {
		k, ok := d.held.Take()
		if !ok {
			return
		}
		if i := c.Conns.At(k); i != nil {
			i.flush()
		}
	}
}
