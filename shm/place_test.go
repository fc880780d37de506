//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
)

// Two places are apart if one context would not find the other's socket, or not be admitted; both ends get the same
// result.
func TestReachByURL(t *testing.T) {
	here := place{host: 1, dir: 2, view: 3, userns: 4, users: []uint32{1000}, mode: privateDir, path: "/tmp/bywash-1000/a.shm"}
	with := func(change func(*place)) place {
		p := here
		p.users = []uint32{1000}
		change(&p)
		return p
	}
	shared := func(p *place) { p.mode, p.path = sharedDir, "/run/fabric/a.shm" }
	for _, tt := range []struct {
		name string
		a, b place
		why  string // "": they reach each other
	}{
		{"the same directory", here, here, ""},
		{"another host", here, with(func(p *place) { p.host, p.dir, p.view = 9, 9, 9 }), "another host"},
		{"a container with its own /tmp", here, with(func(p *place) { p.dir, p.view = 9, 9 }), "in another container"},
		{"a container with the same /tmp", here, with(func(p *place) { p.view = 9 }), ""},
		{"a container with the directory elsewhere", here, with(func(p *place) { p.view, p.path = 9, "/other/a.shm" }), "in another container"},
		{"rootless, with the same /tmp", here, with(func(p *place) { p.view, p.userns, p.users = 9, 9, []uint32{0} }), ""},
		{"rootless, in the same files", here, with(func(p *place) { p.dir, p.userns, p.users, p.path = 9, 9, []uint32{0}, "/tmp/bywash-0/a.shm" }),
			"the peer's directory for sockets is"},
		{"another private directory", here, with(func(p *place) { p.dir, p.path = 9, "/run/user/1000/bywash/a.shm" }), ""},
		{"another directory that others write", here, with(func(p *place) { p.dir = 9; shared(p) }), "the peer's directory for sockets is"},
		{"by another name", with(shared), with(func(p *place) { shared(p); p.path = "/var/run/fabric/a.shm" }), ""},
		{"another user", here, with(func(p *place) { p.dir, p.users, p.path = 9, []uint32{1001}, "/tmp/bywash-1001/a.shm" }), "user is 1"},
		{"users that admit each other", with(func(p *place) { shared(p); p.users = []uint32{1000, 1001} }),
			with(func(p *place) { shared(p); p.users = []uint32{1001, 1000} }), ""},
		{"one that is not admitted", with(func(p *place) { shared(p); p.users = []uint32{1000, 1001} }),
			with(func(p *place) { shared(p); p.users = []uint32{1001} }), "user is 1"},
		{"more users than a url holds", with(func(p *place) { shared(p); p.users, p.mode = []uint32{1000, 1002}, manyUsers }),
			with(func(p *place) { shared(p); p.users = []uint32{1001, 1000} }), ""},
		{"users of two namespaces", with(shared), with(func(p *place) { shared(p); p.users, p.userns = []uint32{0}, 9 }), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, why := range []string{tt.a.apart(&tt.b), tt.b.apart(&tt.a)} {
				if !strings.Contains(why, tt.why) || (why == "") != (tt.why == "") {
					t.Errorf("got %q, want %q", why, tt.why)
				}
			}
			if tt.a.domain() == tt.b.domain() && tt.why != "" {
				t.Errorf("both are in the domain %q", tt.a.domain())
			}
		})
	}
}

// The url of a directory with a long name holds as many users as there is room for.
func TestURLsHoldTheUsersThatFit(t *testing.T) {
	dir := t.TempDir() + strings.Repeat("/äöü ", 3) // percent-encoded
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var users []string
	for k := range 20 {
		users = append(users, fmt.Sprint(4_000_000_000+k))
	}
	c := open(t, driver.Small, map[string]string{"dir": dir, "allow-uids": strings.Join(users, ",")})
	p := core(c).place
	if len(p.users) == 0 || len(p.users) >= maxUsers || p.users[0] != uint32(os.Getuid()) || p.mode != manyUsers {
		t.Errorf("the url %q has %d users", c.URL(), len(p.users))
	}
	if p = p.fit(1); len(p.users) != 1 {
		t.Errorf("at least one user stays: %v", p.users)
	}
}

// The error of a failed dial contains what the urls of both ends show.
func TestFailedDialNamesWhyThePeerIsUnreachable(t *testing.T) {
	c := open(t, driver.Small, map[string]string{"dir": t.TempDir()})
	p := core(c).place
	const inc = ^uint64(0)
	p.path = fmt.Sprintf("%s/%016x%s", t.TempDir(), inc, socketSuffix)
	p.dir, p.view = p.dir+1, p.view+1
	i, err := c.Connect(driver.URL{Driver: Name, Version: URLVersion, Incarnation: inc, Rest: p.String()}.String())
	if err != nil {
		t.Fatal(err)
	}
	err = i.ConnectWait(t.Context())
	if !errors.Is(err, driver.ErrBroken) || !errors.Is(err, driver.ErrUnreachable) || !strings.Contains(err.Error(), "in another container") {
		t.Errorf("got %v, want %v, %v and why", err, driver.ErrBroken, driver.ErrUnreachable)
	}
	_ = i.Disconnect()
}
