//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/integrity"
)

// carry gives the updates of a receive to its send and returns how many there
// were.
func carry(t *testing.T, a, b *conn, send, recv *driver.Packet) (n int) {
	t.Helper()
	for {
		u, err := b.api.(driver.RdvUpdater).RecvRdvUpdate(recv)
		if err != nil {
			t.Fatal(err)
		}
		if u == nil {
			return n
		}
		for range 2 { // twice does no harm
			if err := a.api.(driver.RdvUpdater).SendRdvUpdate(send, slices.Clone(u)); err != nil {
				t.Fatal(err)
			}
		}
		n++
	}
}

// TestUncachedMemoryGoesInParts: only the first part's key is in the rdv data, the
// others come while the message is under way, and every byte arrives.
func TestUncachedMemoryGoesInParts(t *testing.T) {
	for _, windows := range []string{"auto", "off"} {
		a, b := pair(t, driver.Large, map[string]string{"windows": windows})
		for _, x := range []struct{ room, size int }{
			{uncachedSize, uncachedSize}, {3 << 20, 3<<20 - 5}, {6<<20 + 3, 6<<20 + 3}, {4 << 20, 1000}, {2 << 20, 5 << 20},
		} {
			t.Run(fmt.Sprintf("windows %s, %d bytes into %d", windows, x.size, x.room), func(t *testing.T) {
				src, dst := make([]byte, x.size), make([]byte, x.room)
				for k := range src {
					src[k] = byte(k>>12*7 + k)
				}
				send, recv := driver.Packet{IOV: [][]byte{src}}, driver.Packet{IOV: [][]byte{dst}}
				if err := b.api.RecvPost(&recv); err != nil {
					t.Fatal(err)
				}
				var r rdvData
				if err := r.parse(recv.RdvData, b.api.(*large).tag, transferDepth); err != nil || r.covered() >= x.room {
					t.Fatalf("rdv data covers %d of %d bytes, error %v", r.covered(), x.room, err)
				}
				send.RdvData = recv.RdvData
				if err := a.api.SendPost(&send); err != nil {
					t.Fatal(err)
				}
				updates, sent, received := 0, false, false
				within(t, "message", func() bool {
					var err error
					if !received {
						updates += carry(t, a, b, &send, &recv)
					}
					if !sent {
						if sent, err = a.api.SendPoll(&send); err != nil {
							t.Fatal(err)
						}
					}
					if !received {
						var cut *driver.TruncatedError
						if received, err = b.api.RecvPoll(&recv); err != nil && (x.size <= x.room || !errors.As(err, &cut)) {
							t.Fatal(err)
						}
					}
					return sent && received
				})
				if n := min(x.size, x.room); recv.N != n || !bytes.Equal(dst[:n], src[:n]) {
					t.Errorf("%d bytes of %d arrived, or others", recv.N, n)
				}
				if updates == 0 && x.size >= x.room {
					t.Error("there was no update")
				}
			})
		}
	}
}

