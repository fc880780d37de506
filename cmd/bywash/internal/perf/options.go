package perf

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// maxOptions bounds the options of a driver, names and values together: they
// travel in one message.
const maxOptions = 16 << 10

// ParseOptions parses the arguments of --option, KEY=VALUE each. What the keys
// and values mean is the driver's to know.
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
		if size += len(a); size > maxOptions {
			return nil, fmt.Errorf("--option: more than %s of options", FormatSize(maxOptions))
		}
		out[k] = v
	}
	return out, nil
}

// CheckOptions refuses options when it is not clear which driver they are
// for: the same key means something else to another one.
func CheckOptions(drivers []string, options map[string]string) error {
	if len(options) == 0 {
		return nil
	}
	switch names := bypass(drivers); {
	case slices.Contains(drivers, "all"):
		return fmt.Errorf("--option is for one driver, not for all: name it with -d")
	case len(names) > 1:
		return fmt.Errorf("--option is for one driver, not for %s: name one with -d", strings.Join(names, " and "))
	case len(names) == 0:
		return fmt.Errorf("--option is for a driver, and the kernel's sockets have none: name a driver with -d")
	}
	return nil
}

// bypass lists those of the names that are no sockets, each once.
func bypass(drivers []string) (names []string) {
	for _, n := range drivers {
		if !isSocket(n) && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// optionsFor are the options of a driver that is measured: sockets beside it
// have none.
func (c *Config) optionsFor(name string) map[string]string {
	if isSocket(name) {
		return nil
	}
	return c.Options
}

// over puts the options of this end over those that the other end sent: an
// address of one machine is none of the other's.
func over(sent, own map[string]string) map[string]string {
	if len(own) == 0 {
		return sent
	}
	out := maps.Clone(own)
	for k, v := range sent {
		if _, mine := own[k]; !mine {
			out[k] = v
		}
	}
	return out
}

func bytesIn(options map[string]string) (n int) {
	for k, v := range options {
		n += len(k) + len("=") + len(v)
	}
	return n
}

// SetRails has the session use these drivers, with commas between, and no others.
func (c *Config) SetRails(rails string) error {
	if len(c.Drivers) != 1 || c.Drivers[0] != SessionName {
		return fmt.Errorf("--rails goes with -d session")
	}
	if _, err := ParseDrivers(rails); err != nil {
		return err
	}
	c.Options = map[string]string{railsOption: rails}
	return nil
}
