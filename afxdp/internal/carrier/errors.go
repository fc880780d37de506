//go:build linux

package carrier

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Errors that a Resolver's errors match with errors.Is. They also match the errors of the kernel or context that caused
// them.
var (
	errAddress     = errors.New("not an address of a single host")
	errOwn         = errors.New("an address of this host")
	errNoRoute     = errors.New("no route through this device")
	errUnreachable = errors.New("no ARP/NDP reply from the next hop")
	errDown        = errors.New("the device is down")
	ErrGone        = errors.New("no such network device")
	errNotEthernet = errors.New("not an Ethernet device")
	errClosed      = errors.New("the resolver is closed")
)

// resolveError is the type of all errors of a Resolver.
type resolveError struct {
	device string
	dst    netip.Addr // invalid if the error is about the device itself
	via    netip.Addr // the router, if there is one and it is known
	err    error      // matches one of the errors above, or is the kernel's
	remedy string     // what the user can do, or ""
}

// Error returns device, destination, cause and remedy.
func (e *resolveError) Error() string {
	s := "carrier: " + e.device
	if e.dst.IsValid() {
		s += " to " + e.dst.String()
	}
	if e.via.IsValid() && e.via != e.dst {
		s += " by " + e.via.String()
	}
	s += ": " + e.err.Error()
	if e.remedy != "" {
		s += " (" + e.remedy + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *resolveError) Unwrap() error { return e.err }

// problem returns a resolveError with the remedy for its cause.
func problem(device string, dst, via netip.Addr, err error) error {
	e := &resolveError{device: device, dst: dst, via: via, err: err}
	hop := dst
	if via.IsValid() {
		hop = via
	}
	switch {
	case errors.Is(err, errAddress):
		e.remedy = "name one host by its IPv4 or IPv6 address"
	case errors.Is(err, errOwn):
		e.remedy = "frames to oneself never reach a device: use the address of another host"
	case errors.Is(err, errNoRoute):
		e.remedy = fmt.Sprintf("see ip route get %v oif %s, with from and this host's address; add an address or a route", dst, device)
	case errors.Is(err, errUnreachable):
		e.remedy = fmt.Sprintf("see ip neighbour show %v dev %s; is it up, in this segment, not filtered?", hop, device)
	case errors.Is(err, errDown):
		e.remedy = "ip link set " + device + " up, and see that the other end of the cable is up"
	case errors.Is(err, ErrGone):
		e.remedy = "ip link shows those of this network namespace"
	case errors.Is(err, errNotEthernet):
		e.remedy = "use an Ethernet device, physical or virtual"
	case errors.Is(err, unix.EPERM):
		e.remedy = "asking for a neighbour needs CAP_NET_ADMIN"
	case errors.Is(err, unix.ENOBUFS):
		e.remedy = "the neighbour table is full: raise net.ipv4.neigh.default.gc_thresh3, or that of ipv6"
	}
	return e
}
