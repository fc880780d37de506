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
	of         *object
	verb       string
	file       *os.File
	raw        syscall.RawConn
	ready      func(uintptr) bool
	result     int

	time  sync.Mutex
	until time.Time // what setDeadline has set
	ended bool      // the context of the wait under way has ended
}

// init watches fd of o. try reads an event without blocking, by verb; it returns -EAGAIN while there is none.
func (p *poller) init(o *object, fd int, verb string, try func() int) error {
	p.of, p.verb = o, verb
	dup, err := duplicate(fd)
	if err == nil {
		p.file = os.NewFile(dup, o.kind+" of "+o.device)
		p.raw, err = p.file.SyscallConn()
	}
	if err == nil {
		err = p.file.SetReadDeadline(time.Time{}) // fails if it is not in the poller
	}
	if err != nil {
		e := &Error{Verb: verb, Device: o.device, Detail: "watch its events"}
		errors.As(err, &e.Errno)
		return e
	}
	p.ready = func(uintptr) bool {
		p.result = -int(syscall.EBADF)
		if o.use(verb) == nil {
			p.result = try()
			o.mu.RUnlock()
		}
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

// next calls try until it has read an event. It gives up with the context's error, os.ErrDeadlineExceeded or
// os.ErrClosed. The caller holds the lock.
func (p *poller) next(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ctx.Done() != nil {
		defer p.watch(ctx)()
	}
	switch err := p.raw.Read(p.ready); {
	case err == nil && p.result >= 0:
		return nil
	case err == nil && p.result != -int(syscall.EBADF):
		return fail(p.verb, p.of.device, p.result, "")
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	return closed(p.verb, p.of) // the only other error of Read, which os does not export
}

func (p *poller) setDeadline(t time.Time) error {
	p.time.Lock()
	defer p.time.Unlock()
	p.until = t
	if p.ended {
		return nil
	}
	return p.file.SetReadDeadline(t)
}

// end makes the wait under way fail now, or lets the next one last until the deadline.
func (p *poller) end(now bool) {
	p.time.Lock()
	defer p.time.Unlock()
	t := p.until
	if p.ended = now; now {
		t = time.Unix(1, 0)
	}
	_ = p.file.SetReadDeadline(t)
}

// watch ends the wait when ctx ends, until the function that it returns is called.
func (p *poller) watch(ctx context.Context) func() {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		p.end(true)
		close(fired)
	})
	return func() {
		if !stop() {
			<-fired
			p.end(false)
		}
	}
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
	if err := c.fd.next(ctx); err != nil {
		return AsyncEvent{}, err
	}
	return c.event, nil
}

// tryEvent reads an event into c.event. The caller holds c by use.
func (c *Context) tryEvent() int {
	typ, port, key, r := rawAsyncEvent(c.h)
	if r < 0 {
		return r
	}
	c.event = AsyncEvent{Type: typ, Port: port}
	switch o := c.find(key).(type) {
	case *QP:
		c.event.QP = o
	case *CQ:
		c.event.CQ = o
	case *SRQ:
		c.event.SRQ = o
	}
	return 0
}
