//go:build linux && !(386 || arm || mips || mipsle)

package afxdp

import (
	"bytes"
	"errors"
	"testing"

	"github.com/bywash/bywash/afxdp/internal/carrier"
	"github.com/bywash/bywash/driver"
)

// FuzzAddress: every address that parses is written as the same text, and is an address of another host.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{
		"udp4,198.18.0.1,24249,0", "udp6,2001:db8::1,1,255", "ether,02:00:00:00:00:01,65535,7", "udp4,127.0.0.1,1,0", "udp4,198.18.0.1,0,0",
		"ether,ff:ff:ff:ff:ff:ff,1,1", "udp6,::ffff:1.2.3.4,1,1", "udp6,fe80::1%eth0,1,1", "udp4,1.2.3.4,1,256", ",,,", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseAddress(s)
		if err != nil {
			if !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%q: %v is not %v", s, err, driver.ErrInvalid)
			}
			return
		}
		b, err := parseAddress(a.String())
		if err != nil || a != b {
			t.Errorf("%q is read as %v, and that as %v (%v)", s, a, b, err)
		}
		if a.port == 0 || a.ip.IsValid() && (a.ip.IsLoopback() || a.ip.IsMulticast() || a.ip.IsUnspecified()) {
			t.Errorf("%q gives %v", s, a)
		}
	})
}

// FuzzHello: every hello that parses has this version and track.
func FuzzHello(f *testing.F) {
	c := &share{}
	s := &small{conn: conn{ctx: c}}
	f.Add(s.helloOf(1))
	f.Add([]byte{helloVersion, 1})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		token, err := s.parseHello(b)
		if err == nil && !bytes.Equal(b[:2], s.helloOf(token)[:2]) {
			t.Errorf("% x is taken", b)
		}
	})
}

// FuzzAssembly: whatever chunks a frame comes in, each one is given back once, and what makes no sense is counted.
func FuzzAssembly(f *testing.F) {
	f.Add([]byte{5, 5, 5, 255, 1, 0, 128})
	f.Add(append(bytes.Repeat([]byte{9}, 2*maxPieces), 137, 3, 131))
	f.Fuzz(func(t *testing.T, script []byte) {
		n := &nic{}
		n.filter.Kinds[carrier.UDP4] = true
		var q queue
		frames := uint64(0)
		for k, x := range script {
			last := x&128 != 0
			n.arrivedPart(&q.long, uint32(k), make([]byte, 40*int(x&127)), last, nil)
			if last {
				frames++
			}
		}
		if got := uint64(len(n.spare) + q.long.n); got != uint64(len(script)) {
			t.Fatalf("%d chunks of %d are there", got, len(script))
		}
		seen := make([]bool, len(script))
		for _, id := range append(n.spare, q.long.ids[:q.long.n]...) {
			if seen[id] {
				t.Fatalf("chunk %d is there twice", id)
			}
			seen[id] = true
		}
		counted := n.stats.pieces
		for _, c := range n.stats.codes {
			counted += c
		}
		if counted != frames {
			t.Fatalf("%d frames counted of %d", counted, frames)
		}
	})
}

// Options that make no sense are errors that name them.
func TestOptionsAreChecked(t *testing.T) {
	for _, x := range []struct {
		key, value string
		ok         bool
	}{
		{"carrier", "udp6", true}, {"carrier", "tcp", false}, {"port", "1", true}, {"port", "0", false}, {"port", "65536", false},
		{"queues", "0,2-4", true}, {"queues", "0,0", false}, {"queues", "3-1", false}, {"queues", "", false}, {"mode", "skb", true},
		{"mode", "fast", false}, {"copy", "never", true}, {"copy", "no", false}, {"encrypt", "on", true}, {"encrypt", "1", false},
		{"checksum", "on", true}, {"frames", "256", true}, {"frames", "255", false}, {"window", "64", true}, {"window", "100", false},
		{"dead-time", "1s", true}, {"dead-time", "1", false}, {"dead-time", "2h", false}, {"busy-poll", "50us", true}, {"busy-poll", "1s", false},
		{"huge-pages", "on", true}, {"multi-buffer", "off", true}, {"multi-buffer", "on", false}, {"nonsense", "1", false},
	} {
		_, err := optionTable.Parse(map[string]string{x.key: x.value})
		if x.ok != (err == nil) || err != nil && !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s=%s: %v", x.key, x.value, err)
		}
	}
}

// A frame of ours, once it is in a ring, comes out once, in order.
func TestRingKeepsOrder(t *testing.T) {
	r := newRing[int](5)
	in, out := 0, 0
	for round := range 1000 {
		for range round%9 + 1 {
			if r.push(in) {
				in++
			} else if r.len() != len(r.slots) {
				t.Fatal("refused with room")
			}
		}
		for range round%7 + 1 {
			if v := r.peek(0); v != nil && *v != out {
				t.Fatalf("peek %d, want %d", *v, out)
			}
			if v, ok := r.pop(); ok {
				if v != out {
					t.Fatalf("pop %d, want %d", v, out)
				}
				out++
			} else if in != out {
				t.Fatal("empty with values in it")
			}
		}
	}
}
