//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"errors"
	"testing"

	"github.com/bywash/bywash/driver"
)

// A url cannot have a context send to many hosts at once, to itself, or to a port that is not that of the job.
func TestURLsHaveOneHostAndPort(t *testing.T) {
	own := map[string]string{
		"udp4": "udp4,192.0.2.9,24249,0", "udp6": "udp6,2001:db8::9,24249,0", "ether": "ether,02:00:00:00:00:09,24249,0",
	}
	for _, c := range []struct {
		url  string
		from string // kind of the context's own
		ok   bool
	}{
		{"udp4,192.0.2.1,24249,0", "udp4", true},
		{"udp4,169.254.1.1,24249,255", "udp4", true},
		{"udp6,fe80::1,24249,3", "udp6", true},
		{"ether,02:00:00:00:00:01,24249,0", "ether", true},
		{"udp4,192.0.2.1,53,0", "udp4", false},
		{"udp4,192.0.2.1,24250,0", "udp4", false},
		{"ether,02:00:00:00:00:01,1,0", "ether", false},
		{"udp4,127.0.0.1,24249,0", "udp4", false},
		{"udp4,0.0.0.0,24249,0", "udp4", false},
		{"udp4,255.255.255.255,24249,0", "udp4", false},
		{"udp4,224.0.0.1,24249,0", "udp4", false},
		{"udp6,::1,24249,0", "udp6", false},
		{"udp6,::,24249,0", "udp6", false},
		{"udp6,ff02::1,24249,0", "udp6", false},
		{"udp6,::ffff:192.0.2.1,24249,0", "udp6", false},
		{"udp6,fe80::1%lo,24249,0", "udp6", false},
		{"udp6,2001:db8::1,24249,0", "udp4", false},
		{"ether,ff:ff:ff:ff:ff:ff,24249,0", "ether", false},
		{"ether,01:00:5e:00:00:01,24249,0", "ether", false},
		{"ether,00:00:00:00:00:00,24249,0", "ether", false},
		{"udp4,localhost,24249,0", "udp4", false},
	} {
		from, err := parseAddress(own[c.from])
		if err != nil {
			t.Fatal(err)
		}
		to, err := parseAddress(c.url)
		why := to.apart(from)
		if ok := err == nil && why == ""; ok != c.ok || err != nil && !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s from %s: %v %s, want it reached: %v", c.url, c.from, err, why, c.ok)
		}
	}
}
