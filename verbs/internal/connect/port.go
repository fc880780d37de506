//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
)

// LinkLayer is the kind of network that a port is attached to.
type LinkLayer uint8

const (
	InfiniBand LinkLayer = 1
	Ethernet   LinkLayer = 2
)

// GIDType is the way in which a GID is used on the wire.
type GIDType uint8

const (
	GIDInfiniBand GIDType = 0
	GIDRoCEv1     GIDType = 1
	GIDRoCEv2     GIDType = 2
)

// Port describes a port for managers.
type Port struct {
	Device    string // name of the device, for messages
	Num       uint8  // of the port, from 1
	LinkLayer LinkLayer
	LID       uint16 // InfiniBand
	GID       [16]byte
	GIDIndex  uint8 // index of GID in the port's table
	GIDType   GIDType
	Subnets   []Subnet // of GIDs that a connection may use instead, in the order of preference; may be empty
	MTU       int      // active MTU in bytes: 256, 512, 1024, 2048 or 4096
	PKey      uint16   // partition key; 0 is the default, 0xffff
	PKeyIndex uint16   // index of PKey in the port's table

	// MaxResponder and MaxInitiator are how many RDMA reads and atomics the device can answer, and have under way, on a
	// queue pair.
	MaxResponder, MaxInitiator uint8

	Quality Quality

	// Addrs are IP addresses at which managers of peers reach this host, by default those of the port's interface.
	// Link-local addresses, and those of peers, are on the interface Zone.
	Addrs []netip.Addr
	Zone  string

	// PresentMTU, unless it is nil, returns the active MTU as it is now, or 0 for MTU: Soft-RoCE reports no event when
	// its network interface gets another.
	PresentMTU func() int

	// Verbs is the open device, an *ibv.Context. Only rdmacm needs it.
	Verbs any
}

// Subnet is a GID of a port with the length of its address's prefix.
type Subnet struct {
	GID      netip.Prefix
	GIDIndex uint8
}

// sharing returns the GID of the first subnet that has one of a peer's addresses, or else the port's.
func (p *Port) sharing(peer ...netip.Addr) [16]byte {
	for _, s := range p.Subnets {
		if slices.ContainsFunc(peer, s.GID.Contains) {
			return s.GID.Addr().As16()
		}
	}
	return p.GID
}

// indexOf returns the present index of a GID that the port had.
func (p *Port) indexOf(gid [16]byte) uint8 {
	for _, s := range p.Subnets {
		if s.GID.Addr().As16() == gid {
			return s.GIDIndex
		}
	}
	return p.GIDIndex
}

// Quality has the settings of a queue pair.
type Quality struct {
	ServiceLevel uint8 // 0 to 15
	TrafficClass uint8
	// AckTimeout is the time until the device repeats, 4.096 µs · 2^n with n of 1 to 31; 0 means 14 (67 ms).
	AckTimeout uint8

	// Set by Open and Renew. RetryCount bounds how often the device repeats what nobody acknowledges: 6 times, because
	// with 7 some devices repeat for ever. MinRNRTimer is the code of the time that a peer waits before it repeats what
	// found no receive: 12 (0.64 ms). RNRRetry is 7, for ever: a peer that answers so is alive, and another peer may have
	// used up its shared receives.
	RetryCount, RNRRetry, MinRNRTimer uint8
}

// defaultPKey is the partition that every port is in, as a full member.
const defaultPKey = 0xffff

// name returns device and port for messages.
func (p *Port) name() string { return fmt.Sprintf("%s/%d", p.Device, p.Num) }

func (p *Port) check() error {
	switch {
	case p.LinkLayer != InfiniBand && p.LinkLayer != Ethernet:
		return fmt.Errorf("%w: port %s: link layer %d", driver.ErrInvalid, p.name(), p.LinkLayer)
	case p.GIDType > GIDRoCEv2 || (p.GIDType == GIDInfiniBand) != (p.LinkLayer == InfiniBand):
		return fmt.Errorf("%w: port %s: GID type %d on link layer %d", driver.ErrInvalid, p.name(), p.GIDType, p.LinkLayer)
	case mtuCode(p.MTU) == 0:
		return fmt.Errorf("%w: port %s: MTU %d is none of 256, 512, 1024, 2048, 4096", driver.ErrInvalid, p.name(), p.MTU)
	}
	return nil
}

// complete returns a copy of a valid port with the defaults in place.
func (p *Port) complete() (*Port, error) {
	port := *p
	port.Addrs = slices.Clone(p.Addrs)
	if port.PKey == 0 {
		port.PKey = defaultPKey
	}
	if err := port.check(); err != nil {
		return nil, err
	}
	q := &port.Quality
	q.AckTimeout, q.RetryCount, q.RNRRetry, q.MinRNRTimer = cmp.Or(q.AckTimeout, 14), 6, 7, 12
	return &port, nil
}

// presentMTU returns the code of the path MTU that the port has now.
func (p *Port) presentMTU() uint8 {
	if p.PresentMTU != nil {
		if code := mtuCode(p.PresentMTU()); code != 0 {
			return code
		}
	}
	return mtuCode(p.MTU)
}

// mtuCode returns the code of a path MTU in verbs and on the wire, or 0 for an invalid MTU.
func mtuCode(bytes int) uint8 {
	for code := uint8(1); code <= 5; code++ {
		if bytes == 128<<code {
			return code
		}
	}
	return 0
}

// DefaultTimeout is how long a peer may be silent.
const DefaultTimeout = 5 * time.Second
