//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

func someCall() call {
	c := call{from: 0x0102030405060709, to: 0x1112131415161719, number: 3, tags: 0x21, receives: 32, sends: 16, buffer: 4096, token: 0x3132333435363738}
	for k := range c.nonce {
		c.nonce[k] = byte(0x40 + k)
	}
	return c
}

func someControls() []control {
	var mac [macBytes]byte
	for k := range mac {
		mac[k] = byte(k)
	}
	return []control{
		{kind: kindCall, call: someCall()},
		{kind: kindJoin, mine: 1, yours: 2, mac: mac},
		{kind: kindWelcome, mine: 2, yours: 1, mac: mac},
		{kind: kindRefuse, mine: 1, yours: 2, reason: refusedSecret},
		{kind: kindWithdraw, mine: 7},
		{kind: kindLeave, mine: 1, yours: 2, messages: 1 << 40, credits: 9},
		{kind: kindOver, mine: 1, yours: 2},
		{kind: kindRevoke, mine: 1, yours: 2, slot: 15, gen: 8},
		{kind: kindRevoked, mine: 1, yours: 2, slot: 15, gen: 8, sent: true},
	}
}

// The bytes are those of docs/wire.md.
var goldenControls = []string{
	"42516e780200010009070605040302011917161514131211030000002100200010000000001000003837363534333231404142434445464748494a4b4c4d4e4f",
	"42516e78020002000100000002000000000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
	"42516e78020003000200000001000000000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
	"42516e7802000400010000000200000001000000",
	"42516e780200050007000000",
	"42516e78020006000100000002000000000000000001000009000000",
	"42516e78020007000100000002000000",
	"42516e780200080001000000020000000f00000008000000",
	"42516e780200090001000000020000000f0000000800000001000000",
}

func TestControlMessagesAreAsDocumented(t *testing.T) {
	for k, m := range someControls() {
		b := m.append(nil)
		if got := hex.EncodeToString(b); got != goldenControls[k] {
			t.Errorf("kind %d: got %s, want %s", m.kind, got, goldenControls[k])
		}
		var back control
		if err := back.parse(b); err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("kind %d: parsed to %+v, error %v; want %+v", m.kind, back, err, m)
		}
		if len(b) > controlMax {
			t.Errorf("kind %d has %d bytes, limit is %d", m.kind, len(b), controlMax)
		}
		for n := range b {
			if err := back.parse(b[:n]); !errors.Is(err, errMalformed) {
				t.Errorf("kind %d, cut to %d bytes: got %v, want %v", m.kind, n, err, errMalformed)
			}
		}
		b[4]++
		if err := back.parse(b); !errors.Is(err, driver.ErrVersion) {
			t.Errorf("kind %d of another version: got %v, want %v", m.kind, err, driver.ErrVersion)
		}
	}
}

func TestImpossibleCallsAreRefused(t *testing.T) {
	for name, change := range map[string]func(*call){
		"no receives":         func(c *call) { c.receives = 0 },
		"no sends":            func(c *call) { c.sends = 0 },
		"too many receives":   func(c *call) { c.receives = maxWindow + 1 },
		"control's tag":       func(c *call) { c.tags = controlTag },
		"tags of the NIC's":   func(c *call) { c.tags = maxTags - 32 },
		"long track, no tags": func(c *call) { c.track, c.tags = driver.Large, maxTags-32*tagsEach+1 },
		"no such track":       func(c *call) { c.track = driver.Large + 1 },
	} {
		m := control{kind: kindCall, call: someCall()}
		change(&m.call)
		var back control
		if err := back.parse(m.append(nil)); !errors.Is(err, errMalformed) {
			t.Errorf("%s: got %v, want %v", name, err, errMalformed)
		}
	}
}

// testSecret is what contexts of tests prove to each other.
const testSecret = "sixteen bytes or more"

