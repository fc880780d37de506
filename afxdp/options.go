//go:build linux

package afxdp

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/driver"
)

// options are the settings in Hints.Options.
type options struct {
	kind     carrier.Kind // 0: chosen
	port     uint16
	queues   []int // nil: all
	attach   xsk.Attachment
	copying  xsk.Copying
	netns    string
	encrypt  bool
	verify   carrier.Verify
	sum4     carrier.Checksum
	frames   int
	window   int
	deadTime time.Duration
	busyPoll time.Duration
	huge     bool
	single   bool // no frames of several chunks
	peers    int  // Hints.Peers
}

// DefaultPort is the UDP port, or that of the EtherType's header, unless an option says otherwise.
const DefaultPort = 24249

var noOptions = options{
	port: DefaultPort, verify: carrier.VerifyPartial, sum4: carrier.ChecksumNone,
	frames: 3072, window: 256, deadTime: 5 * time.Second,
}

const optionNames = "carrier, port, queues, mode, copy, netns, encrypt, checksum, frames, window, dead-time, busy-poll, huge-pages, multi-buffer"

func parseOptions(m map[string]string) (options, error) {
	o := noOptions
	for k, v := range m {
		ok := true
		switch k {
		case "carrier":
			o.kind, ok = choose(v, map[string]carrier.Kind{"auto": 0, "udp4": carrier.UDP4, "udp6": carrier.UDP6, "ether": carrier.Ether})
		case "port":
			var n int
			n, ok = number(v, 1, 65535)
			o.port = uint16(n)
		case "queues":
			o.queues, ok = parseQueues(v)
		case "mode":
			o.attach, ok = choose(v, map[string]xsk.Attachment{"auto": xsk.AttachAuto, "native": xsk.AttachNative, "skb": xsk.AttachGeneric})
		case "copy":
			o.copying, ok = choose(v, map[string]xsk.Copying{"auto": xsk.CopyAuto, "always": xsk.CopyAlways, "never": xsk.CopyNever})
		case "netns":
			o.netns = v
		case "encrypt":
			o.encrypt, ok = choose(v, onOff)
		case "checksum":
			var on bool
			if on, ok = choose(v, onOff); on {
				o.sum4, o.verify = carrier.ChecksumFull, carrier.VerifyFull
			}
		case "frames":
			o.frames, ok = number(v, 256, 1<<16)
		case "window":
			o.window, ok = number(v, 64, 1024)
			ok = ok && o.window&(o.window-1) == 0
		case "dead-time":
			d, err := time.ParseDuration(v)
			o.deadTime, ok = d, err == nil && d >= 100*time.Millisecond && d <= time.Hour
		case "busy-poll":
			d, err := time.ParseDuration(v)
			o.busyPoll, ok = d, err == nil && d >= 0 && d <= 10*time.Millisecond
		case "huge-pages":
			o.huge, ok = choose(v, onOff)
		case "multi-buffer":
			var auto bool
			auto, ok = choose(v, map[string]bool{"auto": true, "off": false})
			o.single = !auto
		default:
			return o, fmt.Errorf("%w: afxdp has no option %q (it has %s)", driver.ErrInvalid, k, optionNames)
		}
		if !ok {
			return o, fmt.Errorf("%w: afxdp option %s=%q", driver.ErrInvalid, k, v)
		}
	}
	return o, nil
}

var onOff = map[string]bool{"on": true, "off": false}

func choose[T any](v string, from map[string]T) (T, bool) {
	x, ok := from[v]
	return x, ok
}

func number(v string, low, high int) (int, bool) {
	n, err := strconv.Atoi(v)
	return n, err == nil && n >= low && n <= high
}

// parseQueues reads "0,2-5".
func parseQueues(v string) (list []int, ok bool) {
	seen := map[int]bool{}
	for _, part := range strings.Split(v, ",") {
		low, high, isRange := strings.Cut(part, "-")
		a, ok := number(low, 0, 1023)
		b := a
		if ok && isRange {
			b, ok = number(high, a, 1023)
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
