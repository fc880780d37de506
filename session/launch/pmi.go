package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Variables of PMI's launchers.
const (
	envPMIFD   = "PMI_FD"   // a connected socket
	envPMIPort = "PMI_PORT" // HOST:PORT to connect to; PMI_ID then identifies the process
	envPMIID   = "PMI_ID"
	envPMIRank = "PMI_RANK"
	envPMISize = "PMI_SIZE"
	envPMIJob  = "PMI_JOBID"
	envHydra   = "HYDI_CONTROL_FD" // set by MPICH's mpiexec, whatever job it runs in
)

// maxPMI bounds the length of one message of a server.
const maxPMI = 64 << 10

// pmiConn is the connection to a process manager.
type pmiConn struct {
	net.Conn
	inherited *os.File // the file that Conn duplicates

	answers chan message  // once it is watched
	over    chan struct{} // closed when nothing more can be received
	err     error         // why, then

	wmu                      sync.Mutex // abort may come between a question and its answer, not into a question
	sent, received, requests atomic.Uint64
}

// message is the fields of one message.
type message = map[string]string

// watch listens from now on also while nothing has been asked, so that the end of the launcher is noticed.
func (c *pmiConn) watch(read func() (message, error), lost func(error)) {
	c.answers, c.over = make(chan message), make(chan struct{})
	go func() {
		for {
			m, err := read()
			if err != nil {
				c.err = gone(err)
				close(c.over)
				lost(c.err)
				return
			}
			c.answers <- m // an unsolicited message is taken for the next answer, and that request fails
		}
	}()
}

// next returns the next message.
func (c *pmiConn) next(read func() (message, error)) (message, error) {
	if c.answers == nil {
		m, err := read()
		return m, gone(err)
	}
	select {
	case m := <-c.answers:
		return m, nil
	case <-c.over:
		return nil, c.err
	}
}

// pmiTaken: a process is a rank once. The number in PMI_FD may later be another file's.
var pmiTaken atomic.Bool

func openPMI(ctx context.Context, env environ) (*pmiConn, error) {
	if !pmiTaken.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("this process has joined, or failed to join, before: %w", ErrInvalid)
	}
	if env(envPMIFD) == "" {
		addr := env(envPMIPort)
		if addr == "" {
			return nil, fmt.Errorf("neither %s nor %s is set: %w", envPMIFD, envPMIPort, ErrInvalid)
		}
		d := net.Dialer{Timeout: joinTime, KeepAliveConfig: keepAlive}
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		setUserTimeout(c)
		return &pmiConn{Conn: c}, nil
	}
	fd, err := number(env, envPMIFD, 0, 1<<20)
	if err != nil {
		return nil, err
	}
	if err := inherit(fd); err != nil {
		return nil, fmt.Errorf("%s=%d is not a connected socket (%w): was this process started by the launcher itself, or by a rank?", envPMIFD, fd, err)
	}
	f := os.NewFile(uintptr(fd), envPMIFD)
	c, err := net.FileConn(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s=%d: %w", envPMIFD, fd, err)
	}
	return &pmiConn{Conn: c, inherited: f}, nil
}

// send sends one message.
func (c *pmiConn) send(msg string) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.SetWriteDeadline(time.Now().Add(writeTime))
	c.requests.Add(1)
	n, err := io.WriteString(c.Conn, msg)
	c.sent.Add(uint64(n))
	return gone(err)
}

// Read counts.
func (c *pmiConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(uint64(n))
	return n, err
}

// gone makes an error of the connection ErrLauncher.
func gone(err error) error {
	if err == nil || errors.Is(err, ErrLauncher) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrLauncher, noEOF(err))
}

func (c *pmiConn) traffic() Traffic {
	return Traffic{Sent: c.sent.Load(), Received: c.received.Load(), Requests: c.requests.Load()}
}

func (c *pmiConn) hangUp() {
	if c.answers != nil {
		go func() { // unsolicited messages
			for {
				select {
				case <-c.answers:
				case <-c.over:
					return
				}
			}
		}()
	}
	c.Conn.Close()
	if c.inherited != nil {
		c.inherited.Close()
	}
}

// field finds a number in a message; ok is false where it is missing or none.
func field(m message, name string) (int, bool) {
	n, err := strconv.Atoi(m[name])
	return n, err == nil
}

// checkPlace believes rank and size only where they make sense.
func checkPlace(rank, size int) error {
	if size < 1 || size > MaxSize || rank < 0 || rank >= size {
		return fmt.Errorf("the launcher reports rank %d of %d: %w", rank, size, errFrame)
	}
	return nil
}

// refused returns the error of a negative answer.
func refused(cmd string, m message) error {
	why := m["msg"]
	if why == "" {
		why = m["errmsg"]
	}
	return fmt.Errorf("the launcher refused %s: rc=%s %s", cmd, plain(m["rc"]), plain(why))
}

// within runs a handshake that ends with ctx, or when the launcher is silent for long.
func (c *pmiConn) within(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	err := f()
	if !stop() {
		return context.Cause(ctx)
	}
	return err
}
