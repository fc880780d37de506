//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/bywash/bywash/internal/lab/veth"
)

// namespaces are two network namespaces that a pair of devices joins.
func namespaces(t *testing.T) *veth.Pair {
	t.Helper()
	p, err := veth.New(veth.Config{MTU: 9000})
	if errors.Is(err, os.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// received is how many bytes a device has received.
func received(t *testing.T, e *veth.End) (n int) {
	t.Helper()
	err := e.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if _, err := fmt.Sscanf(strings.TrimSpace(line), e.Device+": %d", &n); err == nil {
				return nil
			}
		}
		return errors.New("the device is not there")
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// paths runs perf with --json, started by start, and returns "driver path" of each result.
func paths(t *testing.T, start func(*exec.Cmd) error, args ...string) (list []string, stderr string) {
	t.Helper()
	cmd := bywash(append([]string{"perf", "--json"}, args...)...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	for line := range strings.Lines(o.String()) {
		var r struct{ Driver, Path string }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if x := r.Driver + " " + r.Path; !slices.Contains(list, x) {
			list = append(list, x)
		}
	}
	return list, e.String()
}

func TestSocketsBetweenTwoMachines(t *testing.T) {
	p := namespaces(t)
	for _, tt := range []struct {
		name        string
		to          netip.Addr
		near, far   string // --dev of the two ends
		path, flags string
	}{
		{"IPv4", p.Ends[1].IPv4.Addr(), "", "", "network", "-t lat,bw -s 8,1M"},
		{"IPv6", p.Ends[1].IPv6.Addr(), "", "", "network", "-t bw -s 1M --wait block"},
		{"device", p.Ends[1].IPv4.Addr(), p.Ends[0].Device, p.Ends[1].Device, p.Ends[0].Device, "-t bw -s 1M"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var far, near []string
			if tt.far != "" {
				far, near = []string{"--dev", tt.far}, []string{"--dev", tt.near}
			}
			l := startListenerAt(t, p.Ends[1].Start, netip.AddrPortFrom(tt.to, 0).String(), far...)
			before := received(t, &p.Ends[1])
			args := append(strings.Fields(tt.flags+" -d sock-tcp,sock-udp -n 40 --secret-file "+l.secret), near...)
			got, stderr := paths(t, p.Ends[0].Start, append(args, l.addr)...)
			want := []string{"sock-tcp tcp-" + tt.path, "sock-udp udp-" + tt.path}
			if !slices.Equal(got, want) {
				t.Errorf("%v, %s; want %v", got, stderr, want)
			}
			if n := received(t, &p.Ends[1]) - before; n < 2*40<<20 {
				t.Errorf("the device received %d bytes, want more than 80 messages of 1 MiB", n)
			}
		})
	}
	t.Run("sock-unix", func(t *testing.T) {
		l := startListenerAt(t, p.Ends[1].Start, netip.AddrPortFrom(p.Ends[1].IPv4.Addr(), 0).String())
		if got, stderr := paths(t, p.Ends[0].Start, "-d", "sock-unix", "--secret-file", l.secret, l.addr); got != nil ||
			!strings.Contains(stderr, "sock-unix is local") {
			t.Errorf("%v, %q; want that it is local", got, stderr)
		}
	})
}

func TestBaselinesTakeTheDriversPath(t *testing.T) {
	namespaces(t) // skips where there are none
	const flags = "-t lat -s 8 -n 50"
	for _, tt := range []struct{ drivers, want string }{
		{"afxdp,sock-tcp,sock-udp,sock-unix", "sock-tcp@veth tcp-veth0, sock-udp@veth udp-veth0, sock-unix unix-stream"},
		{"tcp@veth,sock-tcp", "tcp@veth tcp, sock-tcp@veth tcp-veth0"},
		{"tcp,sock-tcp,sock-udp@veth", "tcp tcp, sock-tcp tcp-loopback, sock-udp@veth udp-veth0"},
	} {
		got, stderr := paths(t, (*exec.Cmd).Start, append(strings.Fields(flags), "-d", tt.drivers)...)
		got = slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "afxdp ") }) // its path depends on the kernel
		if strings.Join(got, ", ") != tt.want {
			t.Errorf("-d %s: %v, %s; want %s", tt.drivers, got, stderr, tt.want)
		}
	}
}
