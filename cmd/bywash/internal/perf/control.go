package perf

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// protocol is the version of the control protocol.
const protocol = 3

// maxFrame bounds a control message: urls and keys are short.
const maxFrame = 64 << 10

// Kinds of messages: what the lead asks for and the follower answers.
const (
	kindHello   = "hello"
	kindOpen    = "open"    // a bench; the answer has its links
	kindConnect = "connect" // to the lead's links
	kindIdle    = "idle"    // connect to links that will stay idle
	kindPeers   = "peers"   // open N contexts and connect each to links
	kindSettle  = "settle"  // wait until those connections stand
	kindPrepare = "prepare" // a case, with the lead's blob; the answer has the follower's
	kindRun     = "run"     // N iterations; the follower says ready, then ran
	kindReady   = "ready"
	kindRan     = "ran"
	kindInspect = "inspect" // check N messages from Seq on
	kindUsage   = "usage"   // CPU time since the last run
	kindFinish  = "finish"  // the case
	kindClose   = "close"   // the bench
	kindOK      = "ok"
)

// message is everything that the two processes say to each other. Kind says
// which fields count.
type message struct {
	Kind string `json:"kind"`

	Protocol int    `json:"protocol,omitempty"` // hello
	Version  string `json:"version,omitempty"`
	Host     string `json:"host,omitempty"`
	Boot     string `json:"boot,omitempty"` // of the kernel: the same on one machine
	CPU      int    `json:"cpu,omitempty"`  // the follower is to pin itself to CPU-1
	Yield    bool   `json:"yield,omitempty"`

	Open   *openRequest `json:"open,omitempty"`
	Case   *Case        `json:"case,omitempty"`
	Links  []string     `json:"links,omitempty"` // where each of the sender's endpoints can be reached
	Blob   []byte       `json:"blob,omitempty"`  // of the case: a region's key
	N      int64        `json:"n,omitempty"`
	Seq    uint64       `json:"seq,omitempty"`
	CPUNs  int64        `json:"cpu_ns,omitempty"`
	Secret []byte       `json:"secret,omitempty"` // socket pair only

	Err         string `json:"err,omitempty"`
	Unavailable bool   `json:"unavailable,omitempty"` // Err is about this machine or driver, not about the run
}

// openRequest makes the follower open the other end.
type openRequest struct {
	Driver   string `json:"driver"`
	Device   string `json:"device,omitempty"`
	Blocking bool   `json:"blocking,omitempty"`
	MaxSize  int    `json:"max_size"`
	Peers    int    `json:"peers,omitempty"`
	Rank     int    `json:"rank,omitempty"`
	Ranks    int    `json:"ranks,omitempty"` // of a session of more than two; 0: the two ends

	Options map[string]string `json:"options,omitempty"` // of the driver
}

var errPeerGone = errors.New("the other process of the measurement is gone")

// control is one end of the control connection. One goroutine calls send and
// recv; another reads, so that the end of the connection stops a measurement
// at once.
type control struct {
	conn   net.Conn
	frames frames // sealed ones, or plain ones on a socket pair, which nobody else can write to
	in     chan *message
	stop   *stopper

	mu sync.Mutex // for sending
}

func newControl(conn net.Conn, f frames, stop *stopper) *control {
	if f == nil {
		f = plainFrames{Reader: bufio.NewReader(conn), Writer: conn}
	}
	c := &control{conn: conn, frames: f, in: make(chan *message, 4), stop: stop}
	go c.read()
	return c
}

func (c *control) read() {
	for {
		var m *message
		b, err := c.frames.Receive()
		if err == nil {
			m, err = parseMessage(b)
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrUnexpectedEOF) || isReset(err) {
				err = errPeerGone
			}
			c.stop.stop(err)
			close(c.in)
			return
		}
		if m.Kind == kindRan && m.Err != "" {
			// This side is in its hot loop, waiting for data that will
			// never come.
			c.stop.stop(&peerError{text: m.Err, unavailable: m.Unavailable})
		}
		select {
		case c.in <- m:
		case <-c.stop.ctx.Done():
			close(c.in)
			return
		}
	}
}

// plainFrames are messages after their lengths (4 bytes, big endian).
type plainFrames struct {
	io.Reader
	io.Writer
}

func (f plainFrames) Send(b []byte) error {
	_, err := f.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func (f plainFrames) Receive() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return nil, fmt.Errorf("control message of %d bytes, limit is %d: the other side is not bywash perf", n, maxFrame)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(f, b)
	return b, err
}

func parseMessage(b []byte) (*message, error) {
	m := &message{}
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(m); err != nil {
		return nil, fmt.Errorf("malformed control message: %w", err)
	}
	return m, m.check()
}

// check bounds what a message may ask for.
func (m *message) check() error {
	if m.N < 0 || m.N > maxIters {
		return fmt.Errorf("control message: %d iterations", m.N)
	}
	if m.Case != nil {
		if err := m.Case.check(); err != nil {
			return fmt.Errorf("control message: %w", err)
		}
	}
	if o := m.Open; o != nil && (o.MaxSize < 0 || o.MaxSize > maxSize || o.Peers < 0 || o.Peers > maxPeers) {
		return fmt.Errorf("control message: open for %d bytes and %d peers", o.MaxSize, o.Peers)
	}
	if o := m.Open; o != nil && (o.Ranks < 0 || o.Ranks > maxRanks || o.Rank < 0 || o.Rank >= max(2, o.Ranks)) {
		return fmt.Errorf("control message: rank %d of %d", o.Rank, o.Ranks)
	}
	if m.Open != nil && bytesIn(m.Open.Options) > maxOptions {
		return fmt.Errorf("control message: %d bytes of options", bytesIn(m.Open.Options))
	}
	return nil
}

func (c *control) send(m *message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > maxFrame {
		return fmt.Errorf("control message of %d bytes, limit is %d", len(body), maxFrame)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if err := c.frames.Send(body); err != nil {
		if cause := c.stop.err(); cause != nil {
			return cause
		}
		return fmt.Errorf("%w (%w)", errPeerGone, err)
	}
	return nil
}

// recv waits for the next message; an error that the other side reports is
// returned as one.
func (c *control) recv() (*message, error) {
	m, ok := <-c.in
	if !ok {
		return nil, c.stop.err()
	}
	if m.Err != "" {
		return nil, &peerError{text: m.Err, unavailable: m.Unavailable}
	}
	return m, nil
}

// call sends and waits for the answer.
func (c *control) call(m *message) (*message, error) {
	if err := c.send(m); err != nil {
		return nil, err
	}
	return c.recv()
}

// peerError is an error that the other process had.
type peerError struct {
	text        string
	unavailable bool
}

func (e *peerError) Error() string { return e.text }

func isReset(err error) bool {
	return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}
