//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// TestCreditsNeverExceedReceives runs the rules of shared mode on plain counts:
// whatever peers send out of their credits, a receive is posted for it.
func TestCreditsNeverExceedReceives(t *testing.T) {
	type peer struct {
		pool                                 *pool
		chain                                int // receives to be posted
		arrived, gotHead, limitSent, granted uint32
	}
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		s := &shared{}
		window := []int{2, 8, 64, 512}[rnd.IntN(4)]
		peers := make([]*peer, 1+rnd.IntN(40))
		posted := len(peers)*sharedPeer + rnd.IntN(1000)
		control := len(peers) * sharedControl
		s.spare.Store(int32(posted - len(peers)*sharedPeer))
		for k := range peers {
			p := &peer{pool: &pool{shared: s, window: window}}
			p.granted = p.pool.first()
			p.limitSent = p.granted
			peers[k] = p
		}
		most := uint32(0)
		for range 20_000 {
			p := peers[rnd.IntN(1+rnd.IntN(len(peers)))] // some send more than others
			switch {
			case rnd.IntN(2) == 0 && p.arrived != p.limitSent:
				p.arrived++
				if posted--; posted < control {
					t.Fatalf("seed %d: a message came and no receive was posted for it", seed)
				}
			case p.gotHead != p.arrived:
				p.gotHead++
				p.chain++
				p.granted += p.pool.more(int(p.granted - p.gotHead))
				most = max(most, p.granted-p.gotHead)
			}
			if rnd.IntN(8) == 0 { // flush
				posted += p.chain
				s.spare.Add(p.pool.back)
				p.chain, p.pool.back, p.limitSent = 0, 0, p.granted
			}
		}
		if most > uint32(window) {
			t.Fatalf("seed %d: a peer has %d credits, window %d", seed, most, window)
		}
		if len(peers) == 1 && s.spare.Load() > 600 && window == 64 && most < 32 {
			t.Errorf("seed %d: a peer that is alone got no more than %d credits of %d", seed, most, window)
		}
	}
}

// several connects two contexts n times; b shares its receives.
func several(t *testing.T, n int, opts map[string]string) (a, b *opened, x, y []*conn) {
	t.Helper()
	a, b = openDevice(t, driver.Small, nil), openDevice(t, driver.Small, opts)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for range n {
		ia, err := a.Connect(b.URL())
		if err != nil {
			t.Fatal(err)
		}
		ib, err := b.Connect(a.URL())
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range []driver.Instance{ia, ib} {
			if err := i.ConnectWait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		x, y = append(x, connOf(ia)), append(y, connOf(ib))
	}
	return a, b, x, y
}

// TestSharedReceivesServeAll: ten peers send as fast as they may; nothing is
// lost, out of order, or sent before its receive is there; and all receives come back.
func TestSharedReceivesServeAll(t *testing.T) {
	const peers, messages = 10, 300
	_, b, x, y := several(t, peers, map[string]string{"srq": "256"})
	before := counter(t, "rcvd_rnr_err")
	type end struct {
		out, in   driver.Packet
		sent, got uint32
	}
	ends := make([]end, peers)
	rnd := rand.New(rand.NewPCG(3, 4))
	left := peers * messages
	within(t, "all messages", func() bool {
		k := rnd.IntN(1 + rnd.IntN(peers))
		e := &ends[k]
		if e.out.Driver.Phase == driver.Idle && e.sent < messages {
			e.out.IOV = [][]byte{binary.LittleEndian.AppendUint32(make([]byte, 0, 600), e.sent)[:600]}
			if err := x[k].api.SendPost(&e.out); err == nil {
				e.sent++
			} else if err != driver.ErrBusy {
				t.Fatal(err)
			}
		} else if _, err := x[k].api.SendPoll(&e.out); err != nil && e.sent < messages {
			t.Fatal(err)
		}
		if e.got == messages || rnd.IntN(3) == 0 {
			return left == 0
		}
		if e.in.Driver.Phase == driver.Idle {
			e.in.IOV = [][]byte{make([]byte, 600)}
			if err := y[k].api.RecvPost(&e.in); err != nil {
				t.Fatal(err)
			}
		}
		if done, err := y[k].api.RecvPoll(&e.in); err != nil {
			t.Fatal(err)
		} else if done {
			if got := binary.LittleEndian.Uint32(e.in.IOV[0]); got != e.got {
				t.Fatalf("peer %d: message %d came as number %d", k, got, e.got)
			}
			e.got++
			left--
		}
		return left == 0
	})
	if after := counter(t, "rcvd_rnr_err"); after != before {
		t.Errorf("receiver-not-ready was met %d times", after-before)
	}
	for _, c := range append(x, y...) {
		within(t, "disconnect", func() bool { return !errors.Is(c.api.Disconnect(), driver.ErrBusy) })
	}
	within(t, "all receives are spare", func() bool {
		b.Mu.Lock()
		defer b.Mu.Unlock()
		return b.Conns.Len() == 0 && int(b.shared.spare.Load()) == b.shared.total
	})
}

func TestFullSharedReceivesAreReported(t *testing.T) {
	a, b, _, _ := several(t, 64/sharedPeer, map[string]string{"srq": "64"})
	if _, err := b.Connect(a.URL()); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("one peer too many: %v, want %v", err, driver.ErrBusy)
	}
}

