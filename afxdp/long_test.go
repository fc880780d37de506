//go:build linux && !(386 || arm || mips || mipsle)

package afxdp_test

import (
	"context"
	"errors"
	"testing"

	"github.com/bywash/bywash/afxdp"
	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
)

// needMultiBuffer skips where frames have one chunk.
func needMultiBuffer(t *testing.T) {
	t.Helper()
	err := xsk.Probe(xsk.FeatureMultiBuffer)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("frames of several chunks: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// longSizes are messages around the borders of packets, chunks and windows.
var longSizes = []int{0, 1, 3600, 3800, 4096, 9000, 65300, 65400, 65536, 100_000, 1 << 20}

// Messages of the large track go in packets of many chunks, where the device's MTU is so large, in whatever way
// frames travel; where one end does not want that, or packets are sealed, in packets of one chunk.
func TestLongPackets(t *testing.T) {
	needMultiBuffer(t)
	for _, c := range []struct {
		name    string
		mtu     int
		options [2]map[string]string
		long    bool
	}{
		{"udp4 9000", 9000, [2]map[string]string{}, true},
		{"udp4 16384", 16384, [2]map[string]string{}, true},
		{"udp4 65535", 65535, [2]map[string]string{}, true},
		{"native 65535", 65535, both("mode", "native"), true},
		{"udp6 65535", 65535, both("carrier", "udp6"), true},
		{"checksums 65535", 65535, both("checksum", "on"), true},
		{"ether 65535", 65535, both("carrier", "ether"), true},
		{"udp4 4000", 4000, [2]map[string]string{}, true}, // one chunk to send from, two to receive into
		{"sealed 65535", 65535, both("encrypt", "on"), false},
		{"one end seals", 65535, [2]map[string]string{{"encrypt": "on"}, nil}, false},
		{"one end without", 65535, [2]map[string]string{nil, {"multi-buffer": "off"}}, false},
		{"both without", 65535, both("multi-buffer", "off"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := &ends{tb: t, pair: newPair(t, veth.Config{MTU: c.mtu})}
			for k := range e.ctx {
				var err error
				if e.ctx[k], err = openAt(e.pair, k, driver.Large, c.options[k]); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = e.ctx[k].Close() })
			}
			e.connect()
			for k, n := range longSizes {
				for from := range 2 {
					if err := e.sends(from, n, byte(k)); err != nil {
						t.Fatalf("%d bytes from end %d: %v", n, from, err)
					}
				}
			}
			for k, i := range e.i {
				if got := afxdp.Placed(i) > 3800; got != c.long {
					t.Errorf("end %d: %d bytes of a message in a packet, long: want %v", k, afxdp.Placed(i), c.long)
				}
				if n := afxdp.FillRingEmpty(i); n != 0 {
					t.Errorf("end %d: %d frames found no chunk", k, n)
				}
				var s driver.Counters
				e.ctx[k].Counters(&s)
				if s.BadFrames != 0 {
					t.Errorf("end %d: %d bad frames", k, s.BadFrames)
				}
			}
		})
	}
}

func both(key, value string) [2]map[string]string {
	return [2]map[string]string{{key: value}, {key: value}}
}

// The small track keeps to one chunk on a device whose frames are longer, and shares it with the large one.
func TestTracksShareADeviceOfLongFrames(t *testing.T) {
	needMultiBuffer(t)
	p := newPair(t, veth.Config{MTU: 65535})
	var e [2]*ends
	for k, track := range []driver.Track{driver.Small, driver.Large} {
		e[k] = &ends{tb: t, pair: p}
		for end := range 2 {
			var err error
			if e[k].ctx[end], err = openAt(p, end, track, nil); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e[k].ctx[end].Close() })
		}
		e[k].connect()
	}
	for round := range 5 {
		e[0].swaps(1)
		for from := range 2 {
			if err := e[1].sends(from, 300_000, byte(round)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A capture shows long frames whole, in both directions.
func TestTapShowsLongFrames(t *testing.T) {
	needMultiBuffer(t)
	for _, kind := range []string{"udp4", "ether"} {
		t.Run(kind, func(t *testing.T) {
			x := openTappedOn(t, veth.Config{MTU: 65535}, driver.Large, map[string]string{"carrier": kind})
			text := make([]byte, 200_000)
			for k := range text {
				text[k] = byte(k>>8) ^ byte(k)
			}
			x.exchange(t, string(text))
			longest := 0
			for _, f := range x.shown[0].of(true) {
				longest = max(longest, len(f))
			}
			if longest < 65000 {
				t.Errorf("the longest frame has %d bytes", longest)
			}
			if n := x.shows(string(text[:60000])); n < 2 {
				t.Errorf("60000 bytes are shown %d times", n)
			}
		})
	}
}

// A long message to oneself is copied in steps, between which others of the device are served.
func TestLongMessageToOneselfIsCopiedInSteps(t *testing.T) {
	const size, step = 32 << 20, 1 << 20
	e := &ends{tb: t, pair: newPair(t, veth.Config{})}
	c, err := openAt(e.pair, 0, driver.Large, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	i, err := c.Connect(c.URL())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	if err := i.ConnectWait(ctx); err != nil {
		t.Fatal(err)
	}
	e.i = [2]driver.Instance{i, i}
	before := afxdp.Rounds(c)
	if err := e.sends(0, size, 7); err != nil {
		t.Fatal(err)
	}
	if n := afxdp.Rounds(c) - before; n < size/step {
		t.Errorf("%d MiB were copied in %d rounds", size>>20, n)
	}
}
