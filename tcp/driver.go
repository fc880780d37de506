//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// urlVersion is the version of this driver's urls.
const urlVersion = 3

func init() { driver.Register(tcpDriver{}) }

type tcpDriver struct{}

// Optional interfaces of a driver, which sessions and the bywash command find by type assertions.
var (
	_ driver.Configurable = tcpDriver{}
	_ driver.Ranked       = tcpDriver{}
)

func (tcpDriver) Name() string { return Name }

// exclusivity of all its NICs: every other driver that reaches a peer is used instead.
const exclusivity = 0

func (tcpDriver) MaxExclusivity() int { return exclusivity }

func (tcpDriver) Options() []driver.Option { return optionTable.List() }

// Devices implements driver.Driver: all addresses together, and each interface that has one.
func (tcpDriver) Devices() []driver.Device {
	all := driver.Device{Name: AllDevices, Description: "all addresses of this host"}
	addrs, err := hostAddresses(AllDevices)
	all.Err = err
	all.Details = addressDetails(addrs)
	devs := []driver.Device{all}
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		addrs, err := hostAddresses(i.Name)
		if i.Flags&net.FlagUp == 0 || err != nil {
			continue
		}
		devs = append(devs, driver.Device{
			Name: i.Name, Description: "addresses of a network interface", Details: addressDetails(addrs),
		})
	}
	return devs
}

func addressDetails(addrs []netip.Addr) []driver.Detail {
	var names []string
	for _, a := range addrs {
		names = append(names, a.String())
	}
	if len(names) == 0 {
		return nil
	}
	return []driver.Detail{{Name: "addresses", Value: strings.Join(names, ", ")}}
}

func unavailable(device, reason, remedy string, err error) error {
	return &driver.UnavailableError{Driver: Name, Device: device, Reason: reason, Remedy: remedy, Err: err}
}

func (tcpDriver) Query(h driver.Hints) (driver.NIC, error) {
	o, err := optionTable.Parse(h.Options)
	switch {
	case h.Track > driver.Large:
		err = fmt.Errorf("%w: unknown track %d (want Small or Large)", driver.ErrInvalid, h.Track)
	case len(o.addresses) > 0 && h.Device != "" && h.Device != AllDevices:
		err = fmt.Errorf("%w: device %s and option address: give one of them", driver.ErrInvalid, h.Device)
	}
	if err != nil {
		return nil, &driver.Error{Driver: Name, Op: "query", Err: err}
	}
	device := h.Device
	if device == "" {
		device = AllDevices
	}
	if len(o.addresses) == 0 {
		err := kit.InNamespace(o.netns, func() (err error) {
			o.addresses, err = hostAddresses(device)
			return err
		})
		if err != nil {
			return nil, err
		}
		o.ofDevice, o.wildcard = true, device == AllDevices
	}
	props := driver.Properties{
		Driver: Name, Device: device, Track: h.Track, Capabilities: capabilities(h.Track, &o),
		Profile: driver.Profile{Latency: 15 * time.Microsecond, Bandwidth: kit.LinkSpeed(device), Exclusivity: exclusivity},
	}
	return kit.NewNIC(props, func(a driver.Attributes) (*share, error) { return openContext(props, o, a) }), nil
}

func capabilities(t driver.Track, o *options) driver.Capabilities {
	c := driver.Capabilities{IOVec: true, Data: true, SendWait: true, RecvWait: true, DeadTime: o.deadTime}
	if t == driver.Small {
		c.MaxMessage, c.BufferSize = maxSmall, maxSmall
		c.BufferSend, c.BufferRecv, c.Probe = true, true, true
		c.SendDepth, c.RecvDepth = kit.PacketQueueDepth, kit.PacketQueueDepth
		c.Ordered = true
		return c
	}
	c.MaxMessage, c.RdvSize = maxLarge, kit.RdvBytes
	c.SendDepth, c.RecvDepth = kit.LargeDepth, kit.LargeDepth
	return c
}
