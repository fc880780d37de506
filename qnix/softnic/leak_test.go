//go:build linux && !(386 || arm || mips || mipsle)

package softnic

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/nic"
)

func openFDs(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// mappings counts those that softnics and clients share.
func mappings(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("memfd:"))
}

// Clients that come and go, in order and not, leave nothing in the softnic; and
// softnics nothing in the process.
func TestNothingLeaks(t *testing.T) {
	round := func() {
		s := serve(t, Config{NICs: 2, Key: testKey, Listen: "127.0.0.1:0"})
		b, fd := make([]byte, 4096), -1
		for i := range 8 {
			n, err := nic.Open(s.Sockets()[i%2])
			if err != nil {
				t.Fatal(err)
			}
			p, err := n.Register(ctx, nic.Config{Name: fmt.Sprint("p", i)})
			if err != nil {
				t.Fatal(err)
			}
			if fd, err = unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
				t.Fatal(err)
			}
			_ = unix.Ftruncate(fd, 4096)
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
			if _, err := p.TranslateFile(b, fd, 0, nic.Read); err != nil {
				t.Fatal(err)
			}
			unix.Close(fd)
			if i < 4 { // the others are there when the softnic ends
				n.Close()
			} else {
				defer n.Close()
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	round()
	fds, maps := openFDs(t), mappings(t)
	for range 5 {
		round()
	}
	if got := openFDs(t); got > fds {
		t.Errorf("%d descriptors, were %d", got, fds)
	}
	// Clients unmap when the garbage collector finds them.
	until(t, "no more mappings than before", func() bool { runtime.GC(); return mappings(t) <= maps })
}

// A process that rings without end does not keep the NIC from others.
func TestEndlessRingingHarmsNoProcess(t *testing.T) {
	s := serve(t, Config{})
	a, b := pair(t, s)
	x := dial(t, s.Sockets()[0])
	errno, fds := registerByHand(t, x, "wakeup")
	if errno != 0 {
		t.Fatal(unix.Errno(errno))
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = unix.Write(fds[2], []byte{1, 0, 0, 0, 0, 0, 0, 0})
			}
		}
	}()
	for range 500 {
		kick(t, b, b.ReceiveShort(0, name("a"), 1, 8))
		kick(t, a, a.SendShort(0, name("b"), 1, 8))
		if st, _ := received(t, b, 0); st != nic.Done {
			t.Fatal(st)
		}
		sent(t, a, 0)
	}
	close(stop)
	<-stopped
	for _, fd := range fds {
		unix.Close(fd)
	}
}
