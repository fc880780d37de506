//go:build linux

package baseline

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

func (k *socket) sendStream(j *bench.Round, seq uint64) error {
	return k.writeFull(k.fd, k.message(j, seq))
}

func (k *socket) recvStream(j *bench.Round, seq uint64) error {
	b := k.in[:j.Size]
	if err := k.readFull(k.fd, b); err != nil || !j.Validate {
		return err
	}
	return bench.Verify(b, seq)
}

// burst bounds a step, so that the other direction gets its turn.
const burst = 64

// byteFlow is one direction of a stream: n messages of a size, as bytes.
type byteFlow struct {
	k       *socket
	j       *bench.Round
	reading bool
	left    int // messages, the current one included
	at      int // bytes of the current message that were moved
	seq     uint64
}

// step moves as many bytes as the socket takes, at most a burst.
func (f *byteFlow) step() (moved bool, err error) {
	for range burst {
		if f.left == 0 {
			return moved, nil
		}
		n := 0
		if f.reading {
			n, err = f.k.read(f.k.fd, f.room())
		} else {
			if f.at == 0 {
				f.k.message(f.j, f.seq)
			}
			n, err = f.k.write(f.k.fd, f.k.out[f.at:f.j.Size])
		}
		if err != nil || n < 0 {
			return moved, err
		}
		moved = true
		if err := f.advance(n); err != nil {
			return false, err
		}
	}
	return moved, nil
}

// room returns memory to read into. A message to be checked has memory of its own; otherwise one read may get many
// messages, but never more than are left in this round.
func (f *byteFlow) room() []byte {
	if f.j.Validate || f.j.Size >= len(f.k.in) {
		return f.k.in[f.at:f.j.Size]
	}
	return f.k.in[:min(len(f.k.in), f.left*f.j.Size-f.at)]
}

func (f *byteFlow) advance(n int) error {
	f.at += n
	for f.at >= f.j.Size && f.left > 0 {
		if f.reading && f.j.Validate {
			if err := bench.Verify(f.k.in[:f.j.Size], f.seq); err != nil {
				return err
			}
		}
		f.at -= f.j.Size
		f.left--
		f.seq++
	}
	return nil
}

// stream runs bw, rate and bibw on a stream socket.
func (k *socket) stream(j *bench.Round) error {
	begin := time.Now()
	out := byteFlow{k: k, j: j}
	in := byteFlow{k: k, j: j, reading: true}
	if j.Lead || j.Test == bench.BiBW {
		out.left = j.N
	}
	if !j.Lead || j.Test == bench.BiBW {
		in.left = j.N
	}
	err := k.pump(j, func() (todo int16, moved bool, err error) {
		m1, err := out.step()
		if err != nil {
			return 0, false, err
		}
		m2, err := in.step()
		if out.left > 0 {
			todo |= unix.POLLOUT
		}
		if in.left > 0 {
			todo |= unix.POLLIN
		}
		return todo, m1 || m2, err
	})
	if err != nil {
		return err
	}
	ack := []byte{1}
	if !j.Lead {
		return k.writeFull(k.fd, ack)
	}
	if err := k.readFull(k.fd, ack); err != nil {
		return err
	}
	j.Elapsed = time.Since(begin)
	return nil
}

// pump makes steps until one returns that nothing is to be done any more, and no events of poll(2) for which to wait.
func (k *socket) pump(j *bench.Round, step func() (todo int16, moved bool, err error)) error {
	both := j.Test == bench.BiBW && j.Blocking()
	if both {
		// One thread cannot sleep in the calls of two directions.
		if err := unix.SetNonblock(k.fd, true); err != nil {
			return err
		}
		defer unix.SetNonblock(k.fd, false)
	}
	sp := k.spinner()
	for {
		todo, moved, err := step()
		switch {
		case err != nil || todo == 0:
			return err
		case moved:
			continue
		case both:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(k.fd), Events: todo}}, 200)
		}
		if err := sp.Miss(); err != nil {
			return err
		}
	}
}
