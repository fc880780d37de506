//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/qnix/nic"
)

func init() { driver.Register(qnixDriver{}) }

type qnixDriver struct{}

// Optional interfaces of a driver, which sessions and the bywash command find by type assertions.
var (
	_ driver.Configurable = qnixDriver{}
	_ driver.Ranked       = qnixDriver{}
)

func (qnixDriver) Name() string { return Name }

// exclusivity is the value of driver.Profile.Exclusivity of all its NICs.
const exclusivity = 24

func (qnixDriver) MaxExclusivity() int { return exclusivity }

func (qnixDriver) Query(h driver.Hints) (driver.NIC, error) {
	fail := func(err error) (driver.NIC, error) {
		if u := new(driver.UnavailableError); errors.As(err, &u) {
			return nil, err
		}
		return nil, &driver.Error{Driver: Name, Op: "query", Err: err}
	}
	o, err := optionTable.Parse(h.Options)
	if err == nil && h.Track > driver.Large {
		err = fmt.Errorf("%w: unknown track %d (want Small or Large)", driver.ErrInvalid, h.Track)
	}
	if err != nil {
		return fail(err)
	}
	if o.peers = h.Peers; h.MaxMessage > o.buffer && h.Options["buffer"] == "" {
		o.buffer = min(h.MaxMessage, maxBuffer)
	}
	path := cmp.Or(h.Device, nic.DefaultPath())
	n, err := openNIC(path, o)
	if err != nil {
		return fail(err)
	}
	defer n.Close()
	info := n.Info()
	if info.MaxRegion < largeRegion {
		return fail(unavailable(path, fmt.Sprintf("its Context Regions have %d bytes at most", info.MaxRegion), "", nil))
	}
	o.buffer = min(o.buffer, info.MaxRegion-dataHead)
	props := driver.Properties{
		Driver: Name, Device: path, Track: h.Track, Capabilities: capabilities(h.Track, o, info), Profile: profile(info),
	}
	return kit.NewNIC(props, func(a driver.Attributes) (*process, error) { return openContext(props, o, a) }), nil
}

func unavailable(device, reason, remedy string, err error) error {
	return &driver.UnavailableError{Driver: Name, Device: device, Reason: reason, Remedy: remedy, Err: err}
}

func capabilities(t driver.Track, o options, i nic.Info) driver.Capabilities {
	c := driver.Capabilities{IOVec: true, Data: true, SendWait: true, RecvWait: true, DeadTime: o.deadTime}
	if i.NICs == 1 {
		c.DeadTime = min(o.deadTime, time.Second) // the NIC notices the end of a process at once
	}
	if t == driver.Small {
		c.MaxMessage, c.BufferSize = o.buffer, o.buffer
		c.BufferSend, c.BufferRecv, c.Probe = true, true, true
		c.SendDepth, c.RecvDepth = kit.PacketQueueDepth, kit.PacketQueueDepth
		c.Ordered = true
		return c
	}
	c.MaxMessage = min(maxMessage, i.MaxMessage)
	c.Prefetch, c.RdvSize = true, rdvBytes
	c.SendDepth, c.RecvDepth = transferDepth, transferDepth
	return c
}

func profile(i nic.Info) driver.Profile {
	p := driver.Profile{Latency: 2 * time.Microsecond, Bandwidth: 5e9, Exclusivity: exclusivity}
	if i.Soft {
		p.Latency = 5 * time.Microsecond
	}
	return p
}
