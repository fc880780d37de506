//go:build linux && !(386 || arm || mips || mipsle)

package afxdp_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/afxdp"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
)

// manyConns is many connections between two devices.
type manyConns struct {
	t    *testing.T
	ctx  [2][]driver.Context
	list []*ends
}

// newManyConns opens a context at the first end and some at the other.
func newManyConns(t *testing.T, others int, h driver.Hints) *manyConns {
	p := newPair(t, veth.Config{})
	c := &manyConns{t: t}
	options := map[string]string{"dead-time": "10s"} // both ends of 200 handshakes share this process's CPUs
	maps.Copy(options, h.Options)
	h.Options = options
	for end, n := range [2]int{1, others} {
		for range n {
			x, err := openEnd(&p.Ends[end], h)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				afxdp.Kill(x) // receivers that do not read would not take what was sent to them
				_ = x.Close()
			})
			c.ctx[end] = append(c.ctx[end], x)
		}
	}
	return c
}

// connect makes n connections, with one context of the other end after another.
func (c *manyConns) connect(n int) {
	c.t.Helper()
	var list []*ends
	for k := range n {
		e := &ends{tb: c.t, ctx: [2]driver.Context{c.ctx[0][0], c.ctx[1][k%len(c.ctx[1])]}}
		for end := range e.i {
			var err error
			if e.i[end], err = e.ctx[end].Connect(e.ctx[1-end].URL()); err != nil {
				c.t.Fatalf("connection %d: %v", len(c.list)+k, err)
			}
		}
		list = append(list, e)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), maxWait)
	defer cancel()
	for k, e := range list {
		for end, i := range e.i {
			if err := i.ConnectWait(ctx); err != nil {
				c.t.Fatalf("connection %d, end %d: %v", len(c.list)+k, end, err)
			}
		}
	}
	c.list = append(c.list, list...)
}

// fill posts messages that are not received, until no connection takes any more, and returns how many that were.
func (c *manyConns) fill(list []*ends, from int) (sent int) {
	c.t.Helper()
	iov := [][]byte{make([]byte, 1000)}
	last := time.Now()
	for limit := last.Add(maxWait); time.Since(last) < 50*time.Millisecond; {
		for k, e := range list {
			switch err := e.i[from].SendPost(&driver.Packet{IOV: iov}); err {
			case nil:
				sent, last = sent+1, time.Now()
			case driver.ErrBusy:
			default:
				c.t.Fatalf("connection %d after %d messages: %v", k, sent, err)
			}
		}
		if time.Now().After(limit) {
			c.t.Fatalf("%d messages, and no end", sent)
		}
	}
	return sent
}

// alive fails where a connection has ended.
func (c *manyConns) alive() {
	c.t.Helper()
	for k, e := range c.list {
		for end, i := range e.i {
			if err := i.(driver.Ender).Err(); err != nil {
				c.t.Fatalf("connection %d, end %d: %v", k, end, err)
			}
		}
	}
}

// Many connections share a device, and each of them carries messages, also when all others are full.
func TestManyConnectionsOnADevice(t *testing.T) {
	c := newManyConns(t, 1, driver.Hints{Peers: 256})
	c.connect(200)
	for k, e := range c.list {
		if err := errors.Join(e.sends(0, 8192, byte(k)), e.sends(1, 100, byte(k))); err != nil {
			t.Fatalf("connection %d: %v", k, err)
		}
	}
	last := len(c.list) - 1
	t.Log(c.fill(c.list[:last], 0), "messages that are not received")
	c.list[last].swaps(3)
	c.alive()
	c.connect(1)
	c.list[last+1].swaps(1)
}

// Receivers that do not receive harm no other connection, neither at the sender's device nor at theirs.
func TestReceiversThatDoNotReadHarmNoConnection(t *testing.T) {
	for _, x := range []struct {
		name          string
		contexts      int
		stalled, from int
	}{
		{"12 of one sender", 1, 12, 0},
		{"12 that are one", 1, 12, 1},
		{"20 contexts of one device", 21, 20, 0},
		{"one sender to 20 contexts", 21, 20, 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newManyConns(t, x.contexts, driver.Hints{})
			c.connect(x.stalled + 1)
			healthy := c.list[x.stalled]
			alone := rate(healthy)
			t.Log(c.fill(c.list[:x.stalled], x.from), "messages that are not received")
			beside := rate(healthy)
			t.Logf("8 KiB messages: %.0f/s alone, %.0f/s beside stalled ones", alone, beside)
			c.alive()
			c.connect(1) // another one finds room
			c.list[x.stalled+1].swaps(1)
		})
	}
}

// rate is how many messages a second go each way.
func rate(e *ends) float64 {
	const n = 300
	start := time.Now()
	done := make(chan error, 2)
	rdv := [2]chan []byte{make(chan []byte, n), make(chan []byte, n)}
	for end := range 2 {
		go func() { done <- e.exchange(end, 8192, n, rdv[end], rdv[1-end]) }()
	}
	for range 2 {
		if err := <-done; err != nil {
			e.tb.Error(err)
		}
	}
	return n / time.Since(start).Seconds()
}

// Connections for which the options leave no room are refused at once, with the option to raise, and harm none of the
// others.
func TestConnectionsBeyondTheRoomAreRefused(t *testing.T) {
	for _, x := range []struct {
		name   string
		hints  driver.Hints
		least  int // as many there are at least
		option string
	}{
		{"Peers", driver.Hints{Peers: 2}, 2, "Hints.Peers=2"},
		{"frames", driver.Hints{Options: map[string]string{"frames": "256"}}, 8, "frames=256"},
		{
			"Peers large", driver.Hints{Peers: 2, Track: driver.Large, Options: map[string]string{"frames": "256"}},
			2, "frames=256",
		},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newManyConns(t, 1, x.hints)
			c.connect(x.least)
			n := 0
			for ; ; n++ {
				from := time.Now()
				i, err := c.ctx[0][0].Connect(c.ctx[1][0].URL())
				if err == nil && n < 4096 {
					continue
				}
				if !errors.Is(err, driver.ErrBusy) || !strings.Contains(fmt.Sprint(err), x.option) {
					t.Errorf("after %d calls: %v, %v, want %v that names %s", n, i, err, driver.ErrBusy, x.option)
				}
				t.Log(n, "calls; then", err, "after", time.Since(from))
				break
			}
			for _, e := range c.list {
				if err := e.sends(0, 5000, 1); err != nil {
					t.Error(err)
				}
			}
			c.alive()
		})
	}
}