func testKey(t *testing.T, secret string) *kit.Key {
	t.Helper()
	k, err := kit.NewKey([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// A proof fits no other secret, role or connection: it covers the incarnations and nonces of both sides.
func TestProofsFitOneConnectionAndRole(t *testing.T) {
	a, b := someCall(), someCall()
	b.from, b.to, b.nonce[0] = a.to, a.from, 0
	key, good := testKey(t, testSecret), testKey(t, testSecret).MAC(dialerProof, proven(&a, &b)...)
	if !key.Check(good[:], dialerProof, proven(&a, &b)...) {
		t.Error("a proof is not good for what it was made for")
	}
	other := b
	other.nonce[15]++
	for name, ok := range map[string]bool{
		"another secret": testKey(t, "another secret, long enough").Check(good[:], dialerProof, proven(&a, &b)...),
		"no secret":      testKey(t, "").Check(good[:], dialerProof, proven(&a, &b)...),
		"another role":   key.Check(good[:], listenerProof, proven(&a, &b)...),
		"another nonce":  key.Check(good[:], dialerProof, proven(&a, &other)...),
		"sides swapped":  key.Check(good[:], dialerProof, proven(&b, &a)...),
	} {
		if ok {
			t.Errorf("a proof with %s is good", name)
		}
	}
}

// Rdv data that is damaged, or of another connection, is refused.
func TestRdvDataIsBoundToTheConnection(t *testing.T) {
	c := someCall()
	c.track, c.receives = driver.Large, transferDepth
	r := rdvData{token: c.token, length: 1 << 30, gen: 77, slot: 9, tag: transferTag(c.tags, 9, 77)}
	var b [rdvBytes]byte
	r.encode(&b)
	const golden = "3b8a415d4d0000003837363534333231000000400000000009006e0000000000"
	var back rdvData
	if err := back.parse(b[:], &c); err != nil || back != r {
		t.Errorf("parsed to %+v, error %v; want %+v", back, err, r)
	}
	if got := hex.EncodeToString(b[:]); got != golden {
		t.Errorf("rdv data: got %s, want %s", got, golden)
	}
	for k := range b {
		bad := b
		bad[k] ^= 1 << (k % 8)
		if back.parse(bad[:], &c) == nil {
			t.Errorf("a flipped bit in byte %d is accepted", k)
		}
	}
	c.token++
	if err := back.parse(b[:], &c); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("rdv data of another connection: got %v, want %v", err, driver.ErrInvalid)
	}
}

func TestURLNamesTheProcess(t *testing.T) {
	u := driver.URL{Driver: Name, Version: urlVersion, Incarnation: 0xfedcba9876543211, Rest: place{nic: 7, track: driver.Large, home: 0x0123456789abcdef}.String()}
	if got, want := u.String(), "qnix:3:fedcba9876543211:7,l,0123456789abcdef"; got != want {
		t.Errorf("url %q, want %q", got, want)
	}
	inc, p, err := parseURL(u.String())
	if err != nil || inc != u.Incarnation || p.nic != 7 || p.track != driver.Large || p.home != 0x0123456789abcdef {
		t.Errorf("parsed to %x, %+v, error %v", inc, p, err)
	}
	if got, want := processName(inc, p.track).String(), "bwfedcba9876543211l"; got != want {
		t.Errorf("process %q, want %q", got, want)
	}
	const home = ",0123456789abcdef"
	for _, rest := range []string{"", "7", "7,", "7,l", "7,l,", "0,l" + home, "07,l" + home, "65536,l" + home, "7,x" + home, "7,l" + home + ",",
		"7,l" + home[:16], "7,l" + home + "0", "7,l,0123456789ABCDEF", "-1,s" + home, "7;l" + home} {
		u.Rest = rest
		if _, _, err := parseURL(u.String()); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("url %q: got %v, want %v", u, err, driver.ErrInvalid)
		}
	}
}

// A url that parses is written back with the same meaning, and both ends agree whether they reach each other.
func FuzzURL(f *testing.F) {
	f.Add("qnix:3:fedcba9876543211:7,l,0123456789abcdef")
	f.Add("qnix:3:0000000000000001:65535,s,0000000000000000")
	f.Add("qnix:2:0000000000000001:7,s")
	f.Fuzz(func(t *testing.T, s string) {
		inc, p, err := parseURL(s)
		if err != nil {
			return
		}
		u := driver.URL{Driver: Name, Version: urlVersion, Incarnation: inc, Rest: p.String()}
		if inc2, p2, err := parseURL(u.String()); err != nil || inc2 != inc || p2 != p {
			t.Errorf("%q is read as %q, and that as %x %+v, error %v", s, u, inc2, p2, err)
		}
		own := place{nic: 7, home: 0x0123456789abcdef, track: p.track}
		if (own.apart(p) == "") != (p.apart(own) == "") || (own.domain() == p.domain()) != (own.apart(p) == "" && own.home == p.home) {
			t.Errorf("%+v and %+v: one end returns %q, the other %q", own, p, own.apart(p), p.apart(own))
		}
	})
}

// A control message that parses is written back to the same bytes.
func FuzzControl(f *testing.F) {
	for _, m := range someControls() {
		f.Add(m.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m control
		if m.parse(b) == nil && !bytes.Equal(m.append(nil), b) {
			t.Errorf("%x is read as %+v, which is written as %x", b, m, m.append(nil))
		}
	})
}

// Rdv data that parses is written back to the same bytes.
func FuzzRdv(f *testing.F) {
	c := someCall()
	r := rdvData{token: c.token, length: 1 << 30, gen: 77, slot: 9, tag: transferTag(c.tags, 9, 77)}
	var b [rdvBytes]byte
	r.encode(&b)
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		var r rdvData
		if r.parse(b, &c) != nil {
			return
		}
		var back [rdvBytes]byte
		if r.encode(&back); !bytes.Equal(back[:], b) {
			t.Errorf("%x is read as %+v, which is written as %x", b, r, back)
		}
	})
}

func parseURL(s string) (incarnation uint64, at place, err error) {
	u, err := kit.ParseURL(Name, urlVersion, s, driver.MaxURL)
	if err == nil {
		at, err = placeOf(u)
	}
	return u.Incarnation, at, err
}
