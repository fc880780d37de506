//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// A peer that takes connections and sends nothing fails the endpoint in time, and the error contains what was waited
// for.
func TestPeerThatSendsNothing(t *testing.T) {
	onHost(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	a := aHost(t, func(c *Config, _ *Port) { c.Timeout = 300 * time.Millisecond })
	card := formatCard([]entry{{"oob", 50, []byte{oobVersion, 4, 127, 0, 0, 1, byte(port >> 8), byte(port)}}})
	x := a.endpointTo(1<<40, card, nil)
	x.mustFail(t, Failed, driver.ErrBroken)
	if !strings.Contains(x.Err().Error(), "handshake") {
		t.Errorf("error %q does not contain what was waited for", x.Err())
	}
}

// An address of the port that cannot be bound is left out. If there is no other, the error names it.
func TestOOBLeavesOutAddresses(t *testing.T) {
	onHost(t)
	h := aHost(t, func(_ *Config, p *Port) {
		p.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fe80::1"), netip.MustParseAddr("127.0.0.1")}
	})
	if got, err := parseOOBBlob(h.hub().blob); err != nil || len(got) != 1 || !got[0].Addr().IsLoopback() {
		t.Errorf("published %v, %v; want 127.0.0.1", got, err)
	}
	peer := aHost(t, nil)
	x, y := peer.endpoint(h, nil), h.endpoint(peer, nil)
	x.mustConnect(t)
	y.mustConnect(t)
	p := aPort("a")
	p.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	if _, err := Open(testConfig(1), p); err == nil || !strings.Contains(err.Error(), "192.0.2.1") {
		t.Errorf("a port whose only address cannot be bound: %v, want an error that names it", err)
	}
}

// Addresses of the other family, several of them, and link-local ones come through the blob.
func TestOOBBlob(t *testing.T) {
	onHost(t)
	list := func(s ...string) (l []netip.Addr) {
		for _, a := range s {
			l = append(l, netip.MustParseAddr(a))
		}
		return l
	}
	for _, addrs := range [][]netip.Addr{list("127.0.0.1"), list("::1"), list("::ffff:127.0.0.1"), list("127.0.0.1", "::1", "127.0.0.2")} {
		h := aHost(t, func(_ *Config, p *Port) { p.Addrs = addrs })
		got, err := parseOOBBlob(h.hub().blob)
		if err != nil || len(got) != len(addrs) {
			t.Fatalf("blob of %v: %v, %v", addrs, got, err)
		}
		for k, a := range got {
			if a.Addr() != addrs[k].Unmap() || a.Port() == 0 {
				t.Errorf("address %v in the blob, want %v", a, addrs[k])
			}
		}
		peer := aHost(t, nil)
		x, y := peer.endpoint(h, nil), h.endpoint(peer, nil)
		x.mustConnect(t)
		y.mustConnect(t)
		blob := h.hub().blob
		for n := range blob {
			if list, err := parseOOBBlob(blob[:n]); err == nil && len(list) == len(addrs) {
				t.Errorf("blob truncated to %d of %d bytes: %v", n, len(blob), list)
			}
		}
	}
}

// Blobs and cards that make no sense are errors of NewEndpoint, in one line. A card names at most four unicast
// addresses.
func TestBadBlobs(t *testing.T) {
	h := aHost(t, nil)
	for _, tt := range []struct {
		name string
		blob []byte
		want error
	}{
		{"empty", nil, driver.ErrInvalid},
		{"other version", []byte{oobVersion + 1, 4, 127, 0, 0, 1, 1, 1}, driver.ErrVersion},
		{"no address", []byte{oobVersion}, driver.ErrInvalid},
		{"odd length of address", []byte{oobVersion, 5, 127, 0, 0, 1, 1, 1}, driver.ErrInvalid},
		{"no port", []byte{oobVersion, 4, 127, 0, 0, 1, 0, 0}, driver.ErrInvalid},
		{"unspecified address", []byte{oobVersion, 4, 0, 0, 0, 0, 1, 1}, driver.ErrInvalid},
		{"multicast", []byte{oobVersion, 4, 224, 0, 0, 1, 1, 1}, driver.ErrInvalid},
		{"broadcast", []byte{oobVersion, 4, 255, 255, 255, 255, 9, 1}, driver.ErrInvalid},
		{"privileged port", []byte{oobVersion, 4, 127, 0, 0, 1, 0, 22}, driver.ErrInvalid},
		{"too many addresses", append([]byte{oobVersion}, bytes.Repeat([]byte{4, 127, 0, 0, 1, 1, 1}, maxOOBAddrs+1)...), driver.ErrInvalid},
		{"something behind", []byte{oobVersion, 4, 127, 0, 0, 1, 1, 1, 0}, driver.ErrInvalid},
	} {
		_, err := h.m.NewEndpoint(&EndpointConfig{PeerIncarnation: 1 << 50, PeerCard: formatCard([]entry{{"oob", 1, tt.blob}}), QPs: []QP{&fakeQP{}}})
		if !errors.Is(err, tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
}

// A card makes no host dial services that are no peers. Loopback addresses and ports below 1024 are dialed only from a
// context that listens at such itself.
func TestOOBDialsNoServices(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, tt := range []struct {
		name string
		own  string
		card string
		ok   bool
	}{
		{"another host", "192.0.2.1:40000", "192.0.2.2:40001", true},
		{"another host's service", "192.0.2.1:40000", "192.0.2.2:53", false},
		{"this host's service", "192.0.2.1:40000", "127.0.0.1:6379", false},
		{"the same by IPv6", "[2001:db8::1]:40000", "[::1]:6379", false},
		{"a peer on one host", "127.0.0.1:40000", "127.0.0.1:40001", true},
		{"a peer of root's", "192.0.2.1:900", "192.0.2.2:901", true},
	} {
		got := dialable([]netip.AddrPort{at(tt.card)}, []netip.AddrPort{at(tt.own)})
		if (len(got) == 1) != tt.ok {
			t.Errorf("%s: dials %v, want it to: %v", tt.name, got, tt.ok)
		}
	}
}

// Options of oob: addresses and port to listen at, priority.
func TestOOBOptions(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	free := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	h := aHost(t, func(c *Config, _ *Port) {
		c.Options = map[string]string{"oob-address": "127.0.0.3,::1", "oob-port": free, "oob-priority": "77"}
	})
	list, err := parseOOBBlob(h.hub().blob)
	if err != nil || len(list) != 2 || list[0].String() != "127.0.0.3:"+free || list[1].String() != "[::1]:"+free {
		t.Errorf("listens at %v (%v)", list, err)
	}
	if hub := h.hub(); hub.priority != 77 {
		t.Errorf("priority %d", hub.priority)
	}
	for name, value := range map[string]string{"oob-address": "nowhere", "oob-port": "65536", "oob-priority": "101", "oob-nothing": "1", "else": "1"} {
		cfg := testConfig(1)
		cfg.Options = map[string]string{name: value}
		if _, err := Open(cfg, aPort("a")); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("option %s=%s: %v, want %v", name, value, err, driver.ErrInvalid)
		}
	}
	cfg := testConfig(1)
	cfg.Options = map[string]string{"oob-address": "203.0.113.77"} // not assigned; hack/vm uses 192.0.2.0/24
	if _, err := Open(cfg, aPort("a")); err == nil || !strings.Contains(err.Error(), "oob-address") {
		t.Errorf("an address of another host: %v, want an error with the remedy", err)
	}
	p := aPort("a")
	p.Addrs = nil
	if _, err := Open(testConfig(1), p); !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "oob-address") {
		t.Errorf("a port without addresses: %v, want %v with the remedy", err, driver.ErrUnsupported)
	}
}
