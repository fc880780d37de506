package tcp

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/internal/lab/tshark"
)

const dissector = "../hack/wireshark/bywash_tcp.lua"

// recorded are transfers on both tracks, in the clear and encrypted: the sizes of their messages, and the packets that
// the tap of one end shows.
type recorded struct {
	track   driver.Track
	encrypt bool
	sizes   []int
	packets [][]byte
}

func recordAll(t *testing.T) (all []recorded, packets [][]byte) {
	t.Helper()
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		for _, encrypt := range []string{"off", "on"} {
			x := recorded{track: track, encrypt: encrypt == "on", sizes: []int{30, 3000}}
			if track == driver.Large {
				x.sizes = []int{40, 2*segmentSize + 100}
			}
			x.packets = recordTransfer(t, track, map[string]string{"encrypt": encrypt}, x.sizes...)[0].packets()
			all = append(all, x)
			packets = append(packets, x.packets...)
		}
	}
	return all, packets
}

// elements are what tshark shows of packets, by stream: only fields that do not depend on how the stream is cut.
func elements(t *testing.T, packets [][]byte, args ...string) map[string][]string {
	t.Helper()
	names := []string{"tcp.stream", "tcp.srcport"}
	shown := []string{
		"handshake", "note", "kind", "length", "granted", "tag", "follow", "record", "malformed", "lost", "cut",
	}
	for _, n := range shown {
		names = append(names, "bywash_tcp."+n)
	}
	all := make(map[string][]string)
	for _, row := range tshark.Fields(t, dissector, tshark.Write(t, kit.LinkRaw, packets, 1<<18), names, args...) {
		from := row[0] + " " + row[1]
		for k, v := range row[2:] {
			for x := range strings.SplitSeq(v, ",") {
				if x = strings.TrimSpace(x); x != "" {
					all[from+" "+shown[k]] = append(all[from+" "+shown[k]], x)
				}
			}
		}
	}
	return all
}

// count is how often value is shown of a field, in all streams.
func count(all map[string][]string, field, value string) (n int) {
	for name, list := range all {
		if strings.HasSuffix(name, " "+field) {
			for _, v := range list {
				if v == value || value == "" {
					n++
				}
			}
		}
	}
	return n
}

func complains(all map[string][]string) bool {
	return count(all, "malformed", "")+count(all, "lost", "")+count(all, "cut", "") > 0
}

func TestDissectorShowsATransfer(t *testing.T) {
	all, packets := recordAll(t)
	shown := elements(t, packets)
	if complains(shown) {
		t.Errorf("complaints: %v", shown)
	}
	for _, name := range []string{"Claim", "Take", "Stand", "Up"} {
		if n := count(shown, "note", name); n < len(all) {
			t.Errorf("%s is shown %d times for %d connections", name, n, len(all))
		}
	}
	for _, x := range all {
		for _, n := range x.sizes {
			want := 2 // there and back
			if x.encrypt {
				continue
			}
			if got := count(shown, "length", fmt.Sprint(n)); got != want {
				t.Errorf("%v: messages of %d bytes are shown %d times, want %d", x.track, n, got, want)
			}
		}
	}
	if n := count(shown, "kind", "3"); n < 2 {
		t.Errorf("%d byes, want one of each connection in the clear", n)
	}
	// A record for each small message and the head of a long one at least.
	if n := count(shown, "record", ""); n < 8 {
		t.Errorf("%d encrypted records", n)
	}
}

// Payloads and details of one element of each kind.
func TestDissectorShowsDetails(t *testing.T) {
	small := recordTransfer(t, driver.Small, nil, 30)[0].packets()
	large := recordTransfer(t, driver.Large, nil, 30)[0].packets()
	file := tshark.Write(t, kit.LinkRaw, slices.Concat(small, large), 1<<18)
	text := hex.EncodeToString(append([]byte(secretText), make([]byte, 30-len(secretText))...))
	names := []string{"bywash_tcp.payload", "bywash_tcp.tag", "bywash_tcp.slot", "bywash_tcp.follow"}
	rows := tshark.Fields(t, dissector, file, names)
	var payloads, heads int
	for _, r := range rows {
		if r[0] == text {
			payloads++
		}
		if r[1] == "0x0000000000000100" && r[2] == "0" && r[3] == "30" {
			heads++
		}
	}
	if payloads != 4 || heads != 2 {
		t.Errorf("%d payloads and %d heads are shown, want 4 and 2: %q", payloads, heads, rows)
	}
	shown := tshark.Run(t, dissector, file, "-V")
	for _, s := range []string{
		"Key id: " + keyID(t, small), "Bywash handshake: Hello", "Part of a message", "Bytes left of it: 0",
	} {
		if !strings.Contains(strings.ToLower(shown), strings.ToLower(s)) {
			t.Errorf("tshark does not show %q", s)
		}
	}
}

