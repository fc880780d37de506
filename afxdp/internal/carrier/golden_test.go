//go:build linux && !(386 || arm || mips || mipsle)

package carrier

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"
)

const goldenPayload = "Bywash!"

var (
	mac1, mac2   = MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 2}
	src4, dst4   = netip.MustParseAddrPort("192.0.2.1:50000"), netip.MustParseAddrPort("192.0.2.2:7070")
	src6, dst6   = netip.MustParseAddrPort("[2001:db8::1]:50000"), netip.MustParseAddrPort("[2001:db8::2]:7070")
	portS, portD = netip.AddrPortFrom(netip.Addr{}, 50000), netip.AddrPortFrom(netip.Addr{}, 7070)
	allKinds     = [...]bool{UDP4: true, UDP6: true, Ether: true}
)

func aConfig(k Kind) Config {
	c := Config{Kind: k, SrcMAC: mac1, DstMAC: mac2, Src: portS, Dst: portD}
	switch k {
	case UDP4:
		c.Src, c.Dst = src4, dst4
	case UDP6:
		c.Src, c.Dst = src6, dst6
	}
	return c
}

func with(c Config, change func(*Config)) Config {
	change(&c)
	return c
}

func goldenConfigs() map[string]Config {
	return map[string]Config{
		"udp4": aConfig(UDP4), "udp6": aConfig(UDP6), "ether": aConfig(Ether),
		"udp4-no-checksum": with(aConfig(UDP4), func(c *Config) { c.Checksum = ChecksumNone }),
	}
}

func goldenFrames(t testing.TB) map[string][]byte {
	text, err := os.ReadFile("testdata/frames.txt")
	if err != nil {
		t.Fatal(err)
	}
	frames := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		if name, bytes, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && name[0] != '#' {
			b, err := hex.DecodeString(strings.ReplaceAll(bytes, " ", ""))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			frames[name] = b
		}
	}
	return frames
}

// put makes a path and a frame of it.
func put(t testing.TB, c Config, payload []byte) []byte {
	t.Helper()
	p, err := NewPath(c)
	if err != nil {
		t.Fatal(err)
	}
	frame := append(make([]byte, p.HeaderLen()), payload...)
	if n := p.Put(frame, len(payload)); n != len(frame) {
		t.Fatalf("Put returns a frame of %d bytes, it has %d", n, len(frame))
	}
	return frame
}

// The vectors were computed by a program that shares nothing with this package.
func TestFramesAreTheGoldenOnes(t *testing.T) {
	frames, configs := goldenFrames(t), goldenConfigs()
	if len(frames) != len(configs) {
		t.Fatalf("%d vectors for %d configurations", len(frames), len(configs))
	}
	for name, c := range configs {
		if got := put(t, c, []byte(goldenPayload)); !bytes.Equal(got, frames[name]) {
			t.Errorf("%s:\n got % x\nwant % x", name, got, frames[name])
		}
	}
}

func TestGoldenFramesAreParsed(t *testing.T) {
	frames := goldenFrames(t)
	for name, c := range goldenConfigs() {
		f := Filter{Kinds: allKinds, MAC: mac2, Port: 7070}
		for _, padding := range []int{0, 18} {
			a, code := Parse(append(frames[name], make([]byte, padding)...), &f)
			if code != OK {
				t.Errorf("%s: %v", name, code)
				continue
			}
			if string(a.Payload) != goldenPayload || a.Src != c.Src || a.Dst != c.Dst || a.SrcMAC != c.SrcMAC || a.Kind != c.Kind {
				t.Errorf("%s: %+v from %+v", name, a, c)
			}
		}
	}
}
