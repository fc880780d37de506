//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// Config chooses managers and their options.
type Config struct {
	// Incarnation is that of the context whose queue pairs are connected: a random number, not 0.
	Incarnation uint64

	// Secret authenticates peers to one another. It is never sent. It needs at least 16 random bytes: a shorter one is
	// ErrInvalid, because an attacker that records a handshake could guess it. An empty one is ErrInvalid unless
	// NoSecret is set.
	Secret   []byte
	NoSecret bool

	// Include, if not empty, names the managers to use; Exclude names managers that are not used. A name that no
	// manager has, or that is in both lists, is ErrInvalid.
	Include, Exclude []string

	// Options are the managers' options, for example "oob-port". An option that no manager declares is ErrInvalid.
	Options map[string]string

	// Timeout is how long a peer may be silent; 0 means DefaultTimeout.
	Timeout time.Duration

	// managers are the managers to choose from; nil means managers().
	managers []Manager
}

// Set holds the chosen managers. Its methods may be called from any goroutine.
type Set struct {
	mu       sync.Mutex
	managers []Manager
	include  []string
	left     []string // why managers were left out
	modules  []*Modules
	closed   bool
}

// Open chooses and initializes managers. It leaves out a manager that cannot work on this machine, unless Include names
// it.
func Open(cfg Config) (*Set, error) {
	if len(cfg.Secret) == 0 && !cfg.NoSecret {
		return nil, fmt.Errorf("%w: no session secret given (set Secret, or NoSecret to connect without)", driver.ErrInvalid)
	}
	key, err := kit.NewKey(cfg.Secret)
	if err != nil {
		return nil, err
	}
	if cfg.Incarnation == 0 {
		return nil, fmt.Errorf("%w: incarnation must not be 0", driver.ErrInvalid)
	}
	all := cfg.managers
	if all == nil {
		all = managers()
	}
	chosen, err := choose(all, cfg.Include, cfg.Exclude)
	if err != nil {
		return nil, err
	}
	if err := register(all, chosen, cfg.Options); err != nil {
		return nil, err
	}
	env := &Env{incarnation: cfg.Incarnation, timeout: cfg.Timeout, key: key}
	if env.timeout <= 0 {
		env.timeout = DefaultTimeout
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

// Query asks each manager about the port. If none can serve it, the error is ErrUnsupported with the reason of each
// manager.
func (s *Set) Query(p *Port) (*Modules, error) {
	port, err := p.complete()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%w: connection managers are closed", driver.ErrClosed)
	}
	all := &Modules{set: s, port: port.name(), network: port.Network()}
	reasons := slices.Clone(s.left)
	for _, m := range s.managers {
		mod, err := m.Query(port)
		if err == nil {
			err = all.add(m.Name(), mod)
		}
		if l, ok := mod.(interface{ leftOut() []string }); ok && err == nil {
			for _, why := range l.leftOut() {
				reasons = append(reasons, m.Name()+": "+why)
			}
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
	all.leftOut = reasons
	s.modules = append(s.modules, all)
	return all, nil
}

// Close closes all modules and then finalizes the managers. A second call has no effect.
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

// Modules holds the modules of one port.
type Modules struct {
	// leftOut has one line for each manager that does not serve the port, and for each address of the port that a manager
	// does not use: the manager's name and the reason.
	leftOut []string

	set     *Set
	port    string
	network Network
	entries []entry
	mods    []Module
	once    sync.Once
	err     error
}

// add adds a module after checking it, or finalizes it.
func (m *Modules) add(name string, mod Module) error {
	e := entry{name, mod.Priority(), slices.Clone(mod.Blob())}
	if e.priority < 0 || e.priority > maxPriority || len(e.blob) > maxBlob {
		return errors.Join(fmt.Errorf("%w: priority %d, blob of %d bytes", driver.ErrInvalid, e.priority, len(e.blob)), mod.Finalize())
	}
	m.entries, m.mods = append(m.entries, e), append(m.mods, mod)
	return nil
}

// Card returns the text that peers need to connect to this port: printable ASCII without spaces and colons. With both
// managers over IPv4 it has about 60 bytes.
func (m *Modules) Card() string { return formatCard(m.entries) }

// Names lists the managers that serve the port.
func (m *Modules) Names() []string {
	var names []string
	for _, e := range m.entries {
		names = append(names, e.name)
	}
	return names
}

// NewEndpoint makes an endpoint by the manager that both sides prefer. It does not block. It returns ErrInvalid for a
// malformed card or one without a common manager, ErrVersion for a blob of another version, and ErrClosed after Close.
func (m *Modules) NewEndpoint(cfg *EndpointConfig) (Endpoint, error) {
	switch {
	case cfg.PeerIncarnation == 0:
		return nil, fmt.Errorf("%w: incarnation must not be 0", driver.ErrInvalid)
	case len(cfg.QPs) == 0 || len(cfg.QPs) > maxQPs:
		return nil, fmt.Errorf("%w: %d queue pairs in an endpoint, want 1 to %d", driver.ErrInvalid, len(cfg.QPs), maxQPs)
	case len(cfg.UserData) > maxUserData:
		return nil, fmt.Errorf("%w: %d bytes of user data, limit is %d", driver.ErrInvalid, len(cfg.UserData), maxUserData)
	}
	theirs, err := parseCard(cfg.PeerCard)
	if err != nil {
		return nil, err
	}
	i, k := match(m.entries, theirs)
	if i < 0 {
		return nil, fmt.Errorf("%w: %s", driver.ErrInvalid, m.noCommon(theirs))
	}
	return m.mods[i].NewEndpoint(cfg, theirs[k].blob)
}

// Renew gives the modules the port's present LID, GID, GIDIndex, MTU and PKeyIndex: endpoints that are made from now on,
// and queue pairs that have not been moved, use them. A port on another network is ErrInvalid, and changes nothing.
func (m *Modules) Renew(p *Port) error {
	port, err := p.complete()
	if err != nil {
		return err
	}
	if n := port.Network(); n != m.network {
		return fmt.Errorf("%w: port %s was on network %v and is now on %v", driver.ErrInvalid, m.port, m.network, n)
	}
	for _, mod := range m.mods {
		if r, ok := mod.(interface{ renew(*Port) }); ok {
			r.renew(port)
		}
	}
	return nil
}

// Stats adds up the counters of all modules.
func (m *Modules) Stats() (s Stats) {
	for _, mod := range m.mods {
		mod.Stats(&s)
	}
	return s
}

// Close finalizes the modules with all their endpoints, and waits until the package uses no queue pair any more, which
// can take a second. A second call has no effect.
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
