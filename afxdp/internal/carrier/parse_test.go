//go:build linux && !(386 || arm || mips || mipsle)

package carrier

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

func portFor(n uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, n) }

// resum makes the IPv4 header checksum right again.
func resum(b []byte) []byte {
	n := int(b[14]&0xf) * 4
	b[24], b[25] = 0, 0
	binary.BigEndian.PutUint16(b[24:], ^slowSum(b[14:14+n]))
	return b
}

// set changes bytes of a frame.
func set(at int, v ...byte) func([]byte) []byte {
	return func(b []byte) []byte {
		copy(b[at:], v)
		return b
	}
}

// set4 changes bytes of an IPv4 frame, with the header's checksum right.
func set4(at int, v ...byte) func([]byte) []byte {
	return func(b []byte) []byte { return resum(set(at, v...)(b)) }
}

func cut(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:len(b)-n] } }

// Malformed, damaged, truncated and foreign frames are refused, each with its code.
func TestFramesThatAreRefused(t *testing.T) {
	wants := Filter{Kinds: allKinds, MAC: mac2, Port: 7070}
	for _, c := range []struct {
		name   string
		kind   Kind
		change func([]byte) []byte
		want   Code
	}{
		{"cut in the Ethernet header", UDP4, func(b []byte) []byte { return b[:13] }, BadLength},
		{"cut in the tag", UDP4, func(b []byte) []byte { return set(12, 0x81, 0)(b)[:17] }, BadLength},
		{"another MAC", UDP4, set(0, 3), OtherMAC},
		{"a MAC of a group as source", UDP4, set(6, 3), BadSource},
		{"a VLAN's tag", UDP4, set(12, 0x81, 0, 0, 1), OtherVLAN},
		{"another EtherType", UDP4, set(12, 8, 6), OtherType},
		{"IPv4 cut in the header", UDP4, func(b []byte) []byte { return b[:33] }, BadLength},
		{"IPv4 cut in UDP", UDP4, cut(8), BadLength},
		{"version 5", UDP4, set4(14, 0x55), BadVersion},
		{"header length below 20", UDP4, set(14, 0x44), BadLength},
		{"header longer than the packet", UDP4, set4(14, 0x4f), BadLength},
		{"total below the header", UDP4, set4(16, 0, 19), BadLength},
		{"total above the frame", UDP4, set4(16, 0, 36), BadLength},
		{"total cuts UDP", UDP4, set4(16, 0, 34), BadLength},
		{"total cuts the UDP header", UDP4, set4(16, 0, 27), BadLength},
		{"TCP", UDP4, set4(23, 6), OtherProtocol},
		{"first fragment", UDP4, set4(20, 0x20), BadFragment},
		{"later fragment", UDP4, set4(20, 0, 1), BadFragment},
		{"header checksum", UDP4, set(22, 63), BadHeaderSum},
		{"from 0.0.0.0", UDP4, set4(26, 0, 0, 0, 0), BadSource},
		{"from loopback", UDP4, set4(26, 127), BadSource},
		{"from a group", UDP4, set4(26, 224), BadSource},
		{"from all", UDP4, set4(26, 255, 255, 255, 255), BadSource},
		{"another port", UDP4, set(36, 1), OtherPort},
		{"from port 0", UDP4, set(34, 0, 0), BadSource},
		{"UDP length below 8", UDP4, set(38, 0, 7), BadLength},
		{"UDP length above the packet", UDP4, set(38, 0, 16), BadLength},
		{"UDP checksum", UDP4, set(45, 0), BadSum},
		{"partial checksum where full ones are wanted", UDP4, set(40, 0x84, 0x24), BadSum},

		{"IPv6 cut in the header", UDP6, func(b []byte) []byte { return b[:53] }, BadLength},
		{"IPv6 cut in UDP", UDP6, cut(8), BadLength},
		{"version 4", UDP6, set(14, 0x40), BadVersion},
		{"length above the frame", UDP6, set(18, 0, 16), BadLength},
		{"length below UDP", UDP6, set(18, 0, 7), BadLength},
		{"a jumbogram without the option", UDP6, set(18, 0, 0), BadLength},
		{"hop-by-hop options", UDP6, set(20, 0), OtherProtocol},
		{"a fragment", UDP6, set(20, 44), BadFragment},
		{"from ::", UDP6, set(22, make([]byte, 16)...), BadSource},
		{"from ::1", UDP6, set(22, append(make([]byte, 15), 1)...), BadSource},
		{"from a group", UDP6, set(22, 0xff), BadSource},
		{"from a mapped address", UDP6, set(22, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1), BadSource},
		{"another port", UDP6, set(56, 1), OtherPort},
		{"UDP checksum", UDP6, set(65, 0), BadSum},
		{"no checksum", UDP6, set(60, 0, 0), BadNoSum},

		{"cut in our header", Ether, func(b []byte) []byte { return b[:21] }, BadLength},
		{"another protocol", Ether, set(14, 0), OtherProtocol},
		{"another version", Ether, set(15, 2), BadVersion},
		{"another port", Ether, set(16, 0), OtherPort},
		{"from port 0", Ether, set(18, 0, 0), BadSource},
		{"length above the frame", Ether, set(20, 0, 8), BadLength},
	} {
		frame := c.change(put(t, aConfig(c.kind), []byte(goldenPayload)))
		if _, code := Parse(frame, &wants); code != c.want {
			t.Errorf("%v, %s: %v, want %v", c.kind, c.name, code, c.want)
		}
	}
}

