package session

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/bywash/bywash/session/internal/rdv"
	"github.com/bywash/bywash/session/launch"
)

// Config says how to join. The zero value finds the launcher by the
// environment and uses the registered drivers that work on this machine, as far as ranks of the job need them.
type Config struct {
	// Job is this process's place among others; nil lets launch.Find find it.
	// The session closes a job that it has found, not one that it was given.
	Job launch.Job

	// Rails are the drivers to use, in order; nil: those of BYWASH_DRIVERS in the environment
	// (ParseRails), or else all that the job can need (AllDrivers). Those that cannot be
	// opened are an error here, and left out otherwise. A driver may
	// be named several times, with other devices or options.
	Rails []Rail

	// AllDrivers opens every driver that works here, where neither Rails nor BYWASH_DRIVERS names any. Otherwise drivers stay closed that no two
	// ranks of the job would use: if all run on one host and all have opened shm, that is everything that is less
	// exclusive. It is for sessions that Connect to processes of other jobs on other hosts, and costs nothing where ranks
	// run on several hosts, or the Job is no launch.Agreer: there all drivers are opened in any case.
	AllDrivers bool

	// Progress says who makes progress when nobody waits.
	Progress Progress

	// Unexpected is how many bytes messages that nobody has waited for may
	// cost at most, some 300 for each included; 0: 64 MiB. Where there are several peers, one has half of it, and in
	// any case 65536 messages; all have 262144. Beyond it no more is taken from a peer whose next
	// message is unexpected, until its messages are received: its sends
	// then wait. Long active messages may take as much again. What a peer had sent that
	// ends meanwhile is kept beyond it, as much as lies in its driver's memory, once.
	Unexpected int

	// PeerMemory is how many bytes this process keeps at most for one peer beside unexpected messages: answers that the
	// peer has not taken, and long messages under way with their chunks, in both directions; 0: 128 MiB. A peer that
	// wants more ends its gate with ErrLimit. A peer that is no attacker needs 80 MiB at most, usually a few KiB.
	PeerMemory int

	// PeersMemory is the same for all peers together; 0: four times PeerMemory. Beyond it the gate that costs most
	// ends with ErrLimit.
	PeersMemory int

	// MaxMessage is the longest message in bytes that this process receives or reports to a probe; 0: half of the
	// machine's memory. A longer one fails at its sender with driver.ErrTooLong, and is not received here. It bounds
	// Status.Len, so that a program can allocate memory for a message that was probed.
	MaxMessage int

	// Eager is the longest message in bytes, its header included, that travels
	// at once, without asking the receiver; 0, or more than the rail's small
	// track can carry: as much as that can.
	Eager int

	// Mode forces the mode of long messages that this side receives; nil lets
	// the session choose by capabilities and profile. A message for which the
	// forced mode is not possible fails.
	Mode *rdv.Mode

	// Section is how many bytes of one message may be registered at a time, on
	// either side; 0: all. Longer messages travel in sections, with a new key
	// each.
	Section int

	// Chunk is the longest part of a long message, in bytes, that is under way on a rail as one;
	// 0: as the rails allow. Shorter chunks share rails more evenly and cost more messages.
	Chunk int

	// Emulate has one-sided operations carried out by the peer's CPU even where a
	// driver can do them.
	Emulate bool

	// Explain is told, a line each, which drivers were opened, which were not and why, and for each connection
	// which rails it takes, why, and what carries messages there. Nil: standard error if the launcher was
	// asked to explain (bywash run --explain), else nobody. Writes may come from many goroutines.
	Explain io.Writer

	// OnClosed is told of gates that were closed in order.
	OnClosed func(*Gate)

	// OnError is told of peers that were lost, from a goroutine of the session
	// or one that makes progress; it may call the session. Requests of that peer fail as
	// well.
	OnError func(*Error)
}

// Rail names a driver and its device.
type Rail struct {
	Driver  string
	Device  string // empty: the driver's best
	Options map[string]string
}

// Progress says who makes progress.
type Progress uint8

const (
	// Background lets goroutines of the session make progress, too: they sleep
	// in the drivers' waits while nothing happens, and keep out of the way of
	// callers that wait or poll.
	Background Progress = iota
	// Explicit lets the session only make progress inside its calls:
	// Progress, Test, and everything that waits.
	Explicit
)

const (
	defaultUnexpected = 64 << 20
	minUnexpected     = 1 << 12
)

func (c *Config) check() error {
	if c.Unexpected == 0 {
		c.Unexpected = defaultUnexpected
	}
	if err := c.checkLimits(); err != nil {
		return err
	}
	switch {
	case c.Unexpected < minUnexpected:
		return fmt.Errorf("%w: a budget of %d bytes for unexpected messages is less than %d", ErrInvalid, c.Unexpected, minUnexpected)
	case c.Eager < 0 || c.Section < 0 || c.Chunk < 0 || c.Progress > Explicit:
		return fmt.Errorf("%w: a negative limit, or no such progress", ErrInvalid)
	case c.Mode != nil && *c.Mode >= rdv.Modes:
		return fmt.Errorf("%w: no such mode", ErrInvalid)
	}
	if list := os.Getenv(launch.EnvDrivers); c.Rails == nil && list != "" {
		var err error
		if c.Rails, err = ParseRails(list); err != nil {
			return fmt.Errorf("%s: %w", launch.EnvDrivers, err)
		}
	}
	switch {
	case len(c.Rails) > rdv.MaxRails:
		return fmt.Errorf("%w: %d rails, at most %d", ErrInvalid, len(c.Rails), rdv.MaxRails)
	}
	return nil
}

// ParseRails reads a list of drivers, each with a device or without: "shm,afxdp:eth1".
func ParseRails(list string) ([]Rail, error) {
	var rails []Rail
	for item := range strings.SplitSeq(list, ",") {
		name, device, named := strings.Cut(item, ":")
		if name == "" || named && device == "" || strings.ContainsAny(item, " \t\n") {
			return nil, fmt.Errorf("%w: %q in the list of drivers %q: want DRIVER or DRIVER:DEVICE, with commas between them", ErrInvalid, item, list)
		}
		rails = append(rails, Rail{Driver: name, Device: device})
	}
	return rails, nil
}
