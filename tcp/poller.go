//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// poller is the epoll instance of a context, which all its sockets are in: one system call returns which of them
// have something. It is edge-triggered, so that no socket has to be changed in it while its connection is established.
type poller struct {
	fd        int
	waiter    sleeper
	keepAlive sleeper
}

// sleeper is a place to sleep until the poller has something: a descriptor of it, which the first sleep makes a file of
// Go's own poller. From then on each event of a socket passes through both in the kernel, which costs a sender on the
// same host some 100 ns a message: contexts whose users never sleep do not pay for it.
type sleeper struct {
	ctx     *share
	look    func(uintptr) bool // made once: a closure for each sleep would allocate
	asleep  atomic.Bool        // from before the first look of a sleep on
	looking atomic.Bool
	woken   atomic.Bool

	mu   sync.Mutex // guards the rest
	fd   int        // -1: file has it, or it is closed
	file *os.File
	raw  syscall.RawConn
}

func newPoller(c *share) (*poller, error) {
	p := &poller{fd: -1, waiter: sleeper{fd: -1}, keepAlive: sleeper{fd: -1}}
	var err error
	if p.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err = p.waiter.open(c, p.fd); err == nil {
		err = p.keepAlive.open(c, p.fd)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (s *sleeper) open(c *share, fd int) (err error) {
	s.ctx, s.look = c, s.lookOnce
	if s.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	return os.NewSyscallError("fcntl", unix.SetNonblock(s.fd, true)) // makes Go poll it
}

// opened is the file; nil after close.
func (s *sleeper) opened() (*os.File, syscall.RawConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 {
		s.file = os.NewFile(uintptr(s.fd), "epoll")
		s.raw, _ = s.file.SyscallConn() // of an open file
		s.fd = -1
	}
	return s.file, s.raw
}

func (s *sleeper) close() {
	s.mu.Lock()
	file := s.file
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		s.fd = -1
	}
	s.file = nil
	s.mu.Unlock()
	if file != nil {
		_ = file.Close() // ends a sleep
	}
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
	file, raw := s.opened()
	if file == nil {
		return
	}
	_ = file.SetReadDeadline(until)
	s.asleep.Store(true)
	_ = raw.Read(s.look)
	s.asleep.Store(false)
	s.woken.Store(false) // a deadline caused no look; the caller looks again in any case
}

// wake ends a sleep, by a deadline that has passed: an event of the poller might be taken by a goroutine that polls. The
// first look of a sleep, and one that is under way, have yet to ask whether it is over. A call that comes late ends the
// next sleep.
func (s *sleeper) wake() {
	s.woken.Store(true)
	if !s.asleep.Load() || s.looking.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.SetReadDeadline(time.Unix(1, 0))
	}
}

// wake ends sleeps.
func (p *poller) wake() {
	p.waiter.wake()
	p.keepAlive.wake()
}

// epollEvent is the kernel's struct epoll_event with one number as its data.
func (p *poller) control(op, fd int, events uint32, token uint64) error {
	e := unix.EpollEvent{
		Events: events | unix.EPOLLET&0xffffffff, Fd: int32(uint32(token)), Pad: int32(uint32(token >> 32)),
	}
	if err := unix.EpollCtl(p.fd, op, fd, &e); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	return nil
}

// tokenOf names a connection in events, and differs from that of the one that had its number before: an event of that
// may be under way.
func tokenOf(i *conn) uint64 { return i.turn<<32 | uint64(i.Number()) }

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
	p.waiter.close()
	p.keepAlive.close()
	_ = unix.Close(p.fd)
}

// drainState belongs to the goroutine that drains: one at a time does.
type drainState struct {
	lock   tryLock
	events [8]unix.EpollEvent
	todo   kit.ReadySet // connections that have more, or that another goroutine was reading
	some   atomic.Bool  // todo may not be empty
	held   kit.ReadySet // connections whose last messages were held back to go with further ones
	holds  atomic.Bool
	round  atomic.Uint32 // changes with each drain
}

