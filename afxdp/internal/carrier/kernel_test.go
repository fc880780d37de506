//go:build linux && !(386 || arm || mips || mipsle)

package carrier

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wire is a raw packet socket on eth0 of a namespace, which sends frames and sees all frames.
func (s *space) wire() *os.File {
	s.t.Helper()
	var f *os.File
	index := s.link("eth0").Attrs().Index
	s.do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), "packet socket")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: index}) // ETH_P_ALL, big-endian
	})
	s.t.Cleanup(func() { f.Close() })
	s.must(f.SetReadDeadline(time.Now().Add(maxWait)))
	return f
}

// transmitChecksums turns the offload of checksums on eth0 on or off: off, the kernel
// computes those that were left to the device.
func (s *space) transmitChecksums(on uint32) {
	s.t.Helper()
	s.do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		value := struct{ cmd, data uint32 }{unix.ETHTOOL_STXCSUM, on}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{[unix.IFNAMSIZ]byte{'e', 't', 'h', '0'}, unsafe.Pointer(&value), [16]byte{}}
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); e != 0 {
			return fmt.Errorf("ethtool -K eth0 tx: %w", e)
		}
		return nil
	})
}

// config is a path from eth0 of a to the UDP port to at b, as the resolver finds it.
func config(a *space, dst netip.AddrPort) Config {
	a.t.Helper()
	hop, err := watch(a, 0).peer(dst.Addr().String()).Hop()
	a.must(err)
	src := netip.AddrPortFrom(hop.Src, 50001)
	c := Config{Kind: UDP4, SrcMAC: hop.SrcMAC, DstMAC: hop.DstMAC, Src: src, Dst: dst}
	if dst.Addr().Is6() {
		c.Kind = UDP6
	}
	return c
}

func payloads() [][]byte {
	var all [][]byte
	for _, n := range []int{0, 1, 2, 17, 64, 1399, 1400} {
		b := make([]byte, n)
		for k := range b {
			b[k] = byte(k*7 + n)
		}
		all = append(all, b)
	}
	return all
}

func family4and6(t *testing.T, f func(t *testing.T, src, dst netip.AddrPort)) {
	for name, ends := range map[string][2]string{
		"IPv4": {"10.1.0.1:7070", "10.1.0.2:7070"}, "IPv6": {"[fd01::1]:7070", "[fd01::2]:7070"},
	} {
		t.Run(name, func(t *testing.T) { f(t, netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1])) })
	}
}

// receives checks that a socket gets a payload.
func receives(t *testing.T, s *net.UDPConn, want []byte, src netip.AddrPort) {
	t.Helper()
	buf := make([]byte, 2000)
	if err := s.SetReadDeadline(time.Now().Add(maxWait)); err != nil {
		t.Fatal(err)
	}
	n, from, err := s.ReadFromUDPAddrPort(buf)
	if err != nil || from != src || !bytes.Equal(buf[:n], want) {
		t.Fatalf("got %d bytes from %v, %v, want %d from %v", n, from, err, len(want), src)
	}
}

// The kernel checks what we write, checksums too, and drops what is wrong.
func TestKernelReceivesWhatWePut(t *testing.T) {
	family4and6(t, func(t *testing.T, _, dst netip.AddrPort) {
		a, b := segment(t)
		wire, socket := a.wire(), b.socket(dst)
		c := config(a, dst)
		for _, payload := range payloads() {
			frame := put(t, c, payload)
			if len(payload) > 0 { // a damaged one first: only the good one behind it may come
				frame[len(frame)-1] ^= 1
				if _, err := wire.Write(frame); err != nil {
					t.Fatal(err)
				}
				frame[len(frame)-1] ^= 1
			}
			if _, err := wire.Write(frame); err != nil {
				t.Fatal(err)
			}
			receives(t, socket, payload, c.Src)
		}
		if dst.Addr().Is4() {
			c.Checksum = ChecksumNone
			if _, err := wire.Write(put(t, c, []byte(goldenPayload))); err != nil {
				t.Fatal(err)
			}
			receives(t, socket, []byte(goldenPayload), c.Src)
		}
	})
}

func TestKernelReceivesWhatWePutBehindARouter(t *testing.T) {
	a, _, c := routed(t)
	for _, dst := range []string{"10.2.0.2:7070", "[fd02::2]:7070"} {
		to := netip.MustParseAddrPort(dst)
		wire, socket, path := a.wire(), c.socket(to), config(a, to)
		if _, err := wire.Write(put(t, path, []byte(goldenPayload))); err != nil {
			t.Fatal(err)
		}
		receives(t, socket, []byte(goldenPayload), path.Src)
	}
}

// arrives reads frames until one is ours.
func arrives(t *testing.T, wire *os.File, f *Filter) (Arrived, Code) {
	t.Helper()
	buf := make([]byte, 2000)
	for {
		n, err := wire.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		if a, code := Parse(buf[:n], f); !code.Foreign() {
			return a, code
		}
	}
}

func TestWhatTheKernelSendsIsParsed(t *testing.T) {
	family4and6(t, func(t *testing.T, dst, src netip.AddrPort) {
		a, b := segment(t)
		b.transmitChecksums(0)
		wire, socket := a.wire(), b.socket(src)
		f := &Filter{Kinds: allKinds, MAC: a.mac("eth0"), Port: dst.Port()}
		for _, payload := range payloads() {
			if _, err := socket.WriteToUDPAddrPort(payload, dst); err != nil {
				t.Fatal(err)
			}
			got, code := arrives(t, wire, f)
			if code != OK || !bytes.Equal(got.Payload, payload) || got.Src != src || got.Dst != dst ||
				got.SrcMAC != b.mac("eth0") {
				t.Fatalf("%d bytes: %v, %+v", len(payload), code, got)
			}
		}
	})
}

// A veth hands on checksums that were left to a device.
func TestPartialChecksumsOfTheKernelAreTakenWhereAllowed(t *testing.T) {
	family4and6(t, func(t *testing.T, dst, src netip.AddrPort) {
		a, b := segment(t)
		b.transmitChecksums(1)
		wire, socket := a.wire(), b.socket(src)
		for _, c := range []struct {
			verify Verify
			want   Code
		}{{VerifyPartial, OK}, {VerifyFull, BadSum}} {
			if _, err := socket.WriteToUDPAddrPort([]byte(goldenPayload), dst); err != nil {
				t.Fatal(err)
			}
			if _, code := arrives(t, wire, &Filter{Kinds: allKinds, Port: dst.Port(), Verify: c.verify}); code != c.want {
				t.Errorf("verify %d: %v, want %v", c.verify, code, c.want)
			}
		}
	})
}

func TestOwnEtherTypeCrossesASegment(t *testing.T) {
	a, b := segment(t)
	from, to := a.wire(), b.wire()
	c := Config{Kind: Ether, SrcMAC: a.mac("eth0"), DstMAC: b.mac("eth0"), Src: portS, Dst: portD}
	for _, payload := range payloads() {
		if _, err := from.Write(put(t, c, payload)); err != nil {
			t.Fatal(err)
		}
		got, code := arrives(t, to, &Filter{Kinds: allKinds, MAC: b.mac("eth0"), Port: portD.Port()})
		if code != OK || !bytes.Equal(got.Payload, payload) || got.SrcMAC != c.SrcMAC || got.Src != portS {
			t.Fatalf("%d bytes: %v, %+v", len(payload), code, got)
		}
	}
}
