//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/driver"
)

// urlVersion is the version of this driver's urls.
const urlVersion = 1

// address is the address of a context, the rest of its url:
//
//	kind,address,port,number
//
// The address is an IP address, or for kind ether a MAC address. The number distinguishes the contexts that share the
// port.
type address struct {
	kind   carrier.Kind
	ip     netip.Addr
	mac    carrier.MAC
	port   uint16
	number uint16
}

func (a address) String() string {
	where := a.ip.String()
	if a.kind == carrier.Ether {
		where = a.mac.String()
	}
	return fmt.Sprintf("%v,%s,%d,%d", a.kind, where, a.port, a.number)
}

// parseAddress parses the rest of a peer's url.
func parseAddress(s string) (a address, err error) {
	bad := func(what string) (address, error) {
		return a, fmt.Errorf("%w: url: %s in %q is not kind,address,port,number", driver.ErrInvalid, what, s)
	}
	f := strings.Split(s, ",")
	if len(f) != 4 {
		return bad("number of fields")
	}
	switch f[0] {
	case "udp4":
		a.kind = carrier.UDP4
	case "udp6":
		a.kind = carrier.UDP6
	case "ether":
		a.kind = carrier.Ether
	default:
		return bad("kind")
	}
	if a.kind == carrier.Ether {
		mac, err := net.ParseMAC(f[1])
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 || carrier.MAC(mac) == (carrier.MAC{}) {
			return bad("MAC address")
		}
		a.mac = carrier.MAC(mac)
	} else {
		a.ip, err = netip.ParseAddr(f[1])
		if err != nil || a.ip.Is4() != (a.kind == carrier.UDP4) || a.ip.Is4In6() || a.ip.Zone() != "" || !usable(a.ip) {
			return bad("address")
		}
	}
	port, err1 := strconv.ParseUint(f[2], 10, 16)
	number, err2 := strconv.ParseUint(f[3], 10, 16)
	if err1 != nil || port == 0 || err2 != nil || number >= maxContexts {
		return bad("port or number")
	}
	a.port, a.number = uint16(port), uint16(number)
	return a, nil
}

// apart returns why contexts at two addresses cannot be connected, or "" if nothing is known against it. It is
// symmetric. Urls come from peers, and a context sends to their addresses before anything has answered: it therefore
// sends only to its own port.
func (a address) apart(from address) string {
	if a.kind != from.kind {
		return fmt.Sprintf("the peer uses carrier %v, this context %v: give both the same option carrier", a.kind, from.kind)
	}
	if a.port != from.port {
		return fmt.Sprintf("the peer uses port %d, this context %d: give both the same option port", a.port, from.port)
	}
	return ""
}

// usable reports whether an address can be that of one other host.
func usable(a netip.Addr) bool { return a.IsGlobalUnicast() || a.IsLinkLocalUnicast() }
