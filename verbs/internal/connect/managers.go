//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// manager is a way to carry bytes between hosts before queue pairs are connected.
type manager struct {
	name     string                                 // lower-case letters and digits
	priority int                                    // without an option
	open     func(*hub, *settings) (carrier, error) // ErrUnsupported: it cannot serve the hub's port
}

var all = []manager{
	{"oob", 50, openOOB},
	{"rdmacm", 30, openRDMACM},
}

// Names lists the managers of this package.
func Names() (names []string) {
	for _, m := range all {
		names = append(names, m.name)
	}
	return names
}

// Config chooses managers and their options.
type Config struct {
	// Incarnation is that of the context whose queue pairs are connected: a random number, not 0.
	Incarnation uint64

	// Secret authenticates peers to one another. It is never sent. It needs at least 16 random bytes: a shorter one is
	// ErrInvalid, because an attacker that records a handshake could guess it. With an empty one any peer without a
	// secret connects.
	Secret []byte

	// Include, if not empty, names the managers to use; Exclude names managers that are not used. A name that no
	// manager has, or that is in both lists, is ErrInvalid.
	Include, Exclude []string

	// Options are the managers' options. Each manager has three; any other is ErrInvalid. Those of a manager that is not
	// used are ignored.
	//
	//	NAME-address   IP addresses to listen at, with commas, instead of those of the port's interface
	//	               (rdmacm: the first one that is on the port)
	//	NAME-port      port to listen at; 0, the default, is any free one
	//	NAME-priority  0 to 100; oob 50, rdmacm 30
	Options map[string]string

	// Timeout is how long a peer may be silent; 0 means DefaultTimeout.
	Timeout time.Duration
}

// choose applies the include and exclude lists.
func (c *Config) choose() (chosen []manager, err error) {
	for _, name := range slices.Concat(c.Include, c.Exclude) {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("%w: no connection manager %q (there are %s)", driver.ErrInvalid, name, strings.Join(Names(), ", "))
		}
		if slices.Contains(c.Include, name) && slices.Contains(c.Exclude, name) {
			return nil, fmt.Errorf("%w: connection manager %q is both included and excluded", driver.ErrInvalid, name)
		}
	}
	for _, m := range all {
		if (len(c.Include) == 0 || slices.Contains(c.Include, m.name)) && !slices.Contains(c.Exclude, m.name) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%w: every connection manager is excluded (there are %s)", driver.ErrInvalid, strings.Join(Names(), ", "))
	}
	return chosen, nil
}

// settings are the values of a manager's options.
type settings struct {
	addrs    []netip.Addr
	port     uint16
	priority int
}

var settingNames = []string{"address", "port", "priority"}

// settings reads the options of one manager.
func (c *Config) settings(m *manager) (*settings, error) {
	s := &settings{priority: m.priority}
	for _, option := range settingNames {
		name := m.name + "-" + option
		if v, ok := c.Options[name]; ok {
			if err := s.set(option, v); err != nil {
				return nil, fmt.Errorf("%w: option %s=%q: %w", driver.ErrInvalid, name, v, err)
			}
		}
	}
	return s, nil
}

func (s *settings) set(option, v string) error {
	switch option {
	case "address":
		for text := range strings.SplitSeq(v, ",") {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return err
			}
			s.addrs = append(s.addrs, a)
		}
	case "port":
		n, err := strconv.ParseUint(v, 10, 16)
		s.port = uint16(n)
		return err
	case "priority":
		n, err := strconv.ParseUint(v, 10, 8)
		if s.priority = int(n); err != nil || n > maxPriority {
			return fmt.Errorf("want 0 to %d", maxPriority)
		}
	}
	return nil
}

// unknown returns an error for an option that no manager has.
func (c *Config) unknown() error {
	var have []string
	for _, m := range all {
		for _, option := range settingNames {
			have = append(have, m.name+"-"+option)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Options)) {
		if !slices.Contains(have, name) {
			return fmt.Errorf("%w: no option %q for connecting (there are %s)", driver.ErrInvalid, name, strings.Join(have, ", "))
		}
	}
	return nil
}

// Managers are the managers that serve one port. Its methods may be called from any goroutine.
type Managers struct {
	port    string
	network Network
	hubs    []*hub
	once    sync.Once
	err     error
}

