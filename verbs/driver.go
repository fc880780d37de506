//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// urlVersion is the version of this driver's urls.
const urlVersion = 2

// Limits of options.
const (
	minBuffer     = 256
	maxBuffer     = 1 << 20
	defaultBuffer = 4096
	maxDepth      = 1024
	defaultWindow = 64
)

func init() { driver.Register(verbsDriver{}) }

type verbsDriver struct{}

// Optional interfaces of a driver, which sessions and the bywash command find by type assertions.
var (
	_ driver.Configurable = verbsDriver{}
	_ driver.Ranked       = verbsDriver{}
)

func (verbsDriver) Name() string { return Name }

// exclusivity is the value of driver.Profile.Exclusivity of all its NICs.
const exclusivity = 32

func (verbsDriver) MaxExclusivity() int { return exclusivity }

func (verbsDriver) Devices() []driver.Device {
	devs, err := ibv.Devices()
	if err != nil {
		return []driver.Device{{Name: "verbs", Description: "RDMA devices", Err: deviceError(err)}}
	}
	if len(devs) == 0 {
		return []driver.Device{{Name: "verbs", Description: "RDMA devices", Err: noDevice()}}
	}
	var list []driver.Device
	for _, d := range devs {
		list = append(list, describe(d)...)
	}
	return list
}

// deviceClass is where the kernel shows its RDMA devices, with or without libraries.
const deviceClass = "/sys/class/infiniband"

func noDevice() error {
	if seen, _ := os.ReadDir(deviceClass); len(seen) > 0 {
		return unavailable("", "the kernel has "+seen[0].Name()+", but this process cannot open it",
			"modprobe ib_uverbs; in a container, pass /dev/infiniband through", nil)
	}
	return &driver.UnavailableError{
		Driver: Name, Reason: "this machine has no RDMA device", Absent: true,
		Remedy: "for Soft-RoCE: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev DEV; or make perf-vm, in a virtual machine",
	}
}

// deviceError explains why devices cannot be listed. A kernel without RDMA returns ENOSYS.
func deviceError(err error) error {
	if errors.Is(err, unix.ENOSYS) {
		return noDevice()
	}
	return unavailable("", "RDMA verbs cannot be used", "", err)
}

// describe lists the ports of a device for people.
func describe(info ibv.DeviceInfo) []driver.Device {
	dev, err := ibv.Open(info.Name)
	if err != nil {
		return []driver.Device{{Name: info.Name, Description: "RDMA device", Err: unavailable(info.Name, "it cannot be opened", "", err)}}
	}
	defer dev.Close()
	ports := max(dev.Query().Ports, 1)
	var list []driver.Device
	for k := 1; k <= ports; k++ {
		d := driver.Device{Name: portName(dev, k), Description: "RDMA device"}
		if ports > 1 {
			d.Description = fmt.Sprintf("RDMA device, port %d of %d", k, ports)
		}
		p, err := usePort(dev, optionTable.Defaults, k, k)
		if err == nil {
			err = p.hasRC()
		}
		switch {
		case isUnavailable(err):
			d.Err = err
		case err != nil:
			d.Err = unavailable(d.Name, "it cannot be used", "", err)
		}
		if p != nil {
			d.Details = p.details()
		}
		list = append(list, d)
	}
	return list
}

