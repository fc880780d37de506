//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/bywash/bywash/driver"
)

// examineTCP opens the driver as a session does and connects to each address that peers would be told.
func examineTCP(d driver.Driver) Finding {
	f := examineDriver(d)
	nic, err := d.Query(driver.Hints{})
	if err != nil {
		return f
	}
	c, err := nic.Open(driver.Attributes{})
	if err != nil {
		return f
	}
	defer c.Close()
	u, err := driver.ParseURL(c.URL(), driver.MaxURL)
	if err != nil {
		return f
	}
	port, list, _ := strings.Cut(u.Rest, ",")
	var addrs []netip.Addr
	closed := make(map[netip.Addr]error)
	for s := range strings.SplitSeq(list, ",") {
		a, err := netip.ParseAddr(s)
		if err != nil || a.IsLinkLocalUnicast() && a.Is6() { // which needs the name of an interface
			continue
		}
		addrs = append(addrs, a)
		const patience = 300 * time.Millisecond
		if x, err := net.DialTimeout("tcp", net.JoinHostPort(s, port), patience); err == nil {
			_ = x.Close()
		} else {
			closed[a] = err
		}
	}
	return judgeTCP(f, addrs, closed)
}

// judgeTCP completes the finding with what was found at the addresses, of which those in closed refused or dropped.
func judgeTCP(f Finding, addrs []netip.Addr, closed map[netip.Addr]error) Finding {
	var here, shut []string
	loopback := true
	for _, a := range addrs {
		loopback = loopback && a.IsLoopback()
		if closed[a] != nil {
			shut = append(shut, a.String())
		} else {
			here = append(here, a.String())
		}
	}
	switch {
	case len(shut) > 0:
		f.Level = Slow
		if len(here) == 0 {
			f.Level = Blocked
		}
		f.Found = "even this host cannot connect to " + strings.Join(shut, ", ") + ": " + closed[netip.MustParseAddr(shut[0])].Error()
		f.Remedy = "a firewall drops or refuses it: nft list ruleset, or iptables -S; docs/tcp.md has the option port for a range to admit"
	case len(addrs) > 0 && loopback:
		f.Level, f.Found = Slow, "the host has loopback addresses only: no other host can connect"
		f.Remedy = "ip addr add ADDRESS dev DEVICE; ip link set DEVICE up"
	case len(here) > 0:
		f.Found += ", at " + strings.Join(here, ", ") + " (from another host: bywash perf --listen)"
	}
	return f
}
