//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/attack"
)

// at is the url of a context with other addresses.
func at(c *share, addrs ...string) string {
	u, _ := driver.ParseURL(c.URL(), driver.MaxURL)
	u.Rest = fmt.Sprintf("%d,%016x,%s", c.at.port, c.at.network, strings.Join(addrs, ","))
	return u.String()
}

// Another process of the session may answer at an address of the peer, as it does where two hosts have docker0: it
// harms nothing, and the peer is dialed again if it closed the connection.
func TestOtherProcessAnswersFirst(t *testing.T) {
	a := aContext(t, driver.Small, map[string]string{"address": "127.0.0.1"})
	port := strconv.Itoa(int(a.at.port))
	other := aContext(t, driver.Small, map[string]string{"address": "127.0.0.2", "port": port})
	var visits atomic.Int32
	l, err := net.Listen("tcp", "127.0.0.3:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // the peer's port, over its limit at first
		for {
			x, err := l.Accept()
			if err != nil {
				return
			}
			if visits.Add(1) <= 3 {
				reset(x.(*net.TCPConn))
				continue
			}
			y, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err != nil {
				_ = x.Close()
				continue
			}
			copies := passing(func([]byte) {})
			go copies(x.(*net.TCPConn), y.(*net.TCPConn))
			go copies(y.(*net.TCPConn), x.(*net.TCPConn))
		}
	}()
	b := aContext(t, driver.Small, nil)
	x, err := b.Connect(at(a, "127.0.0.2", "127.0.0.3"))
	if err != nil {
		t.Fatal(err)
	}
	// The peer's own dialing leads to the other process, too.
	v, _ := driver.ParseURL(b.URL(), driver.MaxURL)
	v.Rest = address{port: a.at.port, network: a.at.network, addrs: []netip.Addr{netip.MustParseAddr("127.0.0.2")}}.String()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	attack.Await(t, "the peer is reached after three resets", func() bool { return visits.Load() > 3 })
	attack.Await(t, "the link is established", func() bool {
		a.Mu.Lock()
		defer a.Mu.Unlock()
		return len(a.pendingPeers) > 0
	})
	y, err := a.Connect(v.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(x.ConnectWait(ctx), y.ConnectWait(ctx)); err != nil {
		t.Fatal(err)
	}
	moves(t, x, y, driver.Small, 100)
	var counted driver.Counters
	if other.Counters(&counted); counted.Refused == 0 {
		t.Error("the other process was never asked")
	}
}

// A range of ports without a free one is named, and so is the option.
func TestExhaustedPortRangeIsNamed(t *testing.T) {
	a := aContext(t, driver.Small, nil)
	for a.at.port == 65535 { // the next one is needed, too
		a = aContext(t, driver.Small, nil)
	}
	next, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", a.at.port+1))
	if err == nil {
		defer next.Close()
	}
	ports := fmt.Sprintf("%d-%d", a.at.port, a.at.port+1)
	q, err := tcpDriver{}.Query(driver.Hints{Options: map[string]string{"address": "127.0.0.1", "port": ports}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = q.Open(driver.Attributes{})
	want := fmt.Sprintf("all ports from %d to %d are in use", a.at.port, a.at.port+1)
	if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("open with ports %s, which are taken: %v, want %q", ports, err, want)
	}
}

// Both sides connect and give up at the same time, again and again: each round ends with a connection that carries
// messages, or with an error, and nothing is left.
func TestConnectRaces(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			a, b := aContext(t, track, nil), aContext(t, track, nil)
			x, y := connected(t, a, b)
			moves(t, x, y, track, 100)
			_, _ = x.Disconnect(), y.Disconnect()
			before := attack.Settled()
			for k := range rounds {
				ends := make(chan driver.Instance, 2)
				for n, c := range []*share{a, b} {
					go func() {
						i, err := c.Connect([]*share{b, a}[n].URL())
						if err != nil {
							t.Error(err)
						} else if k%4 == n { // it gives up at once
							_ = i.Disconnect()
							i = nil
						}
						ends <- i
					}()
				}
				p, q := <-ends, <-ends
				if p == nil || q == nil {
					for _, i := range []driver.Instance{p, q} {
						if i != nil {
							_ = i.Disconnect()
						}
					}
					continue
				}
				ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
				if err := errors.Join(p.ConnectWait(ctx), q.ConnectWait(ctx)); err != nil {
					t.Fatalf("round %d: %v", k, err)
				}
				stop()
				if k%16 == 2 {
					moves(t, p, q, track, 100)
				}
				_, _ = p.Disconnect(), q.Disconnect()
			}
			attack.Left(t, "after the races", before)
		})
	}
}
