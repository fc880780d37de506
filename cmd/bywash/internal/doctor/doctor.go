//go:build linux && !(386 || arm || mips || mipsle)

// Package doctor tries out what drivers need from a machine.
package doctor

import (
	"errors"
	"fmt"

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

// Examine tries everything.
func Examine() []Finding {
	var out []Finding
	for _, probe := range []func() Finding{
		openFiles, sharedMemory, hugePages, sealing, attach, yama, pidfds, barrier, runtimeDir, loopback,
		rdmaDevices, rdmaPorts, rdmaMemory, afXDP, etherDevices, qnixDevices, cores, governor,
	} {
		out = append(out, probe())
	}
	for _, n := range driver.Names() {
		d, err := driver.Lookup(n)
		if err != nil {
			continue
		}
		switch n {
		case afxdp.Name:
			out = append(out, examineEthernet(d))
			continue
		case tcp.Name:
			out = append(out, examineTCP(d))
			continue
		}
		f := examineDriver(d)
		if l, err := readLocking(); n == verbs.Name && err == nil {
			f = l.judge(f)
		}
		out = append(out, f)
	}
	return out
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
