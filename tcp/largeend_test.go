//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// One poll finishes a packet that was cancelled, or whose connection has ended, also if another goroutine is moving
// bytes of the connection: that goroutine wakes no waiter afterwards.
func TestOnePollFinishesEndedPackets(t *testing.T) {
	const n = 64
	post := func(t *testing.T, i *conn, p *driver.Packet) {
		t.Helper()
		if err := i.Self.RecvPost(p); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		lock func(*conn) *tryLock
		post func(*testing.T, *conn, *driver.Packet)
		end  func(*conn, *driver.Packet)
		poll func(driver.Instance, *driver.Packet) (bool, error)
		want error
	}{
		"cancelled receive": {
			lock: func(i *conn) *tryLock { return &i.rx },
			post: post,
			end:  func(i *conn, p *driver.Packet) { _ = i.Self.RecvCancel(p) },
			poll: driver.Instance.RecvPoll,
			want: driver.ErrCanceled,
		},
		"receive from a peer that has closed": {
			lock: func(i *conn) *tryLock { return &i.rx },
			post: post,
			end:  func(i *conn, _ *driver.Packet) { i.Finish(kit.StatePeerClosed, nil) },
			poll: driver.Instance.RecvPoll,
			want: driver.ErrClosed,
		},
		"send to a peer that has closed": {
			lock: func(i *conn) *tryLock { return &i.tx },
			post: func(t *testing.T, i *conn, p *driver.Packet) {
				t.Helper()
				var rdv [kit.RdvBytes]byte
				kit.PutRdv(&rdv, 1, 0, n)
				p.RdvData = rdv[:]
				if err := i.Self.SendPost(p); err != nil {
					t.Fatal(err)
				}
			},
			end:  func(i *conn, _ *driver.Packet) { i.Finish(kit.StatePeerClosed, nil) },
			poll: driver.Instance.SendPoll,
			want: driver.ErrClosed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := aContext(t, driver.Large, map[string]string{"dead-time": "1h"})
			i, fd := c.fed(t)
			defer unix.Close(fd)
			lock := tt.lock(i)
			lock.lock() // this goroutine is moving bytes
			p := &driver.Packet{IOV: [][]byte{make([]byte, n)}}
			tt.post(t, i, p)
			tt.end(i, p)
			type result struct {
				done bool
				err  error
			}
			polled := make(chan result, 1)
			go func() {
				done, err := tt.poll(i.Self, p)
				polled <- result{done, err}
			}()
			for k := 0; k < 10000 && len(polled) == 0; k++ {
				runtime.Gosched() // a poll that gives up does so meanwhile
			}
			lock.unlock()
			if r := <-polled; !r.done || r.err != nil && !errors.Is(r.err, tt.want) { // nil: another goroutine has sent it
				t.Errorf("done %v, %v; want true, %v", r.done, r.err, tt.want)
			}
		})
	}
}
