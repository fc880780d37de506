//go:build linux

package softnic

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/rights"
)

// listener is the socket of a NIC. A lock file beside it shows whether its owner lives. So a socket that a dead softnic
// has left is recognised and replaced, and two softnics never take it from each other.
type listener struct {
	*net.UnixListener
	lock *os.File
}

// ErrRunning means that another softnic serves the socket.
var ErrRunning = errors.New("another softnic runs there")

func listen(path string, public bool) (*listener, error) {
	l, err := tryListen(path, public)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return l, nil
}

func tryListen(path string, public bool) (*listener, error) {
	if err := makeFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock, err := takeLock(path + ".lock")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		dropLock(lock)
		return nil, err
	}
	l, err := rights.Listen(path)
	if err != nil {
		dropLock(lock)
		return nil, err
	}
	mode := os.FileMode(0o600)
	if public { // admit checks the user
		mode = 0o666
	}
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		dropLock(lock)
		return nil, err
	}
	return &listener{l, lock}, nil
}

// makeFolder makes the last folder of a path, for this user only. An existing folder must not let other users replace
// the socket.
func makeFolder(dir string) error {
	if err := os.Mkdir(dir, 0o700); err == nil || !errors.Is(err, os.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	mine := st.Uid == 0 || int(st.Uid) == os.Geteuid()
	if !mine || st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("other users can write to %s (set XDG_RUNTIME_DIR, or choose another socket)", dir)
	}
	return nil
}

// takeLock locks a file, and makes sure that the file still has that name.
func takeLock(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, ErrRunning
			}
			return nil, err
		}
		a, err1 := f.Stat()
		b, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(a, b) {
			return f, nil
		}
		f.Close() // another process has just removed it
	}
}

func dropLock(f *os.File) {
	_ = os.Remove(f.Name())
	f.Close()
}

// interrupt ends the accept that is under way.
func (l *listener) interrupt() { _ = l.SetDeadline(time.Now()) }

// close removes the socket and gives up the lock. No goroutine accepts any more.
func (l *listener) close() {
	rights.Close(l.UnixListener) // removes the file
	dropLock(l.lock)
}

// credentials identify the process that has connected.
type credentials struct {
	uid   int
	pid   int // in our pid namespace; 0 if it cannot be seen
	pidfd int // -1 if unknown
}

func credentialsOf(conn *net.UnixConn) (c credentials, err error) {
	// The process that connected still holds the other end, or has passed it on, if its pid names another.
	cred, pidfd, err := rights.Process(conn)
	if err != nil {
		return credentials{pidfd: -1}, err
	}
	return credentials{uid: int(cred.Uid), pid: int(cred.Pid), pidfd: pidfd}, nil
}
