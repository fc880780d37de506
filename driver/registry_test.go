package driver_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
)

// named is a driver that is only looked up.
type named struct {
	driver.Driver
	name string
}

func (n named) Name() string { return n.name }

func init() {
	driver.Register(named{name: "zzz9"})
	driver.Register(named{name: "aaa"})
}

func TestRegistry(t *testing.T) {
	names := driver.Names()
	if !slices.IsSorted(names) || !slices.Contains(names, "aaa") || !slices.Contains(names, "zzz9") {
		t.Errorf("names are %q", names)
	}
	if d, err := driver.Lookup("aaa"); err != nil || d.Name() != "aaa" {
		t.Errorf("lookup: %v, %v", d, err)
	}
	if _, err := driver.Lookup("none"); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "aaa") {
		t.Errorf("lookup of an unknown driver: got %v, want %v and the names that exist", err, driver.ErrInvalid)
	}
	for _, bad := range []string{"aaa", "", "Upper", "with-dash", "ü"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("registering %q does not panic", bad)
				}
			}()
			driver.Register(named{name: bad})
		}()
	}
}

// opened is a context that is only listed.
type opened struct {
	driver.Context
	_ int
}

func TestContexts(t *testing.T) {
	a, b := &opened{}, &opened{}
	driver.Opened(a)
	driver.Opened(b)
	if l := driver.Contexts(); !slices.Contains(l, driver.Context(a)) || !slices.Contains(l, driver.Context(b)) {
		t.Errorf("contexts are %v", l)
	}
	driver.Closed(a)
	driver.Closed(b)
	driver.Closed(b)
	if l := driver.Contexts(); len(l) != 0 {
		t.Errorf("closed contexts are listed: %v", l)
	}
}