// keyID finds the key id in the hello of a capture.
func keyID(t *testing.T, packets [][]byte) string {
	t.Helper()
	for _, p := range packets {
		if at := bytes.Index(p, []byte{0x42, 0x79, 0x48, 0x73, 1, 1, 0, 0}); at >= 0 && len(p) >= at+16 {
			return hex.EncodeToString(p[at+8 : at+16])
		}
	}
	t.Fatal("no hello was recorded as a whole")
	return ""
}

// recut cuts the segments of a capture into pieces of at most most bytes. Without marked they look like the segments of
// tcpdump.
func recut(t *testing.T, packets [][]byte, r *rand.Rand, most int, marked bool) [][]byte {
	t.Helper()
	var out recorder
	for _, p := range packets {
		s, err := parseSegment(p)
		if err != nil {
			t.Fatal(err)
		}
		f := &flow{tap: &tap{}, mark: [markSize]byte(s.mark)}
		f.ends[outward], f.ends[inward] = s.from, s.to
		if !marked {
			f.mark = [markSize]byte(bytes.Repeat([]byte{1}, markSize)) // no operation
		}
		for at := 0; at < len(s.data); {
			n := 1 + r.IntN(most)
			if s.seq == 0 && at == 0 {
				n = max(n, 8) // by which the dissector knows a connection; a hello is sent in one piece
			}
			n = min(n, len(s.data)-at)
			f.show([]kit.Sink{&out}, outward, 1, s.seq+uint32(at), [][]byte{s.data[at:]}, n)
			at += n
		}
	}
	return out.packets()
}

// Streams mean the same however they are cut into segments.
func TestDissectorReassembles(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	_, packets := recordAll(t)
	want := elements(t, packets)
	for _, most := range []int{90, 2000} {
		got := elements(t, recut(t, packets, r, most, false))
		for name, list := range want {
			if !slices.Equal(got[name], list) {
				t.Errorf("pieces of up to %d bytes: %s is %q, want %q", most, name, got[name], list)
			}
		}
		if len(got) != len(want) {
			t.Errorf("pieces of up to %d bytes: %d fields, want %d", most, len(got), len(want))
		}
	}
}

// A capture that begins after the handshake shows messages: by the mark in its segments, or by the port that is given.
func TestDissectorFindsTheNextFrame(t *testing.T) {
	all, _ := recordAll(t)
	var packets [][]byte
	for _, x := range all {
		x.packets = slices.DeleteFunc(x.packets, func(p []byte) bool {
			s, err := parseSegment(p)
			return err != nil || s.mark[5]&markMessages == 0
		})
		packets = append(packets, x.packets...)
	}
	check := func(how string, shown map[string][]string) {
		t.Helper()
		for _, x := range all {
			for _, n := range x.sizes {
				if got := count(shown, "length", fmt.Sprint(n)); !x.encrypt && got != 2 {
					t.Errorf("%s, %v: messages of %d bytes are shown %d times, want 2", how, x.track, n, got)
				}
			}
		}
		if n := count(shown, "record", ""); n < 8 {
			t.Errorf("%s: %d encrypted records", how, n)
		}
	}
	check("marked", elements(t, packets))
	unmarked := recut(t, packets, rand.New(rand.NewPCG(1, 1)), segmentSize, false)
	if shown := elements(t, unmarked); len(shown) != 0 {
		t.Errorf("connections that nothing says are the driver's: %v", shown)
	}
	var args []string
	for _, p := range unmarked {
		s, _ := parseSegment(p)
		args = append(args, "-d", fmt.Sprintf("tcp.port==%d,bywash_tcp", s.to.Port()))
	}
	check("by port", elements(t, unmarked, args...))
}

// Captures with --snap, with lost segments, and streams that anybody may have sent: something is shown, and the script
// has no error.
func TestDissectorBearsAnything(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	_, whole := recordAll(t)
	var packets [][]byte
	for k := range 4 {
		for _, p := range recut(t, whole, r, 1+r.IntN(20000), k%2 == 0) {
			switch r.IntN(8) {
			case 0:
				continue // lost
			case 1, 2:
				b := p[ip4Size+tcpSize:]
				b[r.IntN(min(len(b), 40))] = byte(r.Uint32())
			case 3:
				p[ip4Size+20+r.IntN(markSize)] = byte(r.Uint32())
			}
			p[ip4Size+r.IntN(2)] += byte(k) // other ports, another connection
			packets = append(packets, p)
		}
	}
	for _, snap := range []int{1 << 18, ip4Size + tcpSize + 6, 100} {
		out := tshark.Run(t, dissector, tshark.Write(t, kit.LinkRaw, packets, snap), "-V", "-o", "bywash_tcp.port:7777")
		if n := strings.Count(out, "\nFrame "); n < len(packets)-1 {
			t.Errorf("snap %d: %d frames of %d are shown", snap, n, len(packets))
		}
	}
}
