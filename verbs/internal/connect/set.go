package connect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// Config says which managers are used, and how.
type Config struct {
	// Incarnation of the context whose queue pairs are connected; random,
	// not 0.
	Incarnation uint64

	// Secret authenticates peers to one another. It never travels. It has 16 random bytes or
	// more: fewer are ErrInvalid, as strangers get material to guess them. An empty one is
	// ErrInvalid unless NoSecret is set.
	Secret   []byte
	NoSecret bool

	// Include, if not empty, names the managers to use; Exclude those not to
	// use. A name that no manager has, or that is in both, is ErrInvalid.
	Include, Exclude []string

	// Options are those of the managers, "oob-port" for example; one that
	// nobody declares is ErrInvalid.
	Options map[string]string

	// Timeout is how long a silent peer is waited for; 0 is DefaultTimeout.
	Timeout time.Duration

	// Managers to choose from; nil means [Managers].
	Managers []Manager
}

// Set is the managers that were chosen. Its methods may be called from any
// goroutine.
type Set struct {
	mu       sync.Mutex
	managers []Manager
	include  []string
	left     []string // why managers were left out
	modules  []*Modules
	closed   bool
}

// Open chooses, registers and initializes managers. A manager that cannot work
// on this machine is left out unless Include names it.
func Open(cfg Config) (*Set, error) {
	if len(cfg.Secret) == 0 && !cfg.NoSecret {
		return nil, fmt.Errorf("%w: connecting without a session secret was not asked for", driver.ErrInvalid)
	}
	key, err := kit.NewKey(cfg.Secret)
	if err != nil {
		return nil, err
	}
	if cfg.Incarnation == 0 {
		return nil, fmt.Errorf("%w: incarnation 0", driver.ErrInvalid)
	}
	all := cfg.Managers
	if all == nil {
		all = Managers()
	}
	chosen, err := choose(all, cfg.Include, cfg.Exclude)
	if err != nil {
		return nil, err
	}
	if err := register(all, chosen, cfg.Options); err != nil {
		return nil, err
	}
	env := &Env{Incarnation: cfg.Incarnation, Timeout: cfg.Timeout, key: key}
	if env.Timeout <= 0 {
		env.Timeout = DefaultTimeout
	}
	s := &Set{include: cfg.Include}
	for _, m := range chosen {
		err := m.Init(env)
		switch {
		case err == nil:
			s.managers = append(s.managers, m)
			continue
		case errors.Is(err, driver.ErrUnsupported) && !slices.Contains(cfg.Include, m.Name()):
			s.left = append(s.left, m.Name()+": "+err.Error())
			continue
		}
		return nil, errors.Join(fmt.Errorf("connection manager %s: %w", m.Name(), err), s.Close())
	}
	if len(s.managers) == 0 {
		return nil, fmt.Errorf("%w: no connection manager works here (%s)", driver.ErrUnsupported, strings.Join(s.left, "; "))
	}
	return s, nil
}

// Query asks each manager about the port. ErrUnsupported, with each one's
// reason, if none can serve it.
func (s *Set) Query(p *Port) (*Modules, error) {
	port := *p
	port.Addrs = slices.Clone(p.Addrs)
	if port.PKey == 0 {
		port.PKey = 0xffff
	}
	if err := port.check(); err != nil {
		return nil, err
	}
	port.Quality = port.Quality.withDefaults()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%w: connection managers", driver.ErrClosed)
	}
	all := &Modules{set: s, port: port.name()}
	reasons := slices.Clone(s.left)
	for _, m := range s.managers {
		mod, err := m.Query(&port)
		if err == nil {
			err = all.add(m.Name(), mod)
		}
		switch {
		case err == nil:
		case errors.Is(err, driver.ErrUnsupported) && !slices.Contains(s.include, m.Name()):
			reasons = append(reasons, m.Name()+": "+err.Error())
		default:
			return nil, errors.Join(fmt.Errorf("connection manager %s on %s: %w", m.Name(), port.name(), err), all.finalize())
		}
	}
	if len(all.mods) == 0 {
		return nil, fmt.Errorf("%w: no connection manager serves %s (%s)", driver.ErrUnsupported, port.name(), strings.Join(reasons, "; "))
	}
	all.LeftOut = reasons
	s.modules = append(s.modules, all)
	return all, nil
}