// requeue has the next drain poll a connection.
func (d *drainState) requeue(i *conn) {
	d.todo.Add(i.Number())
	d.some.Store(true)
}

// hold has the next drain flush a connection.
func (d *drainState) hold(i *conn) {
	d.held.Add(i.Number())
	d.holds.Store(true)
	holding.any.Store(true)
}

// holding has the contexts of this process, any of which may hold messages back: a program that waits for long messages
// polls one context, while another one holds the short message that lets the peer begin.
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

// end keeps all goroutines from draining, for good.
func (d *drainState) end() { d.lock.lock() }

func (c *share) Drain() bool { return c.takeAll() }

// watch adds the connections to the poller, and those to come. It is not done before a probe or a wait asks which of
// them have something: a socket in it costs a sender on the same host 250 ns a message, which programs that poll each
// instance by itself do not pay.
func (c *share) watch() {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.watched.Load() || c.IsClosed() {
		return
	}
	for i := range c.Conns.All() {
		if i.wire == nil {
			continue
		}
		if err := c.poll.add(i); err != nil {
			i.Finish(kit.StateBroken, fmt.Errorf("%w: %s: %w", driver.ErrBroken, c.Props.Device, err))
		}
	}
	c.watched.Store(true)
}

// takeAll takes what has come for any connection, unless another goroutine does. It reports whether there may have been
// something.
func (c *share) takeAll() bool {
	if !c.watched.Load() {
		c.watch()
	}
	return c.takeReady()
}

// pollTime is how long one poll of all connections takes, beside the first connection and the last: it is a part of
// calls that must not block, and any number of peers may have sent any number of bytes. The next poll goes on where
// this one has stopped. Tests shorten it.
var pollTime = 500 * time.Microsecond

// pollClock reports when a poll is over. A poll of one connection needs no time.
type pollClock struct {
	conns int
	begun time.Time
}

func (l *pollClock) over() bool {
	if l.conns++; l.conns == 2 {
		l.begun = time.Now()
	}
	return l.conns > 2 && time.Since(l.begun) > pollTime
}

// takeReady is takeAll, but for connections that the poller does not have yet.
func (c *share) takeReady() (did bool) {
	d := &c.drain
	d.round.Add(1)
	flushAllHeld()
	if !d.lock.try() {
		return true
	}
	var clock pollClock
	did = c.takeAgain(&clock)
	for late := false; !late; {
		n := c.poll.ready(d.events[:])
		for k := range d.events[:n] {
			e := &d.events[k]
			token := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			did = true
			if i := c.Conns.At(uint32(token)); i != nil && tokenOf(i) == token {
				late = late || clock.over()
				c.notice(i, e.Events, late)
			}
		}
		if n < len(d.events) {
			break
		}
	}
	d.lock.unlock()
	return did
}

// notice takes what an event announces, or leaves it to the next poll.
func (c *share) notice(i *conn, events uint32, leave bool) {
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		i.hup.Store(true)
	}
	if leave {
		c.drain.requeue(i)
		return
	}
	if events&unix.EPOLLOUT != 0 && i.blocked.Load() {
		i.flush()
		i.Wake()
	}
	if events&^unix.EPOLLOUT != 0 && !i.receive() {
		c.drain.requeue(i)
	}
}

// takeAgain polls connections that an earlier drain could not finish.
func (c *share) takeAgain(clock *pollClock) (did bool) {
	d := &c.drain
	if !d.some.Swap(false) {
		return false
	}
	for n, first, before := 0, uint32(0), uint32(0); n < 64; n++ {
		k, ok := d.todo.Take()
		if !ok {
			return did
		}
		// Numbers come in turn. Each connection is polled once: a peer that always has more must not keep others waiting.
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
			if clock.over() {
				d.todo.Add(k)
				break
			}
			if i.flush(); !i.receive() {
				d.requeue(i)
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