// TestLostReceivesAreReplaced has the device report that fewer are posted than
// must be.
func TestLostReceivesAreReplaced(t *testing.T) {
	_, b, x, y := several(t, 2, map[string]string{"srq": "1024"})
	have := func() int {
		b.Mu.Lock()
		defer b.Mu.Unlock()
		return b.shared.total
	}
	before := have()
	if err := b.shared.srq.SetLimit(before); err != nil {
		t.Fatal(err)
	}
	in, out := driver.Packet{IOV: [][]byte{make([]byte, 8)}}, driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	if err := errors.Join(y[0].api.RecvPost(&in), x[0].api.SendPost(&out)); err != nil {
		t.Fatal(err)
	}
	finished(t, y[0].api.RecvPoll, &in)
	within(t, "more receives", func() bool { return have() > before })
}

// TestFurtherQueuesServeFurtherPeers: on a device that can make no completion queue larger, connections that do not fit
// complete in further queues. Sleepers are woken by those, too, and the queues go with their connections.
func TestFurtherQueuesServeFurtherPeers(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		t.Run(track.String(), func(t *testing.T) {
			b := openDevice(t, track, map[string]string{"dead-time": "10m"}) // the keep-alive goroutine would wake sleepers, too
			b.fixed = true
			n := b.done.queues[0].cq.Len()/b.entriesOfAPeer() + 1
			var peers, own []*conn
			for range n {
				x, y := connectTo(t, b, track)
				peers, own = append(peers, x), append(own, y)
			}
			if len(b.done.queues) < 2 {
				t.Fatalf("%d peers complete in %d queue of %d entries", n, len(b.done.queues), b.done.queues[0].cq.Len())
			}
			last := len(own) - 1
			if own[last].cq != b.done.queues[1] {
				t.Fatal("the last peer does not complete in the further queue")
			}
			asleep(t, peers[last], own[last], track)
			for _, c := range own {
				if err := c.api.Disconnect(); err != nil {
					t.Fatal(err)
				}
			}
			within(t, "further queues are closed", func() bool {
				b.Mu.Lock()
				defer b.Mu.Unlock()
				return len(b.done.queues) == 1
			})
		})
	}
}

// connectTo connects a context of its own to b.
func connectTo(t *testing.T, b *opened, track driver.Track) (peer, own *conn) {
	t.Helper()
	return connected(t, openDevice(t, track, nil), b)
}