// TestUncachedReceiveCanBeCancelled: before the send has begun, and while it waits
// for keys, which it then gets.
func TestUncachedReceiveCanBeCancelled(t *testing.T) {
	a, b := pair(t, driver.Large, nil)
	for _, begun := range []bool{false, true} {
		send := driver.Packet{IOV: [][]byte{make([]byte, 4<<20)}}
		recv := driver.Packet{IOV: [][]byte{make([]byte, 4<<20)}}
		if err := b.api.RecvPost(&recv); err != nil {
			t.Fatal(err)
		}
		send.RdvData = slices.Clone(recv.RdvData)
		if begun {
			if err := a.api.SendPost(&send); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.api.RecvCancel(&recv); err != nil {
			t.Fatal(err)
		}
		var err error
		within(t, "receive", func() (done bool) {
			if begun {
				carry(t, a, b, &send, &recv)
				a.api.(*large).settleFor(t)
			}
			done, err = b.api.RecvPoll(&recv)
			return done
		})
		if begun && err != nil || !begun && !errors.Is(err, driver.ErrCanceled) {
			t.Errorf("begun %v: receive ended with %v", begun, err)
		}
		if begun {
			finished(t, a.api.SendPoll, &send)
		}
	}
}

// settleFor makes progress without a packet.
func (l *large) settleFor(t *testing.T) {
	if !l.Enter() {
		t.Fatal(l.Failure("settle"))
	}
	defer l.Leave()
	l.Settle()
}

// TestUpdatesOfATransferThatEndsMeanwhile has the keep-alive goroutine inside, which finishes the transfer, when an
// update is asked for or given: neither is an error.
func TestUpdatesOfATransferThatEndsMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name   string
		update func(a, b *conn, send, recv *driver.Packet, data []byte) error
		holds  func(a, b *conn) *conn
		packet func(send, recv *driver.Packet) *driver.Packet
	}{
		{
			"of the receive",
			func(_, b *conn, _, recv *driver.Packet, _ []byte) error {
				data, err := b.api.(driver.RdvUpdater).RecvRdvUpdate(recv)
				if err == nil && data != nil {
					err = errors.New("an update of a receive that is done")
				}
				return err
			},
			func(_, b *conn) *conn { return b },
			func(_, recv *driver.Packet) *driver.Packet { return recv },
		},
		{
			"for the send",
			func(a, _ *conn, send, _ *driver.Packet, data []byte) error {
				return a.api.(driver.RdvUpdater).SendRdvUpdate(send, data)
			},
			func(a, _ *conn) *conn { return a },
			func(send, _ *driver.Packet) *driver.Packet { return send },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t, driver.Large, nil)
			send := driver.Packet{IOV: [][]byte{make([]byte, 2*uncachedSize)}}
			recv := driver.Packet{IOV: [][]byte{make([]byte, 2*uncachedSize)}}
			if err := b.api.RecvPost(&recv); err != nil {
				t.Fatal(err)
			}
			send.RdvData = slices.Clone(recv.RdvData)
			if err := a.api.SendPost(&send); err != nil {
				t.Fatal(err)
			}
			var last []byte
			within(t, "last update", func() bool {
				u, err := b.api.(driver.RdvUpdater).RecvRdvUpdate(&recv)
				if err != nil {
					t.Fatal(err)
				}
				if u != nil {
					last = slices.Clone(u)
				}
				s := &b.api.(*large).slots[recv.Driver.Slot]
				if u != nil && s.keysSent < s.memory.n {
					err = a.api.(driver.RdvUpdater).SendRdvUpdate(&send, u)
				}
				if err != nil {
					t.Fatal(err)
				}
				return s.keysSent == s.memory.n
			})
			n, p := c.holds(a, b), c.packet(&send, &recv)
			if err := a.api.(driver.RdvUpdater).SendRdvUpdate(&send, last); err != nil {
				t.Fatal(err)
			}
			within(t, "the keep-alive's turn", n.TryEnter)
			begun, updated := make(chan struct{}), make(chan error)
			go func() {
				close(begun)
				updated <- c.update(a, b, &send, &recv, last)
			}()
			<-begun
			within(t, "end of the transfer", func() bool {
				runtime.Gosched()
				c.holds(b, a).ping() // the other end makes progress too
				n.api.Settle()
				return p.Driver.Phase == driver.Done
			})
			n.Leave()
			if err := <-updated; err != nil {
				t.Errorf("update %s: %v", c.name, err)
			}
			finished(t, a.api.SendPoll, &send)
			finished(t, b.api.RecvPoll, &recv)
		})
	}
}

// TestBusyPostKeepsThePrefetch: a receive that cannot be posted yet, as the peer's claims are being read, is prefetched
// still.
func TestBusyPostKeepsThePrefetch(t *testing.T) {
	_, b := pair(t, driver.Large, nil)
	l := b.api.(*large)
	if !l.hasWindows() {
		t.Skip("the device has no memory windows")
	}
	reads := func(n int) {
		within(t, "entering", l.TryEnter)
		l.reads += n
		l.Leave()
	}
	p := driver.Packet{IOV: [][]byte{arena(t, 64<<10)}}
	if err := l.RecvPrefetch(&p); err != nil {
		t.Fatal(err)
	}
	reads(1)
	if err := l.RecvPost(&p); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("post during a read: %v, want %v", err, driver.ErrBusy)
	}
	reads(-1)
	if err := l.RecvUnfetch(&p); err != nil {
		t.Error(err)
	}
}

// TestReceiveAfterARefusedBind: a device that refuses to bind a window to much memory serves that receive, and the
// later ones, without. The profile "binds" refuses more than 1 MiB, as mlx5 does more than 2 GiB.
func TestReceiveAfterARefusedBind(t *testing.T) {
	a, b := pair(t, driver.Large, nil)
	if !b.api.(*large).hasWindows() {
		t.Skip("the device has no memory windows")
	}
	for round := range 3 {
		for _, n := range []int{64 << 10, 4 << 20, 100 << 10} {
			src, dst := arena(t, n), arena(t, n)
			for k := range src {
				src[k] = byte(k>>12*7 + k + round)
			}
			send, recv := driver.Packet{IOV: [][]byte{src}}, driver.Packet{IOV: [][]byte{dst}}
			if err := b.api.RecvPost(&recv); err != nil {
				t.Fatalf("round %d, %d bytes: %v", round, n, err)
			}
			send.RdvData = recv.RdvData
			if err := a.api.SendPost(&send); err != nil {
				t.Fatal(err)
			}
			finished(t, a.api.SendPoll, &send)
			finished(t, b.api.RecvPoll, &recv)
			if !bytes.Equal(src, dst) {
				t.Fatal(integrity.Errorf("round %d: %d bytes differ", round, n))
			}
		}
	}
}

// arena is n bytes of an arena that lasts as long as the test.
func arena(t *testing.T, n int) []byte {
	t.Helper()
	a, err := driver.NewArena(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a.Bytes()[:n]
}