// details returns facts about a port and its device for people.
func (p *port) details() (list []driver.Detail) {
	add := func(name, format string, args ...any) {
		list = append(list, driver.Detail{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	a := p.dev.Query()
	if a.Firmware != "" {
		add("firmware", "%s", a.Firmware)
	}
	add("port", "%v, %v, MTU %v of %v", p.attr.LinkLayer, p.attr.State, p.attr.ActiveMTU, p.attr.MaxMTU)
	gids, _ := p.dev.GIDs(p.num)
	for _, g := range gids {
		chosen := ""
		if g.Index == p.gid.Index {
			chosen = " (chosen)"
		}
		add(fmt.Sprintf("GID %d", g.Index), "%s%s", detailGID(g), chosen)
	}
	add("longest message", "%d bytes", p.attr.MaxMessage)
	add("queue pairs", "%d, %d requests each, %d pieces a request", a.MaxQP, a.MaxQPWR, a.MaxSGE)
	add("completion queue", "%d entries", a.MaxCQE)
	add("memory regions", "%d, up to %d bytes each", a.MaxMR, a.MaxMRSize)
	add("atomics", "%v", a.Atomic)
	add("reads and atomics under way", "%d", a.MaxQPInitAtom)
	add("memory windows", "%s", windowKind(a))
	return list
}

func windowKind(a ibv.DeviceAttr) string {
	if a.MemoryWindow2 {
		return "type 2"
	}
	return "no type 2: keys of long messages stay valid while their memory is cached"
}

func (verbsDriver) Query(h driver.Hints) (driver.NIC, error) {
	fail := func(err error) (driver.NIC, error) {
		if isUnavailable(err) {
			return nil, err
		}
		return nil, &driver.Error{Driver: Name, Op: "query", Err: err}
	}
	if h.Track > driver.Large {
		return fail(fmt.Errorf("%w: unknown track %d (want Small or Large)", driver.ErrInvalid, h.Track))
	}
	o, err := parseOptions(h.Options)
	if err != nil {
		return fail(err)
	}
	if h.MaxMessage > o.buffer && h.Options["buffer"] == "" && h.Track == driver.Small {
		o.buffer = min(h.MaxMessage+63, 64<<10) &^ 63
	}
	name, err := chooseDevice(h.Device)
	if err != nil {
		return fail(err)
	}
	p, err := openPort(o, name)
	if err != nil {
		return fail(err)
	}
	defer p.dev.Close()
	props := driver.Properties{
		Driver: Name, Device: portName(p.dev, p.num), Track: h.Track,
		Capabilities: capabilities(h.Track, o, p), Profile: profile(p),
	}
	return kit.NewNIC(props, func(a driver.Attributes) (*opened, error) { return openContext(props, o, a) }), nil
}

// chooseDevice returns name, or if name is empty the first device with an active port and reliable connections, which it
// tries to make only where there is a choice.
func chooseDevice(name string) (string, error) {
	if err := ibv.Available(); err != nil {
		if seen, _ := os.ReadDir(deviceClass); len(seen) == 0 {
			return "", noDevice() // a library would not help
		}
		return "", unavailable(name, "RDMA verbs cannot be used", "", err)
	}
	if name != "" {
		return name, nil
	}
	devs, err := ibv.Devices()
	if err != nil {
		return "", deviceError(err)
	}
	if len(devs) == 0 {
		return "", noDevice()
	}
	for _, d := range devs {
		p, e := openPort(optionTable.Defaults, d.Name)
		if e == nil {
			if len(devs) > 1 {
				e = p.hasRC()
			}
			_ = p.dev.Close()
		}
		if e == nil {
			return d.Name, nil
		}
		err = e
	}
	return "", err
}

// inlineSize is how many bytes a work request carries itself: to copy more costs the processor more than the device's
// read.
const inlineSize = 220

func capabilities(t driver.Track, o options, p *port) driver.Capabilities {
	a := p.dev.Query()
	c := driver.Capabilities{
		IOVec: true, Data: true, SendWait: true, RecvWait: true,
		DeadTime: o.deadTime,
		OneSided: &driver.OneSidedCapabilities{
			Put: true, Get: true, MaxPut: int(min(p.attr.MaxMessage, 1<<30)), MaxGet: int(min(p.attr.MaxMessage, 1<<30)),
			PutAlignment: 1, GetAlignment: 1, KeySize: keyBytes, Depth: opDepth,
			AtomicWithCPU: a.Atomic == ibv.AtomicGlobal, RevokedKeyBreaks: true,
		},
	}
	if a.Atomic != ibv.AtomicNone {
		c.OneSided.Atomics64 = driver.AtomicsOf(driver.Add, driver.CompareSwap)
		c.OneSided.Fetch64 = c.OneSided.Atomics64
	}
	if t == driver.Small {
		c.MaxMessage, c.BufferSize = o.buffer, o.buffer
		c.BufferSend, c.BufferRecv, c.Probe = true, true, true
		c.SendDepth, c.RecvDepth = kit.PacketQueueDepth, kit.PacketQueueDepth
		c.Ordered = true
		return c
	}
	c.MaxMessage = maxMessage
	c.Prefetch, c.RdvUpdate = true, true
	c.RdvSize = rdvBytes
	c.SendDepth, c.RecvDepth = transferDepth, transferDepth
	return c
}

func profile(p *port) driver.Profile {
	bits := float64(p.attr.Speed) * float64(max(p.attr.Width, 1)) * 1e6
	if bits == 0 {
		bits = 10e9
	}
	return driver.Profile{Latency: 2 * time.Microsecond, Bandwidth: bits / 8, Exclusivity: exclusivity}
}
