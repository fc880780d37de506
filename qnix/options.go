//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// options are the settings from Hints.Options and other hints.
type options struct {
	buffer   int
	window   int
	contexts int
	start    bool // whether to start a softnic if there is no NIC
	deadTime time.Duration
	peers    int
}

// Limits of options.
const (
	minBuffer = 64
	maxBuffer = 16384 - dataHead
	maxWindow = 64
)

var optionTable = kit.Options[options]{
	Driver:   Name,
	Defaults: options{buffer: 4096, window: 32, contexts: 1024, start: true, deadTime: 5 * time.Second},
	Table: []kit.Option[options]{
		kit.Int("buffer", "bytes of the longest message of the small track", minBuffer, maxBuffer,
			func(o *options) *int { return &o.buffer }),
		kit.Int("window", "messages of the small track that a peer may send ahead", 2, maxWindow,
			func(o *options) *int { return &o.window }),
		kit.Int("contexts", "Send and Receive Contexts of the process", 64, 4096,
			func(o *options) *int { return &o.contexts }),
		kit.Switch("start", "start a softnic where there is neither a device nor a softnic",
			func(o *options) *bool { return &o.start }),
		kit.DeadTime(func(o *options) *time.Duration { return &o.deadTime }),
	},
}

func (qnixDriver) Options() []driver.Option { return optionTable.List() }
