package session

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/launch"
)

// Choice is a possible rail to a peer, taken or not, with the reason.
type Choice struct {
	Driver string // of both ends
	Device string // of this end; empty: this end has no such rail
	Taken  bool
	Why    string
}

// String returns the choice as text.
func (c Choice) String() string {
	name, verb := c.Driver, "left out"
	if c.Device != "" {
		name += ":" + c.Device
	}
	if c.Taken {
		verb = "taken"
	}
	return fmt.Sprintf("%s %s: %s", name, verb, c.Why)
}

// reason returns why a rail was left out, without what the line contains anyway: driver, operation and url.
func reason(err error) string {
	if e := new(driver.Error); errors.As(err, &e) {
		err = e.Err
	}
	return err.Error()
}

// explainTo returns where the session writes its choice of rails; nil: nowhere.
func (c *Config) explainTo() io.Writer {
	if c.Explain == nil && os.Getenv(launch.EnvExplain) == "1" {
		return os.Stderr
	}
	return c.Explain
}

// explainJoin writes which drivers this process has opened, and why not the others. Ranks share one terminal, so each
// line is written at once and names the rank.
func (s *Session) explainJoin(out []Choice) {
	w := s.cfg.explainTo()
	if w == nil {
		return
	}
	var b strings.Builder
	if s.host.size > 0 {
		fmt.Fprintf(&b, "bywash: rank %d: local rank %d of %d on this host, may run on %d CPUs", s.rank, s.host.rank, s.host.size, s.host.cpus)
		if s.host.oversubscribed {
			b.WriteString("; ranks outnumber the CPUs: waiting ranks yield theirs")
		}
		b.WriteString("\n")
	}
	for _, n := range s.nics {
		p := &n.small.Properties().Profile
		fmt.Fprintf(&b, "bywash: rank %d: %s:%s opened, exclusivity %d\n", s.rank, n.name(), n.Device, p.Exclusivity)
	}
	for _, c := range out {
		fmt.Fprintf(&b, "bywash: rank %d: %v\n", s.rank, c)
	}
	_, _ = io.WriteString(w, b.String())
}

// explainUp reports the rails that a new connection has taken, what carries messages there, and why others were left
// out. The caller holds the lock: the lines are written after it is released.
func (g *Gate) explainUp() {
	w := g.s.cfg.explainTo()
	if w == nil {
		return
	}
	var b strings.Builder
	k := 0
	for _, c := range g.dialing.why {
		fmt.Fprintf(&b, "bywash: rank %d to %s: %v", g.s.rank, g.name(), c)
		if c.Taken && k < len(g.links) { // in the same order
			b.WriteString("; carried by " + g.links[k].path())
			k++
		}
		b.WriteByte('\n')
	}
	text := b.String()
	g.s.calls = append(g.s.calls, func() { _, _ = io.WriteString(w, text) })
}

func (g *Gate) name() string {
	switch {
	case g.rank < 0:
		return "a process of another session"
	case g.rank == g.s.rank:
		return "itself"
	}
	return fmt.Sprintf("rank %d", g.rank)
}

// path describes what carries messages on a rail.
func (l *link) path() string {
	p := l.small.Path()
	if l.large != nil {
		p += ", long " + l.large.Path() + l.fragmented()
	}
	return p
}
