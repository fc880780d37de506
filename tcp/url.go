package tcp

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/bywash/bywash/driver"
)

// address is where a context is reached, the rest of its url: port,address,…
type address struct {
	port  uint16
	addrs []netip.Addr
}

// String formats the address.
func (a address) String() string {
	var b strings.Builder
	b.WriteString(strconv.Itoa(int(a.port)))
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
		return address{}, fmt.Errorf("%w: url: %s in %q is not port,address,…", driver.ErrInvalid, what, s)
	}
	first, rest, ok := strings.Cut(s, ",")
	port, err := strconv.ParseUint(first, 10, 16)
	if err != nil || port == 0 || !ok {
		return bad("port")
	}
	a.port = uint16(port)
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
