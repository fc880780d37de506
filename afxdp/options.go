//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"strings"
	"time"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// options are the settings from Hints.Options.
type options struct {
	kind     carrier.Kind // 0: the driver chooses
	port     uint16
	queues   []int // nil: all
	attach   xsk.Attachment
	copying  xsk.Copying
	netns    string
	encrypt  bool
	verify   carrier.Verify
	sum4     carrier.Checksum
	frames   int
	window   int // 0: windowOf chooses
	deadTime time.Duration
	busyPoll time.Duration
	huge     bool
	single   bool // without frames of several chunks
	peers    int  // Hints.Peers
}

var optionTable = kit.Options[options]{
	Driver: Name,
	Defaults: options{
		port: DefaultPort, verify: carrier.VerifyPartial, sum4: carrier.ChecksumNone,
		frames: 3072, deadTime: 5 * time.Second,
	},
	Table: []kit.Option[options]{
		kit.Choice("carrier", "auto | udp4 | udp6 | ether",
			"what carries packets; auto takes the first that the device has an address for",
			func(o *options) *carrier.Kind { return &o.kind },
			map[string]carrier.Kind{"auto": 0, "udp4": carrier.UDP4, "udp6": carrier.UDP6, "ether": carrier.Ether}),
		kit.Text("port", "1 to 65535", "UDP port, the same on all ends", func(o *options, v string) bool {
			n, ok := kit.ParseInt(v, 1, 65535)
			o.port = uint16(n)
			return ok
		}),
		kit.Text("queues", "numbers and ranges: 0,2-5", "queues of the device that are taken; all without it",
			func(o *options, v string) (ok bool) {
				o.queues, ok = parseQueues(v)
				return ok
			}),
		kit.Choice("mode", "auto | native | skb", "where the XDP program is attached",
			func(o *options) *xsk.Attachment { return &o.attach },
			map[string]xsk.Attachment{"auto": xsk.AttachAuto, "native": xsk.AttachNative, "skb": xsk.AttachGeneric}),
		kit.Choice("copy", "auto | always | never", "whether the kernel copies frames",
			func(o *options) *xsk.Copying { return &o.copying },
			map[string]xsk.Copying{"auto": xsk.CopyAuto, "always": xsk.CopyAlways, "never": xsk.CopyNever}),
		kit.Text("netns", "a path", "network namespace of the device; that of the process without it",
			func(o *options, v string) bool { o.netns = v; return true }),
		kit.Switch("encrypt", "encrypt what is sent", func(o *options) *bool { return &o.encrypt }),
		kit.Text("checksum", "on | off", "checksum all bytes of a packet; off without it",
			func(o *options, v string) bool {
				if v == "on" {
					o.sum4, o.verify = carrier.ChecksumFull, carrier.VerifyFull
				}
				return v == "on" || v == "off"
			}),
		kit.Int("frames", "chunks of memory for frames", 256, 1<<16, func(o *options) *int { return &o.frames }),
		kit.Text("window", "a power of two from 64 to 4096", "packets that a peer may send ahead; without it 256 short messages, 1024 packets of long ones",
			func(o *options, v string) bool {
				n, ok := kit.ParseInt(v, 64, 4096)
				o.window = n
				return ok && n&(n-1) == 0
			}),
		kit.DeadTime(func(o *options) *time.Duration { return &o.deadTime }),
		kit.Duration("busy-poll", "how long the kernel polls the device in a system call", 0, 10*time.Millisecond,
			func(o *options) *time.Duration { return &o.busyPoll }),
		kit.Switch("huge-pages", "frames in huge pages", func(o *options) *bool { return &o.huge }),
		kit.Choice("multi-buffer", "auto | off", "frames of several chunks, where the kernel can",
			func(o *options) *bool { return &o.single }, map[string]bool{"auto": false, "off": true}),
	},
}

func (afxdpDriver) Options() []driver.Option { return optionTable.List() }

// windowOf returns how many packets a connection of the track may have under way. Packets of long messages occupy no
// memory at the receiver, and a path of 2 ms takes more than 256 of them.
func (o *options) windowOf(track driver.Track) int {
	switch {
	case o.window != 0:
		return o.window
	case track == driver.Large:
		return 1024
	}
	return 256
}

// parseQueues parses a list like "0,2-5".
func parseQueues(v string) (list []int, ok bool) {
	seen := map[int]bool{}
	for _, part := range strings.Split(v, ",") {
		low, high, isRange := strings.Cut(part, "-")
		a, ok := kit.ParseInt(low, 0, 1023)
		b := a
		if ok && isRange {
			b, ok = kit.ParseInt(high, a, 1023)
		}
		if !ok {
			return nil, false
		}
		for k := a; k <= b; k++ {
			if seen[k] {
				return nil, false
			}
			seen[k] = true
			list = append(list, k)
		}
	}
	return list, true
}
