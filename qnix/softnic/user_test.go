//go:build linux && !(386 || arm || mips || mipsle)

package softnic

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/nic"
)

// as runs f on a thread of another user, which is not used again.
func as(uid int, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
		if errno == 0 {
			f()
		}
	}()
	<-done
}

// A softnic serves processes of another user only if AllowUIDs names that user.
func TestOtherUsersNeedAdmission(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: becomes another user")
	}
	d := dir(t)
	if err := os.Chmod(d, 0o755); err != nil {
		t.Fatal(err)
	}
	closed := serve(t, Config{Sockets: []string{filepath.Join(d, "closed")}})
	other := serve(t, Config{Sockets: []string{filepath.Join(d, "other")}, AllowUIDs: []int{1234}})
	admitted := serve(t, Config{Sockets: []string{filepath.Join(d, "open")}, AllowUIDs: []int{65534}})
	ran := false
	as(65534, func() {
		ran = true
		if n, err := nic.Open(closed.Sockets()[0]); !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "--allow-uids") {
			t.Errorf("a socket of root: %v %v, want EACCES", n, err)
		}
		if n, err := nic.Open(other.Sockets()[0]); err == nil {
			n.Close()
			t.Error("a user who is not admitted was served")
		}
		n, err := nic.Open(admitted.Sockets()[0])
		if err != nil {
			t.Error(err)
			return
		}
		defer n.Close()
		p, err := n.Register(ctx, nic.Config{Name: "other"})
		if err != nil {
			t.Error(err)
			return
		}
		// Its pid could be a third user's by the time that the NIC uses it.
		b := anonymous(t, 4096)
		if _, err := p.Translate(b, nic.Read); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "memfd") {
			t.Errorf("private memory of another user: %v, want EPERM", err)
		}
		m, fd := mapping(t, 4096)
		if _, err := p.TranslateFile(m, fd, 0, nic.Read); err != nil {
			t.Error(err)
		}
	})
	if !ran {
		t.Skip("needs the right to become another user")
	}
}

// Where others could put a socket in its place, it does not listen.
func TestFolderOfOthersIsRefused(t *testing.T) {
	d := dir(t)
	if err := os.Chmod(d, 0o777); err != nil {
		t.Fatal(err)
	}
	s, err := Start(Config{Sockets: []string{filepath.Join(d, "s")}})
	if err == nil {
		s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "other users can write") {
		t.Errorf("%v, want a refusal", err)
	}
}
