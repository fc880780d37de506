//go:build linux && !(386 || arm || mips || mipsle)

package memfd

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Signals to the thread that allocates, which come all the time, neither fail nor stop an allocation.
func TestAllocationOutlastsSignals(t *testing.T) {
	const size = 64 << 20
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, tid := unix.Getpid(), unix.Gettid()
	var over atomic.Bool
	done := make(chan bool)
	go func() {
		defer close(done)
		for !over.Load() {
			_ = unix.Tgkill(pid, tid, unix.SIGURG) // as the runtime does
			time.Sleep(200 * time.Microsecond)
		}
	}()
	defer func() { over.Store(true); <-done }()

	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	interrupted := 0
	for range 10 {
		if err := unix.Fallocate(fd, 0, 0, size); err == unix.EINTR {
			interrupted++
		}
		if err := unix.Ftruncate(fd, 0); err != nil {
			t.Fatal(err)
		}
	}
	if interrupted == 0 {
		t.Skip("this kernel does not interrupt fallocate")
	}
	for range 10 {
		if err := Allocate(fd, size); err != nil {
			t.Fatal(err)
		}
		var s unix.Stat_t
		if err := unix.Fstat(fd, &s); err != nil || s.Size != size || s.Blocks*512 < size {
			t.Fatalf("%d bytes in %d blocks, %v; want %d bytes", s.Size, s.Blocks, err, size)
		}
		if err := unix.Ftruncate(fd, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAllocationErrorsAreTheKernels(t *testing.T) {
	if err := Allocate(-1, 1); err != unix.EBADF {
		t.Errorf("a bad descriptor: %v, want %v", err, unix.EBADF)
	}
}
