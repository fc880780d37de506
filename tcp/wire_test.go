//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// goldenFile has the bytes that docs/wire.md describes.
const goldenFile = "testdata/wire.txt"

// golden are bytes of each kind that this driver puts on the wire.
func golden() map[string][]byte {
	c := claim{track: driver.Large, encrypt: true, deadTime: 5 * time.Second, from: 0x0102030405060709, to: 0x1112131415161719}
	var data [transferHead]byte
	(&transfer{kind: frameMessage, tag: 0x0201, bytes: 5, total: 6}).put(&data)
	var rdv [kit.RdvBytes]byte
	kit.PutRdv(&rdv, 0x0102030405060708, 0x0201, 5)
	s := newSmall()
	s.put(0, frameMessage, copy(s.out[headSize:], "hello"))
	frames := map[string]uint32{
		"ping": frameHead(framePing, 0), "bye": frameHead(frameBye, 0), "grant": frameHead(frameGrant, grantStep/4),
	}
	all := map[string][]byte{
		"claim": c.append(nil), "welcome": note{kind: noteWelcome, deadTime: 5 * time.Second}.append(nil),
		"refusal": note{kind: noteWelcome, code: refuseStale}.append(nil),
		"take":    note{kind: noteTake, token: 0x0102030405060708}.append(nil), "seen": note{kind: noteSeen}.append(nil),
		"up":      note{kind: noteUp}.append(nil),
		"stand":   note{kind: noteStand, token: 0x0102030405060708}.append(nil),
		"message": bytes.Clone(s.out[:frameSize(5)]), "transfer": data[:], "rdv data": rdv[:],
		"url": []byte(address{port: 40000, network: 0x0102030405060708, addrs: []netip.Addr{
			netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"),
		}}.String()),
	}
	for name, h := range frames {
		all[name] = []byte{byte(h), byte(h >> 8), byte(h >> 16), byte(h >> 24)}
	}
	return all
}

// The bytes on the wire are those of goldenFile.
func TestWireIsAsDocumented(t *testing.T) {
	text, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^tcp, ([a-z ]+): ([0-9a-f ]+)$`).FindAllStringSubmatch(string(text), -1) {
		want[m[1]] += strings.ReplaceAll(m[2], " ", "")
	}
	for name, got := range golden() {
		if hex.EncodeToString(got) != want[name] {
			t.Errorf("%s: got % x, file has %s", name, got, want[name])
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("file has a vector %q that nothing makes", name)
	}
}

// FuzzURL: the rest of a url that is accepted has the same meaning after it is formatted.
func FuzzURL(f *testing.F) {
	f.Add("40000,0102030405060708,192.0.2.1,2001:db8::1")
	f.Add("1,0000000000000000,127.0.0.1")
	f.Add("0,0102030405060708,::")
	f.Add("40000,0102030405060708,fe80::1%eth0")
	f.Add("40000,192.0.2.1")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseAddress(s)
		if err != nil {
			if !errors.Is(err, driver.ErrInvalid) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		_, rest, _ := strings.Cut(s, ",")
		if network, _, _ := strings.Cut(rest, ","); !strings.EqualFold(network, fmt.Sprintf("%016x", a.network)) {
			t.Fatalf("network of %q is read as %x", s, a.network)
		}
		b, err := parseAddress(a.String())
		if err != nil || a.String() != b.String() || len(a.addrs) == 0 || len(a.addrs) > maxAddresses || a.port == 0 {
			t.Fatalf("%q: %v, formatted %q: %v", s, a, a.String(), err)
		}
		for _, own := range []string{
			"40000,0102030405060708,192.0.2.1", "1,0102030405060708,127.0.0.1,192.0.2.1", "40000,0102030405060708,::1",
		} {
			mine, err := parseAddress(own)
			if err != nil {
				t.Fatal(err)
			}
			here, there := mine.apart(a) == "", a.apart(mine) == ""
			if here != there || mine.domain() == a.domain() && !here {
				t.Fatalf("%v reaches %v: %v, and the other way round %v", mine, a, here, there)
			}
		}
	})
}

// FuzzHello: a claim or note that is accepted is the one that its fields make.
func FuzzHello(f *testing.F) {
	for _, b := range golden() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := parseClaim(b); err == nil && (!bytes.Equal(m.append(nil), b) || m.from == m.to) {
			t.Errorf("claim % x is read as %+v", b, m)
		}
		if m, err := parseNote(b); err == nil && !bytes.Equal(m.append(nil), b) {
			t.Errorf("note % x is read as %+v", b, m)
		}
	})
}

func TestOptionsOutOfRangeAreRefused(t *testing.T) {
	for option, values := range map[string]map[string]bool{
		"port": {
			"1": true, "65535": true, "5000-5100": true, "5000-5000": true,
			"0": false, "65536": false, "5100-5000": false, "5000-": false, "-5000": false, "x": false,
		},
		"address": {
			"192.0.2.1": true, "192.0.2.1,2001:db8::1": true,
			"0.0.0.0": false, "255.255.255.255": false, "224.0.0.1": false, "host": false, "192.0.2.1,": false,
			"1.0.0.1,1.0.0.2,1.0.0.3,1.0.0.4,1.0.0.5,1.0.0.6,1.0.0.7,1.0.0.8,1.0.0.9": false,
		},
		"encrypt": {"on": true, "off": true, "maybe": false},
		"wait":    {"sleep": true, "spin": true, "": false},
	} {
		for value, ok := range values {
			if _, err := optionTable.Parse(map[string]string{option: value}); (err == nil) != ok {
				t.Errorf("option %s=%s: %v", option, value, err)
			}
		}
	}
}
