//go:build linux

package rights

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Limits for a user whose descriptors do not close.
const (
	MaxHeld = 64 // descriptors from which on Stuck reports the user
	workers = 2  // goroutines that close them, each with a thread while it is stuck
)

// bin are the descriptors of a user that wait to be closed.
type bin struct {
	queue   []int
	held    int // length of queue, and the descriptors that workers are closing
	workers int
}

var bins = struct {
	mu sync.Mutex
	of map[uint32]*bin
}{of: make(map[uint32]*bin)}

// Discard closes descriptors that a process of a user has passed, and never blocks. Shared memory is closed at
// once, all else by a worker, possibly later.
func Discard(user uint32, fds ...int) {
	for _, fd := range fds {
		if isMemory(fd) {
			unix.Close(fd)
		} else {
			throw(user, fd)
		}
	}
}

// isMemory reports whether a descriptor is a memfd or of tmpfs, whose close does not wait. F_GET_SEALS asks no
// file system, unlike fstat, which blocks with FUSE.
func isMemory(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil
}

func throw(user uint32, fd int) {
	bins.mu.Lock()
	defer bins.mu.Unlock()
	b := bins.of[user]
	if b == nil {
		b = new(bin)
		bins.of[user] = b
	}
	b.queue = append(b.queue, fd)
	b.held++
	if b.workers < workers {
		b.workers++
		go b.work(user)
	}
}

// work closes descriptors until there are none.
func (b *bin) work(user uint32) {
	for {
		bins.mu.Lock()
		if len(b.queue) == 0 {
			b.workers--
			if b.held == 0 && bins.of[user] == b {
				delete(bins.of, user)
			}
			bins.mu.Unlock()
			return
		}
		fd := b.queue[0]
		b.queue = b.queue[1:]
		bins.mu.Unlock()
		interrupted(func() {
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
			unix.Close(fd)
		})
		bins.mu.Lock()
		b.held--
		bins.mu.Unlock()
	}
}

// Stuck returns an error if MaxHeld or more descriptors of a user wait to be closed. The caller must then take nothing
// more from the user's processes.
func Stuck(user uint32) error {
	bins.mu.Lock()
	defer bins.mu.Unlock()
	if b := bins.of[user]; b != nil && b.held >= MaxHeld {
		return fmt.Errorf("closing %d file descriptors received from user %d blocks (limit %d): "+
			"end these processes, or the file systems (FUSE) that the descriptors belong to", b.held, user, MaxHeld)
	}
	return nil
}

// Held returns how many descriptors of a user wait to be closed.
func Held(user uint32) int {
	bins.mu.Lock()
	defer bins.mu.Unlock()
	if b := bins.of[user]; b != nil {
		return b.held
	}
	return 0
}
