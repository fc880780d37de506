//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"bufio"
	"encoding/hex"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/bywash/bywash/internal/handshake"
)

// goldenFile has the bytes that docs/wire.md describes.
const goldenFile = "testdata/wire.txt"

func anOffer() offer {
	return offer{linkLayer: Ethernet, gidType: GIDRoCEv2, mtu: 3, responder: 16, initiator: 16, pkey: 0xffff, n: 1,
		gid: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}}
}

func goldenOffer() offer {
	o := anOffer()
	o.lid, o.pkey, o.responder, o.initiator, o.n = 0x0102, 0x8001, 16, 8, 2
	o.qps = [maxQPs]qpOffer{{0x112233, 0x445566}, {0x778899, 0xaabbcc}}
	o.user = []byte("user")
	return o
}

func goldenMessages() (names []string, messages []message) {
	return []string{"request", "reply", "confirm", "reject", "gone", "alive", "bye"}, []message{
		{kind: msgRequest, offer: goldenOffer()},
		{kind: msgReply, offer: goldenOffer()},
		{kind: msgConfirm},
		{kind: msgReject, code: rejectStep, detail: 1<<16 | 110},
		{kind: msgGone}, {kind: msgAlive}, {kind: msgBye},
	}
}

// goldenBytes are vectors that are no messages.
func goldenBytes() map[string][]byte {
	key, _ := handshake.NewKey([]byte("sixteen bytes or more"))
	c := claim{version: protocolVersion, purpose: forWatching, from: 0x0102030405060708, to: 0x1112131415161718}
	t := ticket{from: c.from, to: c.to}
	t.mac = key.MAC(ticketLabel, t.signed())
	return map[string][]byte{
		"claim":       c.append(nil),
		"welcome":     (&welcome{code: refuseBusy}).append(nil),
		"ticket":      t.append(nil),
		"reject data": appendHead(nil, refuseSecret),
		"blob oob": append([]byte{oobVersion, 4, 10, 0, 0, 1, 0x12, 0x34, 16},
			append(netip.MustParseAddr("2001:db8::1").AsSlice(), 0x12, 0x35)...),
		"blob rdmacm": {rdmacmVersion, 4, 10, 0, 0, 1, 0x12, 0x34},
		"card":        []byte(formatCard([]entry{{"oob", 50, []byte{1, 4, 10, 0, 0, 1, 0x12, 0x34}}, {"rdmacm", 30, []byte{1, 2}}})),
	}
}

// vectors reads the lines "vector name: hex" of goldenFile.
func vectors(t *testing.T) map[string][]byte {
	t.Helper()
	f, err := os.Open(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := make(map[string][]byte)
	line := regexp.MustCompile(`^vector ([a-z ]+): ([0-9a-f ]+)$`)
	for s := bufio.NewScanner(f); s.Scan(); {
		if m := line.FindStringSubmatch(s.Text()); m != nil {
			b, err := hex.DecodeString(strings.ReplaceAll(m[2], " ", ""))
			if err != nil {
				t.Fatalf("%s: %v", m[0], err)
			}
			all[m[1]] = append(all[m[1]], b...)
		}
	}
	return all
}

// The bytes on the wire are those of goldenFile, both ways.
func TestWireIsAsDocumented(t *testing.T) {
	golden := vectors(t)
	check := func(name string, got []byte) {
		if string(got) != string(golden[name]) {
			t.Errorf("%s: got % x, file has % x", name, got, golden[name])
		}
		delete(golden, name)
	}
	names, messages := goldenMessages()
	for k, want := range messages {
		var m message
		if err := m.parse(golden[names[k]]); err != nil || !reflect.DeepEqual(m, want) {
			t.Errorf("%s parsed: got %+v (%v), want %+v", names[k], m, err, want)
		}
		check(names[k], want.append(nil))
	}
	if len(messages) != msgKinds {
		t.Errorf("%d of %d messages have vectors", len(messages), msgKinds)
	}
	for name, b := range goldenBytes() {
		check(name, b)
	}
	for name := range golden {
		t.Errorf("file has a vector %q that nothing makes", name)
	}
}

// The blobs, card and ticket of goldenFile parse to the values that its comment names.
func TestGoldenBlobsParse(t *testing.T) {
	golden := vectors(t)
	if list, err := parseOOBBlob(golden["blob oob"]); err != nil || len(list) != 2 || list[0].String() != "10.0.0.1:4660" || list[1].String() != "[2001:db8::1]:4661" {
		t.Errorf("oob: %v, %v", list, err)
	}
	if at, err := parseRDMABlob(golden["blob rdmacm"]); err != nil || at.String() != "10.0.0.1:4660" {
		t.Errorf("rdmacm: %v, %v", at, err)
	}
	var k ticket
	if err := k.parse(golden["ticket"]); err != nil || k.from != 0x0102030405060708 || k.to != 0x1112131415161718 || len(golden["ticket"]) != 56 {
		t.Errorf("ticket of %d bytes: %+v, %v", len(golden["ticket"]), k, err)
	}
	if list, err := parseCard(string(golden["card"])); err != nil || len(list) != 2 || list[1].priority != 30 {
		t.Errorf("card: %v, %v", list, err)
	}
}