// Open chooses managers, and begins to listen for peers of the port. It leaves out a manager that cannot serve the port,
// unless Include names it. If none can, the error is ErrUnsupported with the reason of each.
func Open(cfg Config, p *Port) (*Managers, error) {
	key, err := kit.NewKey(cfg.Secret)
	if err != nil {
		return nil, err
	}
	if cfg.Incarnation == 0 {
		return nil, fmt.Errorf("%w: incarnation must not be 0", driver.ErrInvalid)
	}
	chosen, err := cfg.choose()
	if err == nil {
		err = cfg.unknown()
	}
	if err != nil {
		return nil, err
	}
	port, err := p.complete()
	if err != nil {
		return nil, err
	}
	own := self{incarnation: cfg.Incarnation, timeout: cfg.Timeout, key: key}
	if own.timeout <= 0 {
		own.timeout = DefaultTimeout
	}
	m := &Managers{port: port.name(), network: port.Network()}
	var reasons []string
	for _, w := range chosen {
		s, err := cfg.settings(&w)
		if err == nil {
			h := newHub(w.name, own, port, s)
			if h.carrier, err = w.open(h, s); err == nil {
				m.hubs = append(m.hubs, h)
				continue
			}
		}
		if !errors.Is(err, driver.ErrUnsupported) || slices.Contains(cfg.Include, w.name) {
			return nil, errors.Join(fmt.Errorf("connection manager %s on %s: %w", w.name, port.name(), err), m.Close())
		}
		reasons = append(reasons, w.name+": "+err.Error())
	}
	if len(m.hubs) == 0 {
		return nil, fmt.Errorf("%w: no connection manager serves %s (%s)", driver.ErrUnsupported, port.name(), strings.Join(reasons, "; "))
	}
	return m, nil
}

// entries returns the parts of the card.
func (m *Managers) entries() (list []entry) {
	for _, h := range m.hubs {
		list = append(list, entry{h.name, h.priority, h.blob})
	}
	return list
}

// Card returns the text that peers need to connect to this port: printable ASCII without spaces and colons. With both
// managers over IPv4 it has about 60 bytes.
func (m *Managers) Card() string { return formatCard(m.entries()) }

// Names lists the managers that serve the port.
func (m *Managers) Names() (names []string) {
	for _, h := range m.hubs {
		names = append(names, h.name)
	}
	return names
}

// NewEndpoint makes an endpoint, and begins to connect it by the manager that both sides prefer. It does not block. It
// returns ErrInvalid for a malformed card or one without a common manager, ErrVersion for a blob of another version, and
// ErrClosed after Close.
func (m *Managers) NewEndpoint(cfg *EndpointConfig) (*Endpoint, error) {
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
	i, k := match(m.entries(), theirs)
	if i < 0 {
		return nil, fmt.Errorf("%w: %s", driver.ErrInvalid, m.noCommon(theirs))
	}
	return m.hubs[i].newEndpoint(cfg, theirs[k].blob)
}

// Renew gives the managers the port's present LID, GID, GIDIndex, MTU and PKeyIndex: endpoints that are made from now
// on, and queue pairs that have not been moved, use them. A port on another network is ErrInvalid, and changes nothing.
func (m *Managers) Renew(p *Port) error {
	port, err := p.complete()
	if err != nil {
		return err
	}
	if n := port.Network(); n != m.network {
		return fmt.Errorf("%w: port %s was on network %v and is now on %v", driver.ErrInvalid, m.port, m.network, n)
	}
	for _, h := range m.hubs {
		h.latest.Store(port)
	}
	return nil
}

// Stats are counters since Open.
type Stats struct {
	links       uint64 // authenticated links made, by either side
	Refused     uint64 // dialers refused: secret, version, incarnation, too many
	BadMessages uint64 // malformed or forged messages, each of which ended a link
}

// Stats adds up the counters of all managers.
func (m *Managers) Stats() (s Stats) {
	for _, h := range m.hubs {
		h.addStats(&s)
	}
	return s
}

// Close finalizes all endpoints, and waits until the package uses no queue pair any more, which can take a second. A
// second call has no effect.
func (m *Managers) Close() error {
	m.once.Do(func() {
		var errs []error
		for _, h := range slices.Backward(m.hubs) {
			errs = append(errs, h.close())
		}
		m.err = errors.Join(errs...)
	})
	return m.err
}
