package handshake

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/flynn/noise"
)

// Overhead is how many bytes Seal adds.
const Overhead = 16

const lengthSize = 4

// Conn sends and receives sealed frames after a handshake. One goroutine may send while another one receives. After
// an error of Send or Receive the connection is of no use.
type Conn struct {
	rw         io.ReadWriter
	limit      int
	send, recv *noise.CipherState
	in, out    []byte
}

func newConn(rw io.ReadWriter, cfg *Config, send, recv *noise.CipherState) *Conn {
	c := &Conn{rw: rw, limit: cfg.Limit, send: send, recv: recv}
	if c.limit == 0 {
		c.limit = defaultLimit
	}
	return c
}

// Seal appends payload to dst, encrypted and authenticated with its number: for callers that carry frames by other
// means than Send, in order and each whole.
func (c *Conn) Seal(dst, payload []byte) ([]byte, error) { return c.send.Encrypt(dst, nil, payload) }

// Open appends to dst the payload of the next frame that the peer has sealed. Anything else is ErrSecret.
func (c *Conn) Open(dst, frame []byte) ([]byte, error) {
	b, err := c.recv.Decrypt(dst, nil, frame)
	if err != nil {
		return nil, fmt.Errorf("%w: a frame is not the peer's, or out of order", ErrSecret)
	}
	return b, nil
}

// Send seals payload and writes it with its length. A payload beyond the peer's limit ends the connection there.
func (c *Conn) Send(payload []byte) error {
	if len(payload) > math.MaxInt32-Overhead {
		return fmt.Errorf("handshake: frame of %d bytes", len(payload))
	}
	var err error
	c.out = binary.LittleEndian.AppendUint32(c.out[:0], uint32(len(payload)+Overhead))
	if c.out, err = c.Seal(c.out, payload); err != nil {
		return err
	}
	_, err = c.rw.Write(c.out)
	return err
}

// Receive returns the next payload, which is valid until the next call. io.EOF means that the stream ended between two
// frames. A frame longer than the limit is ErrMalformed, before anything of it is read.
func (c *Conn) Receive() ([]byte, error) { return c.receive(c.limit) }

func (c *Conn) receive(limit int) ([]byte, error) {
	var head [lengthSize]byte
	if _, err := io.ReadFull(c.rw, head[:]); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if n < Overhead || n > int64(limit)+Overhead {
		return nil, fmt.Errorf("%w: frame of %d bytes, limit is %d", ErrMalformed, n, limit+Overhead)
	}
	if int64(cap(c.in)) < n {
		c.in = make([]byte, n)
	}
	b := c.in[:n]
	if _, err := io.ReadFull(c.rw, b); err != nil {
		return nil, noEOF(err)
	}
	return c.Open(b[:0], b)
}
