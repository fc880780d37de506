package driver

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

var registry struct {
	sync.Mutex
	drivers  map[string]Driver
	contexts map[Context]struct{}
}

// Register makes a driver known under its name. Drivers call it from init; it
// panics if the name is taken or malformed, as only a wrong program does that.
func Register(d Driver) {
	name := d.Name()
	if !validName(name) {
		panic("driver: malformed name " + name)
	}
	registry.Lock()
	defer registry.Unlock()
	if _, dup := registry.drivers[name]; dup {
		panic("driver: " + name + " registered twice")
	}
	if registry.drivers == nil {
		registry.drivers = make(map[string]Driver)
	}
	registry.drivers[name] = d
}

func validName(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// Names returns the names of all registered drivers, sorted.
func Names() []string {
	registry.Lock()
	defer registry.Unlock()
	return slices.Sorted(maps.Keys(registry.drivers))
}

// Lookup finds a driver. ErrInvalid, with the names that exist, for one that is
// not registered.
func Lookup(name string) (Driver, error) {
	registry.Lock()
	defer registry.Unlock()
	if d, ok := registry.drivers[name]; ok {
		return d, nil
	}
	known := strings.Join(slices.Sorted(maps.Keys(registry.drivers)), ", ")
	if known == "" {
		known = "none; import github.com/bywash/bywash/driver/all"
	}
	return nil, fmt.Errorf("%w: no driver %q (registered: %s)", ErrInvalid, name, known)
}

// Opened is called by drivers when a context has been opened, and Closed when
// it is being closed, so that [Contexts] can list it.
func Opened(c Context) {
	registry.Lock()
	defer registry.Unlock()
	if registry.contexts == nil {
		registry.contexts = make(map[Context]struct{})
	}
	registry.contexts[c] = struct{}{}
}

// Closed undoes Opened.
func Closed(c Context) {
	registry.Lock()
	defer registry.Unlock()
	delete(registry.contexts, c)
}

// Contexts returns the contexts that are open in this process, in no order.
func Contexts() []Context {
	registry.Lock()
	defer registry.Unlock()
	return slices.Collect(maps.Keys(registry.contexts))
}
