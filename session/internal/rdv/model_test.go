package rdv

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"testing"
)

// The model: some messages between two processes over some rails, and a small
// track that keeps order. Every step that is possible in a state is tried; states that
// were seen are not visited again.

// letter is a control message.
type letter struct {
	msg  uint8
	done bool // DONE all, else RTR
	c    Chunk
}

// flight is one chunk in the drivers: the state of each end, and the place of the bytes.
type flight struct {
	msg        uint8
	c          Chunk
	rx, tx     uint8 // see below
	landed     bool  // in the receiver's memory
	underWay   bool  // taken by the sender's driver
	duplicated bool  // its RTR was delivered twice
}

// States of a chunk in the driver of an end.
const (
	absent uint8 = iota
	posted
	reported
)

type message struct {
	r        Receiver
	s        Sender
	finished bool // the receiver is done, and has sent DONE if it must
	sDone    bool
}

type world struct {
	msgs    []message
	flights []flight
	toS     []letter // RTR and DONE
	broken  int      // rail; -1: none
	rKnows  bool     // the receiving process has noticed
	sKnows  bool
	confirm bool
	rails   int
	reserve bool // the last rail is only used when the others are lost
	events  int  // losses left
}

func (w *world) clone() *world {
	c := *w
	c.msgs = slices.Clone(w.msgs)
	for i := range c.msgs {
		c.msgs[i].r.redo = slices.Clone(c.msgs[i].r.redo)
	}
	c.flights, c.toS = slices.Clone(w.flights), slices.Clone(w.toS)
	return &c
}

func (w *world) key() string {
	var b []byte
	num := func(v ...int) {
		for _, x := range v {
			b = binary.AppendVarint(b, int64(x))
		}
	}
	flag := func(v ...bool) {
		for _, x := range v {
			if x {
				b = append(b, 1)
			} else {
				b = append(b, 0)
			}
		}
	}
	chunk := func(c Chunk) { num(int(c.ID), int(c.Rail), c.Off, c.Len) }
	for i := range w.msgs {
		m := &w.msgs[i]
		num(m.r.next, m.r.got, int(m.r.id), m.r.n, len(m.r.redo), m.s.want, m.s.sent, int(m.s.next), m.s.active)
		flag(m.r.failed, m.s.done, m.s.failed, m.finished, m.sDone)
		under := slices.Clone(m.r.chunks[:m.r.n])
		slices.SortFunc(under, func(a, b Chunk) int { return int(a.ID) - int(b.ID) })
		for _, c := range append(under, m.r.redo...) {
			chunk(c)
		}
		for k := range w.rails {
			flag(m.r.rails[k].Usable)
		}
	}
	fl := slices.Clone(w.flights)
	slices.SortFunc(fl, func(a, b flight) int { return int(a.msg)<<8 + int(a.c.ID) - int(b.msg)<<8 - int(b.c.ID) })
	num(len(fl), len(w.toS), w.broken, w.events)
	for _, f := range fl {
		num(int(f.msg), int(f.rx), int(f.tx))
		chunk(f.c)
		flag(f.landed, f.underWay, f.duplicated)
	}
	for _, l := range w.toS {
		num(int(l.msg))
		flag(l.done)
		chunk(l.c)
	}
	flag(w.rKnows, w.sKnows)
	return string(b)
}

// steps calls f with every state that can follow.
func (w *world) steps(t *testing.T, f func(string, *world)) {
	try := func(name string, change func(*world)) {
		c := w.clone()
		change(c)
		c.settle(t)
		f(name, c)
	}
	for i := range w.msgs {
		probe := w.msgs[i].r
		probe.redo = slices.Clone(probe.redo)
		if c, ok := probe.Next(); ok && !w.msgs[i].finished {
			try(fmt.Sprintf("post %d.%d on %d", i, c.ID, c.Rail), func(w *world) {
				c, _ := w.msgs[i].r.Next()
				w.flights = append(w.flights, flight{msg: uint8(i), c: c, rx: posted})
				w.toS = append(w.toS, letter{msg: uint8(i), c: c})
			})
		}
	}
	if len(w.toS) > 0 {
		try(fmt.Sprintf("deliver %+v", w.toS[0]), func(w *world) {
			l := w.toS[0]
			w.toS = w.toS[1:]
			w.deliver(t, l)
		})
	}
	for i := range w.flights {
		w.flightSteps(t, i, try)
	}
	if w.events > 0 && w.broken < 0 {
		for k := range w.rails {
			try(fmt.Sprintf("rail %d breaks", k), func(w *world) { w.broken = k; w.events-- })
		}
	}
	if w.broken >= 0 && !w.rKnows {
		try("receiver notices", func(w *world) {
			w.rKnows = true
			for i := range w.msgs {
				w.msgs[i].r.Lost(uint8(w.broken))
			}
		})
	}
	if w.broken >= 0 && !w.sKnows {
		try("sender notices", func(w *world) { w.sKnows = true })
	}
}

