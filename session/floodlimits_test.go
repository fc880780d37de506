//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
)

// lane is one kind of traffic from a rank to the other: all sends are begun before anything is received.
type lane struct {
	name  string
	n     int
	begin func(e *end, k int) (*session.Request, error)
	take  func(e *end, k int) error // nil: nothing to be taken
}

// end is a rank of a pair.
type end struct {
	ctx    context.Context
	s      *session.Session
	g      *session.Gate
	remote *session.Remote
	src    []byte
	dst    []byte
	came   atomic.Int32 // active messages
}

// tagOf is that of a message of a lane; each lane has its own.
func tagOf(lane, k int) uint64 { return uint64(lane)<<32 | uint64(k) }

func receiveOne(number int) func(e *end, k int) error {
	return func(e *end, k int) error {
		_, err := e.g.Recv(e.ctx, tagOf(number, k), e.dst)
		return err
	}
}

// sized sends a message of each of some lengths in turn.
func sized(number int, sync bool, lengths ...int) func(e *end, k int) (*session.Request, error) {
	return func(e *end, k int) (*session.Request, error) {
		return e.g.IsendMsg(&session.Out{Tag: tagOf(number, k), Buf: e.src[:lengths[k%len(lengths)]], Sync: sync})
	}
}

func activeOf(n int) func(e *end, _ int) (*session.Request, error) {
	return func(e *end, _ int) (*session.Request, error) { return e.g.AM(1, nil, e.src[:n]) }
}

// floodLanes send more than may wait for an answer: 65536 synchronous messages, 16384 long ones, 256 operations.
var floodLanes = []lane{
	{"empty", 70_000, sized(1, false, 0), receiveOne(1)},
	{"short", 5000, sized(2, false, 1, 100, 300, 1000, 4000), receiveOne(2)},
	{"sync", 70_000, sized(3, true, 0, 8), receiveOne(3)},
	{"long", 17_000, sized(4, false, 9000), receiveOne(4)},
	{"very long", 20, sized(5, false, 1<<20), receiveOne(5)},
	{"active", 5000, activeOf(100), nil},
	{"long active", 50, activeOf(100_000), nil},
	{"put", 3000, func(e *end, k int) (*session.Request, error) { return e.g.Iput(e.remote, 0, e.src[:3000]) }, nil},
	{"get", 3000, func(e *end, k int) (*session.Request, error) { return e.g.Iget(e.remote, 0, e.dst[:3000]) }, nil},
	{"atomic", 3000, func(e *end, k int) (*session.Request, error) {
		return e.g.Iatomic(e.remote, 0, session.Atomic{Op: driver.Add, Size: 8, Operand: 1})
	}, nil},
	{"probed", 3000, sized(6, false, 10, 20_000), func(e *end, k int) error {
		match := session.Match{From: e.g, Tag: tagOf(6, k)}
		if _, err := e.s.Probe(e.ctx, match); err != nil {
			return err
		}
		m, ok := e.s.Improbe(match)
		if !ok {
			return fmt.Errorf("what was probed is gone")
		}
		_, err := m.Recv(e.ctx, e.dst)
		return err
	}},
}

// run floods the other rank with a part of the lane's messages, then receives the other rank's.
func (l *lane) run(e *end, part int) error {
	e = &end{ctx: e.ctx, s: e.s, g: e.g, remote: e.remote, src: e.src, dst: make([]byte, 1<<20)}
	var begun []*session.Request
	for k := range l.n / part {
		r, err := l.begin(e, k)
		if err != nil {
			return fmt.Errorf("%s %d: %w", l.name, k, err)
		}
		if r != nil {
			begun = append(begun, r)
		}
		if syncs, longs := e.g.Unanswered(); syncs > 1<<16 || longs > 1<<14 {
			return fmt.Errorf("%d synchronous and %d long messages are sent without an answer", syncs, longs)
		}
	}
	for k := range l.n / part {
		if l.take == nil {
			break
		}
		if err := l.take(e, k); err != nil {
			return fmt.Errorf("%s %d is not received: %w", l.name, k, err)
		}
	}
	for k, r := range begun {
		if _, err := r.Wait(e.ctx); err != nil {
			return fmt.Errorf("%s, request %d: %w", l.name, k, err)
		}
	}
	return nil
}

