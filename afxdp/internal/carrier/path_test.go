//go:build linux && !(386 || arm || mips || mipsle)

package carrier

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"
)

// slowSum is RFC 1071 word by word.
func slowSum(b []byte) uint16 {
	var s uint32
	for k, c := range b {
		s += uint32(c) << (8 * (1 - k&1))
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

func TestSumIsThatOfRFC1071(t *testing.T) {
	for n := range 400 {
		rng := rand.New(rand.NewPCG(uint64(n), 0))
		random, ones, mixed := make([]byte, n), bytes.Repeat([]byte{0xff}, n), make([]byte, n)
		for k := range random {
			random[k] = byte(rng.Uint32())
			mixed[k] = byte(-rng.IntN(2))
		}
		for _, b := range [][]byte{random, ones, mixed, make([]byte, n)} {
			if got, want := sum(b), slowSum(b); got != want {
				t.Fatalf("% x: %04x, want %04x", b, got, want)
			}
		}
	}
}

func TestPathsThatCannotBeAreRefused(t *testing.T) {
	for what, c := range map[string]Config{
		"unknown carrier type":  {Kind: 7, SrcMAC: mac1, DstMAC: mac2, Src: src4, Dst: dst4},
		"must be IPv4":          with(aConfig(UDP4), func(c *Config) { c.Dst = dst6 }),
		"must be IPv6":          with(aConfig(UDP6), func(c *Config) { c.Src = src4 }),
		"from invalid IP":       with(aConfig(UDP6), func(c *Config) { c.Src = portS }),
		"must name one station": with(aConfig(Ether), func(c *Config) { c.DstMAC[0] = 1 }),
		"MAC 00:00:00:00:00:00": with(aConfig(Ether), func(c *Config) { c.SrcMAC = MAC{} }),
		"neither may be 0":      with(aConfig(Ether), func(c *Config) { c.Src = portFor(0) }),
		"without a checksum":    with(aConfig(UDP6), func(c *Config) { c.Checksum = ChecksumNone }),
	} {
		if _, err := NewPath(c); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%+v: got %v, want something with %q", c, err, what)
		}
	}
}

func TestPutWritesNothingThatDoesNotFit(t *testing.T) {
	for _, k := range []Kind{UDP4, UDP6, Ether} {
		p, err := NewPath(aConfig(k))
		if err != nil {
			t.Fatal(err)
		}
		n, frame := p.HeaderLen(), make([]byte, 70000)
		for _, c := range []struct{ frame, payload int }{
			{n - 1, 0}, {n, 1}, {n + 5, 6}, {n + 5, -1}, {len(frame), k.maxPayload() + 1}, {0, 0}, {len(frame), -1 << 63},
		} {
			if got := p.Put(frame[:c.frame], c.payload); got != 0 || slowSum(frame) != 0 {
				t.Errorf("%v: %d bytes of payload in a frame of %d: Put returns %d", k, c.payload, c.frame, got)
			}
		}
		if n != k.HeaderLen(false) || n+4 != k.HeaderLen(true) || n != k.Overhead()+14 {
			t.Errorf("%v: %d bytes of headers, HeaderLen returns %d", k, n, k.HeaderLen(false))
		}
		if got := p.Put(frame, k.maxPayload()); got != n+k.maxPayload() {
			t.Errorf("%v: the longest payload gives a frame of %d", k, got)
		} else if _, code := Parse(frame[:got], &Filter{Kinds: allKinds}); code != OK {
			t.Errorf("%v: the longest frame: %v", k, code)
		}
	}
	var none Path
	if got := none.Put(make([]byte, 100), 10); got != 0 {
		t.Errorf("the zero path wrote %d bytes", got)
	}
}

// A sum of zero is sent as all ones, for zero means that there is none.
func TestChecksumIsNeverZero(t *testing.T) {
	for _, k := range []Kind{UDP4, UDP6} {
		at := k.HeaderLen(false)
		frame := put(t, aConfig(k), []byte{0, 0})
		copy(frame[at:], frame[at-2:at]) // the checksum as payload brings the sum to zero
		p, err := NewPath(aConfig(k))
		if err != nil {
			t.Fatal(err)
		}
		p.Put(frame, 2)
		if got := binary.BigEndian.Uint16(frame[at-2:]); got != 0xffff {
			t.Errorf("%v: checksum %04x, want ffff", k, got)
		}
		if _, code := Parse(frame, &Filter{Kinds: allKinds}); code != OK {
			t.Errorf("%v: %v", k, code)
		}
	}
}
