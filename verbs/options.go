//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/internal/connect"
)

// options are the settings from Hints.Options.
type options struct {
	gidIndex  int // -1: the driver chooses
	gid       netip.Addr
	pkeyIndex int // -1: the driver chooses
	buffer    int
	noWindows bool
	relaxed   bool
	window    int
	srq       int // receives of all peers together, or one of the constants below
	quality   connect.Quality
	managers  []string
	exclude   []string
	manager   map[string]string // options of the connection managers
	deadTime  time.Duration
}

// Values of option srq that are not numbers of receives.
const (
	srqAuto = 0
	srqOff  = -1
)

var optionTable = kit.Options[options]{
	Driver:   Name,
	Defaults: options{gidIndex: -1, pkeyIndex: -1, buffer: defaultBuffer, window: defaultWindow, deadTime: 5 * time.Second},
	Table: []kit.Option[options]{
		kit.Text("gid", "an index, 0 to 255, or an address", "GID of the port; chosen without it", setGID),
		kit.Int("pkey-index", "index of the partition key; the first of a full member without it", 0, 65535, func(o *options) *int { return &o.pkeyIndex }),
		kit.Text("buffer", kit.Between(minBuffer, maxBuffer), "bytes of the longest message of the small track; "+
			strconv.Itoa(defaultBuffer)+" without it", func(o *options, v string) bool {
			n, ok := kit.ParseInt(v, minBuffer, maxBuffer)
			o.buffer = (n + 63) &^ 63
			return ok
		}),
		kit.Int("window", "messages of the small track that a peer may send ahead", 2, maxDepth/2,
			func(o *options) *int { return &o.window }),
		kit.Text("srq", "auto | off | "+kit.Between(64, sharedMax), "receives that all peers share; auto without it", setSRQ),
		byteOption("service-level", "service level of what is sent", 0, 15,
			func(o *options) *uint8 { return &o.quality.ServiceLevel }),
		byteOption("traffic-class", "traffic class of what is sent", 0, 255,
			func(o *options) *uint8 { return &o.quality.TrafficClass }),
		byteOption("ack-timeout", "time until a packet is sent again: 4.096 µs times 2 to the power of this; "+
			"without it, as long as the dead time allows", 1, 31,
			func(o *options) *uint8 { return &o.quality.AckTimeout }),
		kit.Choice("windows", "auto | off", "memory windows, so that keys end with their transfer",
			func(o *options) *bool { return &o.noWindows },
			map[string]bool{"auto": false, "off": true}),
		kit.Choice("relaxed-ordering", "on | off", "order on the bus of the bytes of a long message",
			func(o *options) *bool { return &o.relaxed },
			map[string]bool{"on": true, "off": false}),
		names("managers", "connection managers that may be used; all without it",
			func(o *options) *[]string { return &o.managers }),
		names("exclude-managers", "connection managers that may not be used",
			func(o *options) *[]string { return &o.exclude }),
		kit.DeadTime(func(o *options) *time.Duration { return &o.deadTime }),
	},
	Other: func(o *options, name, v string) bool {
		prefix, _, _ := strings.Cut(name, "-")
		if !slices.Contains(connect.Names(), prefix) {
			return false
		}
		if o.manager == nil {
			o.manager = make(map[string]string)
		}
		o.manager[name] = v
		return true
	},
}

func (verbsDriver) Options() []driver.Option { return optionTable.List() }

// parseOptions reads options, and derives those whose defaults depend on others.
func parseOptions(m map[string]string) (options, error) {
	o, err := optionTable.Parse(m)
	if o.quality.AckTimeout == 0 {
		o.quality.AckTimeout = ackTimeout(o.deadTime)
	}
	return o, err
}

// ackTimeout returns the longest time-out with which the device gives up within the dead time, after the keep-alive has
// found the connection idle: it tries seven times, and some devices wait up to four times as long (InfiniBand
// specification, volume 1, section 9.7.6.1.3). A shorter time-out would take a link that is silent for a moment, or a host whose Soft-RoCE waits for a CPU, for a dead peer.
func ackTimeout(dead time.Duration) uint8 {
	n := uint8(1)
	for n < 31 && 7*4*(4096*time.Nanosecond<<(n+1)) <= dead-2*dead/keepAlives {
		n++
	}
	return n
}

func setGID(o *options, v string) bool {
	n, ok := kit.ParseInt(v, 0, 255)
	if ok {
		o.gidIndex = n
		return true
	}
	a, err := netip.ParseAddr(v)
	o.gid = a.Unmap()
	return err == nil
}

func setSRQ(o *options, v string) (ok bool) {
	switch v {
	case "auto":
		o.srq, ok = srqAuto, true
	case "off":
		o.srq, ok = srqOff, true
	default:
		o.srq, ok = kit.ParseInt(v, 64, sharedMax)
	}
	return ok
}

// byteOption is an option whose value is an integer from low to high.
func byteOption(name, help string, low, high int, field func(*options) *uint8) kit.Option[options] {
	return kit.Text(name, kit.Between(low, high), help, func(o *options, v string) bool {
		n, ok := kit.ParseInt(v, low, high)
		*field(o) = uint8(n)
		return ok
	})
}

// names is an option whose value is a list of connection managers.
func names(name, help string, field func(*options) *[]string) kit.Option[options] {
	return kit.Text(name, strings.Join(connect.Names(), ",")+", or some of them", help,
		func(o *options, v string) bool {
			*field(o) = strings.Split(v, ",")
			return true
		})
}
