//go:build linux && !(386 || arm || mips || mipsle)

package qnix_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix/softnic"
)

// Two softnics that are not joined in a cluster, as in containers with a /tmp each, have different domains. A softnic
// is one, whatever the name of its socket.
func TestSoftnicsOfTwoContainersDiffer(t *testing.T) {
	if err := softnic.Supported(); err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "qnix-*") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var c [3]driver.Reacher
	for k, name := range []string{"a", "b"} {
		path := filepath.Join(dir, name)
		s, err := softnic.Start(softnic.Config{Sockets: []string{path}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		c[k] = open(t, path, driver.Hints{}, driver.Attributes{}).(driver.Reacher)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	c[2] = open(t, filepath.Join(dir, "c"), driver.Hints{}, driver.Attributes{}).(driver.Reacher)
	for _, pair := range [][2]driver.Reacher{{c[0], c[1]}, {c[1], c[0]}} {
		err := pair[0].Reaches(pair[1].URL())
		if !errors.Is(err, driver.ErrUnreachable) || !strings.Contains(err.Error(), "both have number 1") {
			t.Errorf("another softnic: got %v, want %v", err, driver.ErrUnreachable)
		}
	}
	if c[0].Domain() == c[1].Domain() || c[0].Domain() != c[2].Domain() {
		t.Errorf("the domains are %q, %q of another softnic, %q of the same", c[0].Domain(), c[1].Domain(), c[2].Domain())
	}
	for _, pair := range [][2]driver.Reacher{{c[0], c[2]}, {c[2], c[0]}} {
		if err := pair[0].Reaches(pair[1].URL()); err != nil {
			t.Errorf("the same softnic: %v", err)
		}
	}
}