func TestFramesThatAreTaken(t *testing.T) {
	options := func(b []byte) []byte {
		b = append(b[:34:34], append([]byte{7, 7, 4, 0, 0, 0, 0, 0}, b[34:]...)...)
		b[14], b[17] = 0x47, b[17]+8
		return resum(b)
	}
	surplus := func(b []byte) []byte { // bytes behind UDP in the IP packet (RFC 9868)
		b[17] += 3
		return append(resum(b), 1, 2, 3)
	}
	for _, c := range []struct {
		name   string
		kind   Kind
		change func([]byte) []byte
		filter Filter
	}{
		{"options of IPv4", UDP4, options, Filter{}},
		{"bytes behind the datagram", UDP4, surplus, Filter{}},
		{"no checksum over IPv4", UDP4, set(40, 0, 0), Filter{}},
		{"a partial checksum over IPv4 where allowed", UDP4, set(40, 0x84, 0x24), Filter{Verify: VerifyPartial}},
		{"a partial checksum over IPv6 where allowed", UDP6, set(60, 0x5b, 0x95), Filter{Verify: VerifyPartial}},
		{"a full checksum where partial ones may come", UDP6, set(0, 2), Filter{Verify: VerifyPartial}},
		{"a priority tag", Ether, func(b []byte) []byte {
			return append(b[:12:12], append([]byte{0x81, 0, 0xe0, 0}, b[12:]...)...)
		}, Filter{}},
		{"padding", Ether, func(b []byte) []byte { return append(b, make([]byte, 31)...) }, Filter{}},
	} {
		c.filter.Kinds = allKinds
		frame := c.change(put(t, aConfig(c.kind), []byte(goldenPayload)))
		a, code := Parse(frame, &c.filter)
		if code != OK || string(a.Payload) != goldenPayload {
			t.Errorf("%v, %s: %v, payload %q", c.kind, c.name, code, a.Payload)
		}
	}
}

func TestKindsThatAreNotWantedAreRefused(t *testing.T) {
	for _, k := range []Kind{UDP4, UDP6, Ether} {
		f := Filter{Kinds: allKinds}
		f.Kinds[k] = false
		if _, code := Parse(put(t, aConfig(k), nil), &f); code != OtherType {
			t.Errorf("%v: %v, want %v", k, code, OtherType)
		}
	}
}

// Every bit flipped in a frame is noticed, or is one that no checksum covers and that
// does not matter.
func TestFlippedBitsAreNoticed(t *testing.T) {
	f := Filter{Kinds: allKinds, MAC: mac2, Port: 7070}
	for _, k := range []Kind{UDP4, UDP6} {
		frame := put(t, aConfig(k), []byte(goldenPayload))
		for bit := range len(frame) * 8 {
			switch at := bit / 8; {
			case at >= 6 && at < 12: // source MAC
			case k == UDP6 && (at == 14 && bit%8 < 4 || at > 14 && at < 18 || at == 21): // class, flow label, hop limit
			default:
				frame[at] ^= 1 << (bit % 8)
				if a, code := Parse(frame, &f); code == OK {
					t.Errorf("%v: bit %d of byte %d: taken, %+v", k, bit%8, at, a)
				}
				frame[at] ^= 1 << (bit % 8)
			}
		}
	}
}

func TestEveryCodeHasAName(t *testing.T) {
	seen := map[string]Code{}
	for c := range Codes + 2 {
		name := c.String()
		if before, twice := seen[name]; twice || name == "" {
			t.Errorf("codes %d and %d: %q", before, c, name)
		}
		seen[name] = c
	}
}

func TestPutAndParseDoNotAllocate(t *testing.T) {
	for _, k := range []Kind{UDP4, UDP6, Ether} {
		p, err := NewPath(aConfig(k))
		if err != nil {
			t.Fatal(err)
		}
		frame, f := make([]byte, 1500), Filter{Kinds: allKinds, MAC: mac2}
		if n := testing.AllocsPerRun(100, func() {
			if _, code := Parse(frame[:p.Put(frame, 1400)], &f); code != OK {
				t.Error(code)
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations", k, n)
		}
	}
}

// Whatever the frame, Parse does not panic, and reports a known code, or a payload inside of the frame with valid
// addresses.
func FuzzParse(f *testing.F) {
	for _, frame := range goldenFrames(f) {
		f.Add(frame, false)
		f.Add(frame, true)
	}
	f.Fuzz(func(t *testing.T, frame []byte, partial bool) {
		want := Filter{Kinds: allKinds}
		if partial {
			want.Verify = VerifyPartial
		}
		a, code := Parse(frame, &want)
		if code != OK {
			if code >= Codes {
				t.Fatalf("code %d", code)
			}
			return
		}
		if len(a.Payload) > len(frame) || a.Src.Port() == 0 || a.Dst.Port() == 0 || !a.SrcMAC.unicast() {
			t.Fatalf("%+v", a)
		}
		if a.Dst.Addr().Is4In6() {
			return // arrives as anything may, but cannot be sent
		}
		// Every frame that Parse accepts can be sent again, and parses as the same.
		c := Config{Kind: a.Kind, SrcMAC: a.SrcMAC, DstMAC: mac2, Src: a.Src, Dst: a.Dst}
		b, code := Parse(put(t, c, a.Payload), &Filter{Kinds: allKinds})
		if code != OK || !bytes.Equal(b.Payload, a.Payload) || b.Src != a.Src || b.Dst != a.Dst {
			t.Fatalf("%+v came back as %+v, %v", a, b, code)
		}
	})
}
