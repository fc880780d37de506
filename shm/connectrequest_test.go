//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"slices"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
)

// openRank opens a context of a session.
func openRank(t *testing.T, track driver.Track, rank int) (driver.Context, uint64) {
	t.Helper()
	nic, err := shmDriver{}.Query(driver.Hints{Track: track})
	if err != nil {
		t.Fatal(err)
	}
	c, err := nic.Open(driver.Attributes{SessionSize: 8, Rank: rank})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	u, err := driver.ParseURL(c.URL(), driver.MaxURL)
	if err != nil {
		t.Fatal(err)
	}
	return c, u.Incarnation
}

// Whichever of the two would dial, the side that has not called Connect is notified
// of the one that has, and no more once it has connected or the other gave up.
func TestConnectRequestLastsUntilAnswered(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		for _, tt := range []struct {
			name  string
			first int // index of the context that connects first: 0 dials, because the ranks order the incarnations here
		}{{"dialer first", 0}, {"listener first", 1}} {
			t.Run(track.String()+"/"+tt.name, func(t *testing.T) {
				x, xi := openRank(t, track, 3)
				y, yi := openRank(t, track, 5)
				if (xi > yi) != (tt.first == 1) {
					x, y, xi, yi = y, x, yi, xi
				}
				// Now x calls first.
				notified := make(chan struct{}, 16)
				y.(driver.ConnectRequestReceiver).OnConnectRequest(func() {
					select {
					case notified <- struct{}{}:
					default:
					}
				})
				requested := func() {
					t.Helper()
					end := time.After(10 * time.Second)
					for !slices.Contains(y.(driver.ConnectRequestReceiver).ConnectRequests(nil), xi) {
						select {
						case <-notified:
						case <-end:
							t.Fatal("the connect request is not named")
						}
					}
				}
				// A session that has closed a connection asks at once whether there is another one.
				quiet := func() {
					t.Helper()
					if slices.Contains(y.(driver.ConnectRequestReceiver).ConnectRequests(nil), xi) {
						t.Error("a connect request that was answered or given up is still named")
					}
				}
				quiet()
				a, err := x.Connect(y.URL())
				if err != nil {
					t.Fatal(err)
				}
				requested()
				if err := a.Disconnect(); err != nil {
					t.Fatal(err)
				}
				quiet()
				if a, err = x.Connect(y.URL()); err != nil {
					t.Fatal(err)
				}
				requested()
				b, err := y.Connect(x.URL())
				if err != nil {
					t.Fatal(err)
				}
				for _, i := range []driver.Instance{a, b} {
					if err := i.ConnectWait(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				quiet()
				if got := driver.RankOf(xi); got != 3 && got != 5 {
					t.Errorf("rank of the incarnation is %d", got)
				}
			})
		}
	}
}
