package session

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/rdv"
	"github.com/bywash/bywash/session/launch"
)

// A driver that is opened takes memory, may start a NIC, and may change an interface of the machine: none is opened
// that no gate of the job can take. Between two ranks that is a driver of less exclusivity than one that both have and
// that reaches (choose). So a session opens the most exclusive drivers that work here, and then asks whether all ranks
// have opened the same, with the same domains (driver.Reacher), so that all reach all: then the others stay closed, at
// all ranks. That ranks run on one host would not do: one may be in a container, in a sandbox, of another user, or have
// failed to open what the others have.

// opening chooses and opens the rails of a session whose Config names none.
type opening struct {
	s       *Session
	left    []*candidate
	missing []error
	lost    []error // of drivers whose hardware is here, that would have been taken, and cannot be opened
	out     []Choice
}

// candidate is a driver that is not open.
type candidate struct {
	Rail
	nic         driver.NIC // nil: not queried yet
	exclusivity int        // before the query: at most
}

// open opens the rails.
func (s *Session) open(ctx context.Context) error {
	if s.cfg.Rails != nil {
		for _, r := range s.cfg.Rails {
			n, err := s.openRail(r, nil)
			if err != nil {
				return err
			}
			s.addRail(n)
		}
		s.explainJoin(nil)
		_, err := s.agree(ctx) // other ranks, whose Config names no rails, wait for it
		return err
	}
	o := opening{s: s}
	for _, name := range driver.Names() {
		c := &candidate{Rail: Rail{Driver: name}, exclusivity: math.MaxInt}
		if d, err := driver.Lookup(name); err == nil {
			if r, ok := d.(driver.Reserved); ok {
				s.unopened = append(s.unopened, Choice{Driver: name, Why: fmt.Sprintf(
					"not named: %s (%s=%s:DEVICE or Config.Rails names it)", r.Reserved(), launch.EnvDrivers, name)})
				continue
			}
			if r, ok := d.(driver.Ranked); ok {
				c.exclusivity = r.MaxExclusivity()
			}
		}
		o.left = append(o.left, c)
	}
	o.open(false)
	if len(s.nics) == 0 {
		return noDriver(o.missing)
	}
	if s.cfg.explainTo() == nil { // which reports the drivers anyway
		for _, err := range o.lost {
			slog.Warn(fmt.Sprintf("session: uses %s instead of a faster driver: %v", s.nics[0].Driver, err))
		}
	}
	same, err := s.agree(ctx)
	if err != nil {
		return err
	}
	if same && !s.cfg.AllDrivers {
		s.unopened = append(s.unopened, o.unneeded()...)
	} else {
		o.open(true)
	}
	s.explainJoin(append(o.out, s.unopened...))
	return nil
}

// noDriver is the error of a process without any driver, in one line.
func noDriver(missing []error) error {
	if len(missing) == 0 {
		return fmt.Errorf("%w: the program registers no driver: import _ \"github.com/bywash/bywash/driver/all\"", driver.ErrUnsupported)
	}
	err := missing[0] // errors.Join takes a line for each
	for _, e := range missing[1:] {
		err = fmt.Errorf("%w; %w", err, e)
	}
	return fmt.Errorf("%w: no driver works here (bywash doctor names remedies): %w", driver.ErrUnsupported, err)
}

// open opens drivers, the most exclusive first. It stops when none is left or, unless all are wanted, when the rest is
// less exclusive than an open one.
func (o *opening) open(all bool) {
	for {
		least := math.MinInt
		if !all {
			least = o.s.top()
		}
		c := o.next(least)
		if c == nil {
			return
		}
		if len(o.s.nics) == rdv.MaxRails {
			o.out = append(o.out, Choice{Driver: c.Driver, Why: fmt.Sprintf("a session has at most %d rails", rdv.MaxRails)})
			continue
		}
		n, err := o.s.openRail(c.Rail, c.nic)
		if err != nil {
			var u *driver.UnavailableError
			if c.exclusivity > o.s.top() && !(errors.As(err, &u) && u.Absent) {
				o.lost = append(o.lost, err)
			}
			o.fail(c, err)
			continue
		}
		o.s.addRail(n)
	}
}

// next takes out the most exclusive candidate that works here, if it is at least so exclusive.
func (o *opening) next(least int) *candidate {
	for len(o.left) > 0 {
		k := 0
		for i, c := range o.left {
			if c.exclusivity > o.left[k].exclusivity {
				k = i
			}
		}
		c := o.left[k]
		if c.exclusivity < least {
			return nil
		}
		if c.nic != nil {
			o.left = slices.Delete(o.left, k, k+1)
			return c
		}
		nic, err := o.s.query(c.Rail, driver.Small)
		if err != nil {
			o.left = slices.Delete(o.left, k, k+1)
			o.fail(c, err)
			continue
		}
		c.nic, c.exclusivity = nic, nic.Properties().Profile.Exclusivity
	}
	return nil
}

func (o *opening) fail(c *candidate, err error) {
	o.missing = append(o.missing, err)
	o.out = append(o.out, Choice{Driver: c.Driver, Why: err.Error()})
}

