package session

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/bywash/bywash/session/internal/rdv"
	"github.com/bywash/bywash/session/launch"
)

// Config describes how to join a job. The zero value finds the launcher by the environment and uses the registered
// drivers that work on this machine and that ranks of the job need.
type Config struct {
	// Job is this process's place among others; nil lets launch.Find find it.
	// The session closes a job that it has found, not one that it was given.
	Job launch.Job

	// Secret admits processes to this session: those that Connect to one another, and all ranks of a job, have the
	// same, of at least 16 random bytes. Nil means the job's. A process that no launcher has started then has that of
	// BYWASH_SECRET (in hexadecimal digits), or a random one, which no other process knows.
	Secret []byte

	// Rails are the drivers to use, in order; nil: those of BYWASH_DRIVERS in the environment (ParseRails), or else all
	// that the job can need (AllDrivers). A driver in Rails that cannot be opened is an error of Join; without Rails it is
	// left out. A driver may be named several times, with different devices or options; there are at most 8 rails.
	Rails []Rail

	// AllDrivers opens every driver that works here, if neither Rails nor BYWASH_DRIVERS names any. Without it the
	// session leaves drivers closed that no two ranks of the job would use: if all ranks have opened shm and reach
	// each other by it (driver.Reacher), these are all less exclusive drivers. Set it in sessions that Connect to
	// processes of other jobs on other hosts. It is not needed where ranks run on several hosts or in containers, or
	// the Job has no method Agree as launch.Client has: all drivers are opened there. Those that change the machine
	// for others (driver.Reserved: afxdp) have to be named.
	AllDrivers bool

	// Progress chooses whether goroutines of the session make progress while no caller waits.
	Progress Progress

	// Unexpected is the budget in bytes of unexpected messages, each of which costs some 300 bytes beside its data; 0
	// means 64 MiB. With several peers, one peer can have half of it. One peer can have 65536 unexpected messages, all
	// peers 262144. Beyond the budget a peer may send no more messages until some are received: its sends wait. A peer of
	// which nothing is stored may always send one packet. Long active messages have a budget of the same size. At least
	// 4 KiB.
	Unexpected int

	// PeerMemory limits the bytes that this process holds for one peer beside unexpected messages: answers that the
	// peer has not taken, and the state of long messages under way in both directions; 0 means 128 MiB. The gate of a
	// peer that needs more ends with ErrLimit. A peer that follows the protocol needs at most 80 MiB, usually a few
	// KiB. At least 1 MiB.
	PeerMemory int

	// PeersMemory is the same limit for all peers together; 0 means four times PeerMemory. Beyond it the gate that uses
	// most memory ends with ErrLimit.
	PeersMemory int

	// MaxMessage is the longest message in bytes that this process receives or reports to a probe; 0 means half of the
	// machine's memory. A longer message fails at its sender with driver.ErrTooLong. The limit bounds Status.Len, so that
	// a program can safely allocate memory for a message that it has probed. It does not hold for messages so short that
	// they come without rendezvous: see Gate.MaxActive.
	MaxMessage int

	// Eager is the longest message in bytes, header included, that is sent without asking the receiver first. 0 means as
	// much as the small track of the rails can carry, which is also the maximum.
	Eager int

	// Mode forces the transfer mode of long messages that this side receives; nil lets the session choose by the drivers'
	// capabilities and profiles. A message for which the forced mode is not possible fails.
	Mode *Mode

	// Chunk is the longest part of a long message, in bytes, that one rail carries as a unit; 0 means as the rails allow.
	// Shorter chunks share rails more evenly and cost more control messages.
	Chunk int

	// NoPrefetch leaves registration to the post of a long message, where otherwise drivers that register memory begin
	// before: for a send when the receiver is asked, for a receive when it is posted.
	NoPrefetch bool

	// Emulate makes the peer's CPU carry out one-sided operations even where a driver can do so.
	Emulate bool

	// Explain receives a line for each driver that was opened, or was not and why, and for each connection a line that
	// names its rails, the reasons, and what carries messages there. Nil means standard error if the launcher was asked to
	// explain (bywash run --explain), and nothing otherwise. Many goroutines may write at once.
	Explain io.Writer

	// OnClosed is called for each gate that was closed in order. It must not block: calls of OnClosed and OnError come one
	// at a time, in the order of what they report.
	OnClosed func(*Gate)

	// OnError is called for each peer or rail that was lost; Error.Gate is the peer's. It is also called, once for a
	// connection, when unreceived messages, or a handler that does not return, have blocked the peer for a second
	// (ErrUnreceived, ErrHandlerBlocks), and for the first active message of each number that has no handler
	// (ErrNoHandler); without OnError these are logged by package log/slog. It runs on a goroutine of the session, or on
	// one that makes progress, and may call the session, but must not block, as OnClosed. The peer's requests fail with the
	// same error.
	OnError func(*Error)
}

// Rail names a driver, its device and its options.
type Rail struct {
	Driver  string
	Device  string // empty: the driver's best
	Options map[string]string

	// Large is the driver that carries long messages, if it is another one; its own Large is nil. Short messages may be
	// fastest by AF_XDP and long ones by the kernel's TCP, where the device cuts segments (offloads). A rail of two
	// drivers meets only rails of the same two, and is as exclusive as the first.
	Large *Rail
}

// name is the name of the rail's drivers, as in a list of drivers.
func (r *Rail) name() string {
	if r.Large == nil {
		return r.Driver
	}
	return r.Driver + "+" + r.Large.Driver
}

// Mode is how a long message travels.
type Mode = rdv.Mode

// The values of Config.Mode.
const (
	ModeNull        = rdv.Null        // in fragments on the small track
	ModePut         = rdv.Put         // the sender puts it into the receiver's memory
	ModeGet         = rdv.Get         // the receiver gets it from the sender's memory
	ModeCooperative = rdv.Cooperative // by sends and receives of the large track
)

// Progress chooses which goroutines make progress.
type Progress uint8

const (
	// Background lets goroutines of the session make progress as well. They sleep in the drivers' waits while nothing
	// happens, and leave the work to callers that wait or poll.
	Background Progress = iota
	// Explicit makes progress inside calls of the session only: Progress, Test, Iprobe, Improbe, Drop, and calls that wait.
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
	case c.Eager < 0 || c.Chunk < 0 || c.Progress > Explicit:
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
	if len(c.Rails) > rdv.MaxRails {
		return fmt.Errorf("%w: %d rails, at most %d", ErrInvalid, len(c.Rails), rdv.MaxRails)
	}
	return nil
}

// ParseRails parses a list of drivers, each with or without a device, such as "shm,afxdp:eth1". In "afxdp:eth1+tcp" the
// second driver is that of long messages (Rail.Large). It fails with ErrInvalid if the list is malformed.
func ParseRails(list string) ([]Rail, error) {
	var rails []Rail
	for item := range strings.SplitSeq(list, ",") {
		small, large, two := strings.Cut(item, "+")
		r, ok := parseRail(small)
		if two && ok {
			var l Rail
			l, ok = parseRail(large)
			r.Large = &l
		}
		if !ok {
			return nil, fmt.Errorf("%w: %q in the list of drivers %q: want DRIVER or DRIVER:DEVICE, or two with a + between them, "+
				"and commas between them", ErrInvalid, item, list)
		}
		rails = append(rails, r)
	}
	return rails, nil
}

func parseRail(s string) (r Rail, ok bool) {
	name, device, named := strings.Cut(s, ":")
	return Rail{Driver: name, Device: device}, name != "" && (!named || device != "") && !strings.ContainsAny(s, "+ \t\n")
}
