package ibv

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

// poller is a file of the library in Go's poller, so that waiting for it parks
// a goroutine and not a thread. It holds a duplicate of the library's fd.
type poller struct {
	sync.Mutex // one waiter at a time
	file       *os.File
	raw        syscall.RawConn
	ready      func(uintptr) bool
	result     int
}

// init watches fd. try reads an event without blocking; it returns -EAGAIN while there is none.
func (p *poller) init(fd int, name string, try func() int) error {
	dup, err := duplicate(fd)
	if err != nil {
		return err
	}
	p.file = os.NewFile(dup, name)
	raw, err := p.file.SyscallConn()
	if err == nil {
		err = p.file.SetReadDeadline(time.Time{}) // fails if it is not in the poller
	}
	if err != nil {
		p.file.Close()
		return err
	}
	p.raw = raw
	p.ready = func(uintptr) bool {
		p.result = try()
		return p.result != -int(syscall.EAGAIN)
	}
	return nil
}

// close makes waiters return os.ErrClosed.
func (p *poller) close() {
	if p.file != nil {
		p.file.Close()
	}
}

// next calls try until it does not return -EAGAIN, and returns its result. It gives up with the context's error,
// os.ErrDeadlineExceeded or os.ErrClosed. The caller holds the lock.
func (p *poller) next(ctx context.Context) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if ctx.Done() != nil {
		defer p.watch(ctx)()
	}
	switch err := p.raw.Read(p.ready); {
	case err == nil:
		return p.result, nil
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, err
	}
	return 0, os.ErrClosed // the only other error, which os does not export
}

// watch ends the wait when ctx ends, until the function that it returns is called.
func (p *poller) watch(ctx context.Context) func() {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = p.file.SetReadDeadline(time.Unix(1, 0))
		close(fired)
	})
	return func() {
		if !stop() {
			<-fired
			_ = p.file.SetReadDeadline(time.Time{})
		}
	}
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	errors.As(err, &errno)
	return errno
}

// EventType is the kind of an asynchronous event.
type EventType uint32

// The asynchronous events.
const (
	EventCQErr       EventType = 0
	EventQPFatal     EventType = 1
	EventQPRequest   EventType = 2
	EventQPAccess    EventType = 3
	EventCommEst     EventType = 4
	EventSQDrained   EventType = 5
	EventPathMig     EventType = 6
	EventPathMigErr  EventType = 7
	EventDeviceFatal EventType = 8
	EventPortActive  EventType = 9
	EventPortErr     EventType = 10
	EventLIDChange   EventType = 11
	EventPKeyChange  EventType = 12
	EventSMChange    EventType = 13
	EventSRQErr      EventType = 14
	EventSRQLimit    EventType = 15
	EventQPLastWQE   EventType = 16
	EventClientRereg EventType = 17
	EventGIDChange   EventType = 18
)

// String describes the event in words.
func (t EventType) String() string {
	return word([]string{
		"completion queue error: it was overrun",
		"queue pair broke: the device reported an error on it",
		"queue pair broke: the peer sent an invalid request",
		"queue pair broke: the peer violated access rights",
		"first packet on a queue pair in RTR",
		"send queue drained",
		"path migrated",
		"path migration failed",
		"the device failed or was removed",
		"port became active",
		"port went down",
		"local identifier changed",
		"partition keys changed",
		"subnet manager changed",
		"shared receive queue error",
		"shared receive queue fell below its limit",
		"last receive of a queue pair on a shared receive queue was consumed",
		"subnet manager asks clients to register again",
		"GID table changed",
	}, "event", t)
}

// AsyncEvent is an event of a device or an object on it.
type AsyncEvent struct {
	Type EventType
	Port int  // of port events, else 0
	QP   *QP  // of queue pair events; nil if it was closed meanwhile
	CQ   *CQ  // of completion queue events; nil if it was closed meanwhile
	SRQ  *SRQ // of shared receive queue events; nil if it was closed meanwhile
}

// GetAsyncEvent blocks until the device's next asynchronous event. It parks the goroutine; several callers take turns.
// It fails with the error of ctx, or with os.ErrClosed once the device is closed. When the device fails or is removed,
// EventDeviceFatal comes first.
func (c *Context) GetAsyncEvent(ctx context.Context) (AsyncEvent, error) {
	c.fd.Lock()
	defer c.fd.Unlock()
	r, err := c.fd.next(ctx)
	if err == nil && r < 0 {
		err = fail("get_async_event", c.device, r, "")
	}
	if errors.Is(err, os.ErrClosed) {
		err = closed("get_async_event", &c.object)
	}
	if err != nil {
		return AsyncEvent{}, err
	}
	return c.event, nil
}

// tryEvent reads an event into c.event.
func (c *Context) tryEvent() int {
	if c.use("get_async_event") != nil {
		return -int(syscall.EBADF)
	}
	defer c.mu.RUnlock()
	typ, port, key, r := rawAsyncEvent(c.h)
	if r < 0 {
		return r
	}
	c.event = AsyncEvent{Type: typ, Port: port}
	c.ids.Lock()
	defer c.ids.Unlock()
	switch o := c.of[key].(type) {
	case *QP:
		c.event.QP = o
	case *CQ:
		c.event.CQ = o
	case *SRQ:
		c.event.SRQ = o
	}
	return 0
}
