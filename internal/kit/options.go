package kit

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bywash/bywash/driver"
)

// Options is the table of a driver's options, [driver.Hints].Options: it checks their names and values, and lists them
// for help. T is the driver's type of settings.
type Options[T any] struct {
	Driver   string
	Defaults T
	Table    []Option[T]

	// Other takes an option that is not in the table; it reports whether there is one of that name. It may be nil.
	Other func(to *T, name, value string) bool
}

// Option is one row: [Int], [Duration], [Choice], [Switch] and [Text] make it.
type Option[T any] struct {
	name   string
	values string // what it can be, for people: "64 to 4096"
	help   string // one line

	set  func(to *T, value string) bool // false: the value is malformed, or out of range
	show func(of *T) string
}

// Int is an integer from low to high, which goes where field says.
func Int[T any](name, help string, low, high int, field func(*T) *int) Option[T] {
	return Option[T]{
		name: name, help: help, values: Between(low, high),
		set: func(to *T, v string) bool {
			n, ok := ParseInt(v, low, high)
			*field(to) = n
			return ok
		},
		show: func(of *T) string { return strconv.Itoa(*field(of)) },
	}
}

// Between names the values of an integer option, for [Text].
func Between(low, high int) string { return fmt.Sprintf("%d to %d", low, high) }

// ParseInt reads an integer from low to high.
func ParseInt(v string, low, high int) (n int, ok bool) {
	x, err := strconv.ParseInt(v, 0, 0) // 0x10, too
	n = int(x)
	return n, err == nil && n >= low && n <= high
}

// Duration is a time from low to high.
func Duration[T any](name, help string, low, high time.Duration, field func(*T) *time.Duration) Option[T] {
	return Option[T]{
		name: name, help: help, values: fmt.Sprintf("%v to %v", low, high),
		set: func(to *T, v string) bool {
			d, err := time.ParseDuration(v)
			*field(to) = d
			return err == nil && d >= low && d <= high
		},
		show: func(of *T) string { return field(of).String() },
	}
}

// MinDeadTime and MaxDeadTime limit dead times.
const (
	MinDeadTime = 100 * time.Millisecond
	MaxDeadTime = time.Hour
)

// DeadTime is the option of that name; see [driver.Capabilities].
func DeadTime[T any](field func(*T) *time.Duration) Option[T] {
	return Duration("dead-time", "how long a peer that died can go unnoticed", MinDeadTime, MaxDeadTime, field)
}

// Choice is one of several values. Help lists them in the order of values, "auto | on | off".
func Choice[T any, V comparable](name, values, help string, field func(*T) *V, of map[string]V) Option[T] {
	return Option[T]{
		name: name, help: help, values: values,
		set: func(to *T, v string) bool {
			x, ok := of[v]
			*field(to) = x
			return ok
		},
		show: func(t *T) string {
			for name, x := range of {
				if x == *field(t) {
					return name
				}
			}
			return ""
		},
	}
}

// Switch is on or off.
func Switch[T any](name, help string, field func(*T) *bool) Option[T] {
	return Choice(name, "on | off", help, field, map[string]bool{"on": true, "off": false})
}

// Text is an option whose value set reads. Help describes the default.
func Text[T any](name, values, help string, set func(to *T, value string) bool) Option[T] {
	return Option[T]{name: name, values: values, help: help, set: set, show: func(*T) string { return "" }}
}

// Parse reads options. ErrInvalid, with what there is, for an unknown name or a value out of range.
func (t *Options[T]) Parse(m map[string]string) (T, error) {
	to := t.Defaults
	for _, name := range slices.Sorted(maps.Keys(m)) {
		value := m[name]
		i := slices.IndexFunc(t.Table, func(o Option[T]) bool { return o.name == name })
		switch {
		case i >= 0 && !t.Table[i].set(&to, value):
			return to, fmt.Errorf("%w: %s option %s=%q: it takes %s",
				driver.ErrInvalid, t.Driver, name, value, t.Table[i].values)
		case i < 0 && (t.Other == nil || !t.Other(&to, name, value)):
			return to, fmt.Errorf("%w: %s has no option %q (it has %s)", driver.ErrInvalid, t.Driver, name, t.names())
		}
	}
	return to, nil
}

func (t *Options[T]) names() string {
	var names []string
	for _, o := range t.Table {
		names = append(names, o.name)
	}
	if t.Other != nil {
		names = append(names, "and those in its documentation")
	}
	return strings.Join(names, ", ")
}

// List is the table for [driver.Configurable].
func (t *Options[T]) List() []driver.Option {
	var list []driver.Option
	for _, o := range t.Table {
		list = append(list, driver.Option{Name: o.name, Values: o.values, Default: o.show(&t.Defaults), Help: o.help})
	}
	return list
}
