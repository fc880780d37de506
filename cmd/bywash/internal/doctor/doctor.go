//go:build linux && !(386 || arm || mips || mipsle)

// Package doctor tries out what drivers need from a machine.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/bywash/bywash/afxdp"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/tcp"
	"github.com/bywash/bywash/verbs"
)

// Level is how bad a finding is.
type Level string

// The levels, from good to bad.
const (
	OK      Level = "ok"
	Slow    Level = "slow"    // works, with a cost
	Absent  Level = "absent"  // this machine has no such hardware
	Blocked Level = "blocked" // a driver cannot work
)

// Finding is one thing that was tried.
type Finding struct {
	Name   string `json:"name"`
	Level  Level  `json:"level"`
	Found  string `json:"found"`
	Remedy string `json:"remedy"` // empty when there is nothing to do
}

// String is a line, with a second one for the remedy.
func (f Finding) String() string {
	s := fmt.Sprintf("%-8s %-24s %s\n", f.Level, f.Name, f.Found)
	if f.Remedy != "" {
		s += fmt.Sprintf("%34s→ %s\n", "", f.Remedy)
	}
	return s
}

// Examine tries one thing after the other, until ctx ends.
func Examine(ctx context.Context) iter.Seq[Finding] {
	return func(yield func(Finding) bool) {
		for _, probe := range probes() {
			if ctx.Err() != nil || !yield(probe()) {
				return
			}
		}
	}
}

func probes() []func() Finding {
	list := []func() Finding{
		openFiles, sharedMemory, hugePages, sealing, attach, yama, pidfds, barrier, runtimeDir, loopback,
		rdmaDevices, rdmaPorts, rdmaMemory, afXDP, etherDevices, qnixDevices, cores, governor,
	}
	for _, n := range driver.Names() {
		d, err := driver.Lookup(n)
		if err != nil {
			continue
		}
		examine := examineDriver
		switch n {
		case afxdp.Name:
			examine = examineEthernet
		case tcp.Name:
			examine = examineTCP
		case verbs.Name:
			examine = examineVerbs
		}
		list = append(list, func() Finding { return examine(d) })
	}
	return list
}

func examineVerbs(d driver.Driver) Finding {
	f := examineDriver(d)
	if l, err := readLocking(); err == nil {
		f = l.judge(f)
	}
	return f
}

func examineDriver(d driver.Driver) Finding {
	f := Finding{Name: "driver " + d.Name(), Level: OK, Found: "can be opened"}
	nic, err := d.Query(driver.Hints{})
	if err == nil {
		var c driver.Context
		if c, err = nic.Open(driver.Attributes{}); err == nil {
			err = c.Close()
		}
	}
	if err != nil {
		f.Level, f.Found = Blocked, err.Error()
		f.Remedy = "the message names what is missing, the findings above name the remedies"
		if u := (*driver.UnavailableError)(nil); errors.As(err, &u) && u.Absent {
			f.Level, f.Remedy = Absent, ""
		}
	}
	return f
}
