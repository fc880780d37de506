//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// address is where a context is reached, the rest of its url:
//
//	port,network,address,…
//
// The network is the context's network namespace, 16 hexadecimal digits: loopback addresses mean something in it only.
type address struct {
	port    uint16
	network uint64
	addrs   []netip.Addr
}

// networkID names this thread's network namespace among those of all hosts.
func networkID() uint64 { return kit.Identity("network %x %x", kit.Host(), kit.Namespace("net")) }

// String formats the address.
func (a address) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d,%016x", a.port, a.network)
	for _, x := range a.addrs {
		b.WriteByte(',')
		b.WriteString(x.WithZone("").String())
	}
	return b.String()
}

// fit drops addresses from the end until the address has at most limit bytes.
func (a address) fit(limit int) address {
	for len(a.addrs) > 1 && len(a.String()) > limit {
		a.addrs = a.addrs[:len(a.addrs)-1]
	}
	return a
}

// parseAddress reads the rest of a url that comes from elsewhere.
func parseAddress(s string) (a address, err error) {
	bad := func(what string) (address, error) {
		return address{}, fmt.Errorf("%w: url: %s in %q is not port,network,address,…", driver.ErrInvalid, what, s)
	}
	first, rest, ok := strings.Cut(s, ",")
	port, err := strconv.ParseUint(first, 10, 16)
	if err != nil || port == 0 || !ok {
		return bad("port")
	}
	a.port = uint16(port)
	network, rest, ok := strings.Cut(rest, ",")
	if a.network, err = strconv.ParseUint(network, 16, 64); err != nil || !ok || len(network) != 16 {
		return bad("network")
	}
	for part := range strings.SplitSeq(rest, ",") {
		x, err := netip.ParseAddr(part)
		if err != nil || x.Zone() != "" || !publishable(x) {
			return bad("address")
		}
		if len(a.addrs) == maxAddresses {
			return bad("number of addresses")
		}
		a.addrs = append(a.addrs, x)
	}
	return a, nil
}

// lowPort is the first port that needs no privilege.
const lowPort = 1024

// apart returns why contexts at two addresses cannot be connected, or "" if nothing is known against it. Both sides
// dial, and each refuses to dial what the other one must not have it dial. It is symmetric.
func (a address) apart(b address) string {
	if (a.port < lowPort) != (b.port < lowPort) {
		return fmt.Sprintf("one end listens at port %d and the other at %d: ports below %d are dialed only from such "+
			"(option port)",
			a.port, b.port, lowPort)
	}
	if len(a.dials(b)) == 0 || len(b.dials(a)) == 0 {
		return fmt.Sprintf("the peer listens at %v, and this context at %v: they share no network (option address)",
			b.addrs, a.addrs)
	}
	return ""
}

// dials are the addresses of b that a context at a dials. Urls come from elsewhere, and shall not have us connect to
// services of this host that are no peers: loopback addresses are for contexts that have such themselves, in the
// same network namespace.
func (a address) dials(b address) (list []netip.Addr) {
	own := a.network == b.network && slices.ContainsFunc(a.addrs, netip.Addr.IsLoopback)
	for _, x := range b.addrs {
		if own || !x.IsLoopback() {
			list = append(list, x)
		}
	}
	return list
}

// domain names the addresses that are surely not apart from this one: those of the same kind in the same namespace.
func (a address) domain() string {
	global := func(x netip.Addr) bool { return !x.IsLoopback() }
	return fmt.Sprintf("%016x:%t:%t:%t", a.network, a.port < lowPort,
		slices.ContainsFunc(a.addrs, netip.Addr.IsLoopback), slices.ContainsFunc(a.addrs, global))
}
