//go:build linux

package rightstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Fuse is a file whose close blocks, without regard to signals, until the test ends or Release is called: its
// file system (FUSE) does not answer the flush.
type Fuse struct {
	root int      // O_PATH: the mount itself is detached, so that a killed test leaves none
	dev  *os.File // the daemon's end
	t    testing.TB
}

// Requests of FUSE that its file needs (linux/fuse.h).
const (
	fuseGetattr = 3
	fuseOpen    = 14
	fuseFlush   = 25
	fuseInit    = 26
	fuseForget  = 2
	fuseHeader  = 40
)

// MountFuse skips the test where FUSE cannot be mounted.
func MountFuse(t testing.TB) *Fuse {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("needs /dev/fuse: %v", err)
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// The root of the file system is a regular file.
	opts := fmt.Sprintf("fd=%d,rootmode=100000,user_id=%d,group_id=%d", dev, os.Getuid(), os.Getgid())
	if err := unix.Mount("bywash", path, "fuse.bywash", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		unix.Close(dev)
		t.Skipf("needs the right to mount FUSE: %v", err)
	}
	// Only now, as the device cannot be polled before.
	f := &Fuse{dev: os.NewFile(uintptr(dev), "/dev/fuse"), t: t}
	t.Cleanup(f.Release)
	f.root, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err := errors.Join(err, unix.Unmount(path, unix.MNT_DETACH)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(f.root) })
	go f.answer()
	return f
}

// Open returns a descriptor of the file.
func (f *Fuse) Open() int {
	f.t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.root), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		f.t.Fatalf("open a file of FUSE: %v", err)
	}
	return fd
}

// Release ends the file system: all blocked calls return.
func (f *Fuse) Release() { _ = f.dev.Close() }

// answer is the daemon, until the file system ends.
func (f *Fuse) answer() {
	le := binary.LittleEndian
	b := make([]byte, 1<<17)
	for {
		n, err := f.dev.Read(b)
		if errors.Is(err, unix.ENOENT) { // the request was interrupted
			continue
		}
		if err != nil || n < fuseHeader {
			return
		}
		var body []byte
		switch le.Uint32(b[4:]) {
		case fuseInit:
			body = make([]byte, 64)
			le.PutUint32(body, 7)
			le.PutUint32(body[4:], 31)
			le.PutUint32(body[20:], 1<<16) // max_write
		case fuseGetattr:
			body = make([]byte, 16+88)
			attr := body[16:]
			le.PutUint64(attr, 1)               // inode
			le.PutUint32(attr[60:], 0o100600)   // mode
			le.PutUint32(attr[64:], 1)          // links
			le.PutUint64(body, ^uint64(0)>>1/2) // valid for ever
		case fuseOpen:
			body = make([]byte, 16)
		case fuseFlush, fuseForget:
			continue
		}
		out := make([]byte, 16, 16+len(body))
		le.PutUint32(out, uint32(16+len(body)))
		le.PutUint64(out[8:], le.Uint64(b[8:]))
		if body == nil {
			le.PutUint32(out[4:], ^uint32(unix.ENOSYS)+1)
		}
		_, _ = f.dev.Write(append(out, body...))
	}
}
