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
	ErrAddress     = errors.New("not an address of a single host")
	ErrOwn         = errors.New("an address of this host")
	ErrNoRoute     = errors.New("no route through this device")
	ErrUnreachable = errors.New("no ARP/NDP reply from the next hop")
	ErrDown        = errors.New("the device is down")
	ErrGone        = errors.New("no such network device")
	ErrNotEthernet = errors.New("not an Ethernet device")
	ErrClosed      = errors.New("the resolver is closed")
)

// ResolveError is the type of all errors of a Resolver.
type ResolveError struct {
	Device string
	Dst    netip.Addr // invalid if the error is about the device itself
	Via    netip.Addr // the router, if there is one and it is known
	Err    error      // matches one of the errors above, or is the kernel's
	Remedy string     // what the user can do, or ""
}

// Error returns device, destination, cause and remedy.
func (e *ResolveError) Error() string {
	s := "carrier: " + e.Device
	if e.Dst.IsValid() {
		s += " to " + e.Dst.String()
	}
	if e.Via.IsValid() && e.Via != e.Dst {
		s += " by " + e.Via.String()
	}
	s += ": " + e.Err.Error()
	if e.Remedy != "" {
		s += " (" + e.Remedy + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *ResolveError) Unwrap() error { return e.Err }

// problem returns a ResolveError with the remedy for its cause.
func problem(device string, dst, via netip.Addr, err error) error {
	e := &ResolveError{Device: device, Dst: dst, Via: via, Err: err}
	hop := dst
	if via.IsValid() {
		hop = via
	}
	switch {
	case errors.Is(err, ErrAddress):
		e.Remedy = "name one host by its IPv4 or IPv6 address"
	case errors.Is(err, ErrOwn):
		e.Remedy = "frames to oneself never reach a device: use the address of another host"
	case errors.Is(err, ErrNoRoute):
		e.Remedy = fmt.Sprintf("see ip route get %v oif %s; add an address or a route", dst, device)
	case errors.Is(err, ErrUnreachable):
		e.Remedy = fmt.Sprintf("see ip neighbour show %v dev %s; is it up, in this segment, not filtered?", hop, device)
	case errors.Is(err, ErrDown):
		e.Remedy = "ip link set " + device + " up, and see that the other end of the cable is up"
	case errors.Is(err, ErrGone):
		e.Remedy = "ip link shows those of this network namespace"
	case errors.Is(err, ErrNotEthernet):
		e.Remedy = "use an Ethernet device, physical or virtual"
	case errors.Is(err, unix.EPERM):
		e.Remedy = "asking for a neighbour needs CAP_NET_ADMIN"
	case errors.Is(err, unix.ENOBUFS):
		e.Remedy = "the neighbour table is full: raise net.ipv4.neigh.default.gc_thresh3, or that of ipv6"
	}
	return e
}
