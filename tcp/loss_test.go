//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
)

// joinedBy is a connection of this process with itself, between two network namespaces that a pair of devices joins.
func joinedBy(t *testing.T, cfg veth.Config, track driver.Track, options map[string]string) (*veth.Pair, [2]driver.Instance) {
	t.Helper()
	p, err := veth.New(cfg)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	var contexts [2]driver.Context
	for k := range contexts {
		o := map[string]string{"netns": fmt.Sprintf("/proc/self/fd/%d", p.Ends[k].Namespace)}
		for name, value := range options {
			o[name] = value
		}
		nic, err := tcpDriver{}.Query(driver.Hints{Device: p.Ends[k].Device, Track: track, Options: o})
		if err != nil {
			t.Fatal(err)
		}
		if contexts[k], err = nic.Open(driver.Attributes{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = contexts[k].Close() })
	}
	var ends [2]driver.Instance
	for k := range ends {
		if ends[k], err = contexts[k].Connect(contexts[1-k].URL()); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range ends {
		if err := i.ConnectWait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return p, ends
}

// A path that loses one frame in a hundred, or also delays, repeats and reorders them, loses nothing of what is sent,
// and ends no connection.
func TestLossLosesNothing(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		for name, box := range map[string]veth.Box{
			"loss": {Loss: 0.01},
			"all":  {Loss: 0.01, Duplicate: 0.01, Delay: 2 * time.Millisecond, Reorder: 0.05},
		} {
			t.Run(track.String()+" "+name, func(t *testing.T) {
				t.Parallel()
				_, ends := joinedBy(t, veth.Config{Box: &box}, track, map[string]string{"dead-time": "30s"})
				lengths := []int{0, 1, 100, maxSmall}
				if track == driver.Large {
					lengths = append(lengths, 100_000, 2<<20)
				}
				const rounds, most = 10, 500 // ten rounds of short messages are some 150 frames: one run in five loses none
				for k := 0; k < rounds || k < most && resent(t, ends) == 0; k++ {
					for _, n := range lengths {
						moves(t, ends[k%2], ends[1-k%2], track, n)
					}
				}
				if resent(t, ends) == 0 {
					t.Errorf("nothing was sent again in %d rounds, so nothing can have been lost", most)
				}
			})
		}
	}
}

// resent is how many segments the kernel has sent again, on the sockets of both ends.
func resent(t *testing.T, ends [2]driver.Instance) (n uint32) {
	t.Helper()
	for _, i := range ends {
		var fd int
		switch i := i.(type) {
		case *small:
			fd = i.wire.out
		case *large:
			fd = i.wire.out
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Fatal(err)
		}
		n += info.Total_retrans
	}
	return n
}

// A link that is down for less than the dead time loses nothing. Where it stays down, the connection breaks at
// both sides.
func TestLinkDownAndUp(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			t.Parallel()
			p, ends := joinedBy(t, veth.Config{}, track, map[string]string{"dead-time": "5s"}) // TCP repeats after 0.2 s or more
			moves(t, ends[0], ends[1], track, 1000)
			link := func(up bool) {
				if err := p.Ends[0].SetUp(up); err != nil {
					t.Fatal(err)
				}
			}
			link(false)
			time.AfterFunc(100*time.Millisecond, func() { _ = p.Ends[0].SetUp(true) })
			moves(t, ends[0], ends[1], track, 1000)
			moves(t, ends[1], ends[0], track, 1000)
			link(false)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var in [2]driver.Packet
			for k, i := range ends {
				in[k].IOV = [][]byte{make([]byte, 8)}
				if err := i.RecvPost(&in[k]); err != nil {
					t.Fatal(err)
				}
			}
			for k, i := range ends {
				if err := i.(driver.RecvWaiter).RecvWait(ctx, &in[k]); !errors.Is(err, driver.ErrBroken) {
					t.Errorf("a receive whose link is down: %v, want %v", err, driver.ErrBroken)
				}
			}
		})
	}
}
