package life

import "fmt"

// The model: two gates, each with a program that sends, disconnects, pauses and so on as often as its budget allows,
// and a network that delays. A world is a value without pointers, so that worlds that were seen are found by
// comparison.

// letter is what one gate says to the other over a connection, which keeps the order.
type letter struct {
	kind   letterKind
	number uint8 // of the dial, with hello
}

type letterKind uint8

const (
	hello   letterKind = iota
	message            // a long one, which has to be matched
	take               // the receiver has matched it
	done               // the sender has nothing more of it
	soon
	leave
	pause
	bye
)

// side is a gate with what the machine does not know.
type side struct {
	life     Life
	quiet    bool
	held     bool // drivers have something of the last connection
	dial     bool // a dial is under way
	stopped  bool // and to be given up
	paired   bool // and has met the peer's
	attached bool // to the connection
	cut      bool // the peer has let go: PeerGone comes after what lies on the way
	orphaned bool
	must     bool  // Disconnect was called, and nothing was sent since
	birth    uint8 // incarnation
	peer     uint8 // incarnation of the peer on the last connection
	rails    uint8
	number   uint8 // of dials
	dialed   uint8 // the peer's dial that has stood last
	late     uint8 // a request of the peer that is on its way, although its dial has returned
	backlog  uint8 // messages that have not left
	later    uint8 // and those for the next connection
	open     uint8 // messages that have left and the peer has not matched
	kept     uint8 // messages of the peer that nobody has received
	begun    uint8 // and that are being received
	n        uint8 // letters to this side
	letters  [12]letter
	budget   budget
}

// budget is what may still happen at a side.
type budget struct{ sends, leaves, pauses, forgets, losses, deaths, orphans uint8 }

// rules differ between scenarios.
type rules struct {
	unnumbered bool // requests have no number: as with a driver that carries them itself
	deaf       bool // nobody receives a message
	slow       bool // drivers let go late
	safe       bool // nothing is lost, given up or dies: no gate may break
}

type world [2]side

// run is one world while a step changes it.
type run struct {
	world
	rules
	cells *[States][Events]bool
	fault string
}

func (r *run) failf(format string, args ...any) {
	if r.fault == "" {
		r.fault = fmt.Sprintf(format, args...)
	}
}

// say sends a letter to the other side, if that still has the connection.
func (r *run) say(from int, l letter) {
	s := &r.world[1-from]
	if !s.attached && !s.paired {
		return
	}
	if int(s.n) == len(s.letters) {
		r.failf("side %d says too much", from)
		return
	}
	s.letters[s.n] = l
	s.n++
}

// let lets go of the connection.
func (r *run) let(i int) {
	s, o := &r.world[i], &r.world[1-i]
	if !s.attached {
		r.failf("side %d ends a connection twice", i)
	}
	s.attached, s.cut, s.n, s.letters, s.begun = false, false, 0, [12]letter{}, 0
	s.held = r.slow
	o.cut = o.cut || o.attached || o.paired
}

func (s *side) needs() bool { return s.backlog > 0 || s.open > 0 }

// step tells a machine an event and carries out its actions.
func (r *run) step(i int, e Event) {
	s := &r.world[i]
	f := Facts{Need: s.needs(), Quiet: s.quiet, Held: s.held}
	if s.life.Stands() {
		f.Need = s.later > 0
		if e == PeerLeave {
			f.Need = f.Need || s.backlog > 0
		}
	}
	before := s.life.state
	a, ok := s.life.Step(e, f)
	if !ok {
		r.failf("side %d: %v in %v: %s", i, e, before, Impossible(before, e))
		return
	}
	r.cells[before][e] = true
	r.act(i, a)
	if st := s.life.state; st <= Paused || st == Broken || st == Gone {
		s.must = s.must && s.needs()
	}
}

func (r *run) act(i int, a Action) {
	s := &r.world[i]
	does := func(x Action) bool { return a&x != 0 }
	if does(Refuse) {
		s.later, s.backlog, s.open = s.later+s.backlog, 0, 0
	}
	for _, x := range []struct {
		a Action
		l letterKind
	}{{SaySoon, soon}, {SayLeave, leave}, {SayPause, pause}, {SayBye, bye}} {
		if does(x.a) {
			r.say(i, letter{kind: x.l})
		}
	}
	if does(SayLeave) {
		s.kept = 0
	}
	if does(Dial) {
		if s.dial || s.attached || s.held || s.quiet {
			r.failf("side %d dials: under way %v, connected %v, held %v, quiet %v", i, s.dial, s.attached, s.held, s.quiet)
		}
		s.dial, s.stopped = true, false
		s.number++
	}
	if does(StopDial) {
		s.stopped = true
	}
	switch {
	case does(Discard):
		r.let(i)
	case does(Finish):
		r.let(i)
		s.must = s.must && s.later > 0
		s.backlog, s.later = s.later, 0
		r.step(i, Cleared)
	case does(Rest):
		r.let(i)
		s.backlog, s.later = s.backlog+s.later, 0
		s.must = s.must && s.needs()
		r.step(i, Cleared)
	}
	if does(Fail) && r.safe {
		r.failf("side %d breaks without a cause", i)
	}
	if does(Drop | Fail | Remove) {
		if s.attached {
			r.let(i)
		}
		s.backlog, s.later, s.open, s.kept, s.begun, s.must = 0, 0, 0, 0, 0, false
	}
}

