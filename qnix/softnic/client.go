//go:build linux

package softnic

import (
	"errors"
	"net"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/qnix/internal/abi"
)

// client is a connection from a program. It corresponds to an open handle of the module.
type client struct {
	server *Server
	nic    *served
	conn   *net.UnixConn
	cred   credentials

	over    chan struct{} // closed at the connection's end, which ends all waits
	pending sync.WaitGroup

	mu      sync.Mutex
	process *process
	busy    bool                     // it registers or deregisters
	waiting map[uint32]chan struct{} // requests that wait, by id; close the channel to abandon one
}

// serve answers requests until the connection ends, and then frees everything.
func (c *client) serve() {
	for {
		b, fds, err := abi.Receive(c.conn, abi.TranslateFDs)
		if err == nil {
			err = c.handle(b, fds)
		}
		if len(fds) > 0 {
			// Closing a memfd is quick; Discard closes other files in the background, because that can block.
			rights.Discard(c.user(), fds...)
			if err == nil {
				err = rights.Stuck(c.user())
			}
		}
		if err != nil {
			break
		}
	}
	close(c.over)
	c.pending.Wait()
	if c.process != nil {
		c.process.end()
	}
	// Close last, so that a program that sees the end can register the name again.
	rights.Close(c.conn)
	c.closePidfd()
}

func (c *client) user() uint32 { return uint32(c.cred.uid) }

func (c *client) closePidfd() {
	if c.cred.pidfd >= 0 {
		unix.Close(c.cred.pidfd)
	}
}

// handle carries out one request. An error ends the connection, because the client sends malformed requests.
func (c *client) handle(b []byte, fds []int) error {
	h, body, err := abi.ParseRequest(b)
	if err != nil {
		return err
	}
	size := abi.RequestSize(h.Request)
	if size < 0 {
		return c.answer(h, unix.ENOTTY, nil)
	}
	if len(body) != size {
		return c.answer(h, unix.EINVAL, nil)
	}
	switch h.Request {
	case abi.ReqInfo:
		i := c.server.info(c.nic)
		return c.answer(h, nil, abi.Bytes(&i))
	case abi.ReqRegister:
		return c.register(h, body)
	case abi.ReqDeregister:
		return c.answer(h, c.deregister(), nil)
	case abi.ReqTranslate:
		return c.translate(h, body, fds)
	case abi.ReqUntranslate:
		var u abi.Untranslate
		_ = abi.Decode(&u, body)
		return c.answer(h, c.with(func(p *process) error { return p.p.Untranslate(u.Handle) }), nil)
	case abi.ReqJoin:
		return c.join(h, body)
	case abi.ReqLeave:
		var g abi.Group
		_ = abi.Decode(&g, body)
		return c.answer(h, c.with(func(p *process) error { return p.leave(&g) }), nil)
	case abi.ReqDoorbell: // the eventfd is the faster way
		return c.answer(h, c.with(func(*process) error { return nil }), nil)
	case abi.ReqStatistics:
		return c.statistics(h)
	case abi.ReqAbandon:
		c.abandon(h.ID)
		return nil
	}
	return c.answer(h, unix.ENOTTY, nil)
}

// answer sends an answer. Errors other than errnos become EIO.
func (c *client) answer(h abi.Header, err error, body []byte, fds ...int) error {
	a := abi.Answer{ID: h.ID}
	if err != nil {
		var errno unix.Errno
		if !errors.As(err, &errno) {
			errno = unix.EIO
		}
		a.Errno, body, fds = int32(errno), nil, nil
	}
	var buf [abi.MaxMessageSize]byte
	return abi.Send(c.conn, append(append(buf[:0], abi.Bytes(&a)...), body...), fds...)
}

// with calls f with the registered process.
func (c *client) with(f func(*process) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return unix.ENOTCONN
	}
	return f(c.process)
}

func (c *client) translate(h abi.Header, body []byte, fds []int) error {
	var t abi.Translate
	_ = abi.Decode(&t, body)
	fd := -1
	if len(fds) > 0 {
		fd = fds[0]
	}
	err := c.with(func(p *process) error {
		if len(fds) > abi.TranslateFDs {
			return unix.EINVAL
		}
		return p.p.Translate(abi.Bytes(&t), fd)
	})
	return c.answer(h, err, abi.Bytes(&t))
}

func (c *client) statistics(h abi.Header) error {
	var st abi.Statistics
	c.mu.Lock()
	if c.process != nil {
		c.process.p.Statistics(abi.Bytes(&st))
	} else {
		c.server.soft.Statistics(c.nic.place, abi.Bytes(&st))
	}
	c.mu.Unlock()
	return c.answer(h, nil, abi.Bytes(&st))
}

// wait runs a request that waits for other processes in a goroutine. f must return soon after the channel that it gets
// is closed. wait returns EBUSY if too many requests wait already.
func (c *client) wait(h abi.Header, f func(abandoned <-chan struct{})) error {
	abandoned := make(chan struct{})
	c.mu.Lock()
	_, twice := c.waiting[h.ID]
	if full := len(c.waiting) >= maxWaiting; twice || full {
		c.mu.Unlock()
		return unix.EBUSY
	}
	c.waiting[h.ID] = abandoned
	c.mu.Unlock()
	c.pending.Go(func() { f(abandoned) })
	return nil
}

// waited is called before the answer, so that the id can be used again.
func (c *client) waited(h abi.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, h.ID)
}

// maxWaiting is how many requests of a connection may wait for other processes at a time.
const maxWaiting = 64

func (c *client) abandon(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.waiting[id]; w != nil {
		select {
		case <-w:
		default:
			close(w)
		}
	}
}

// info describes a NIC in the form of the module.
func (s *Server) info(n *served) abi.Info {
	c := &s.config
	return abi.Info{
		ABIVersion: abi.Version, Features: abi.FeatureSoft, NIC: n.number, NICs: uint32(s.soft.Counters().Cluster),
		PacketSize: uint32(c.PacketSize), LocalMemory: uint32(c.LocalMemory),
		MaxProcesses: uint32(c.MaxProcesses), MaxPerUser: uint32(c.MaxPerUser),
		MaxContexts: abi.MaxContexts, MaxCommands: abi.MaxCommands, MaxRegion: abi.MaxRegion, MaxPool: abi.MaxPool,
		MaxMessage: abi.MaxMessage, MaxTranslations: uint32(c.MaxTranslations),
		SizeCommand: uint32(unsafe.Sizeof(abi.Command{})), SizeContext: uint32(unsafe.Sizeof(abi.Context{})),
		SizeDescriptor: uint32(unsafe.Sizeof(abi.Descriptor{})), SizeMemoryInfo: uint32(unsafe.Sizeof(abi.MemoryInfo{})),
		SizeStatus: uint32(unsafe.Sizeof(abi.Status{})), SizeDoorbell: uint32(unsafe.Sizeof(abi.Doorbell{})),
	}
}
