//go:build linux && !(386 || arm || mips || mipsle)

package softnic

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/nic"
)

// A user whose processes die with messages that are not received, and that joins all groups that it may, leaves names
// and groups to others.
func TestUserLeavesTablesToOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: becomes another user")
	}
	d := dir(t)
	if err := os.Chmod(d, 0o755); err != nil {
		t.Fatal(err)
	}
	const most = 64 // processes, so 4 times as many names
	s := serve(t, Config{Sockets: []string{filepath.Join(d, "s")}, AllowUIDs: []int{65534}, MaxProcesses: most})
	path := s.Sockets()[0]
	join(t, path, nic.Config{Name: "deaf"})
	ran := false
	as(65534, func() {
		ran = true
		for i := range 5 * most {
			if err := live(path, fmt.Sprint("m", i), name("deaf")); err != nil {
				t.Errorf("life %d: %v", i, err)
				return
			}
		}
		n, err := nic.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = n.Close() })
		p, err := n.Register(ctx, nic.Config{Name: "joiner"})
		for i := 0; err == nil; i++ {
			if err = p.Join(ctx, name(fmt.Sprint("mine", i)), 1); i > 1024 {
				break
			}
		}
		if !errors.Is(err, unix.EDQUOT) {
			t.Errorf("joining without end: %v, want EDQUOT", err)
		}
	})
	if !ran {
		t.Skip("needs the right to become another user")
	}
	p := join(t, path, nic.Config{Name: "root"})
	if err := p.Join(ctx, name("roots"), 1); err != nil {
		t.Error(err)
	}
}

// live registers, sends a message that is not received, and ends.
func live(path, as string, to nic.Name) error {
	n, err := nic.Open(path)
	if err != nil {
		return err
	}
	defer n.Close()
	p, err := n.Register(ctx, nic.Config{Name: as})
	if err != nil {
		return err
	}
	if err := p.SendShort(0, to, 1, 8); err != nil {
		return err
	}
	if err := p.Kick(); err != nil {
		return err
	}
	for end := time.Now().Add(maxWait); time.Now().Before(end); {
		seen := p.RingTail()
		if s, _ := p.SendDoorbell(0); s == nic.Done {
			return nil
		}
		if err := p.Wait(seen, time.Second); err != nil {
			return err
		}
	}
	return errors.New("the message was not taken")
}
