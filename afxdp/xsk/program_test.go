//go:build linux && !(386 || arm || mips || mipsle)

package xsk

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"pgregory.net/rapid"
)

// A test runs a program in the kernel without a device: with no socket in its
// map it drops what is ours.
type testProgram struct {
	t       testing.TB
	prog    *ebpf.Program
	sockets *ebpf.Map
}

func load(t testing.TB, m Match) testProgram {
	t.Helper()
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 4})
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs root: loads BPF programs: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sockets.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "BSD", Instructions: m.instructions(sockets.FD()),
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { prog.Close() })
	return testProgram{t, prog, sockets}
}

func (p testProgram) ours(frame []byte) bool {
	verdict, _, err := p.prog.Test(frame)
	if err != nil {
		p.t.Fatal(err)
	}
	if verdict != xdpDrop && verdict != xdpPass {
		p.t.Fatalf("got verdict %d, want XDP_DROP or XDP_PASS", verdict)
	}
	return verdict == xdpDrop
}

// A frame is built from its parts.
type packet struct {
	tag      uint16 // EtherType of a VLAN tag; 0: none
	vlan     uint16 // priority and number in the tag
	etype    uint16
	options  int    // 32-bit words of IPv4 options
	fragment uint16 // flags and offset of IPv4
	proto    byte
	port     uint16
	cut      int // bytes cut off, if the frame stays as long as an Ethernet header
}

func (p packet) bytes() []byte {
	b := make([]byte, 12)
	if p.tag != 0 {
		b = binary.BigEndian.AppendUint16(b, p.tag)
		b = binary.BigEndian.AppendUint16(b, p.vlan)
	}
	b = binary.BigEndian.AppendUint16(b, p.etype)
	switch p.etype {
	case 0x0800:
		ip := make([]byte, 20+4*p.options)
		ip[0] = 0x40 | byte(5+p.options)
		binary.BigEndian.PutUint16(ip[6:], p.fragment)
		ip[9] = p.proto
		b = append(b, ip...)
	case 0x86dd:
		ip := make([]byte, 40)
		ip[0], ip[6] = 0x60, p.proto
		b = append(b, ip...)
	}
	b = append(b, 0, 1)
	b = binary.BigEndian.AppendUint16(b, p.port)
	b = append(b, 0, 8, 0, 0)
	return b[:max(14, len(b)-p.cut)]
}

func TestProgramTakesOursAndNothingElse(t *testing.T) {
	const port, etype = 4791, 0x88b5
	udp := Match{UDPPort: port}
	ether := Match{EtherType: etype}
	tests := []struct {
		name  string
		match Match
		frame packet
		want  bool
	}{
		{"EtherType", ether, packet{etype: etype}, true},
		{"EtherType, priority tag", ether, packet{tag: 0x8100, vlan: 0xe000, etype: etype}, true},
		{"EtherType, service tag", ether, packet{tag: 0x88a8, etype: etype}, true},
		{"EtherType of a VLAN", ether, packet{tag: 0x8100, vlan: 7, etype: etype}, false},
		{"EtherType of a service VLAN", ether, packet{tag: 0x88a8, vlan: 0x800, etype: etype}, false},
		{"EtherType of a VLAN, all VLANs", Match{EtherType: etype, VLANs: true}, packet{tag: 0x8100, vlan: 7, etype: etype}, true},
		{"another EtherType", ether, packet{etype: etype + 1}, false},
		{"ARP", udp, packet{etype: 0x0806, port: port}, false},
		{"UDP/IPv4", udp, packet{etype: 0x0800, proto: 17, port: port}, true},
		{"UDP/IPv4, priority tag", udp, packet{tag: 0x8100, vlan: 0x6000, etype: 0x0800, proto: 17, port: port}, true},
		{"UDP/IPv4 of a VLAN", udp, packet{tag: 0x8100, vlan: 0x6001, etype: 0x0800, proto: 17, port: port}, false},
		{"UDP/IPv4 of a VLAN, all VLANs", Match{UDPPort: port, VLANs: true}, packet{tag: 0x8100, vlan: 7, etype: 0x0800, proto: 17, port: port}, true},
		{"UDP/IPv4, other port", udp, packet{etype: 0x0800, proto: 17, port: port + 1}, false},
		{"UDP/IPv4, options", udp, packet{etype: 0x0800, options: 10, proto: 17, port: port}, true},
		{"UDP/IPv4, do not fragment", udp, packet{etype: 0x0800, fragment: 0x4000, proto: 17, port: port}, true},
		{"UDP/IPv4, first fragment", udp, packet{etype: 0x0800, fragment: 0x2000, proto: 17, port: port}, false},
		{"UDP/IPv4, later fragment", udp, packet{etype: 0x0800, fragment: 1, proto: 17, port: port}, false},
		{"TCP/IPv4", udp, packet{etype: 0x0800, proto: 6, port: port}, false},
		{"UDP/IPv6", udp, packet{etype: 0x86dd, proto: 17, port: port}, true},
		{"UDP/IPv6, priority tag", udp, packet{tag: 0x8100, etype: 0x86dd, proto: 17, port: port}, true},
		{"UDP/IPv6 of a VLAN", udp, packet{tag: 0x8100, vlan: 4095, etype: 0x86dd, proto: 17, port: port}, false},
		{"UDP/IPv6, other port", udp, packet{etype: 0x86dd, proto: 17, port: port + 1}, false},
		{"IPv6 fragment", udp, packet{etype: 0x86dd, proto: 44, port: port}, false},
		{"TCP/IPv6", udp, packet{etype: 0x86dd, proto: 6, port: port}, false},
		{"UDP for an EtherType", ether, packet{etype: 0x0800, proto: 17, port: port}, false},
		{"EtherType, either", Match{EtherType: etype, UDPPort: port}, packet{etype: etype}, true},
		{"UDP, either", Match{EtherType: etype, UDPPort: port}, packet{etype: 0x0800, proto: 17, port: port}, true},
		{"all", Match{All: true}, packet{etype: 0x0806}, true},
		{"truncated before the port", udp, packet{etype: 0x0800, proto: 17, port: port, cut: 5}, false},
	}
	load(t, udp) // or skip all of it
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := load(t, tt.match).ours(tt.frame.bytes()); got != tt.want {
				t.Errorf("% x: got ours %t, want %t", tt.frame.bytes(), got, tt.want)
			}
		})
	}
}

