//go:build linux

package control

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/report"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

// ParseOptions parses the arguments of --option, KEY=VALUE each. Only the
// driver knows what keys and values mean.
func ParseOptions(args []string) (map[string]string, error) {
	if len(args) == 0 {
		return nil, nil
	}
	out := make(map[string]string)
	size := 0
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("--option %q: it is KEY=VALUE, as in path=cma", a)
		}
		if _, twice := out[k]; twice {
			return nil, fmt.Errorf("--option %s is given twice", k)
		}
		if size += len(a); size > bench.MaxOptions {
			return nil, fmt.Errorf("--option: more than %s of options", bench.FormatSize(bench.MaxOptions))
		}
		out[k] = v
	}
	return out, nil
}

// CheckOptions returns an error if there are options and not exactly one driver, besides sockets, is measured: the same
// key has another meaning for another driver.
func CheckOptions(drivers []string, options map[string]string) error {
	if len(options) == 0 {
		return nil
	}
	switch names := bypass(drivers); {
	case slices.Contains(drivers, "all"):
		return fmt.Errorf("--option is for one driver, not for all: name it with -d")
	case len(names) > 1:
		return fmt.Errorf("--option is for one driver, not for %s: name one with -d", strings.Join(names, " and "))
	case slices.Contains(names, bench.Session):
		return fmt.Errorf("--option is for a driver, and a session has the flags --rails and --prefetch: name a driver with -d")
	case len(names) == 0:
		return fmt.Errorf("--option is for a driver, and the kernel's sockets have none: name a driver with -d")
	}
	return nil
}

// CheckDevice returns an error if there is a device for a session that takes the drivers of a job: --rails says which of
// them it is for.
func (c *Config) CheckDevice() error {
	if c.Device != "" && slices.Contains(c.Drivers, bench.Session) && c.Options[bench.RailsOption] == "" {
		return fmt.Errorf("-d session --dev %s: name the driver of the device with --rails", c.Device)
	}
	return nil
}

// CheckVeth returns an error if a driver is to be measured between namespaces and, at once, elsewhere.
func (c *Config) CheckVeth() error {
	for _, n := range c.Drivers {
		switch {
		case bench.Base(n) == n:
		case c.Remote != "":
			return fmt.Errorf("-d %s is between two namespaces of this machine, not for HOST:PORT", n)
		case c.Device != "":
			return fmt.Errorf("-d %s is over devices of its own: leave out --dev", n)
		}
	}
	return nil
}

// bypass lists the names that are not sockets, each once.
func bypass(drivers []string) (names []string) {
	for _, n := range drivers {
		if !bench.IsBaseline(n) && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// optionsFor returns the options of a driver; sockets have none.
func (c *Config) optionsFor(name string) map[string]string {
	if bench.IsBaseline(name) {
		return nil
	}
	return c.Options
}

// SetRails makes the session use these drivers, separated by commas, and no others.
func (c *Config) SetRails(rails string) error {
	list, err := session.ParseRails(rails)
	if err != nil {
		return err
	}
	for _, r := range list {
		for d := &r; d != nil; d = d.Large {
			if _, err := driver.Lookup(d.Driver); err != nil {
				return fmt.Errorf("--rails: %w", err)
			}
		}
	}
	return c.setSession(bench.RailsOption, rails)
}

// SetPrefetch makes the session register memory before it is posted ("on"), or not ("off").
func (c *Config) SetPrefetch(how string) error {
	if how != "on" && how != "off" {
		return fmt.Errorf("--prefetch %q: it is on or off", how)
	}
	return c.setSession(bench.PrefetchOption, how)
}

// setSession sets an option of the session, which has the name of a flag.
func (c *Config) setSession(name, value string) error {
	if len(c.Drivers) != 1 || c.Drivers[0] != bench.Session {
		return fmt.Errorf("--%s goes with -d session", name)
	}
	if c.Options == nil {
		c.Options = make(map[string]string)
	}
	c.Options[name] = value
	return nil
}

// SetGoroutines makes that many goroutines send the messages of am-rate; 0: one.
func (c *Config) SetGoroutines(n int) error {
	switch {
	case n < 0 || n > bench.MaxGoroutines:
		return fmt.Errorf("--goroutines %d: it is from 1 to %d", n, bench.MaxGoroutines)
	case n > 0 && (!slices.Contains(c.Drivers, bench.Session) || !slices.Contains(c.Tests, bench.AMRate)):
		return fmt.Errorf("--goroutines goes with -d %s -t %s", bench.Session, bench.AMRate)
	case n > 0 && c.Validate:
		return fmt.Errorf("--goroutines and --validate exclude each other: goroutines send in any order")
	}
	c.Goroutines = n
	return nil
}

// SetRanks sets the number of processes of tests with more than two; 0 means their default.
func (c *Config) SetRanks(n int) error {
	if n != 0 && (!c.HasRanks() || !slices.Contains(c.Drivers, bench.Session)) {
		return fmt.Errorf("--ranks goes with -d %s and the tests %s", bench.Session, bench.RanksTests())
	}
	c.Ranks = n
	return bench.CheckRanks(c.ranks(), c.Tests...)
}

func (c *Config) ranks() int {
	if c.Ranks == 0 {
		return bench.DefaultRanks
	}
	return c.Ranks
}

// HasRanks reports whether a test has more than two processes.
func (c *Config) HasRanks() bool {
	return slices.ContainsFunc(c.Tests, func(t bench.Test) bool { return bench.InfoOf(t).Ranks })
}

// HasPlot reports whether a case is drawn over size.
func (c *Config) HasPlot() bool {
	return slices.ContainsFunc(c.cases(), func(x bench.Case) bool { return report.Drawn(x.Test, x.Size) })
}

// processes describes the number of processes for people.
func (c *Config) processes() string {
	if slices.ContainsFunc(c.Tests, func(t bench.Test) bool { return !bench.InfoOf(t).Ranks }) {
		return fmt.Sprintf("two processes, or %d", c.ranks())
	}
	return fmt.Sprintf("%d processes", c.ranks())
}

// split takes the cases of more than two processes out of a plan.
func split(plan []bench.Case) (two, many []bench.Case) {
	for _, c := range plan {
		if c.Ranks > 0 {
			many = append(many, c)
		} else {
			two = append(two, c)
		}
	}
	return two, many
}

// cases lists the cases of a run in order, before any is found to be unavailable.
func (c *Config) cases() []bench.Case {
	var out []bench.Case
	for _, t := range c.Tests {
		i := bench.InfoOf(t)
		sizes := c.Sizes
		if sizes == nil {
			sizes = i.Sizes
		}
		if i.Fixed != 0 {
			sizes = []int{max(0, i.Fixed)}
		}
		for _, s := range sizes {
			if s == 0 && (i.OneSided || t == bench.Bcast) {
				continue
			}
			cs := bench.Case{Test: t, Size: s, Wait: c.Wait, Mem: c.Mem, Validate: c.Validate, Peers: c.Peers}
			if t == bench.AMRate {
				cs.Goroutines = c.Goroutines
			}
			if i.Ranks {
				cs.Ranks = c.ranks()
			}
			out = append(out, cs)
		}
	}
	return out
}
