//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

var (
	goldenHello = hello{large: true, tag: 0x1122334455667788, addr: 0x7f0011223000, rkey: 0xabcd, depth: 16}
	goldenSmall = hello{buffer: 4096, limit: 64}
	goldenRdv   = rdvData{tag: 0x1122334455667788, slot: 3, gen: 0x01020304, length: 5000, n: 2,
		piece: [maxPieces]remotePiece{{0x7f0000001000, 4096, 0x77}, {0x7f0000003000, 904, 0x78}}}
	goldenKey = regionKey{incarnation: 0x0102030405060708, addr: 0x7f0000001000, length: 4096, rkey: 0x99, access: driver.RemoteWrite}
)

// TestWireFormat pins what travels: see docs/wire.md.
func TestWireFormat(t *testing.T) {
	var key [keyBytes]byte
	goldenKey.encode(key[:])
	for _, x := range []struct {
		name string
		got  []byte
		want string
	}{
		{"hello, large", goldenHello.encode(), "56577942010100000000000000000000887766554433221100302211007f0000cdab0000100000000000000000000000"},
		{"hello, small", goldenSmall.encode(), "565779420100000000100000400000000000000000000000000000000000000000000000000000000000000000000000"},
		{"rdv data", goldenRdv.encode(make([]byte, rdvBytes)), "5256010203000000040302010000000088776655443322118813000000000000001000" +
			"00007f000000100000000000007700000000300000007f0000880300000000000078000000ec2c57b2"},
		{"remote key", key[:], "524b010299000000080706050403020100100000007f000000100000000000000000000045e9f1dd"},
	} {
		if got := hex.EncodeToString(x.got); got != x.want {
			t.Errorf("%s:\n got %s\nwant %s", x.name, got, x.want)
		}
	}
	if got := immediate(codeDone, transferName(3, 0x01020304)); got != 0x42030403 {
		t.Errorf("immediate %#x", got)
	}
}

func TestLimitsSurviveTheirShortForm(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed: %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 100_000 {
		near := rnd.Uint32()
		limit := near + rnd.Uint32N(1<<27) - 1<<26
		if got := expand(limit&limitMask, near); got != limit {
			t.Fatalf("limit %#x near %#x became %#x", limit, near, got)
		}
	}
}

// Set-up data that was cut, is of another version, or has a value out of range is refused.
func TestDamagedSetUpDataIsRefused(t *testing.T) {
	good := goldenHello.encode()
	for n := range good {
		if _, err := parseHello(good[:n]); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%d of %d bytes: %v", n, len(good), err)
		}
	}
	other := slices.Clone(good)
	other[4]++
	if _, err := parseHello(other); !errors.Is(err, driver.ErrVersion) {
		t.Errorf("another version: %v", err)
	}
	for _, h := range []hello{
		{large: true, addr: 1, depth: 0}, {large: true, addr: 1, depth: maxTransfers + 1}, {large: true, depth: 16},
		{buffer: 0, limit: 64}, {buffer: maxBuffer + 1, limit: 64}, {buffer: 4096}, {buffer: 4096, limit: maxDepth + 1},
	} {
		if _, err := parseHello(h.encode()); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%+v: %v", h, err)
		}
	}
}

func TestUpdatesExtendRdvData(t *testing.T) {
	known := func() *rdvData {
		r := rdvData{tag: 1, slot: 2, gen: 3, length: 100, n: 2}
		r.piece[0], r.piece[1] = remotePiece{0x1000, 30, 7}, remotePiece{0x2000, 30, 8}
		return &r
	}
	next := rdvData{tag: 1, slot: 2, gen: 3, length: 100, first: 2, n: 1}
	next.piece[0] = remotePiece{0x3000, 40, 9}
	for _, x := range []struct {
		name   string
		change func(*rdvData)
		ok     bool
		n      int
	}{
		{"the next piece", func(*rdvData) {}, true, 3},
		{"pieces that are known", func(r *rdvData) { r.first = 1 }, true, 2},
		{"a gap", func(r *rdvData) { r.first = 3 }, false, 2},
		{"the beginning", func(r *rdvData) { r.first = 0 }, false, 2},
		{"another slot", func(r *rdvData) { r.slot = 1 }, false, 2},
		{"another receive of the slot", func(r *rdvData) { r.gen = 4 }, false, 2},
		{"another length", func(r *rdvData) { r.length = 101 }, false, 2},
		{"more than the length", func(r *rdvData) { r.piece[0].length = 41 }, false, 2},
	} {
		r, more := known(), next
		x.change(&more)
		var read rdvData
		if err := read.parse(more.encode(make([]byte, rdvBytes)), 1, transferDepth); err != nil {
			t.Errorf("%s: %v", x.name, err)
		}
		if ok := r.extend(&read); ok != x.ok || r.n != x.n || ok && x.n == 3 && r.covered() != 100 {
			t.Errorf("%s: %v, %d pieces of %d bytes", x.name, ok, r.n, r.covered())
		}
	}
}

