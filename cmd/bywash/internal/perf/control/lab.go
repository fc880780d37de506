//go:build linux

package control

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/bywash/bywash/afxdp"
	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
	"github.com/bywash/bywash/tcp"
)

// lab is the environment that a driver needs for a measurement between two processes of one machine. For afxdp it is a
// set of network namespaces joined by virtual Ethernet devices, which vanish with this process.
type lab struct {
	places [3]bench.Place // of the lead, the follower, and idle peers
	close  func() error
}

// labMTU returns the MTU of the lab's devices: the longest that a device can have or, if frames have one chunk, the
// longest that fits a chunk of a page, also with programs in the driver.
const (
	labMTU      = 65535
	labMTUShort = 3498
)

func (c *Config) labMTU() int {
	if c.Options["multi-buffer"] == "off" || xsk.Probe(xsk.FeatureMultiBuffer) != nil {
		return labMTUShort
	}
	return labMTU
}

// needsLab reports whether a driver is measured in a lab: by its name, or because the user has named no device for
// afxdp.
func (c *Config) needsLab(name string) bool {
	return strings.HasSuffix(name, bench.OnVeth) ||
		name == afxdp.Name && c.Remote == "" && c.Device == "" && c.Options["netns"] == ""
}

// onVeth are the names that may have [bench.OnVeth] behind them.
var onVeth = []string{tcp.Name, bench.SockTCP, bench.SockUDP}

// beside puts baselines on the path of the drivers that they are compared with: if all of those are measured in a lab,
// the baselines are, too. If the user asked for everything and may make devices, there are baselines on both paths.
func (c *Config) beside(names []string, all bool) []string {
	if all {
		if slices.Contains(names, afxdp.Name) && c.needsLab(afxdp.Name) && os.Geteuid() == 0 {
			names = append(names, tcp.Name+bench.OnVeth, bench.SockTCP+bench.OnVeth)
		}
		return names
	}
	ours := bypass(names)
	if len(ours) == 0 || slices.ContainsFunc(ours, func(n string) bool { return !c.needsLab(n) }) {
		return names
	}
	out := slices.Clone(names)
	for k, n := range out {
		if bench.IsBaseline(n) && slices.Contains(onVeth, n) {
			out[k] = n + bench.OnVeth
		}
	}
	return out
}

// newLab makes the lab. Without the privilege the driver is unavailable.
func (c *Config) newLab(name string) (*lab, error) {
	if c.Peers == 0 {
		return c.newPairLab(name) // without a bridge between them
	}
	s, err := veth.NewSwitch(3, veth.Config{MTU: c.labMTU()})
	if err != nil {
		return nil, labError(name, err)
	}
	l := &lab{close: s.Close}
	for k := range l.places {
		l.places[k] = placeOf(&s.Ends[k])
	}
	return l, nil
}

func (c *Config) newPairLab(name string) (*lab, error) {
	p, err := veth.New(veth.Config{MTU: c.labMTU()})
	if err != nil {
		return nil, labError(name, err)
	}
	return &lab{places: [3]bench.Place{placeOf(&p.Ends[0]), placeOf(&p.Ends[1])}, close: p.Close}, nil
}

func labError(name string, err error) error {
	if errors.Is(err, os.ErrPermission) {
		return &driver.UnavailableError{
			Driver: name, Reason: "it takes root to make network devices to measure between",
			Remedy: "sudo bywash perf -d " + name + ", or name a device and another machine (--dev eth1, HOST:PORT)", Err: err,
		}
	}
	return err
}

// placeOf names a namespace so that other processes find it as well.
func placeOf(e *veth.End) bench.Place {
	return bench.Place{Device: e.Device, Netns: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), e.Namespace)}
}