// read takes one letter.
func (r *run) read(i int) {
	s := &r.world[i]
	l := s.letters[0]
	copy(s.letters[:], s.letters[1:])
	s.n--
	s.letters[s.n] = letter{}
	switch l.kind {
	case hello:
		s.dialed = l.number
	case message:
		if st := s.life.state; st < Left || st == Dismissed || s.life.Pausing() {
			s.kept++ // else it fails with this side's Leave
		}
	case take:
		s.open -= min(s.open, 1) // none: it has failed here while the connection was paused
		r.say(i, letter{kind: done})
	case done:
		s.begun--
	case soon:
		r.step(i, PeerSoon)
	case leave:
		r.step(i, PeerLeave)
	case pause:
		r.step(i, PeerPause)
	case bye:
		r.step(i, PeerBye)
	}
}

// returns ends a dial.
func (r *run) returns(i int, e Event) {
	s, o := &r.world[i], &r.world[1-i]
	if !s.cut {
		o.late = s.number // a copy of its request may still be under way, and names this incarnation of the peer
	}
	s.dial = false
	if e == Stood {
		s.paired, s.attached = false, true
		s.rails = 2
		if s.peer != o.birth { // the gate lets messages fail that the one before has not matched
			s.peer, s.open, s.kept = o.birth, 0, 0
		}
		r.say(i, letter{hello, s.number})
		r.step(i, Stood)
		return
	}
	if s.paired {
		s.paired, s.cut, s.n, s.letters = false, false, 0, [12]letter{}
		o.cut = o.cut || o.attached || o.paired
	}
	r.step(i, e)
}

// move is something that can happen in a world.
type move struct {
	name string
	side int
	do   func(*run, int)
}

// moves appends what can happen at a side.
func (w *world) moves(out []move, i int, k rules) []move {
	s, o := &w[i], &w[1-i]
	can := func(ok bool, name string, do func(*run, int)) {
		if ok {
			out = append(out, move{name, i, do})
		}
	}
	tell := func(ok bool, e Event) { can(ok, e.String(), func(r *run, i int) { r.step(i, e) }) }
	can(s.attached && s.n > 0, "reads", (*run).read)
	can(s.attached && s.n == 0 && s.cut, "notices", func(r *run, i int) { r.step(i, PeerGone) })
	can(i == 0 && s.dial && o.dial && !s.paired && !o.paired && !o.attached, "meets", func(r *run, i int) {
		r.world[0].paired, r.world[1].paired = true, true
	})
	can(s.dial && s.paired, "stands", func(r *run, i int) { r.returns(i, Stood) })
	can(s.dial && s.paired && s.cut, "fails", func(r *run, i int) { r.returns(i, PeerGone) })
	can(s.dial && s.stopped, "gives up", func(r *run, i int) { r.returns(i, GivenUp) })
	st := s.life.State()
	listens := (st == Idle || st == Paused) && !s.quiet
	can(o.dial && !o.paired && (k.unnumbered || o.number > s.dialed), "is asked", func(r *run, i int) { r.step(i, Asked) })
	can(s.late > 0, "is asked late", func(r *run, i int) {
		s := &r.world[i]
		n := s.late
		s.late = 0
		if !k.unnumbered && n <= s.dialed {
			return
		}
		if listens && n <= s.dialed {
			r.failf("side %d connects without need: dial %d stood", i, n)
		}
		r.step(i, Asked)
	})
	tell(s.dial && s.quiet && !s.stopped && (st == Dialing || st == DialingAgain), Overdue)
	tell(s.orphaned && (st == Dialing || st == DialingAgain || st == Waiting || st == WaitingAgain) && !s.stopped, Overdue)
	can(s.held, "is freed", func(r *run, i int) {
		s := &r.world[i]
		s.held = false
		if s.life.state == Waiting || s.life.state == WaitingAgain {
			r.step(i, Freed)
		}
	})
	can(s.attached && s.backlog > 0 && s.life.Stands() && st != Dismissed, "transmits", func(r *run, i int) {
		s := &r.world[i]
		s.backlog, s.open = s.backlog-1, s.open+1
		r.say(i, letter{kind: message})
	})
	can(!k.deaf && s.kept > 0 && (s.life.Open() || st == Dismissed), "receives", func(r *run, i int) {
		s := &r.world[i]
		s.kept, s.begun = s.kept-1, s.begun+1
		r.say(i, letter{kind: take})
	})
	if e, ok := s.life.Awaits(); ok && s.backlog == 0 {
		switch {
		case e == Sent && s.open > 0:
			tell(true, Sent)
		case e == Sent || e == Matched:
			tell(s.open == 0, Matched)
		case e == Finished:
			tell(s.begun == 0, Finished)
		default:
			tell(true, e)
		}
	}
	return w.program(out, i)
}

