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
	connect, ends := k.accept, &x.local
	if j.Lead {
		connect, ends = k.dial, &x.root
	}
	for range bench.GroupEach {
		fd, err := connect()
		if err != nil {
			return x, err
		}
		*ends = append(*ends, fd)
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
	x, b := k.star, []byte{1}
	return j.Timed(func(seq uint64) error {
		if j.Test == bench.Bcast {
			if err := x.spread(j, seq); err != nil {
				return err
			}
			return x.pass(x.local, x.root, b, b)
		}
		if err := x.pass(x.local, x.root, b, b); err != nil {
			return err
		}
		return x.pass(x.root, x.local, b, b)
	})
}

// pass writes to sockets, and then reads from others.
func (x *star) pass(to, from []int, out, in []byte) error {
	for _, fd := range to {
		if err := x.k.writeFull(fd, out); err != nil {
			return err
		}
	}
	for _, fd := range from {
		if err := x.k.readFull(fd, in); err != nil {
			return err
		}
	}
	return nil
}

// spread sends the root's bytes to each member.
func (x *star) spread(j *bench.Round, seq uint64) error {
	out, in := x.k.out[:j.Size], x.k.in[:j.Size]
	if j.Lead && j.Validate {
		bench.Fill(out, seq)
	}
	for at := 0; at < j.Size; at += starChunk {
		end := min(j.Size, at+starChunk)
		if err := x.pass(x.root, x.local, out[at:end], in[at:end]); err != nil {
			return err
		}
	}
	if j.Validate {
		return bench.Verify(in, seq)
	}
	return nil
}