func (w *world) flightSteps(t *testing.T, i int, try func(string, func(*world))) {
	fl := w.flights[i]
	name := fmt.Sprintf("%d.%d", fl.msg, fl.c.ID)
	broken := w.broken == int(fl.c.Rail)
	if fl.underWay && !fl.landed && fl.rx == posted && !broken {
		try("land "+name, func(w *world) {
			m := &w.msgs[fl.msg]
			if m.r.Complete() || m.r.Over() {
				t.Fatalf("late write: chunk %s lands after the message was received", name)
			}
			w.flights[i].landed = true
		})
	}
	if fl.landed && fl.rx == posted {
		try("received "+name, func(w *world) {
			w.flights[i].rx = reported
			if !w.msgs[fl.msg].r.Done(fl.c.ID) {
				t.Fatalf("chunk %s was not under way", name)
			}
		})
	}
	if fl.rx == posted && broken && w.rKnows { // also one that has arrived: the driver cannot know that
		try("receive fails "+name, func(w *world) {
			w.flights[i].rx = reported
			w.msgs[fl.msg].r.Failed(fl.c.ID)
		})
	}
	if fl.tx == posted { // a driver may report the chunk as sent when it has copied the bytes
		try("sent "+name, func(w *world) {
			w.flights[i].tx = reported
			w.msgs[fl.msg].s.Left(fl.c.Len, true)
		})
		if broken && w.sKnows {
			try("send fails "+name, func(w *world) {
				w.flights[i].tx = reported
				w.msgs[fl.msg].s.Left(fl.c.Len, false)
			})
		}
	}
	if fl.tx != absent && !fl.duplicated && fl.msg == 0 {
		try("again "+name, func(w *world) {
			w.flights[i].duplicated = true
			s := w.msgs[fl.msg].s
			if start, err := s.Asked(fl.c, s.want); start || err != nil {
				t.Fatalf("a second RTR of %s: start %v, %v", name, start, err)
			}
			if s != w.msgs[fl.msg].s {
				t.Fatalf("a second RTR of %s changed the sender", name)
			}
		})
	}
}

func (w *world) deliver(t *testing.T, l letter) {
	m := &w.msgs[l.msg]
	if l.done {
		if !m.s.Confirmed() {
			t.Fatal("DONE twice")
		}
		return
	}
	start, err := m.s.Asked(l.c, m.r.want)
	if err != nil {
		t.Fatalf("RTR %+v: %v", l.c, err)
	}
	if !start {
		return
	}
	for i := range w.flights {
		f := &w.flights[i]
		if f.msg != l.msg || f.c.ID != l.c.ID {
			continue
		}
		f.tx, f.underWay = posted, true
		if w.sKnows && int(l.c.Rail) == w.broken { // the post is refused
			f.tx, f.underWay = reported, false
			m.s.Left(l.c.Len, false)
		}
	}
}