// unneeded returns why the remaining drivers stay closed.
func (o *opening) unneeded() (out []Choice) {
	best := o.s.nics[0]
	for _, c := range o.left {
		out = append(out, Choice{Driver: c.Driver, Why: fmt.Sprintf("not needed: all ranks reach each other by %s, of exclusivity %d; this has at most %d (Config.AllDrivers opens it)",
			best.Driver, o.s.top(), c.exclusivity)})
	}
	return out
}

// top is the exclusivity of the most exclusive rail.
func (s *Session) top() int {
	top := math.MinInt
	for _, n := range s.nics {
		top = max(top, n.exclusivity())
	}
	return top
}

// agree reports whether all ranks have opened the same most exclusive drivers and reach each other by them, if the
// launcher can find out; else false. All ranks ask.
func (s *Session) agree(ctx context.Context) (bool, error) {
	job, ok := s.launcher.job.(interface {
		Agree(ctx context.Context, word []byte) (bool, error)
	})
	if !ok {
		return false, nil
	}
	var rails []string
	for _, n := range s.nics {
		if n.exclusivity() != s.top() {
			continue
		}
		where := n.domain()
		if where == "" {
			where = n.small.URL() // no other rank has the same
		}
		rails = append(rails, n.name()+" "+where)
	}
	slices.Sort(rails)
	word := sha256.Sum256(fmt.Appendf(nil, "bywash rails %d %q", s.top(), rails))
	return job.Agree(ctx, word[:16])
}

func (s *Session) addRail(n *nic) {
	n.index = len(s.nics)
	s.nics = append(s.nics, n)
	if s.eager == 0 || n.packet() < s.eager {
		s.eager = n.packet()
	}
}

func (s *Session) query(r Rail, t driver.Track) (driver.NIC, error) {
	d, err := driver.Lookup(r.Driver)
	if err != nil {
		return nil, err
	}
	return d.Query(driver.Hints{
		Device: r.Device, Track: t, Options: r.Options, Peers: min(s.size, 64),
	})
}

// openRail opens both tracks of a rail; small may have been queried.
func (s *Session) openRail(r Rail, small driver.NIC) (*nic, error) {
	attr := driver.Attributes{SessionSize: s.size, Rank: s.rank, Secret: s.secret}
	openTrack := func(r Rail, t driver.Track, q driver.NIC) (c driver.Context, err error) {
		if q == nil {
			if q, err = s.query(r, t); err != nil {
				return nil, err
			}
		}
		return q.Open(attr)
	}
	large := r
	if r.Large != nil {
		large = *r.Large
	}
	n := &nic{Rail: r, s: s}
	var err error
	if n.small, err = openTrack(r, driver.Small, small); err != nil {
		return nil, err
	}
	p := n.small.Properties()
	n.Device = p.Device
	n.caps = &p.Capabilities
	if !n.caps.BufferRecv || n.caps.BufferSize < minPacket || n.caps.MaxMessage < minPacket || !n.caps.IOVec {
		n.close()
		return nil, fmt.Errorf("%w: driver %s has no buffer receives of %d bytes, or takes no iovecs", driver.ErrUnsupported, r.Driver, minPacket)
	}
	n.prober, _ = n.small.(driver.Prober)
	n.reg, _ = n.small.(driver.Registrar)
	if n.large, err = openTrack(large, driver.Large, nil); err != nil {
		if r.Large != nil || !errors.Is(err, driver.ErrUnsupported) && !errors.Is(err, driver.ErrInvalid) {
			n.close()
			return nil, err
		}
		n.large = nil
	}
	if n.large != nil {
		n.lcaps = &n.large.Properties().Capabilities
		n.longFrom = longFrom(&n.small.Properties().Profile, &n.large.Properties().Profile)
		if reg, ok := n.large.(driver.Registrar); ok {
			n.reg = reg
		}
	}
	return n, nil
}

// reaches returns why a rail does not reach one of a peer, or nil.
func (n *nic) reaches(to *cardRail) error {
	if err := reaches(n.small, to.small); err != nil {
		return err
	}
	return reaches(n.large, to.large)
}

func reaches(c driver.Context, url string) error {
	if r, ok := c.(driver.Reacher); ok && url != "" {
		return r.Reaches(url)
	}
	return nil
}

// domain names the rails that surely reach each other; see driver.Reacher. It is empty if that cannot be known.
func (n *nic) domain() string {
	var both [2]string
	for k, c := range []driver.Context{n.small, n.large} {
		if c == nil {
			continue
		}
		r, ok := c.(driver.Reacher)
		if !ok || r.Domain() == "" {
			return ""
		}
		both[k] = r.Domain()
	}
	return fmt.Sprintf("%q", both)
}

// minPacket is what a rail must carry at least: the longest control message.
const minPacket = 1024

// packet is the longest packet of the small track.
func (n *nic) packet() int { return min(n.caps.MaxMessage, n.caps.BufferSize) }

func (n *nic) exclusivity() int { return n.small.Properties().Profile.Exclusivity }

func (n *nic) close() {
	for _, c := range []driver.Context{n.small, n.large} {
		if c != nil {
			_ = c.Close()
		}
	}
}
