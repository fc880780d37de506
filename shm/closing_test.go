//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// A peer whose hazard word stays set, and that connects again and again, costs memory up to a limit: neither
// goroutines nor descriptors.
func TestHazardThatStaysSet(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			tables := regionTables(t)
			c, err := query(t, track, nil).Open(driver.Attributes{})
			if err != nil {
				t.Fatal(err)
			}
			var segs []*segment
			var before holdings
			round := func() {
				i := newFakePeer(t)
				inst := i.connect(c)
				store64(&i.seg.ctl.side[1].hazard, 1)
				i.seg.closeFD()
				segs = append(segs, i.seg)
				if err := inst.Disconnect(); err != nil {
					t.Fatal(err)
				}
				i.sock.Close()
			}
			for k := range maxClosing {
				if k == 1 { // the goroutine of poller, and the process's pidfd, are there
					before = held()
					before.maps = 1 << 20
				}
				round()
			}
			before.fds += maxClosing // listeners of the fake peers, which belong to the test
			before.goroutines += 2
			releasedAll(t, before)
			i := newFakePeer(t)
			if _, err := c.Connect(i.url); !errors.Is(err, driver.ErrBusy) {
				t.Errorf("connection beyond the limit: got %v, want ErrBusy", err)
			} else {
				oneLine(t, err, "limit 64")
			}
			store64(&segs[0].ctl.side[1].hazard, 0)
			within(t, 10*time.Second, "one place is free", func() bool {
				core(c).Mu.Lock()
				defer core(c).Mu.Unlock()
				return core(c).old[lowestInc] < maxClosing
			})
			round()
			ends(t, 5*time.Second, "close", func() { _ = c.Close() })
			for _, s := range segs {
				store64(&s.ctl.side[1].hazard, 0)
			}
			within(t, 10*time.Second, "the memory is let go", func() bool {
				return regionTables(t) <= tables
			})
		})
	}
}

// A connection is being closed by one goroutine while another closes the context: regions stay pinned until the peer,
// which is inside one, has left.
func TestCloseBesideDisconnectKeepsRegions(t *testing.T) {
	tables := regionTables(t)
	c, err := query(t, driver.Small, nil).Open(driver.Attributes{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.(driver.Registrar).Register(make([]byte, 64), driver.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	i := newFakePeer(t)
	n := i.connect(c).(*small).conn
	atomic.StoreUint64(&i.seg.ctl.side[1].hazard, uint64(r.(*region).index)+1)
	n.ctx.Mu.Lock() // both wait for it
	var wg sync.WaitGroup
	wg.Go(func() { _ = n.Disconnect() })
	within(t, 10*time.Second, "the state to change", func() bool { return n.State() == kit.StateClosed })
	begun := make(chan struct{})
	wg.Go(func() { close(begun); _ = c.Close() })
	<-begun
	n.ctx.Mu.Unlock()
	ends(t, 5*time.Second, "disconnect and close", wg.Wait)
	if now := regionTables(t); now <= tables {
		t.Error("the regions were released while the peer was inside one")
	}
	atomic.StoreUint64(&i.seg.ctl.side[1].hazard, 0)
	within(t, 10*time.Second, "the memory is let go", func() bool { return regionTables(t) <= tables })
}

// regionTables counts the mapped tables of contexts.
func regionTables(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("memfd:bywash-regions"))
}
