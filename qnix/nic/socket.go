//go:build linux

package nic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/descriptors"
	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/qnix/internal/abi"
)

// socket is a NIC in user space. A goroutine reads answers, and notices at once when the other end dies.
type socket struct {
	conn   *net.UnixConn
	user   uint32 // user of the NIC's process
	wakeup int    // eventfd on which the NIC sleeps
	gate   gate   // of wakeup: closed while there is none

	hungUp  atomic.Bool
	left    atomic.Bool   // this side has given up a NIC that does not answer
	reading chan struct{} // closed when the reader has ended

	mu     sync.Mutex
	lastID uint32
	calls  map[uint32]*call
	onGone func()
}

// call is a request that waits for its answer.
type call struct {
	body []byte // of the answer; its length is the expected one
	fds  []int  // with the answer
	err  error
	done chan struct{}
}

// maxWait is how long Open waits for the first answer, and a cancelled call for its own.
const maxWait = time.Second

func openSocket(path string) (host, error) {
	conn, err := rights.Dial(path)
	if err != nil {
		return nil, err
	}
	user := rights.User(conn)
	if err := checkServer(path, user); err != nil {
		rights.Close(conn)
		return nil, err
	}
	s := &socket{conn: conn, user: user, wakeup: -1, calls: map[uint32]*call{}, reading: make(chan struct{})}
	s.gate.close()
	rights.AdmitAttach()
	go s.read()
	return s, nil
}

// discard closes descriptors that the NIC has passed.
func (s *socket) discard(fds []int) { rights.Discard(s.user, fds...) }

// read handles answers until the connection ends. If this side has given up, it ends when the NIC has noticed and
// accesses no memory of this process any more.
func (s *socket) read() {
	defer close(s.reading)
	for {
		b, fds, err := abi.Receive(s.conn, abi.RegisterFDs)
		if err == nil {
			err = s.answered(b, fds)
		} else {
			s.discard(fds)
		}
		if errors.Is(err, unix.ECONNRESET) { // it hung up with a request unread: its answers come after this error
			continue
		}
		if err != nil {
			s.end(err)
			break
		}
	}
	// No request gets an answer any more, so no further one must be sent.
	rights.Close(s.conn)
}

// end fails all calls that wait for an answer, and reports the end of the NIC. The kernel drops descriptors that this
// process has no room for.
func (s *socket) end(received error) {
	err := ErrGone
	if free, _ := descriptors.Free(); errors.Is(received, rights.ErrTruncated) && free < abi.RegisterFDs {
		err = fmt.Errorf("receive the NIC's memory: %w", unix.EMFILE)
	}
	s.hungUp.Store(true)
	s.mu.Lock()
	for id, c := range s.calls {
		c.err = err
		delete(s.calls, id)
		close(c.done)
	}
	f := s.onGone
	s.onGone = nil
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

// answered passes an answer to its call. An error ends the connection.
func (s *socket) answered(b []byte, fds []int) error {
	a, body, err := abi.ParseAnswer(b)
	if err != nil {
		s.discard(fds)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[a.ID]
	if c == nil { // the call was given up
		s.discard(fds)
		return nil
	}
	delete(s.calls, a.ID)
	defer close(c.done)
	switch {
	case a.Errno != 0:
		s.discard(fds)
		c.err = unix.Errno(a.Errno)
	case len(body) != len(c.body):
		s.discard(fds)
		c.err = ErrUntrusted
	default:
		copy(c.body, body)
		c.fds = fds
	}
	return nil
}

// start sends a request.
func (s *socket) start(request uint32, body, answer []byte, fds ...int) (uint32, *call, error) {
	c := &call{body: answer, done: make(chan struct{})}
	s.mu.Lock()
	s.lastID++
	id := s.lastID
	s.calls[id] = c
	s.mu.Unlock()
	err := s.send(request, id, body, fds...)
	if s.hungUp.Load() {
		err = ErrGone
	}
	// A NIC may answer and hang up at once: the answer counts.
	if err != nil && s.forget(id) {
		return 0, nil, err
	}
	return id, c, nil
}

func (s *socket) send(request, id uint32, body []byte, fds ...int) error {
	h := abi.Header{Request: request, ID: id}
	var buf [abi.MaxMessageSize]byte
	err := abi.Send(s.conn, append(append(buf[:0], abi.Bytes(&h)...), body...), fds...)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return ErrGone // the reader may see the end later
	}
	return err
}

// forget gives up on an answer, and reports whether it is still outstanding.
func (s *socket) forget(id uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.calls[id]
	delete(s.calls, id)
	return ok
}

// call sends a request and waits for the answer. When the context ends, it asks the NIC to stop waiting for other
// processes and still waits for the answer, but only for maxWait, because the NIC may be stopped.
func (s *socket) call(ctx context.Context, request uint32, body, answer []byte, fds ...int) (*call, error) {
	id, c, err := s.start(request, body, answer, fds...)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.done:
		return c, c.err
	case <-ctx.Done():
	}
	_ = s.send(abi.ReqAbandon, id, nil)
	select {
	case <-c.done:
		if errors.Is(c.err, unix.EINTR) || errors.Is(c.err, unix.ETIMEDOUT) {
			return nil, ctx.Err()
		}
		return c, c.err
	case <-time.After(maxWait):
	}
	s.abandon()
	<-c.done
	if c.err == nil {
		s.discard(c.fds)
	}
	return nil, ctx.Err()
}

