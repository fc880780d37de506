//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/lab/provider"
	"github.com/bywash/bywash/verbs/ibv"
)

// dialing is a connection of the small track without a device, which is not established yet.
func dialing() *small {
	c := &opened{opts: optionTable.Defaults}
	c.done.dead = driver.ErrClosed // so that no goroutine polls it
	mem := &slab{mem: make([]byte, defaultBuffer), size: defaultBuffer}
	s := &small{pool: &pool{window: 64, mem: mem}, mem: mem, got: make([]message, 128)}
	s.inbox = newInbox(16)
	s.ctx, s.api = c, s
	c.init(driver.Properties{Driver: Name}, driver.Attributes{})
	s.Small.Init(&s.Conn, s)
	c.Add(&s.conn, 0, "", s, s)
	return s
}

// alone is a connection of the small track without a device, up.
func alone(t *testing.T) *small {
	t.Helper()
	s := dialing()
	s.Resolve(kit.StateUp, nil)
	err := s.ConnectWait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.pool.chain, err = ibv.NewRecvChain(16, 1); err != nil {
		t.Fatal(err)
	}
	if err := s.sq.init(nil, 8, 8, 8); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCloseMessageMayOvertakeAcknowledgements: a put that the peer has seen, and
// whose completion comes after the peer's close message, has succeeded; one
// for which none comes fails, in the time of grace.
func TestCloseMessageMayOvertakeAcknowledgements(t *testing.T) {
	for _, acknowledged := range []bool{true, false} {
		s := alone(t)
		op := &driver.Op{}
		op.Driver.Phase = driver.Posted
		s.oneSided.slots[0], s.ops = opSlot{op: op, kind: kit.OpPut}, 1
		s.sq.add(requestOp, true)
		s.Finish(kit.StatePeerClosed, nil)
		start := time.Now()
		if done, err := s.OpPoll(op); done {
			t.Fatalf("the put has ended before its acknowledgement: %v", err)
		}
		if acknowledged {
			s.inbox.push(event{kind: eventSent, id: 0})
		}
		var err error
		within(t, "put", func() (done bool) { done, err = s.OpPoll(op); return done })
		if acknowledged && err != nil || !acknowledged && !errors.Is(err, driver.ErrClosed) {
			t.Errorf("acknowledged %v: %v", acknowledged, err)
		}
		if took := time.Since(start); !acknowledged && took < graceTime {
			t.Errorf("given up after %v, want %v", took, graceTime)
		}
	}
}

// TestNonsenseBreaksTheConnection: codes that there are not, and messages beyond
// the credits, break it, and are counted.
func TestNonsenseBreaksTheConnection(t *testing.T) {
	for _, x := range []struct {
		name      string
		limitSent uint32
		e         event
	}{
		{"an unknown code", 64, event{kind: eventRecv, code: 9, n: 8}},
		{"a code of the other track", 64, event{kind: eventRecv, code: codeDone, n: 8}},
		{"a message beyond the credits", 0, event{kind: eventRecv, code: codeData, n: 8}},
		{"a message longer than its buffer", 64, event{kind: eventRecv, code: codeData, n: defaultBuffer + 1}},
		{"credits that cannot be", 64, event{kind: eventRecv, code: codeCredit, imm: 1 << 20}},
		{"credits without end", 64, event{kind: eventRecv, code: codeCredit, imm: 1}},
	} {
		s := alone(t)
		s.limitSent, s.grant, s.limit = x.limitSent, x.limitSent, 1
		in := driver.Packet{IOV: [][]byte{make([]byte, 8)}}
		if err := s.RecvPost(&in); err != nil {
			t.Fatal(err)
		}
		for range 1 + sharedControl {
			if x.e.code == codeData {
				s.Arrived()
			}
			s.inbox.push(x.e)
		}
		done, err := s.RecvPoll(&in)
		if !done {
			done, err = s.RecvPoll(&in)
		}
		if !done || s.State() != kit.StateBroken || !errors.Is(err, driver.ErrBroken) {
			t.Errorf("%s: state %d, the receive: %v, %v", x.name, s.State(), done, err)
		}
		if got := s.Tally.Bad.Load(); got == 0 {
			t.Errorf("%s: no bad frame", x.name)
		}
	}
}

// TestFailureBeforeItsReason: the failure of an operation can be handled before
// the goroutine that found it has marked the connection broken.
func TestFailureBeforeItsReason(t *testing.T) {
	s := alone(t)
	op := &driver.Op{}
	op.Driver.Phase = driver.Posted
	s.oneSided.slots[0], s.ops = opSlot{op: op, kind: kit.OpPut}, 1
	s.sq.add(requestOp, true)
	s.inbox.push(event{kind: eventFailed, code: uint8(ibv.WCRetryExceeded), id: 0})
	if done, err := s.OpPoll(op); !done || !errors.Is(err, driver.ErrBroken) {
		t.Errorf("done %v, error %v, want %v", done, err, driver.ErrBroken)
	}
}

// TestCloseMessageBeforeEstablished: a peer can connect, send and leave before the last step on this side is
// done; the connection is then established, and what was sent can be received.
func TestCloseMessageBeforeEstablished(t *testing.T) {
	for _, x := range []struct {
		end  kit.State
		want error
	}{{kit.StatePeerClosed, nil}, {kit.StateBroken, driver.ErrBroken}} {
		s := dialing()
		s.Finish(x.end, fmt.Errorf("%w: test", driver.ErrBroken))
		if got := s.State(); got != kit.StateConnecting {
			t.Fatalf("state %d before the last step", got)
		}
		s.Resolve(kit.StateUp, nil)
		if err := s.ConnectWait(t.Context()); !errors.Is(err, x.want) {
			t.Errorf("connect wait: %v, want %v", err, x.want)
		}
		if got := s.State(); got != x.end {
			t.Errorf("state %d, want %d", got, x.end)
		}
		if s.Tally.Connects.Load() != 1 {
			t.Error("it does not count as a connection")
		}
	}
}

// TestCloseMessageBeforeTheKeysAreRevoked: a receive that has its message, or was cancelled, and waits only until its
// keys are revoked, ends as it would have without the close message.
func TestCloseMessageBeforeTheKeysAreRevoked(t *testing.T) {
	for _, tt := range []struct {
		name string
		over bool
		err  error
		want error
	}{{"whole", true, nil, nil}, {"cancelled", true, driver.ErrCanceled, driver.ErrCanceled}, {"under way", false, nil, driver.ErrClosed}} {
		t.Run(tt.name, func(t *testing.T) {
			c := &opened{opts: optionTable.Defaults}
			c.done.dead = driver.ErrClosed // so that no goroutine polls it
			l := &large{pool: &pool{}}
			l.ctx, l.api, l.rx, l.inbox = c, l, &l.sq, newInbox(8)
			c.init(driver.Properties{Driver: Name, Track: driver.Large}, driver.Attributes{})
			l.Large.Init(&l.Conn, l, maxMessage)
			c.Add(&l.conn, 0, "", l, l)
			l.Resolve(kit.StateUp, nil)
			if err := l.ConnectWait(t.Context()); err != nil {
				t.Fatal(err)
			}
			p := &driver.Packet{}
			if err := l.RecvPost(p); err != nil {
				t.Fatal(err)
			}
			l.slots[p.Driver.Slot].windows = windows{over: tt.over, err: tt.err}
			l.Finish(kit.StatePeerClosed, nil)
			if done, err := l.RecvPoll(p); !done || !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Errorf("got %v, %v; want %v", done, err, tt.want)
			}
		})
	}
}

