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

	"github.com/bywash/bywash/driver"
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
