//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/attack"
)

// waiting is how many links wait for the context's user, and how many dialers it has turned away.
func (c *share) waiting() (links int, refused uint64) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return len(c.pending.list), c.refused.Load()
}

// Links for which no Connect comes end after their time, and their dialers dial again: when the Connects come, each
// is matched with the peer's of the same number, whichever side leads.
func TestPendingLinksEndAndComeAgain(t *testing.T) {
	defer func(d time.Duration) { pendingTime = d }(pendingTime)
	pendingTime = 100 * time.Millisecond
	for _, leads := range []bool{true, false} {
		t.Run(map[bool]string{true: "the dialer leads", false: "the listener leads"}[leads], func(t *testing.T) {
			a, b := aContext(t, driver.Small, nil), aContext(t, driver.Small, nil)
			if (b.Incarnation < a.Incarnation) != leads {
				a, b = b, a
			}
			const n = 3
			var x, y [n]driver.Instance
			var err error
			for k := range n {
				if x[k], err = b.Connect(a.URL()); err != nil {
					t.Fatal(err)
				}
			}
			attack.Await(t, "all links have ended once", func() bool {
				_, refused := a.waiting()
				return refused >= n
			})
			attack.Await(t, "all are dialed again", func() bool {
				links, _ := a.waiting()
				return links == n
			})
			for k := range n {
				if y[k], err = a.Connect(b.URL()); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), attack.MaxWait)
			defer cancel()
			for k := range n {
				if err := errors.Join(x[k].ConnectWait(ctx), y[k].ConnectWait(ctx)); err != nil {
					t.Fatalf("connection %d: %v", k, err)
				}
				moves(t, x[k], y[k], driver.Small, 100+k)
			}
			// A link that is taken has no limit of time: it stays while one without an instance ends twice.
			extra, err := b.Connect(a.URL())
			if err != nil {
				t.Fatal(err)
			}
			_, before := a.waiting()
			attack.Await(t, "another link ends twice", func() bool {
				_, refused := a.waiting()
				return refused >= before+2
			})
			if err := extra.Disconnect(); err != nil {
				t.Fatal(err)
			}
			for k := range n {
				moves(t, y[k], x[k], driver.Small, 100)
			}
			attack.Await(t, "no link waits", func() bool {
				links, _ := a.waiting()
				return links == 0
			})
		})
	}
}

// At the limit the newest link of the host with the most ends, and no host has more than half.
func TestExcessOfPendingLinks(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var q pending
	name := make(map[*link]string)
	from := func(host byte, s string) *link {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		sock, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sock.Close() })
		x := &link{sock: sock.(*net.TCPConn)}
		name[x] = s
		return x
	}
	name[nil] = "none"
	const limit = 6
	for _, tt := range []struct {
		host byte
		name string
		ends string
	}{
		{2, "a1", "none"}, {2, "a2", "none"}, {2, "a3", "none"}, {2, "a4", "a4"}, // half of the limit
		{3, "b1", "none"}, {3, "b2", "none"}, {4, "c1", "none"},
		{4, "c2", "a3"}, {5, "d1", "b2"}, // the newest of the host with the most
		{5, "d2", "d2"}, // no host has more than this one would have
	} {
		x := from(tt.host, tt.name)
		ends := q.excess(x, limit)
		if tt.name == "d1" { // three hosts have two each
			if q.of[ends.host()] != 2 {
				t.Fatalf("%s ends, whose host has %d links", name[ends], q.of[ends.host()])
			}
		} else if name[ends] != tt.ends {
			t.Fatalf("when %s comes %s ends, want %s", tt.name, name[ends], tt.ends)
		}
		if ends != nil && ends != x {
			q.remove(ends)
		}
		if ends != x {
			q.add(x)
		}
	}
	for len(q.list) > 0 {
		q.remove(q.list[0])
	}
	if ends := q.excess(from(9, "e1"), 0); name[ends] != "e1" {
		t.Errorf("without room %s ends, want the new one", name[ends])
	}
	if len(q.of) > 0 {
		t.Errorf("hosts are kept without a link: %v", q.of)
	}
}

func TestHostOf(t *testing.T) {
	for a, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7",
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "fe80::1%lo": "fe80::1",
	} {
		if got := hostOf(netip.MustParseAddr(a)); got != netip.MustParseAddr(want) {
			t.Errorf("%s counts for %v, want %s", a, got, want)
		}
	}
}

// A dial that ends because its instance was given up does not fail one that connects just then.
func TestGivenUpDialSparesNextInstance(t *testing.T) {
	a, b := aContext(t, driver.Small, nil), aContext(t, driver.Small, nil)
	a.Mu.Lock()
	p := a.pendingPeer(b.Incarnation)
	p.dials = 1 // for an instance that was given up
	a.Mu.Unlock()
	_, why := a.persist(p, nil, time.Nanosecond)
	x, err := a.Connect(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	p.dialed(why)
	y, err := b.Connect(a.URL())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), attack.MaxWait)
	defer cancel()
	if err := errors.Join(x.ConnectWait(ctx), y.ConnectWait(ctx)); err != nil {
		t.Error(err)
	}
}
