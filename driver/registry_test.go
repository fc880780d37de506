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

func TestRegistry(t *testing.T) {
	driver.Register(named{name: "zzz9"})
	driver.Register(named{name: "aaa"})
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

func TestNICIsOpenedOnce(t *testing.T) {
	for device, prefix := range map[string]string{"eth7": "eth7: ", "": ""} {
		var o driver.OpenOnce
		c := &opened{}
		if got, err := o.Open("test", device, func() (driver.Context, error) { return c, nil }); err != nil || got != driver.Context(c) {
			t.Errorf("%v, %v", got, err)
		}
		if !slices.Contains(driver.Contexts(), driver.Context(c)) {
			t.Error("it is not listed")
		}
		driver.Closed(c)
		if _, err := o.Open("test", device, nil); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("again: %v", err)
		}
		var bad driver.OpenOnce
		_, err := bad.Open("test", device, func() (driver.Context, error) { return nil, errLost })
		if e, ok := errors.AsType[*driver.Error](err); !ok || e.Op != "open" || e.Err.Error() != prefix+errLost.Error() || !errors.Is(err, errLost) {
			t.Errorf("%v", err)
		}
	}
}