// Close closes all modules, then finalizes the managers. A second call does
// nothing.
func (s *Set) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	modules := s.modules
	s.mu.Unlock()
	var errs []error
	for _, m := range modules {
		errs = append(errs, m.Close())
	}
	for _, m := range slices.Backward(s.managers) {
		errs = append(errs, m.Finalize())
	}
	return errors.Join(errs...)
}

// Modules are what serves one port.
type Modules struct {
	// LeftOut says of each manager that does not serve the port why, in one
	// line each.
	LeftOut []string

	set     *Set
	port    string
	entries []entry
	mods    []Module
	once    sync.Once
	err     error
}

// add checks and takes a module; it finalizes what it refuses.
func (m *Modules) add(name string, mod Module) error {
	e := entry{name, mod.Priority(), slices.Clone(mod.Blob())}
	if e.priority < 0 || e.priority > MaxPriority || len(e.blob) > MaxBlob {
		return errors.Join(fmt.Errorf("%w: priority %d, blob of %d bytes", driver.ErrInvalid, e.priority, len(e.blob)), mod.Finalize())
	}
	m.entries, m.mods = append(m.entries, e), append(m.mods, mod)
	return nil
}

// Card is what peers need to connect to this port: printable ASCII without spaces and colons.
// With both managers over IPv4 it has about 60 bytes.
func (m *Modules) Card() string { return formatCard(m.entries) }

// Names lists the managers that serve the port.
func (m *Modules) Names() []string {
	var names []string
	for _, e := range m.entries {
		names = append(names, e.name)
	}
	return names
}

// NewEndpoint makes an endpoint by the manager that both sides have and prefer.
// It never blocks. ErrInvalid for a card that makes no sense or shares no
// manager with this port, ErrVersion for a blob of another version, ErrClosed
// after Close.
func (m *Modules) NewEndpoint(cfg *EndpointConfig) (Endpoint, error) {
	switch {
	case cfg.PeerIncarnation == 0:
		return nil, fmt.Errorf("%w: incarnation 0", driver.ErrInvalid)
	case len(cfg.QPs) == 0 || len(cfg.QPs) > MaxQPs:
		return nil, fmt.Errorf("%w: %d queue pairs in an endpoint, want 1 to %d", driver.ErrInvalid, len(cfg.QPs), MaxQPs)
	case len(cfg.UserData) > MaxUserData:
		return nil, fmt.Errorf("%w: %d bytes of user data, limit is %d", driver.ErrInvalid, len(cfg.UserData), MaxUserData)
	}
	theirs, err := parseCard(cfg.PeerCard)
	if err != nil {
		return nil, err
	}
	i, k := match(m.entries, theirs)
	if i < 0 {
		var names []string
		for _, e := range theirs {
			names = append(names, e.name)
		}
		return nil, fmt.Errorf("%w: no connection manager in common: %s has %s, the peer has %s", driver.ErrInvalid,
			m.port, strings.Join(m.Names(), ", "), strings.Join(names, ", "))
	}
	return m.mods[i].NewEndpoint(cfg, theirs[k].blob)
}

// Stats adds up the counters of all modules.
func (m *Modules) Stats() (s Stats) {
	for _, mod := range m.mods {
		mod.Stats(&s)
	}
	return s
}

// Close finalizes the modules with all their endpoints, and waits until no queue pair is used any
// more, which can take a second. A second call does nothing.
func (m *Modules) Close() error {
	m.once.Do(func() { m.err = m.finalize() })
	return m.err
}

func (m *Modules) finalize() error {
	var errs []error
	for _, mod := range slices.Backward(m.mods) {
		errs = append(errs, mod.Finalize())
	}
	return errors.Join(errs...)
}
