//go:build linux

package control

import (
	"errors"
	"fmt"
	"os"

	"github.com/bywash/bywash/afxdp"
	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
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

// needsLab reports whether a driver is measured in a lab, because the user has named no device.
func (c *Config) needsLab(name string) bool {
	return name == afxdp.Name && c.Remote == "" && c.Device == "" && c.Options["netns"] == ""
}

// newLab makes the lab. Without the privilege the driver is unavailable.
func (c *Config) newLab() (*lab, error) {
	if c.Peers == 0 {
		return c.newPairLab() // without a bridge between them
	}
	s, err := veth.NewSwitch(3, veth.Config{MTU: c.labMTU()})
	if err != nil {
		return nil, labError(err)
	}
	l := &lab{close: s.Close}
	for k := range l.places {
		l.places[k] = placeOf(&s.Ends[k])
	}
	return l, nil
}

func (c *Config) newPairLab() (*lab, error) {
	p, err := veth.New(veth.Config{MTU: c.labMTU()})
	if err != nil {
		return nil, labError(err)
	}
	return &lab{places: [3]bench.Place{placeOf(&p.Ends[0]), placeOf(&p.Ends[1])}, close: p.Close}, nil
}

func labError(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return &driver.UnavailableError{
			Driver: afxdp.Name, Reason: "it takes root to make network devices to measure between",
			Remedy: "sudo bywash perf -d afxdp, or name a device and another machine (--dev eth1, HOST:PORT)", Err: err,
		}
	}
	return err
}

// placeOf names a namespace so that other processes find it as well.
func placeOf(e *veth.End) bench.Place {
	return bench.Place{Device: e.Device, Netns: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), e.Namespace)}
}
