//go:build linux

package baseline

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

// star is a group of processes over Unix sockets: the first member, in the lead's process, has a connection with each
// of the others.
type star struct {
	k     *socket
	root  []int // the lead's ends: of its own other members, then of the follower's
	local []int // of the other members in this process
}

// starChunk is the most bytes of one write to a socket, so that members of one process do not wait for each other.
const starChunk = 32 * bench.KiB

// openStar connects the members. Both ends call it in their first round.
func (k *socket) openStar(j *bench.Round) (*star, error) {
	x := &star{k: k}
	if j.Lead {
		for range bench.GroupEach - 1 {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return x, fmt.Errorf("sock-unix: socketpair: %w", err)
			}
			x.root, x.local = append(x.root, fds[0]), append(x.local, fds[1])
		}
	}
	for range bench.GroupEach {
		connect := k.accept
		if j.Lead {
			connect = k.dial
		}
		fd, err := connect()
		if err != nil {
			return x, err
		}
		if j.Lead {
			x.root = append(x.root, fd)
		} else {
			x.local = append(x.local, fd)
		}
	}
	for _, fd := range append(x.root, x.local...) {
		if err := unix.SetNonblock(fd, !j.Blocking()); err != nil {
			return x, fmt.Errorf("sock-unix: fcntl: %w", err)
		}
	}
	return x, nil
}

func (x *star) close() {
	if x == nil {
		return
	}
	for _, fd := range append(x.root, x.local...) {
		_ = unix.Close(fd)
	}
}

func (k *socket) runGroup(j *bench.Round) (err error) {
	if k.star == nil {
		if k.star, err = k.openStar(j); err != nil {
			return err
		}
	}
	return j.Timed(func(seq uint64) error {
		if j.Test == bench.Bcast {
			if err := k.star.spread(j, seq); err != nil {
				return err
			}
			return k.star.gather()
		}
		if err := k.star.gather(); err != nil {
			return err
		}
		return k.star.release()
	})
}

func all(fds []int, f func(int, []byte) error, b []byte) error {
	for _, fd := range fds {
		if err := f(fd, b); err != nil {
			return err
		}
	}
	return nil
}

// gather makes each member send to the root.
func (x *star) gather() error {
	b := []byte{1}
	if err := all(x.local, x.k.writeFull, b); err != nil {
		return err
	}
	return all(x.root, x.k.readFull, b)
}

// release makes the root send to each member.
func (x *star) release() error {
	b := []byte{1}
	if err := all(x.root, x.k.writeFull, b); err != nil {
		return err
	}
	return all(x.local, x.k.readFull, b)
}

// spread sends the root's bytes to each member.
func (x *star) spread(j *bench.Round, seq uint64) error {
	out, in := x.k.out[:j.Size], x.k.in[:j.Size]
	if j.Lead && j.Validate {
		bench.Fill(out, seq)
	}
	for at := 0; at < j.Size; at += starChunk {
		end := min(j.Size, at+starChunk)
		if err := all(x.root, x.k.writeFull, out[at:end]); err != nil {
			return err
		}
		if err := all(x.local, x.k.readFull, in[at:end]); err != nil {
			return err
		}
	}
	if j.Validate {
		return bench.Verify(in, seq)
	}
	return nil
}
