//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/attack"
)

// rest is the rest of the url of a context that listens at a path.
func rest(path string) string {
	return place{users: []uint32{uint32(os.Getuid())}, mode: sharedDir, path: path}.String()
}

// A url names nothing but a socket of this driver, where only this user, root, or the peers that share the directory
// can make one.
func TestURLsNameSocketsOfThisDriverOnly(t *testing.T) {
	dir := t.TempDir()
	c := open(t, driver.Small, map[string]string{"dir": dir})
	const inc = ^uint64(0) // the side that is dialed
	mkdir := func(mode os.FileMode) string {
		d := t.TempDir()
		if err := os.Chmod(d, mode); err != nil {
			t.Fatal(err)
		}
		return d
	}
	name := fmt.Sprintf("%016x%s", inc, socketSuffix)
	for _, x := range []struct {
		name string
		path string
		ok   bool
	}{
		{"in our directory", filepath.Join(dir, name), true},
		{"in another one of this user", filepath.Join(mkdir(0o700), name), true},
		{"in one of everybody", filepath.Join(mkdir(0o777), name), false},
		{"in one that is sticky", filepath.Join(mkdir(0o777|os.ModeSticky), name), false},
		{"of another name", filepath.Join(dir, "service"), false},
		{"of another incarnation", filepath.Join(dir, fmt.Sprintf("%016x%s", inc-1, socketSuffix)), false},
		{"by a detour", dir + "/../" + filepath.Base(dir) + "/" + name, false},
		{"relative", "tmp/" + name, false},
		{"abstract", "\x00" + name, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			called := make(chan bool, 1)
			if l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: x.path, Net: "unixpacket"}); err == nil {
				defer l.Close()
				go func() {
					s, err := l.Accept()
					if err == nil {
						s.Close()
					}
					called <- err == nil
				}()
			}
			u := driver.URL{Driver: Name, Version: URLVersion, Incarnation: inc, Rest: rest(x.path)}
			if x.path[0] == 0 {
				u.Rest = strings.TrimSuffix(rest(name), name) + "%00" + name
			}
			i, err := c.Connect(u.String())
			if err == nil && !x.ok { // the directory is looked at later
				defer i.Disconnect()
				err = i.ConnectWait(t.Context())
			}
			if !x.ok {
				if !errors.Is(err, driver.ErrInvalid) {
					t.Errorf("got %v, %v, want %v", i, err, driver.ErrInvalid)
				}
				return
			}
			if err != nil || !<-called {
				t.Errorf("got %v, and no call at the socket", err)
			}
			if err == nil {
				_ = i.Disconnect()
			}
		})
	}
}

// A url that names a directory whose file system does not answer blocks no call but ConnectWait.
func TestDeadFileSystemDoesNotBlockConnect(t *testing.T) {
	c := open(t, driver.Small, map[string]string{"dir": t.TempDir()})
	far := t.TempDir()
	answered := make(chan struct{})
	defer func(f func(string, *unix.Stat_t) error) { stat = f }(stat)
	stat = func(path string, st *unix.Stat_t) error {
		if path != far {
			return unix.Stat(path, st)
		}
		<-answered
		return unix.EIO
	}
	const inc = ^uint64(0)
	path := fmt.Sprintf("%s/%016x%s", far, inc, socketSuffix)
	connected := make(chan driver.Instance, 1)
	go func() {
		i, err := c.Connect(driver.URL{Driver: Name, Version: URLVersion, Incarnation: inc, Rest: rest(path)}.String())
		if err != nil {
			t.Error(err)
		}
		connected <- i
	}()
	select {
	case i := <-connected:
		connected <- i
	case <-time.After(attack.MaxWait):
		t.Error("Connect is blocked")
	}
	close(answered)
	i := <-connected
	if err := i.ConnectWait(t.Context()); !errors.Is(err, driver.ErrBroken) {
		t.Errorf("got %v, want %v", err, driver.ErrBroken)
	}
	_ = i.Disconnect()
}
