//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"strconv"
	"strings"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// options are the settings in Hints.Options.
type options struct {
	dir       string
	allowUIDs []uint32
	noArena   bool // do not map arenas
	noCMA     bool // do not use process_vm_readv and process_vm_writev
	noSender  bool // the sending end of a long transfer does not copy
	noRecver  bool // the receiving end does not
	noPtracer bool
	noBarrier bool
	looked    func() // tests only: called by each poll of a long transfer after it has looked for progress
}

var optionTable = kit.Options[options]{
	Driver: Name,
	Table: []kit.Option[options]{
		kit.Text("dir", "a path", "directory of the sockets; see the package's documentation",
			func(o *options, v string) bool {
				o.dir = v
				return v != ""
			}),
		kit.Text("allow-uids", "user ids: 1000,1001", "other users whose processes may connect; none without it", setUIDs),
		kit.Text("path", "auto | arena | cma | ring", "how long messages travel; auto without it",
			func(o *options, v string) bool {
				o.noArena = v == "cma" || v == "ring"
				o.noCMA = v == "arena" || v == "ring"
				return o.noArena || o.noCMA || v == "auto"
			}),
		kit.Text("ends", "both | sender | receiver", "which ends copy long messages; both without it",
			func(o *options, v string) bool {
				o.noSender, o.noRecver = v == "receiver", v == "sender"
				return o.noSender || o.noRecver || v == "both"
			}),
		negated("ptracer", "let peers reach this process's memory with process_vm_readv where Yama forbids it",
			func(o *options) *bool { return &o.noPtracer }),
		negated("membarrier", "use membarrier(2)", func(o *options) *bool { return &o.noBarrier }),
	},
}

func (shmDriver) Options() []driver.Option { return optionTable.List() }

// negated is a switch whose zero value is on.
func negated(name, help string, field func(*options) *bool) kit.Option[options] {
	return kit.Choice(name, "on | off", help, field, map[string]bool{"on": false, "off": true})
}

func setUIDs(o *options, v string) bool {
	for s := range strings.SplitSeq(v, ",") {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return false
		}
		o.allowUIDs = append(o.allowUIDs, uint32(n))
	}
	return true
}
