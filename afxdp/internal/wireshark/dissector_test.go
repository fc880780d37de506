//go:build linux && !(386 || arm || mips || mipsle)

package wireshark_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/lab/tshark"
)

const (
	script  = "../../../hack/wireshark/bywash.lua"
	vectors = "../link/testdata/packets.txt"
)

// fields are some of every frame: a row a frame.
func fields(t *testing.T, file string, names []string, args ...string) (rows [][]string) {
	t.Helper()
	return tshark.Fields(t, script, file, names, args...)
}

func writePcap(t *testing.T, frames [][]byte, snap int) string {
	t.Helper()
	return tshark.Write(t, kit.LinkEthernet, frames, snap)
}

// goldenPackets are link packets by name, in the file's order.
func goldenPackets(t *testing.T) (names []string, packets map[string][]byte) {
	t.Helper()
	text, err := os.ReadFile(vectors)
	if err != nil {
		t.Fatal(err)
	}
	packets = map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		if name, text, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && name[0] != '#' {
			b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			names, packets[name] = append(names, name), b
		}
	}
	return names, packets
}

var ways = map[string]carrier.Config{
	"udp4": {Kind: carrier.UDP4, Src: netip.MustParseAddrPort("192.0.2.1:50000"), Dst: netip.MustParseAddrPort("192.0.2.2:24249")},
	"udp6": {
		Kind: carrier.UDP6, Src: netip.MustParseAddrPort("[2001:db8::1]:24249"), Dst: netip.MustParseAddrPort("[2001:db8::2]:24249"),
	},
	"udp4-other-port": {
		Kind: carrier.UDP4, Src: netip.MustParseAddrPort("192.0.2.1:50000"), Dst: netip.MustParseAddrPort("192.0.2.2:40000"),
	},
	"ether": {
		Kind: carrier.Ether, Src: netip.AddrPortFrom(netip.Addr{}, 24249), Dst: netip.AddrPortFrom(netip.Addr{}, 24249),
	},
	"ether-vlan": {
		Kind: carrier.Ether, Src: netip.AddrPortFrom(netip.Addr{}, 24249), Dst: netip.AddrPortFrom(netip.Addr{}, 24249),
	},
}

// frame puts a link packet behind our prefix and the carrier's headers.
func frame(t *testing.T, c carrier.Config, packet []byte) []byte {
	t.Helper()
	c.SrcMAC, c.DstMAC = carrier.MAC{2, 0, 0, 0, 0, 1}, carrier.MAC{2, 0, 0, 0, 0, 2}
	p, err := carrier.NewPath(c)
	if err != nil {
		t.Fatal(err)
	}
	payload := append([]byte{0xb7, 1, 2, 3}, packet...)
	f := append(make([]byte, p.HeaderLen()), payload...)
	if n := p.Put(f, len(payload)); n != len(f) {
		t.Fatalf("the frame has %d bytes of %d", n, len(f))
	}
	for len(f) < 60 { // as Ethernet does
		f = append(f, 0)
	}
	return f
}

const (
	goldenDial, goldenAccept = "0x3132333435360000", "0x4142434445460002"
	dialer, listener         = "0x2122232425262728", "0x1112131415161718"
)

// Fields that the dissector must show of each vector; names are without "bywash.".
var want = map[string]map[string]string{
	"init": {
		"kind": "1", "link_version": "3", "size": "176", "sent": "8174723217654970232", "to": listener, "from": dialer, "id": goldenDial,
		"nonce": "000102030405060708090a0b0c0d0e0f", "mtu": "3766", "first_credit": "36", "longest": "65503", "window": "256",
		"options.encrypt": "0", "hello": "68656c6c6f",
		"cookie": "0807060504030201a0a1a2a3a4a5a6a7a8a9aaabacadaeaf",
	},
	"cookie": {"kind": "2", "to": goldenDial, "cookie": "0807060504030201a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"},
	"accept": {
		"kind": "3", "to": goldenDial, "from": listener, "id": goldenAccept, "mtu": "3766", "first_credit": "36", "longest": "8964",
		"window": "1024", "options.encrypt": "0", "hello": "",
	},
	"reject":          {"kind": "4", "to": goldenDial, "from": listener, "code": "2"},
	"connect request": {"kind": "5", "to": dialer, "from": listener, "id": goldenAccept, "sent": "8174723217654970232"},
	"here":            {"kind": "12", "to": listener, "from": dialer, "id": goldenAccept, "sent": "8174723217654970232"},
	"query":           {"kind": "13", "to": listener, "from": dialer, "id": goldenAccept, "sent": "8174723217654970232"},
	"gone":            {"kind": "14", "to": dialer, "from": listener, "id": goldenAccept, "sent": "8174723217654970232"},
	"data": {
		"kind": "6", "flags": "0x21", "flags.more": "1", "flags.ask": "1", "flags.placed": "0", "flags.sealed": "0",
		"size": "61", "conn": goldenAccept, "pn": "5", "cum": "4294967298", "credit": "18", "stamp": "16909060", "echo": "16909056", "delay": "7",
		"words": "0", "seq": "3", "payload": "68656c6c6f",
	},
	"placed": {
		"kind": "6", "flags.placed": "1", "seq": "4", "tag": "0x5152535455565758", "offset": "4096", "total": "1048576",
		"payload": "706c61636564",
	},
	"data-bitmap": {
		"seq": "5", "payload": "626f7468", "words": "2", "bitmap": "0x8000000000000017,0x0000000000000001",
		"acked": "4294967299-4294967301,4294967303,4294967362-4294967363",
	},
	"ack":    {"kind": "7", "words": "1", "dups": "3", "bitmap": "0x0000000000000006", "acked": "4294967300-4294967301"},
	"ping":   {"kind": "8", "pn": "9", "words": "0", "acked": ""},
	"close":  {"kind": "9", "flags.abort": "1", "end": "6"},
	"closed": {"kind": "10", "flags.abort": "0", "end": "0"},
	"reset":  {"kind": "11", "to": goldenAccept},
	"sealed": {"kind": "6", "flags.sealed": "1", "pn": "12", "cum": "4294967298", "seq": "", "payload": ""},
}

