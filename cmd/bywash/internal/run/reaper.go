//go:build linux

package run

import (
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"
)

// reaper waits for processes, and reports them in the order in which they ended: a rank that fails because another has
// died must not come before it. The order is that of the kernel's notifications in one epoll instance; goroutines that
// each wait for one process are woken in any order.
type reaper struct {
	epoll int
	cmds  []*exec.Cmd
	left  int
}

func newReaper(ranks int) (reaper, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return reaper{}, fmt.Errorf("epoll_create1: %w", err)
	}
	return reaper{epoll: fd, cmds: make([]*exec.Cmd, ranks)}, nil
}

// add takes a started process and its pidfd.
func (r *reaper) add(rank int, cmd *exec.Cmd, pidfd int) error {
	r.cmds[rank] = cmd
	r.left++
	// One shot: a process that has ended stays readable.
	err := unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, pidfd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(rank)})
	if err != nil {
		return fmt.Errorf("watch the process of rank %d by its pidfd (Linux 5.3): %w", rank, err)
	}
	return nil
}

// run reports all processes, and returns. The pidfds stay open until bywash ends: closed, they would leave the epoll
// instance.
func (r *reaper) run(exits chan<- exit) {
	defer unix.Close(r.epoll)
	events := make([]unix.EpollEvent, len(r.cmds))
	for r.left > 0 {
		n, err := unix.EpollWait(r.epoll, events, -1)
		if err != nil {
			continue // EINTR: nothing else can go wrong here
		}
		for _, e := range events[:n] {
			cmd := r.cmds[e.Fd]
			cmd.Wait() // its error is in the state
			exits <- exit{int(e.Fd), cmd.ProcessState}
			r.left--
		}
	}
}