// settle does what follows at once, and drops flights that are over.
func (w *world) settle(t *testing.T) {
	for i := range w.msgs {
		m := &w.msgs[i]
		before := fmt.Sprint(m.r.got, m.r.n, m.r.next)
		if m.r.Done(999) || m.r.Failed(998) || before != fmt.Sprint(m.r.got, m.r.n, m.r.next) {
			t.Fatal("a wrong cookie changed the receiver")
		}
		if w.rails == 1 && w.broken == 0 && w.rKnows && w.sKnows { // the gate is gone
			m.r.Fail()
			m.s.Fail()
		}
		if w.reserve && m.r.Stuck() && m.r.Hold() == 0 {
			m.r.Use(uint8(w.rails-1), Rail{Usable: w.broken != w.rails-1, Chunk: 1, Window: 1})
		}
		if m.r.Complete() && !m.finished {
			m.finished = true
			if w.confirm {
				w.toS = append(w.toS, letter{msg: uint8(i), done: true})
			}
		}
		if m.s.Complete() && !m.sDone {
			m.sDone = true
			for _, f := range w.flights {
				if int(f.msg) == i && f.tx == posted {
					t.Fatalf("message %d is sent while a driver has its memory", i)
				}
			}
			if w.confirm && !m.r.Complete() {
				t.Fatalf("message %d is confirmed and not received", i)
			}
		}
	}
	w.flights = slices.DeleteFunc(w.flights, func(f flight) bool { return f.rx == reported && f.tx == reported })
}

// end checks a state that nothing follows.
func (w *world) end(t *testing.T, trace []string) {
	for i := range w.msgs {
		m := &w.msgs[i]
		sent, received := m.s.Complete(), m.r.Complete()
		failed := w.rails == 1 && w.broken >= 0
		switch {
		case m.r.Hold() > 0 || m.s.Hold() > 0:
		case received && sent:
			continue
		case failed && (sent || m.s.Over()) && (received || m.r.Over()):
			continue
		}
		t.Fatalf("message %d ends: sent %v, received %v, %d and %d chunks held\n%q", i, sent, received, m.s.Hold(), m.r.Hold(), trace)
	}
}

func explore(t *testing.T, start *world) int {
	seen := map[string]bool{start.key(): true}
	type node struct {
		w     *world
		trace []string
	}
	stack := []node{{start, nil}}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		any := false
		n.w.steps(t, func(name string, next *world) {
			any = true
			if k := next.key(); !seen[k] {
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

// In every order of events each message is received exactly once or fails at both
// ends, no byte is written after that, no memory is given back while a driver has
// it, and nothing gets stuck.
func TestEveryOrderOfEventsEndsWell(t *testing.T) {
	for _, tt := range []struct {
		name          string
		sizes         []int
		rails, losses int
		window        int
		reserve       bool
		longer        bool
		some          bool // not with -short
	}{
		{name: "one message, one rail", sizes: []int{2}, rails: 1, window: 2},
		{name: "one message, one rail lost", sizes: []int{2}, rails: 1, losses: 1, window: 2},
		{name: "three chunks, two rails, one lost", sizes: []int{3}, rails: 2, losses: 1, window: 2, longer: true},
		{name: "two messages, one rail lost", sizes: []int{2, 2}, rails: 1, losses: 1, window: 1},
		{name: "two messages, two rails, one lost", sizes: []int{2, 1}, rails: 2, losses: 1, window: 1, some: true},
		{name: "one message, a rail lost and one in reserve", sizes: []int{2}, rails: 2, losses: 1, window: 2, reserve: true},
		{name: "two messages, a rail lost and one in reserve", sizes: []int{2, 1}, rails: 2, losses: 1, window: 2, reserve: true, longer: true},
		{name: "three messages, one rail", sizes: []int{1, 1, 1}, rails: 1, losses: 1, window: 1},
		{name: "three messages, two rails, one lost", sizes: []int{1, 1, 1}, rails: 2, losses: 1, window: 1, longer: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.some && testing.Short() {
				t.Skip("takes as long as the others together: not with -short")
			}
			if tt.longer && os.Getenv("BYWASH_SOAK") == "" {
				t.Skip("a minute or two, in make soak; the others have fewer messages")
			}
			w := &world{broken: -1, rails: tt.rails, confirm: tt.rails > 1, reserve: tt.reserve, events: tt.losses}
			for _, n := range tt.sizes {
				var m message
				var rails []Rail
				for k := range tt.rails {
					rails = append(rails, Rail{Usable: !tt.reserve || k < tt.rails-1, Chunk: 1, Window: tt.window})
				}
				m.r.Begin(n, rails...)
				m.s.Begin(n)
				m.s.Confirm(w.confirm)
				w.msgs = append(w.msgs, m)
			}
			t.Logf("%d states", explore(t, w))
		})
	}
}