// abandon gives up a NIC that does not answer: a late answer must not have an effect on this handle. The NIC may be
// stopped while it copies from or to memory of this process. So only the writing half of the connection is closed here:
// the NIC closes the other half when it has continued, has seen that, and has finished with the memory.
func (s *socket) abandon() {
	if s.left.Swap(true) {
		return
	}
	if s.conn.CloseWrite() != nil {
		rights.HangUp(s.conn) // the other end has already hung up
	}
	s.end(nil)
}

func (s *socket) abandoned() bool { return s.left.Load() }

func (s *socket) outside() <-chan struct{} { return s.reading }

// background is for calls that the NIC answers at once.
func (s *socket) background(request uint32, body, answer []byte, fds ...int) error {
	c, err := s.call(context.Background(), request, body, answer, fds...)
	if err == nil {
		s.discard(c.fds)
	}
	return err
}

func (s *socket) info(i *abi.Info) error {
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	c, err := s.call(ctx, abi.ReqInfo, nil, abi.Bytes(i))
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return unix.EAGAIN
		}
		return err
	}
	s.discard(c.fds)
	return nil
}

func (s *socket) register(ctx context.Context, r *abi.Register) (vni, hps []byte, err error) {
	answer := *r
	if err := rights.Admit(s.conn); err != nil {
		return nil, nil, err
	}
	ctx, cancel := bounded(ctx, r.TimeoutMs)
	defer cancel()
	c, err := s.call(ctx, abi.ReqRegister, abi.Bytes(r), abi.Bytes(&answer))
	if err != nil {
		return nil, nil, err
	}
	*r = answer
	if len(c.fds) != abi.RegisterFDs {
		s.discard(c.fds)
		_ = s.deregister()
		return nil, nil, ErrUntrusted
	}
	if vni, err = mapSealed(c.fds[0], r.VNISize); err == nil {
		if hps, err = mapSealed(c.fds[1], r.HPSSize); err != nil {
			_ = unix.Munmap(vni)
		}
	}
	if err != nil {
		s.discard(c.fds)
		_ = s.deregister()
		return nil, nil, err
	}
	s.discard(c.fds[:2])
	s.wakeup = c.fds[2]
	s.gate.open()
	return vni, hps, nil
}

// stopped is how long a softnic may take to deregister a process before it counts as stopped.
const stopped = 2 * time.Second