// lanePair returns two ranks whose operations go by message, with small limits that a correct peer does not exceed.
func lanePair(t *testing.T) []*end {
	s := joinAll(t, 2, func(_ int, c *session.Config) { c.Emulate, c.Unexpected = true, 16<<20 })
	var ends []*end
	for i := range s {
		region, err := s[1-i].Register(make([]byte, 4096), allAccess)
		if err != nil {
			t.Fatal(err)
		}
		e := &end{ctx: deadline(t), s: s[i], g: s[i].Gate(1 - i), src: make([]byte, 1<<20)}
		if e.remote, err = e.g.Import(region.Key()); err != nil {
			t.Fatal(err)
		}
		s[i].Handle(1, func(*session.Gate, *session.Active) { e.came.Add(1) })
		ends = append(ends, e)
	}
	return ends
}

// Two ranks that flood each other with messages of every kind, more than may be unanswered at a time, and receive them
// only afterwards, both finish: the limits for hostile peers do not affect them.
func TestFloodsWithinProtocolLimitsFinish(t *testing.T) {
	check := func(t *testing.T, part int, lanes ...lane) {
		ends := lanePair(t)
		var wg sync.WaitGroup
		for _, e := range ends {
			for _, l := range lanes {
				wg.Go(func() {
					if err := l.run(e, part); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		for _, e := range ends {
			eventually(t, "nothing is left", func() bool {
				p := e.s.Pending()
				return p == "" || p == "1 regions; "
			})
			if st := e.s.Stats(); st.Broken+st.Bad > 0 {
				t.Errorf("%+v", st)
			}
		}
	}
	for _, l := range floodLanes {
		if !testing.Short() {
			t.Run(l.name, func(t *testing.T) { check(t, 1, l) })
		}
	}
	part := 10
	if testing.Short() {
		part = 50
	}
	t.Run("all at once", func(t *testing.T) { check(t, part, floodLanes...) })
}

// manySyncs sends more synchronous messages than may wait for an answer; none is received.
func manySyncs(t *testing.T, g *session.Gate) (rs []*session.Request) {
	for k := range 66_000 {
		r, err := g.IsendMsg(&session.Out{Tag: uint64(k), Sync: true})
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	return rs
}

// Messages that wait because too many are unanswered prevent neither a pause nor closing.
func TestUnansweredMessages(t *testing.T) {
	t.Run("pause", func(t *testing.T) {
		s := joinAll(t, 2, nil)
		ctx := deadline(t)
		rs := manySyncs(t, s[0].Gate(1))
		eventually(t, "as many have left as may", func() bool { n, _ := s[0].Gate(1).Unanswered(); return n == 1<<16 })
		if err := s[0].Quiesce(ctx); err != nil {
			t.Fatal(err)
		}
		if err := s[0].Resume(); err != nil {
			t.Fatal(err)
		}
		for k, r := range rs {
			if _, err := s[1].Gate(0).Recv(ctx, uint64(k), nil); err != nil {
				t.Fatalf("message %d: %v", k, err)
			}
			if _, err := r.Wait(ctx); err != nil {
				t.Fatalf("message %d: %v", k, err)
			}
		}
	})
	if testing.Short() {
		return
	}
	t.Run("close", func(t *testing.T) {
		s := joinAll(t, 2, nil)
		ctx := deadline(t)
		rs := [][]*session.Request{manySyncs(t, s[0].Gate(1)), manySyncs(t, s[1].Gate(0))}
		for i := range s {
			s[i].Gate(1 - i).Disconnect()
		}
		ended := func(i, k int) error {
			eventually(t, "the request is done", func() bool {
				for _, x := range s { // messages of an earlier connection take room until they are received
					if k < 1<<16 {
						continue
					}
					if m, ok := x.Improbe(session.Match{Ignore: ^uint64(0)}); ok {
						_, _ = m.Recv(ctx, nil)
					}
				}
				return rs[i][k].Done()
			})
			_, err := rs[i][k].Wait(ctx)
			return err
		}
		for i := range rs {
			for k := range 1 << 16 {
				if err := ended(i, k); !errors.Is(err, session.ErrClosed) {
					t.Fatalf("rank %d, message %d: %v, want closed", i, k, err)
				}
			}
		}
		for i := range rs {
			for k := 1 << 16; k < len(rs[i]); k++ {
				if err := ended(i, k); err != nil && !errors.Is(err, session.ErrClosed) {
					t.Fatalf("rank %d, message %d: %v, want received or closed", i, k, err)
				}
			}
		}
	})
}