// TestGenerationsGoRound: a slot's transfers may begin however many there were before, and a cancelled one may not.
func TestGenerationsGoRound(t *testing.T) {
	l := &large{claim: new(claimTable)}
	gen := uint32(1)
	for range 20 {
		if !l.claims(&rdvData{gen: gen}) {
			t.Fatalf("the transfer of generation %#x seems to be cancelled", gen)
		}
		gen += 1<<29 - 1
		l.claim[0].cancelled, gen = uint64(gen), gen+1
		if l.claims(&rdvData{gen: gen - 1}) {
			t.Fatalf("the cancelled transfer of generation %#x may begin", gen-1)
		}
		for range 5 { // none is cancelled
			if gen += 1<<29 - 1; !l.claims(&rdvData{gen: gen}) {
				t.Fatalf("the transfer of generation %#x seems to be cancelled", gen)
			}
		}
	}
}

// TestMemoryIsKeptUntilTheDeviceLetsGo: a receive stays posted while the device neither resets nor destroys the queue pairs
// by which a peer can write to its memory.
func TestMemoryIsKeptUntilTheDeviceLetsGo(t *testing.T) {
	if provider.Profile() != "stuck" {
		provider.Run(t, provider.Build(t), "stuck", "^TestMemoryIsKeptUntilTheDeviceLetsGo$")
		return
	}
	a, b := pair(t, driver.Large, nil)
	recv := driver.Packet{IOV: [][]byte{make([]byte, 1<<20)}}
	if err := b.api.RecvPost(&recv); err != nil {
		t.Fatal(err)
	}
	if err := a.api.Disconnect(); err != nil {
		t.Fatal(err)
	}
	refused := false
	within(t, "the end of the receive", func() bool {
		done, err := b.api.RecvPoll(&recv)
		if done && !errors.Is(err, driver.ErrClosed) {
			t.Errorf("the receive ends with %v, want %v", err, driver.ErrClosed)
		}
		refused = refused || !done && !b.nextReset.IsZero()
		return done
	})
	if !refused {
		t.Error("the receive ended though the device had refused to reset its queue pairs")
	}
}

// TestWaiterTriesTheResetAgain: a goroutine that sleeps until a receive ends does not need another call for that.
func TestWaiterTriesTheResetAgain(t *testing.T) {
	if provider.Profile() != "stuck" {
		provider.Run(t, provider.Build(t), "stuck", "^TestWaiterTriesTheResetAgain$")
		return
	}
	a, b := pair(t, driver.Large, nil)
	recv := driver.Packet{IOV: [][]byte{make([]byte, 1<<20)}}
	if err := b.api.RecvPost(&recv); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		ended <- b.api.(driver.RecvWaiter).RecvWait(ctx, &recv)
	}()
	if err := a.api.Disconnect(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("the receive ends with %v, want %v", err, driver.ErrClosed)
	}
}
