//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"net/netip"
	"strings"
	"time"

	"github.com/bywash/bywash/internal/kit"
)

// options are the settings in Hints.Options.
type options struct {
	low, high int          // ports to listen at; 0: the kernel chooses
	addresses []netip.Addr // that are listened at and published
	ofDevice  bool         // the addresses were not given, but found
	wildcard  bool         // listen at all addresses of the host
	netns     string       // path of the network namespace; "": that of the process
	deadTime  time.Duration
	encrypt   bool
	spin      bool
}

var optionTable = kit.Options[options]{
	Driver:   Name,
	Defaults: options{deadTime: 5 * time.Second},
	Table: []kit.Option[options]{
		kit.Text("port", "1 to 65535, or a range: 5000-5100",
			"port to listen at, or a range of which the first free one is taken; any free one without it",
			func(o *options, v string) bool {
				low, high, isRange := strings.Cut(v, "-")
				var ok bool
				if o.low, ok = kit.ParseInt(low, 1, 65535); !ok {
					return false
				}
				if o.high = o.low; isRange {
					o.high, ok = kit.ParseInt(high, o.low, 65535)
				}
				return ok
			}),
		kit.Text("address", "IP addresses with commas", "addresses to listen at; those of the device without it",
			func(o *options, v string) bool {
				for s := range strings.SplitSeq(v, ",") {
					a, err := netip.ParseAddr(s)
					if err != nil || !publishable(a.Unmap()) {
						return false
					}
					o.addresses = append(o.addresses, a.Unmap())
				}
				return len(o.addresses) <= maxAddresses
			}),
		kit.Text("netns", "a path",
			"network namespace to listen and dial in, such as /run/netns/a; that of the process without it",
			func(o *options, v string) bool { o.netns = v; return true }),
		kit.DeadTime(func(o *options) *time.Duration { return &o.deadTime }),
		kit.Switch("encrypt", "encrypt what is sent; both sides need the same setting",
			func(o *options) *bool { return &o.encrypt }),
		kit.Choice("wait", "sleep | spin", "what a blocking call does while nothing comes",
			func(o *options) *bool { return &o.spin }, map[string]bool{"sleep": false, "spin": true}),
	},
}