// Set-up data that parses is encoded to the same bytes.
func FuzzHello(f *testing.F) {
	f.Add(goldenHello.encode())
	f.Add(goldenSmall.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err == nil && !bytes.Equal(h.encode(), b) {
			t.Errorf("%x was taken for %+v", b, h)
		}
	})
}

// Rdv data that parses is encoded to the same bytes, and its pieces cover its length.
func FuzzRdvData(f *testing.F) {
	f.Add(goldenRdv.encode(make([]byte, rdvBytes)))
	f.Add((&rdvData{tag: goldenRdv.tag}).encode(make([]byte, rdvBytes)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r rdvData
		if r.parse(b, goldenRdv.tag, transferDepth) != nil {
			return
		}
		if got := r.encode(make([]byte, rdvBytes)); !bytes.Equal(got, b) {
			t.Errorf("%x was taken for %+v", b, r)
		}
		// Every rdv data that parse accepts can be walked.
		for off := 0; off < r.length; off += max(1, r.length/7) {
			if at, p := seekPiece(r.piece[:r.n], off); at < 0 || at >= p.length {
				t.Errorf("byte %d lies at %d of %d", off, at, p.length)
			}
		}
	})
}

// A key is ErrRemoteKey, or is encoded to the same bytes.
func FuzzRemoteKey(f *testing.F) {
	var key [keyBytes]byte
	goldenKey.encode(key[:])
	f.Add(key[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := parseKey(b, goldenKey.incarnation)
		if err != nil {
			if !errors.Is(err, driver.ErrRemoteKey) {
				t.Errorf("%x: %v", b, err)
			}
			return
		}
		var again [keyBytes]byte
		k.encode(again[:])
		if !bytes.Equal(b, again[:]) {
			t.Errorf("%x was taken for %+v", b, k)
		}
	})
}

// TestRepeatingEndsWithinTheDeadTime: seven tries, each up to four times as long as configured, and no try shorter than
// need be.
func TestRepeatingEndsWithinTheDeadTime(t *testing.T) {
	for _, x := range []struct {
		opts map[string]string
		want uint8
	}{
		{nil, 15}, {map[string]string{"dead-time": "100ms"}, 9}, {map[string]string{"dead-time": "10s"}, 16},
		{map[string]string{"dead-time": "1h"}, 24}, {map[string]string{"dead-time": "10s", "ack-timeout": "14"}, 14},
	} {
		o, err := parseOptions(x.opts)
		if err != nil || o.quality.AckTimeout != x.want {
			t.Errorf("%v: code %d, error %v, want code %d", x.opts, o.quality.AckTimeout, err, x.want)
		}
		tries := 7 * 4 * (4096 * time.Nanosecond << o.quality.AckTimeout)
		if x.opts["ack-timeout"] == "" && (tries > o.deadTime || 2*tries <= o.deadTime) {
			t.Errorf("%v: the device gives up after up to %v, the dead time is %v", x.opts, tries, o.deadTime)
		}
	}
}

// An option that is unknown, or whose value is out of range, is ErrInvalid.
func TestOptionsAreChecked(t *testing.T) {
	for _, x := range []struct {
		name, value string
		ok          bool
	}{
		{"gid", "3", true}, {"gid", "192.0.2.1", true}, {"gid", "fe80::1", true}, {"gid", "", false}, {"gid", "256", false},
		{"buffer", "4096", true}, {"buffer", "0", false}, {"buffer", "1048577", false}, {"buffer", "x", false},
		{"window", "2", true}, {"window", "1", false}, {"window", "513", false},
		{"service-level", "15", true}, {"service-level", "16", false}, {"traffic-class", "256", false},
		{"ack-timeout", "0", false}, {"ack-timeout", "31", true}, {"dead-time", "1s", true}, {"dead-time", "1", false},
		{"nonsense", "1", false},
	} {
		_, err := parseOptions(map[string]string{x.name: x.value})
		if (err == nil) != x.ok || err != nil && !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s=%q: %v", x.name, x.value, err)
		}
	}
}
