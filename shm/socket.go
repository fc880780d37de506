//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/descriptors"
	"github.com/bywash/bywash/internal/rights"
)

// send writes one message with descriptors. It never blocks: messages are far
// smaller than a socket's buffer, and each side sends few; a peer that does not
// read them gets an error here.
func send(sock *net.UnixConn, m *message, fds ...int) error {
	return rights.Send(sock, m.append(nil), false, fds...)
}

// maxFDs is the most descriptors that a message carries.
const maxFDs = 3

// receive reads one message and the descriptors with it, at most so many, which
// the caller owns, with an error too. io.EOF at the end.
func receive(sock *net.UnixConn, m *message, most int) ([]int, error) {
	var buf [maxMessage]byte
	n, fds, err := rights.Receive(sock, buf[:], most)
	if errors.Is(err, unix.ECONNRESET) {
		// The listener has refused us without reading: its answer comes after the error.
		n, fds, err = rights.Receive(sock, buf[:], most)
	}
	switch {
	case errors.Is(err, rights.ErrTruncated):
		if lacking := lackDescriptors(); lacking != nil {
			return fds, lacking
		}
		return fds, errMalformed
	case err != nil:
		return fds, err
	}
	return fds, m.parse(buf[:n])
}

// lackDescriptors returns an error if this process can open no further file: the kernel then drops descriptors that
// come, as it does with those of a message that has too many.
func lackDescriptors() error {
	if free, _ := descriptors.Free(); free >= maxFDs {
		return nil
	}
	return fmt.Errorf("%w: %w", driver.ErrBroken, resourceError("receive the peer's memory", unix.EMFILE))
}

// expect reads one message that must be of a kind and have so many
// descriptors.
func expect(sock *net.UnixConn, m *message, kind messageKind, fds int) ([]int, error) {
	got, err := receive(sock, m, fds)
	if err = m.must(kind, fds, got, err); err != nil {
		discard(sock, got)
		return nil, err
	}
	return got, nil
}

// must checks what receive has returned.
func (m *message) must(kind messageKind, fds int, got []int, err error) error {
	switch {
	case err != nil:
		return err
	case m.kind == msgReject:
		return rejectError(m.code)
	case m.kind != kind || len(got) != fds:
		return errMalformed
	}
	return nil
}

// discard closes descriptors that came over a socket.
func discard(sock *net.UnixConn, fds []int) {
	if len(fds) > 0 {
		rights.Discard(rights.User(sock), fds...)
	}
}

// dialSocket connects to a context's socket. It retries while the listener's
// queue is full.
func dialSocket(path string, given func() bool) (*net.UnixConn, error) {
	for {
		s, err := rights.Dial(path)
		switch {
		case err == nil:
			return s, nil
		case errors.Is(err, unix.EAGAIN) && !given():
			pause()
		case errors.Is(err, unix.ENOENT) && missing(filepath.Dir(path)):
			return nil, fmt.Errorf("%w: the directory of the peer's socket, %s, is not here: containers have to share it, or use another driver", driver.ErrBroken, filepath.Dir(path))
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
			return nil, fmt.Errorf("%w: the peer's process is gone", driver.ErrBroken)
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			return nil, fmt.Errorf("%w: this user may not open the peer's socket (option allow-uids)", driver.ErrAuth)
		default:
			return nil, fmt.Errorf("%w: %w", driver.ErrBroken, resourceError("connect", err))
		}
	}
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, os.ErrNotExist)
}

// pause is the step of loops that poll for something without a notification.
func pause() { time.Sleep(time.Millisecond) }
