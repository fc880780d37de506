package relay

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
)

// The model: two ends, each with messages for the other, over rails that keep order
// until they break. Every step that is possible in a state is tried; states that
// were seen are not visited again.

// letter is a message in transit on a rail.
type letter struct {
	resume, seen bool
	number       uint8 // of a message
	got          uint64
	lost         uint8
}

type side struct {
	e       End
	next    uint8   // messages that were given to the rails for the first time
	unacked []uint8 // copies
	again   []uint8 // to be sent again
	arrived uint8   // messages, in order
}

type world struct {
	sides  [2]side
	rails  [2][][]letter // by receiving side
	broken uint8
	losses int // left
	total  uint8
}

func (w *world) clone() *world {
	c := *w
	for i := range c.sides {
		c.sides[i].unacked, c.sides[i].again = slices.Clone(w.sides[i].unacked), slices.Clone(w.sides[i].again)
		c.rails[i] = slices.Clone(w.rails[i])
		for k := range c.rails[i] {
			c.rails[i][k] = slices.Clone(w.rails[i][k])
		}
	}
	return &c
}

func (w *world) post(from int, l letter) {
	k := w.sides[from].e.Lead()
	w.rails[1-from][k] = append(w.rails[1-from][k], l)
}

// steps calls f with every state that can follow.
func (w *world) steps(t *testing.T, f func(string, *world)) {
	try := func(name string, change func(*world)) {
		c := w.clone()
		change(c)
		f(name, c)
	}
	for i := range w.sides {
		s := &w.sides[i]
		if s.e.Lead() < 0 {
			continue
		}
		if _, _, ok := s.e.Resume(); ok {
			try(fmt.Sprint(i, " resumes"), func(w *world) {
				s := &w.sides[i]
				got, lost, _ := s.e.Resume()
				w.post(i, letter{resume: true, got: got, lost: lost})
				s.e.ResumeSent()
			})
		}
		if s.e.Open() && (len(s.again) > 0 || s.next < w.total) {
			try(fmt.Sprint(i, " sends"), func(w *world) { w.send(i) })
		}
		if s.e.Open() && s.e.Unreported() > 0 {
			try(fmt.Sprint(i, " tells"), func(w *world) { w.post(i, letter{seen: true, got: w.sides[i].e.Report()}) })
		}
		for k := range w.rails[i] {
			if len(w.rails[i][k]) > 0 && s.e.lost>>k&1 == 0 { // also of a broken one: it may have come before
				try(fmt.Sprint(i, " takes from ", k), func(w *world) { w.take(t, i, k) })
			}
			if w.broken>>k&1 != 0 && s.e.lost>>k&1 == 0 {
				try(fmt.Sprint(i, " notices ", k), func(w *world) { w.sides[i].e.Lost(k) })
			}
		}
	}
	for k := range w.rails[0] {
		if w.losses > 0 && w.broken>>k&1 == 0 {
			try(fmt.Sprint(k, " breaks"), func(w *world) { w.broken |= 1 << k; w.losses-- })
			try(fmt.Sprint("0 gives up ", k), func(w *world) { w.broken |= 1 << k; w.losses--; w.sides[0].e.Lost(k) })
		}
	}
}

func (w *world) send(i int) {
	s := &w.sides[i]
	var n uint8
	if len(s.again) > 0 {
		n, s.again = s.again[0], s.again[1:]
	} else {
		n = s.next
		s.next++
	}
	w.post(i, letter{number: n})
	s.e.Sent()
	s.unacked = append(s.unacked, n)
}

