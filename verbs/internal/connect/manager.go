//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
)

// Limits of a manager's name, blob and priority.
const (
	maxName     = 64  // bytes of a manager's name
	maxBlob     = 255 // bytes of a module's blob
	maxPriority = 100
)

// Manager is a way to connect queue pairs. One goroutine calls its methods, in the order below, and Query once for each
// port. The methods of an excluded manager are never called, except Name.
type Manager interface {
	// Name identifies the manager among peers: lower-case letters and
	// digits, at most maxName.
	Name() string

	// Register declares the manager's options.
	Register(*options)

	// Init starts the parts that all modules share. A manager that fails with ErrUnsupported is left out, unless it was
	// included by name.
	Init(*Env) error

	// Query returns a module for the port, which peers can reach. It returns ErrUnsupported with the reason for a port
	// that the manager cannot serve.
	Query(*Port) (Module, error)

	// Finalize undoes Init. All modules have been finalized.
	Finalize() error
}

// Module is a manager on one port. Its methods may be called from any goroutine.
type Module interface {
	// Priority returns the priority, 0 to maxPriority, of this manager on this port. It does not change.
	Priority() int

	// Blob returns the address of this module for the peers' modules of the same manager, at most maxBlob bytes.
	Blob() []byte

	// UsesCTS reports whether connections of this module wait for clear-to-send.
	UsesCTS() bool

	// NewEndpoint makes an endpoint towards a peer with that blob. It does not block. It returns ErrInvalid for a
	// malformed blob, and ErrVersion for a blob of another version.
	NewEndpoint(cfg *EndpointConfig, blob []byte) (Endpoint, error)

	// Stats adds the module's counters to its argument.
	Stats(*Stats)

	// Finalize ends all endpoints as if they had been finalized, and
	// everything that runs for the module. It waits for steps of queue pairs
	// that are under way.
	Finalize() error
}

// Env is the argument of Manager.Init.
type Env struct {
	incarnation uint64
	timeout     time.Duration

	key *handshake.Key
}

// Stats are counters since the module was made.
type Stats struct {
	connected   uint64 // endpoints that became Ready
	failed      uint64 // endpoints that became Failed
	lost        uint64 // endpoints that became Lost
	links       uint64 // authenticated links made, by either side
	Refused     uint64 // dialers refused: secret, version, incarnation, too many
	BadMessages uint64 // malformed or forged messages, each of which ended a link
}

// options collects the options that a manager declares.
type options struct {
	manager string
	values  map[string]string
	set     map[string]bool
	err     error
}

// lookup declares the option manager-name and returns its value, or def if it was not given. valid, which may be nil,
// returns an error for a wrong value.
func (o *options) lookup(name, def string, valid func(string) error) string {
	full := o.manager + "-" + name
	o.set[full] = true
	v, ok := o.values[full]
	if !ok {
		return def
	}
	if valid != nil {
		if err := valid(v); err != nil {
			if o.err == nil {
				o.err = fmt.Errorf("%w: option %s=%q: %w", driver.ErrInvalid, full, v, err)
			}
			return def
		}
	}
	return v
}

// priority declares the manager's option priority.
func (o *options) priority(def int) int {
	o.lookup("priority", "", func(v string) error {
		n, err := strconv.ParseUint(v, 10, 8)
		if err != nil || n > maxPriority {
			return fmt.Errorf("want 0 to %d", maxPriority)
		}
		def = int(n)
		return nil
	})
	return def
}

// onOff declares an option that is on or off.
func (o *options) onOff(name string, def bool) bool {
	o.lookup(name, "", func(v string) error {
		if v != "on" && v != "off" {
			return fmt.Errorf("want on or off")
		}
		def = v == "on"
		return nil
	})
	return def
}

// managers returns new instances of the managers that come with this package.
func managers() []Manager { return []Manager{&oob{}, &rdmacm{}} }

// Names lists the managers that come with this package.
func Names() []string {
	var names []string
	for _, m := range managers() {
		names = append(names, m.Name())
	}
	return names
}

// choose applies the include and exclude lists.
func choose(all []Manager, include, exclude []string) ([]Manager, error) {
	var known []string
	for _, m := range all {
		if !validName(m.Name()) || slices.Contains(known, m.Name()) {
			return nil, fmt.Errorf("%w: connection manager name %q", driver.ErrInvalid, m.Name())
		}
		known = append(known, m.Name())
	}
	for _, name := range slices.Concat(include, exclude) {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%w: no connection manager %q (there are %s)", driver.ErrInvalid, name, strings.Join(known, ", "))
		}
		if slices.Contains(include, name) && slices.Contains(exclude, name) {
			return nil, fmt.Errorf("%w: connection manager %q is both included and excluded", driver.ErrInvalid, name)
		}
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(m Manager) bool {
		return len(include) > 0 && !slices.Contains(include, m.Name()) || slices.Contains(exclude, m.Name())
	})
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%w: every connection manager is excluded (there are %s)", driver.ErrInvalid, strings.Join(known, ", "))
	}
	return chosen, nil
}

// register lets the chosen managers declare their options, and refuses options that no manager declares. Options of
// managers that were not chosen are ignored.
func register(all, chosen []Manager, values map[string]string) error {
	set := make(map[string]bool)
	for _, m := range chosen {
		o := options{manager: m.Name(), values: values, set: set}
		m.Register(&o)
		if o.err != nil {
			return o.err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		other := func(m Manager) bool { return !slices.Contains(chosen, m) && strings.HasPrefix(name, m.Name()+"-") }
		if !set[name] && !slices.ContainsFunc(all, other) {
			have := strings.Join(slices.Sorted(maps.Keys(set)), ", ")
			return fmt.Errorf("%w: no option %q for connecting (there are %s)", driver.ErrInvalid, name, have)
		}
	}
	return nil
}

func validName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