// deregister gives up a NIC that does not answer, for example because it is stopped. Such a NIC finds the connection
// closed when it continues, but may access translated memory before that: see outside.
func (s *socket) deregister() error {
	s.closeWakeup()
	ctx, cancel := context.WithTimeout(context.Background(), stopped)
	defer cancel()
	c, err := s.call(ctx, abi.ReqDeregister, nil, nil)
	if err == nil {
		s.discard(c.fds)
	}
	return err
}

func (s *socket) closeWakeup() {
	if s.wakeup >= 0 {
		s.gate.close()
		unix.Close(s.wakeup)
		s.wakeup = -1
	}
}

func (s *socket) translate(t *abi.Translate, fd int, offset uint64) error {
	x, answer := *t, *t
	var fds []int
	if fd >= 0 {
		x.Addr = offset
		fds = []int{fd}
	}
	if err := s.background(abi.ReqTranslate, abi.Bytes(&x), abi.Bytes(&answer), fds...); err != nil {
		return err
	}
	t.Handle = answer.Handle
	return nil
}

func (s *socket) untranslate(handle uint32) error {
	return s.background(abi.ReqUntranslate, abi.Bytes(&abi.Untranslate{Handle: handle}), nil)
}

// bounded limits a call that waits for other processes: the softnic has a limit of its own, but may be stopped.
func bounded(ctx context.Context, timeoutMs uint32) (context.Context, context.CancelFunc) {
	if timeoutMs != 0 { // from the context
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, defaultTimeout+maxWait)
}

// defaultTimeout is how long the NIC waits for other processes.
const defaultTimeout = 30 * time.Second

func (s *socket) join(ctx context.Context, g *abi.Group) error {
	ctx, cancel := bounded(ctx, g.TimeoutMs)
	defer cancel()
	c, err := s.call(ctx, abi.ReqJoin, abi.Bytes(g), nil)
	if err == nil {
		s.discard(c.fds)
	}
	return err
}

func (s *socket) leave(g *abi.Group) error {
	return s.background(abi.ReqLeave, abi.Bytes(g), nil)
}

func (s *socket) statistics(x *abi.Statistics) error {
	return s.background(abi.ReqStatistics, nil, abi.Bytes(x))
}

func (s *socket) kick() error {
	if s.gate.enter() {
		ring(s.wakeup)
		s.gate.leave()
	}
	return nil
}

func (s *socket) sleep(tail *uint32, seen uint32, w *atomic.Uint32, seenWakes uint32, d time.Duration) {
	futexSleep(tail, seen, w, seenWakes, d)
}

func (s *socket) wake(tail *uint32, w *atomic.Uint32) { futexRouse(tail, w) }

func (s *socket) gone() bool { return s.hungUp.Load() }

func (s *socket) watch(f func()) {
	s.mu.Lock()
	s.onGone = f
	s.mu.Unlock()
	if s.hungUp.Load() {
		f()
	}
}

func (s *socket) close() error {
	if s.left.Load() { // the reader closes it when the NIC continues
		s.closeWakeup()
		return nil
	}
	rights.HangUp(s.conn) // the reader closes it
	<-s.reading
	s.closeWakeup() // in case the other end had ended before Deregister
	return nil
}

// maxMapping is larger than any interface.
const maxMapping = 1 << 28

// mapSealed maps memory of a softnic if its seals prevent shrinking: an access to a page that does not exist any more
// would end this process by SIGBUS.
func mapSealed(fd int, size uint32) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, ErrUntrusted
	}
	var fs unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Fstatfs(fd, &fs), unix.Fstat(fd, &st)); err != nil {
		return nil, err
	}
	// hugetlbfs pages that were taken back fault with SIGBUS, too.
	if fs.Type != unix.TMPFS_MAGIC || size == 0 || size > maxMapping || st.Size < int64(size) {
		return nil, ErrUntrusted
	}
	return unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}