func (w *world) take(t *testing.T, i, k int) {
	s := &w.sides[i]
	l := w.rails[i][k][0]
	w.rails[i][k] = w.rails[i][k][1:]
	switch {
	case l.resume:
		n, err := s.e.ResumeReceived(k, l.got, l.lost)
		if err != nil {
			t.Fatalf("side %d: resume %+v on rail %d: %v", i, l, k, err)
		}
		s.again = append(slices.Clone(s.unacked[n:]), s.again...)
		s.unacked = nil
	case l.seen:
		n, err := s.e.Seen(l.got)
		if err != nil {
			t.Fatalf("side %d: seen %d: %v", i, l.got, err)
		}
		s.unacked = s.unacked[n:]
	default:
		if err := s.e.Taken(k); err != nil {
			t.Fatalf("side %d: message %d on rail %d: %v", i, l.number, k, err)
		}
		if l.number != s.arrived {
			t.Fatalf("side %d: message %d arrives, want %d", i, l.number, s.arrived)
		}
		s.arrived++
	}
}

// end checks a state that nothing follows.
func (w *world) end(t *testing.T, trace []string) {
	for i := range w.sides {
		s, o := &w.sides[i], &w.sides[1-i]
		none := s.e.Lead() < 0 || o.e.Lead() < 0
		if none && int(w.broken) != 1<<len(w.rails[0])-1 {
			t.Fatalf("side %d gave up rails that work\n%q", i, trace)
		}
		if !none && s.arrived != w.total {
			t.Fatalf("side %d has %d of %d messages\n%q", i, s.arrived, w.total, trace)
		}
	}
}

func explore(t *testing.T, start *world) int {
	type node struct {
		w     *world
		trace []string
	}
	seen := map[string]bool{}
	stack := []node{{start, nil}}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		any := false
		n.w.steps(t, func(name string, next *world) {
			any = true
			if k := fmt.Sprint(*next); !seen[k] {
				seen[k] = true
				stack = append(stack, node{next, append(n.trace[:len(n.trace):len(n.trace)], name)})
			}
		})
		if !any {
			n.w.end(t, n.trace)
		}
	}
	return len(seen)
}

// In every order of events each message arrives once and in order, whatever rails
// break, as long as one is left.
func TestEveryOrderOfEventsDeliversOnce(t *testing.T) {
	for _, tt := range []struct {
		rails, losses int
		total         uint8
		longer        bool
	}{{2, 1, 1, false}, {2, 1, 2, false}, {2, 2, 1, false}, {3, 2, 1, false}, {2, 1, 3, true}, {3, 2, 2, true}} {
		if tt.longer && os.Getenv("BYWASH_SOAK") == "" {
			continue // a minute: make soak
		}
		t.Run(fmt.Sprintf("%d rails, %d lost, %d messages each way", tt.rails, tt.losses, tt.total), func(t *testing.T) {
			w := &world{losses: tt.losses, total: tt.total}
			for i := range w.sides {
				w.sides[i].e.Begin(tt.rails)
				w.rails[i] = make([][]letter, tt.rails)
			}
			t.Logf("%d states", explore(t, w))
		})
	}
}

// Invalid counts of messages and invalid rails of a peer are errors, and change no state.
func TestInvalidResumeChangesNothing(t *testing.T) {
	var e End
	e.Begin(3)
	e.Sent()
	e.Sent()
	if _, err := e.Seen(1); err != nil {
		t.Fatal(err)
	}
	before := e
	for name, f := range map[string]func() error{
		"seen more than was sent":   func() error { _, err := e.Seen(3); return err },
		"seen less than before":     func() error { _, err := e.Seen(0); return err },
		"resume on the first rail":  func() error { _, err := e.ResumeReceived(0, 1, 0); return err },
		"resume loses its own rail": func() error { _, err := e.ResumeReceived(1, 1, 3); return err },
		"resume skips a rail":       func() error { _, err := e.ResumeReceived(2, 1, 1); return err },
		"resume of no rail":         func() error { _, err := e.ResumeReceived(3, 1, 7); return err },
		"resume beyond":             func() error { _, err := e.ResumeReceived(1, 3, 1); return err },
		"message on another rail":   func() error { return e.Taken(1) },
	} {
		if err := f(); !errors.Is(err, ErrProtocol) || e != before {
			t.Errorf("%s: %v, %+v", name, err, e)
		}
	}
}