func TestEveryKindIsShown(t *testing.T) {
	names, packets := goldenPackets(t)
	var columns []string
	for _, w := range want {
		for c := range w {
			if !slices.Contains(columns, c) {
				columns = append(columns, c)
			}
		}
	}
	slices.Sort(columns)
	full := []string{
		"bywash.dst", "bywash.src", "bywash.crc.good", "_ws.malformed", "bywash.short", "bywash.sealed", "bywash.auth_tag", "bywash.mac",
	}
	for _, c := range columns {
		full = append(full, "bywash."+c)
	}
	for way, c := range ways {
		if testing.Short() && way != "udp4" && way != "ether-vlan" {
			continue
		}
		t.Run(way, func(t *testing.T) {
			var frames [][]byte
			for _, n := range names {
				f := frame(t, c, packets[n])
				if way == "ether-vlan" { // a tag, as a switch inserts it
					f = slices.Insert(f, 12, 0x81, 0, 0, 100)
				}
				frames = append(frames, f)
			}
			rows := fields(t, writePcap(t, frames, 1<<16), full, "-o", "bywash.checksum:TRUE")
			if len(rows) != len(names) || len(names) != len(want) {
				t.Fatalf("%d rows for %d packets, %d expected", len(rows), len(names), len(want))
			}
			for k, n := range names {
				b := packets[n]
				base := map[string]string{"bywash.dst": "2", "bywash.src": "3", "bywash.crc.good": "1", "_ws.malformed": "", "bywash.short": ""}
				switch n {
				case "sealed":
					base["bywash.crc.good"] = ""
					base["bywash.sealed"], base["bywash.auth_tag"] = hex.EncodeToString(b[48:len(b)-16]), hex.EncodeToString(b[len(b)-16:])
				case "init", "accept", "connect request", "here", "query", "gone":
					base["bywash.mac"] = hex.EncodeToString(b[len(b)-16:])
				}
				for c, v := range want[n] {
					base["bywash."+c] = v
				}
				for c, v := range base {
					if got := rows[k][slices.Index(full, c)]; got != v {
						t.Errorf("%s: %s is %q, want %q", n, c, got, v)
					}
				}
			}
		})
	}
}

func TestWrongChecksumsAreShown(t *testing.T) {
	_, packets := goldenPackets(t)
	b := bytes.Clone(packets["data"])
	b[len(b)-1] ^= 1
	file := writePcap(t, [][]byte{frame(t, ways["udp4"], b)}, 1<<16)
	rows := fields(t, file, []string{"bywash.crc.good", "bywash.crc.bad"}, "-o", "bywash.checksum:TRUE")
	if len(rows) != 1 || rows[0][0] != "0" || rows[0][1] == "" {
		t.Errorf("%q, want a wrong checksum", rows)
	}
}

// A capture with --snap, and frames that anybody may have sent: something is shown, and the script has no error.
func TestCutAndMalformedFramesAreNoErrors(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	names, packets := goldenPackets(t)
	var frames [][]byte
	for range 1000 {
		b := bytes.Clone(packets[names[r.IntN(len(names))]])
		for range r.IntN(4) {
			b[r.IntN(min(len(b), 50))] = byte(r.Uint32())
		}
		b = b[:r.IntN(len(b)+1)]
		way := []string{"udp4", "udp6", "ether"}[r.IntN(3)]
		frames = append(frames, frame(t, ways[way], b))
	}
	snaps := []int{1 << 16, 70, 128, 100, 47, 44}
	if testing.Short() {
		snaps = snaps[:2]
	}
	for _, snap := range snaps {
		out := tshark.Run(t, script, writePcap(t, frames, snap), "-V", "-o", "bywash.checksum:TRUE")
		if n := strings.Count(out, "\nFrame "); n < len(frames)-1 {
			t.Errorf("snap %d: %d frames of %d are shown", snap, n, len(frames))
		}
	}
}

// Datagrams of others on other ports stay theirs.
func TestOtherDatagramsAreLeftAlone(t *testing.T) {
	c := ways["udp4-other-port"]
	_, packets := goldenPackets(t)
	short := frame(t, c, packets["data"][:len(packets["data"])-1])
	other := bytes.Clone(frame(t, c, packets["data"]))
	other[42] = 0
	rows := fields(t, writePcap(t, [][]byte{short, other, frame(t, c, packets["data"])}, 1<<16), []string{"bywash.kind"})
	if fmt.Sprint(rows) != "[[] [] [6]]" {
		t.Errorf("%q, want the third only", rows)
	}
}