// ours is what the program does, in Go.
func (m Match) ours(b []byte) bool {
	if m.All {
		return true
	}
	if len(b) < 14 {
		return false
	}
	etype := binary.BigEndian.Uint16(b[12:])
	if etype == 0x8100 || etype == 0x88a8 {
		if len(b) < 18 {
			return false
		}
		if !m.VLANs && binary.BigEndian.Uint16(b[14:])&0x0fff != 0 {
			return false
		}
		etype, b = binary.BigEndian.Uint16(b[16:]), b[4:]
	}
	if m.EtherType != 0 && etype == m.EtherType {
		return true
	}
	if m.UDPPort == 0 {
		return false
	}
	var head int
	switch {
	case etype == 0x0800 && len(b) >= 34 && b[23] == 17 && binary.BigEndian.Uint16(b[20:])&0x3fff == 0:
		head = int(b[14]&15) * 4
		if head < 20 {
			return false
		}
	case etype == 0x86dd && len(b) >= 54 && b[20] == 17:
		head = 40
	default:
		return false
	}
	return len(b) >= 14+head+4 && binary.BigEndian.Uint16(b[14+head+2:]) == m.UDPPort
}

func TestProgramAgreesWithItsModel(t *testing.T) {
	for _, vlans := range []bool{false, true} {
		testProgramAgrees(t, Match{EtherType: 0x88b5, UDPPort: 4791, VLANs: vlans})
	}
}

func testProgramAgrees(t *testing.T, m Match) {
	p := load(t, m)
	oneOf := func(v ...uint16) *rapid.Generator[uint16] { return rapid.OneOf(rapid.SampledFrom(v), rapid.Uint16()) }
	rapid.Check(t, func(r *rapid.T) {
		b := packet{
			tag:      oneOf(0, 0x8100, 0x88a8).Draw(r, "tag"),
			vlan:     oneOf(0, 0xe000, 7).Draw(r, "VLAN"),
			etype:    oneOf(0x88b5, 0x0800, 0x86dd, 0x8100).Draw(r, "EtherType"),
			options:  rapid.IntRange(0, 10).Draw(r, "options"),
			fragment: oneOf(0, 0x4000, 0x2000).Draw(r, "fragment"),
			proto:    byte(oneOf(17, 6).Draw(r, "protocol")),
			port:     oneOf(4791).Draw(r, "port"),
			cut:      rapid.IntRange(0, 20).Draw(r, "cut"),
		}.bytes()
		for range rapid.IntRange(0, 3).Draw(r, "damages") {
			b[rapid.IntRange(0, len(b)-1).Draw(r, "at")] = rapid.Byte().Draw(r, "byte")
		}
		if got, want := p.ours(b), m.ours(b); got != want {
			r.Fatalf("% x: got ours %t, want %t", b, got, want)
		}
	})
}

func TestMatchOfNothingIsRefused(t *testing.T) {
	for _, m := range []Match{{}, {VLANs: true}, {EtherType: 0x05ff}} {
		if err := m.check(); err == nil {
			t.Errorf("%+v: accepted", m)
		}
	}
}
