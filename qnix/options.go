package qnix

import (
	"fmt"
	"strconv"
	"time"

	"github.com/bywash/bywash/driver"
)

// options are the settings in Hints.Options, and what else hints say.
type options struct {
	buffer   int
	window   int
	contexts int
	start    bool // a softnic, where there is no NIC
	deadTime time.Duration
	peers    int
}

// Limits of options.
const (
	minBuffer = 64
	maxBuffer = 16384 - dataHead
	maxWindow = 64
)

var noOptions = options{buffer: 4096, window: 32, contexts: 1024, start: true, deadTime: 5 * time.Second}

const optionNames = "buffer, window, contexts, start, dead-time"

func parseOptions(m map[string]string) (options, error) {
	o := noOptions
	for k, v := range m {
		ok := true
		switch k {
		case "buffer":
			o.buffer, ok = number(v, minBuffer, maxBuffer)
		case "window":
			o.window, ok = number(v, 2, maxWindow)
		case "contexts":
			o.contexts, ok = number(v, 64, 4096)
		case "start":
			o.start = v == "on"
			ok = o.start || v == "off"
		case "dead-time":
			d, err := time.ParseDuration(v)
			o.deadTime, ok = d, err == nil && d >= 100*time.Millisecond && d <= time.Hour
		default:
			return o, fmt.Errorf("%w: qnix has no option %q (it has %s)", driver.ErrInvalid, k, optionNames)
		}
		if !ok {
			return o, fmt.Errorf("%w: qnix option %s=%q", driver.ErrInvalid, k, v)
		}
	}
	return o, nil
}

func number(v string, low, high int) (int, bool) {
	n, err := strconv.Atoi(v)
	return n, err == nil && n >= low && n <= high
}
