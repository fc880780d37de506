//go:build linux

package baseline

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

// A message longer than a datagram goes in several. UDP loses what does not
// fit the receive buffer, so at most a window of datagrams is in flight; the
// receiver acknowledges every half window with a datagram that holds the
// number it has received.
const (
	maxDatagram = 65507
	ackSize     = 9
)

func (k *socket) openDatagram() (err error) {
	if k.fd, err = k.open(true); err != nil {
		return err
	}
	// Only root may exceed the limit; the window depends on the granted size.
	const want = 8 << 20
	_ = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, want)
	_ = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, want)
	k.rcvbuf, err = unix.GetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return k.failed("getsockopt", err)
	}
	return k.tune(k.fd)
}

// datagrams returns how many datagrams a message of a size needs.
func datagrams(size int) int { return max(1, (size+maxDatagram-1)/maxDatagram) }

// piece returns datagram i of a message.
func piece(b []byte, i int) []byte {
	lo := min(len(b), i*maxDatagram)
	return b[lo:min(len(b), lo+maxDatagram)]
}

func (k *socket) sendDatagrams(j *bench.Round, seq uint64) error {
	b := k.message(j, seq)
	for i := range datagrams(len(b)) {
		if err := k.send(piece(b, i)); err != nil {
			return err
		}
	}
	return nil
}

// send sends one datagram.
func (k *socket) send(b []byte) error {
	sp := k.spinner()
	return sp.Until(func() (bool, error) {
		n, err := k.write(k.fd, b)
		return n >= 0, err
	})
}

func (k *socket) recvDatagrams(j *bench.Round, seq uint64) error {
	b := k.in[:j.Size]
	deadline := k.lossDeadline()
	sp := k.spinner()
	for i := range datagrams(len(b)) {
		want := piece(b, i)
		room := want
		if len(want) == 0 {
			room = k.in[:1] // reading 0 bytes would leave the datagram where it is
		}
		err := sp.Until(func() (bool, error) {
			n, err := k.read(k.fd, room)
			switch {
			case err != nil:
				return false, err
			case n < 0:
				return false, deadline.miss()
			case n != len(want):
				return false, errDatagram
			}
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	if j.Validate {
		return bench.Verify(b, seq)
	}
	return nil
}

var (
	errDatagram = errors.New("a datagram of the wrong size arrived: did the kernel drop one?")
	errLost     = errors.New("a datagram was lost: raise net.core.rmem_max")
)

const lossTimeout = 5 * time.Second

// spinDeadline ends a wait that lasts too long. It reads the clock at one miss of so many.
type spinDeadline struct {
	limit time.Duration
	every uint32
	n     uint32
	since time.Time
}

// lossDeadline ends the wait for a datagram. A miss of a blocking socket is a long sleep.
func (k *socket) lossDeadline() spinDeadline {
	d := spinDeadline{limit: lossTimeout, every: 4096}
	if k.c.Blocking() {
		d.every = 1
	}
	return d
}

func (d *spinDeadline) miss() error {
	if d.n++; d.n%d.every != 0 {
		return nil
	}
	if d.since.IsZero() {
		d.since = time.Now()
	} else if time.Since(d.since) > d.limit {
		return errLost
	}
	return nil
}

// dgram is the state of a round on a datagram socket.
type dgram struct {
	k        *socket
	j        *bench.Round
	per      int    // datagrams a message
	out, in  uint64 // datagrams to send, to receive
	sent     uint64
	acked    uint64 // number acknowledged by the other side
	got      uint64
	acksSent uint64 // the last number acknowledged to the other side
	window   uint64
	buf      []byte
	ack      [ackSize]byte
}

func (k *socket) streamDatagrams(j *bench.Round) error {
	begin := time.Now()
	// The kernel charges about twice a datagram's size, at least 768 bytes.
	w := uint64(max(1, min(bench.MaxWindow, k.rcvbuf/2/(2*min(j.Size, maxDatagram)+1024))))
	d := &dgram{k: k, j: j, per: datagrams(j.Size), window: w, buf: make([]byte, maxDatagram+1)}
	if j.Lead || j.Test == bench.BiBW {
		d.out = uint64(j.N) * uint64(d.per)
	}
	if !j.Lead || j.Test == bench.BiBW {
		d.in = uint64(j.N) * uint64(d.per)
	}
	late := k.lossDeadline()
	err := k.pump(j, func() (todo int16, moved bool, err error) {
		moved, err = d.step()
		switch {
		case err != nil || d.acked == d.out && d.got == d.in:
			return 0, moved, err
		case moved:
			late = k.lossDeadline()
			return unix.POLLIN, true, nil
		}
		return unix.POLLIN, false, late.miss()
	})
	j.Elapsed = time.Since(begin)
	return err
}

// room reports whether the next datagram may be sent.
func (d *dgram) room() bool { return d.sent < d.out && d.sent-d.acked < d.window }

func (d *dgram) step() (moved bool, err error) {
	for ; d.room(); moved = true {
		at := int(d.sent % uint64(d.per))
		if at == 0 {
			d.k.message(d.j, d.sent/uint64(d.per))
		}
		n, err := d.k.write(d.k.fd, piece(d.k.out[:d.j.Size], at))
		if err != nil {
			return false, err
		}
		if n < 0 {
			break
		}
		d.sent++
	}
	for range burst {
		if d.got == d.in && (d.acked == d.out || d.room()) {
			break
		}
		n, err := d.k.read(d.k.fd, d.buf)
		if err != nil {
			return false, err
		}
		if n < 0 {
			break
		}
		moved = true
		if err := d.take(d.buf[:n]); err != nil || d.room() {
			return true, err
		}
	}
	return moved, nil
}

// take handles a datagram. Its size distinguishes it from an acknowledgement: check refuses the one size that would be
// ambiguous with both directions at once.
func (d *dgram) take(b []byte) error {
	if len(b) == ackSize && d.out > 0 {
		n := binary.LittleEndian.Uint64(b)
		if n <= d.acked || n > d.sent {
			return errDatagram
		}
		d.acked = n
		return nil
	}
	at, in := int(d.got%uint64(d.per)), d.k.in[:d.j.Size]
	if d.got >= d.in || len(b) != len(piece(in, at)) {
		return errDatagram
	}
	if d.j.Validate {
		copy(piece(in, at), b)
		if at == d.per-1 {
			if err := bench.Verify(in, d.got/uint64(d.per)); err != nil {
				return err
			}
		}
	}
	d.got++
	if d.got == d.in || d.got-d.acksSent >= max(1, d.window/2) {
		return d.acknowledge()
	}
	return nil
}

func (d *dgram) acknowledge() error {
	binary.LittleEndian.PutUint64(d.ack[:], d.got)
	d.acksSent = d.got
	return d.k.send(d.ack[:])
}