// asleep sends a message to a receiver that sleeps.
func asleep(t *testing.T, from, to *conn, track driver.Track) {
	t.Helper()
	src, dst := make([]byte, 20_000), make([]byte, 20_000)
	if track == driver.Small {
		src, dst = src[:100], dst[:100]
	}
	src[99] = 7
	recv, send := driver.Packet{IOV: [][]byte{dst}}, driver.Packet{IOV: [][]byte{src}}
	if err := to.api.RecvPost(&recv); err != nil {
		t.Fatal(err)
	}
	send.RdvData = recv.RdvData
	got := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	go func() { got <- to.api.(driver.RecvWaiter).RecvWait(ctx, &recv) }()
	within(t, "the receiver sleeps", func() bool {
		q := &to.ctx.done
		q.mustLock()
		defer q.unlock()
		return q.armed && to.ctx.waits.Sleepers() > 0
	})
	time.Sleep(5 * time.Millisecond) // it looks once more before it sleeps
	if err := from.api.SendPost(&send); err != nil {
		t.Fatal(err)
	}
	finished(t, from.api.SendPoll, &send)
	if err := <-got; err != nil || dst[99] != 7 {
		t.Fatalf("the message: %v, %d", err, dst[99])
	}
}

// TestFloodOfSharedReceives: a peer that sends credits without end, to a connection whose owner takes nothing, loses its
// connection. Others go on, and all receives come back.
func TestFloodOfSharedReceives(t *testing.T) {
	_, b, x, y := several(t, 2, map[string]string{"srq": "256"})
	attacker := x[0].api.(*small)
	within(t, "the end of the connection", func() bool {
		attacker.flood()
		b.Drain()
		return y[0].State() == kit.StateBroken
	})
	within(t, "the device refuses the attacker's messages", func() bool {
		attacker.ctx.Drain()
		return attacker.firstBad.Load() != 0
	})
	in := driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	if done, err := y[0].api.RecvPoll(&in); !done || err == nil {
		t.Errorf("a receive after the flood: %v, %v", done, err)
	}
	if n := y[0].Tally.Bad.Load(); n == 0 {
		t.Error("the flood is not counted")
	}
	for range 100 {
		out := driver.Packet{IOV: [][]byte{make([]byte, 8)}}
		if err := errors.Join(y[1].api.RecvPost(&in), x[1].api.SendPost(&out)); err != nil {
			t.Fatal(err)
		}
		finished(t, y[1].api.RecvPoll, &in)
		finished(t, x[1].api.SendPoll, &out)
	}
	for _, c := range append(x, y...) {
		within(t, "disconnect", func() bool { return !errors.Is(c.api.Disconnect(), driver.ErrBusy) })
	}
	within(t, "all receives are spare", func() bool {
		b.Mu.Lock()
		defer b.Mu.Unlock()
		return b.Conns.Len() == 0 && int(b.shared.spare.Load()) == b.shared.total
	})
}

// flood sends as many credits as the send queue has room for, and returns their number.
func (s *small) flood() (n int) {
	if !s.Enter() {
		return 0
	}
	defer s.Leave()
	s.ctx.Drain()
	s.take()
	for s.sq.room() > 0 && s.State() == kit.StateUp {
		wr, _ := s.sq.add(requestControl, true)
		wr.SendImm(immediate(codeCredit, 0))
		if s.sq.post() != nil {
			break
		}
		n++
	}
	return n
}

// TestPeersWaitForSharedReceives: a peer uses up the shared receives of a context that does not poll. Another peer's
// message waits until there are receives again.
func TestPeersWaitForSharedReceives(t *testing.T) {
	_, b, x, y := several(t, 2, map[string]string{"srq": "256"})
	attacker := x[0].api.(*small)
	b.done.mustLock()
	within(t, "no receive is left", func() bool {
		n, start := attacker.flood(), time.Now()
		for time.Since(start) < 20*time.Millisecond && attacker.sq.room() == 0 {
			attacker.ctx.Drain()
			attacker.take()
		}
		return n > 0 && attacker.sq.room() == 0
	})
	in, out := driver.Packet{IOV: [][]byte{make([]byte, 8)}}, driver.Packet{IOV: [][]byte{make([]byte, 8)}}
	if err := errors.Join(y[1].api.RecvPost(&in), x[1].api.SendPost(&out)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // much longer than six attempts
	if bad := x[1].firstBad.Load(); bad != 0 {
		t.Errorf("the other peer's connection has ended: %v", ibv.WCStatus(uint32(bad)))
	}
	b.done.unlock()
	finished(t, y[1].api.RecvPoll, &in)
}