// program appends what the program of a side, and fate, can do.
func (w *world) program(out []move, i int) []move {
	s := &w[i]
	b := &s.budget
	can := func(left uint8, name string, do func(*run, int)) {
		if left > 0 {
			out = append(out, move{name, i, do})
		}
	}
	can(b.sends, "sends", func(r *run, i int) {
		s, o := &r.world[i], &r.world[1-i]
		s.budget.sends--
		switch st := s.life.state; {
		case st == Broken || st == Gone || s.life.wish == Forgotten:
			return // the call fails
		case s.life.Stands() && !s.life.Open():
			s.later++
		default:
			s.backlog++
		}
		s.must, o.must = false, false
		r.step(i, Want)
	})
	can(b.leaves, "disconnects", func(r *run, i int) {
		s := &r.world[i]
		s.budget.leaves--
		s.must = s.life.state != Broken && (s.life.Stands() || s.life.Connecting() || s.needs())
		r.step(i, Disconnect)
	})
	if s.quiet {
		can(1, "resumes", func(r *run, i int) { r.world[i].quiet = false; r.step(i, Resume) })
	} else {
		can(b.pauses, "quiesces", func(r *run, i int) {
			s := &r.world[i]
			s.budget.pauses--
			s.quiet = true
			r.step(i, Pause)
		})
	}
	if s.life.wish != Forgotten {
		can(b.forgets, "forgets", func(r *run, i int) { r.world[i].budget.forgets--; r.step(i, Forget) })
	}
	if s.attached {
		can(min(b.losses, s.rails-1), "loses a rail", func(r *run, i int) {
			r.world[i].rails--
			r.world[i].budget.losses--
			r.step(i, RailLost)
		})
		if s.rails == 1 {
			can(b.losses, "loses the last rail", func(r *run, i int) {
				r.world[i].budget.losses--
				r.world[1-i].n, r.world[1-i].letters = 0, [12]letter{}
				r.step(i, PeerGone)
			})
		}
	}
	can(b.orphans, "loses the launcher", func(r *run, i int) {
		r.world[i].budget.orphans--
		r.world[i].orphaned = true
		r.step(i, LauncherGone)
	})
	can(b.deaths, "dies, and another takes its place", func(r *run, i int) {
		s, o := &r.world[i], &r.world[1-i]
		o.cut = o.cut || o.attached || o.paired
		*s = side{budget: s.budget, number: s.number, birth: s.birth + 1}
		s.budget.deaths--
		o.late = 0 // its requests name another incarnation
	})
	return out
}

// end checks a world in which nothing happens by itself any more.
func (r *run) end() {
	for i := range r.world {
		s, o := &r.world[i], &r.world[1-i]
		st := s.life.State()
		absent := o.life.state == Broken || o.life.state == Gone || o.quiet || o.orphaned
		switch {
		case s.quiet && (s.life.Stands() || s.life.Connecting()):
			r.failf("side %d: the pause does not end: %v, peer %v", i, st, o.life.state)
		case s.must && s.life.Open() && !(r.deaf && st == Announced):
			r.failf("side %d: the wish to leave is lost: %v, wish %d, peer %v", i, st, s.life.Wish(), o.life.state)
		case s.life.Connecting() && !absent:
			r.failf("side %d: connecting for ever: %v, peer %v", i, st, o.life.state)
		case s.life.Closing() && !(r.deaf && st == Announced):
			r.failf("side %d: ending for ever: %v, peer %v", i, st, o.life.state)
		case s.life.Open() && !o.life.Stands():
			r.failf("side %d: %v, peer %v", i, st, o.life.state)
		case (s.needs() && !(r.deaf && s.backlog == 0) || s.later > 0) && !s.quiet && !absent && st != Broken && st != Gone:
			r.failf("side %d: messages wait for ever: %d, %d, %d: %v, peer %v", i, s.backlog, s.later, s.open, st, o.life.state)
		}
	}
}
