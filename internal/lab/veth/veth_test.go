//go:build linux

package veth_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/bywash/bywash/internal/lab/veth"
)

func newPair(t *testing.T, cfg veth.Config) *veth.Pair {
	t.Helper()
	p, err := veth.New(cfg)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		t.Skip("needs root and veth: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error("close: ", err)
		}
	})
	return p
}

// echo carries one message from end 0 to end 1 and back by UDP.
func echo(t *testing.T, from, to *veth.End, a, b netip.Addr) error {
	t.Helper()
	var server, client net.PacketConn
	listen := func(c *net.PacketConn, at netip.Addr) func() error {
		return func() (err error) {
			*c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
			return err
		}
	}
	if err := to.Do(listen(&server, b)); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := from.Do(listen(&client, a)); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	go func() {
		buf := make([]byte, 100)
		for {
			n, who, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			server.WriteTo(buf[:n], who)
		}
	}()
	if _, err := client.WriteTo([]byte("ping"), server.LocalAddr()); err != nil {
		return err
	}
	client.SetReadDeadline(time.Now().Add(time.Second))
	buf := make([]byte, 100)
	n, _, err := client.ReadFrom(buf)
	if err == nil && string(buf[:n]) != "ping" {
		t.Errorf("got %q, want %q", buf[:n], "ping")
	}
	return err
}

func TestEndsReachEachOtherAtOnce(t *testing.T) {
	tests := []struct {
		name string
		cfg  veth.Config
	}{
		{"direct", veth.Config{}},
		{"four queues, jumbo frames", veth.Config{Queues: 4, MTU: 9000}},
		{"routed", veth.Config{Router: true}},
		{"through a box", veth.Config{Box: &veth.Box{}}},
		{"through a box, long frames", veth.Config{Box: &veth.Box{}, MTU: 65535}},
		{"without IPv6", veth.Config{NoIPv6: true}},
	}
	newPair(t, veth.Config{}) // or skip all of it
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t, tt.cfg)
			a, b := &p.Ends[0], &p.Ends[1]
			if err := echo(t, a, b, a.IPv4.Addr(), b.IPv4.Addr()); err != nil {
				t.Error("IPv4: ", err)
			}
			if tt.cfg.NoIPv6 {
				if b.IPv6.IsValid() {
					t.Errorf("got %s, want no IPv6 address", b.IPv6)
				}
				return
			}
			if err := echo(t, a, b, a.IPv6.Addr(), b.IPv6.Addr()); err != nil {
				t.Error("IPv6: ", err)
			}
		})
	}
}

func TestDoComesBack(t *testing.T) {
	p := newPair(t, veth.Config{})
	before := devices(t)
	var inside []string
	if err := p.Ends[0].Do(func() error { inside = devices(t); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"lo", p.Ends[0].Device}; len(inside) != 2 || inside[1] != want[1] {
		t.Errorf("inside: got devices %q, want %q", inside, want)
	}
	if after := devices(t); len(after) != len(before) {
		t.Errorf("outside: got devices %q, want %q", after, before)
	}
	if err := p.Ends[0].Do(func() error { return io.EOF }); err != io.EOF {
		t.Errorf("got %v, want the function's error", err)
	}
}

func devices(t *testing.T) (names []string) {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

func TestChildStartsInside(t *testing.T) {
	p := newPair(t, veth.Config{})
	cmd := exec.Command("cat", "/proc/self/net/dev")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := p.Ends[1].Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if want := p.Ends[1].Device + ":"; !bytes.Contains(out.Bytes(), []byte(want)) {
		t.Errorf("got\n%s\nwant a line of %s", out.Bytes(), want)
	}
}

func TestCloseLeavesNoDescriptor(t *testing.T) {
	for _, cfg := range []veth.Config{{Router: true}, {Box: &veth.Box{}}} {
		newPair(t, cfg).Close() // resources that are opened once stay
		before := descriptors(t)
		for range 3 {
			p := newPair(t, cfg)
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if after := descriptors(t); after != before {
			t.Errorf("%+v: got %d descriptors, want %d as before", cfg, after, before)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// Hosts on a switch reach each other.
func TestSwitchJoinsAll(t *testing.T) {
	s, err := veth.NewSwitch(5, veth.Config{})
	if errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range s.Ends {
		a, b := &s.Ends[i], &s.Ends[(i+1)%len(s.Ends)]
		var server net.PacketConn
		if err := b.Do(func() (err error) {
			server, err = net.ListenPacket("udp", netip.AddrPortFrom(b.IPv4.Addr(), 0).String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		var client net.Conn
		if err := a.Do(func() (err error) {
			client, err = net.Dial("udp", server.LocalAddr().String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		server.SetReadDeadline(time.Now().Add(5 * time.Second))
		buf := make([]byte, 16)
		if n, _, err := server.ReadFrom(buf); err != nil || string(buf[:n]) != "hello" {
			t.Fatalf("end %d to the next: %q, %v", i, buf[:n], err)
		}
	}
}
