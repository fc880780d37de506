package life

// State is where a gate is in its life; the package comment describes each.
type State uint8

// The states. Their order matters to the methods of Life.
const (
	Idle State = iota
	Paused
	Waiting
	Dialing
	Abandoned
	WaitingAgain
	DialingAgain
	AbandonedAgain
	Withdrawn
	Broken
	Gone
	Up
	Hinted
	Leaving
	LeavingHinted
	Announced
	Left
	Dismissed
	Parted
	ByeSaid
	ByeHeard
	Ended
	PauseSaid
	PauseMet
	PauseByeSaid
	PauseByeHeard
	PauseEnded
	Finishing
	Resting
	States
)

// Event is what can happen to a gate.
type Event uint8

// The events.
const (
	Want         Event = iota // something waits for a connection
	Asked                     // the peer wants a connection, and none that has stood already
	Stood                     // the dial has succeeded
	GivenUp                   // the dial has returned because this side gave it up
	Freed                     // drivers have let go of the last connection
	Overdue                   // the time is over that a pause, or the launcher's end, leaves a dial
	Disconnect                // the program wants the connection to end
	Forget                    // and the gate, too
	Pause                     // the session quiesces
	Resume                    // and goes on
	Sent                      // everything has left that is to go over this connection; some of it is not matched
	Matched                   // everything has left, and was matched
	Finished                  // everything that has begun on this connection is done
	Released                  // drivers have nothing of this connection any more
	Cleared                   // the actions Finish or Rest are done
	PeerSoon                  // the peer says that it will leave
	PeerLeave                 // the peer says Leave
	PeerPause                 // the peer says Pause
	PeerBye                   // the peer says Bye
	RailLost                  // one rail, not the last
	PeerGone                  // the last rail, or the dial has failed
	LauncherGone              // nobody can look up a card any more
	Events
)

// Facts are what the machine has to know of the gate and its session.
type Facts struct {
	Need  bool // something waits for a connection; while one stands, for the next one; with PeerLeave, or has not left
	Quiet bool // the session is quiet: no connection may begin
	Held  bool // drivers still have something of the last connection: no dial may begin
}

// Action is a set of what the gate has to do, in the order of the constants.
type Action uint16

// The actions.
const (
	Refuse       Action = 1 << iota // fail what the peer, which leaves, has not matched; hold back what has not left
	FailReceives                    // of the peer
	SaySoon
	SayLeave
	SayPause
	SayBye
	Dial
	StopDial // the dial returns soon
	Discard  // the connection that the dial has made
	Finish   // end the connection in order, and say Cleared
	Rest     // end the connection without a loss, and say Cleared
	Drop     // everything that waits for the connection, without a word: nobody here wanted it
	Fail     // everything of the gate
	Remove   // the gate
)

// Wish is what is to follow the present connection.
type Wish uint8

// The wishes.
const (
	Nothing   Wish = iota
	Leave          // disconnect the next connection, too
	Forgotten      // remove the gate
	Wishes
)

// Life is a gate's state. The zero value is idle.
type Life struct {
	state State
	wish  Wish
}

// State returns the present state.
func (l *Life) State() State { return l.state }

// Wish returns what is to follow the present connection.
func (l *Life) Wish() Wish { return l.wish }

// Stands reports whether there is a connection, be it one that is closed or paused.
func (l *Life) Stands() bool { return l.state >= Up && l.state <= PauseEnded }

// Open reports whether the connection takes new messages.
func (l *Life) Open() bool { return l.state >= Up && l.state <= Announced }

// Connecting reports whether a connection is being made.
func (l *Life) Connecting() bool { return l.state >= Waiting && l.state <= Withdrawn }

// Pausing reports whether the connection is being paused.
func (l *Life) Pausing() bool { return l.state >= PauseSaid && l.state <= PauseEnded }

// Rests reports whether the last connection ended by a pause and no other has stood since.
func (l *Life) Rests() bool {
	return l.state == Paused || l.state >= WaitingAgain && l.state <= AbandonedAgain || l.state == Resting
}

// Closing reports whether the connection is to end, so that the gate has to say what [Life.Awaits] names.
func (l *Life) Closing() bool { return l.state >= Leaving && l.state <= PauseEnded }

// Awaits returns the event that lets a closing connection take its next step, if that is one of this side: Sent (or
// Matched), Finished or Released. Else it returns false.
func (l *Life) Awaits() (Event, bool) {
	switch l.state {
	case Leaving, LeavingHinted, Dismissed:
		return Sent, true
	case Announced:
		return Matched, true
	case Parted, ByeHeard, PauseMet, PauseByeHeard:
		return Finished, true
	case Ended, PauseEnded:
		return Released, true
	}
	return 0, false
}

// become changes the state.
func (l *Life) become(s State, a Action) (Action, bool) {
	l.state = s
	return a, true
}

// Step takes an event. It returns false, and nothing changes, if the event is impossible in this state; if the peer
// says such a thing it violates the protocol.
func (l *Life) Step(e Event, f Facts) (Action, bool) {
	if Impossible(l.state, e) != "" {
		return 0, false
	}
	switch e {
	case PeerGone:
		return l.gone(f)
	case Forget:
		return l.forget()
	case Disconnect:
		return l.disconnect(f)
	}
	switch {
	case l.state <= Gone:
		return l.apart(e, f)
	case l.state <= Announced:
		return l.open(e, f)
	case l.state <= Ended:
		return l.closing(e, f)
	case l.state <= PauseEnded:
		return l.pausing(e)
	}
	return l.clear(f)
}

// apart takes events without a connection.
func (l *Life) apart(e Event, f Facts) (Action, bool) {
	switch {
	case l.state == Withdrawn && e == Stood:
		return l.become(Gone, Discard|Remove)
	case l.state == Withdrawn && e == GivenUp:
		return l.become(Gone, Remove)
	case e == Stood:
		return l.stood(f)
	}
	switch l.state {
	case Idle, Paused:
		switch {
		case e == LauncherGone && f.Need:
			l.wish = Nothing
			return l.become(Broken, Fail)
		case (e == Want || e == Asked || e == Resume && f.Need) && !f.Quiet:
			return l.dial(f)
		}
	case Waiting, WaitingAgain:
		switch {
		case e == Freed:
			return l.become(l.state+1, Dial)
		case e == Pause: // no dial has begun that the peer could have met
			l.state = l.before()
			return l.clearTo(f)
		case e == Overdue:
			return l.gone(f)
		}
	case Dialing, DialingAgain:
		switch {
		case e == Overdue && f.Quiet:
			return l.become(l.state+1, StopDial)
		case e == Overdue:
			return StopDial, true
		case e == GivenUp:
			return l.gone(f)
		}
	case Abandoned, AbandonedAgain:
		if e == GivenUp {
			l.state = l.before()
			return l.clearTo(f)
		}
	}
	return 0, true
}

// before is the state before a dial.
func (l *Life) before() State {
	if l.Rests() {
		return Paused
	}
	return Idle
}

// dial begins a connection.
func (l *Life) dial(f Facts) (Action, bool) {
	first := Waiting
	if l.state == Paused {
		first = WaitingAgain
	}
	if f.Held {
		return l.become(first, 0)
	}
	return l.become(first+1, Dial)
}

// stood begins the life of a connection.
func (l *Life) stood(f Facts) (Action, bool) {
	switch {
	case f.Quiet:
		return l.become(PauseSaid, SayPause)
	case l.wish == Leave:
		l.wish = Nothing
		return l.become(Leaving, 0)
	}
	return l.become(Up, 0)
}

// open takes events on a connection that carries messages.
func (l *Life) open(e Event, f Facts) (Action, bool) {
	wished := l.state >= Leaving
	switch e {
	case Pause, PeerPause:
		if wished && l.wish == Nothing {
			l.wish = Leave
		}
		if e == Pause {
			return l.become(PauseSaid, SayPause)
		}
		return l.become(PauseMet, SayPause)
	case PeerSoon:
		if wished {
			return l.become(LeavingHinted, 0)
		}
		return l.become(Hinted, 0)
	case PeerLeave:
		if wished && l.wish == Nothing && f.Need {
			l.wish = Leave
		}
		return l.become(Dismissed, Refuse)
	case Sent:
		if l.state == Leaving {
			return l.become(Announced, SaySoon)
		}
		return l.become(Left, SayLeave)
	case Matched:
		return l.become(Left, SayLeave)
	}
	return 0, true
}

// closing takes events on a connection that one side at least has left.
func (l *Life) closing(e Event, f Facts) (Action, bool) {
	switch {
	case l.state == Left && e == PeerLeave:
		return l.become(Parted, Refuse)
	case l.state == Dismissed && (e == Sent || e == Matched):
		return l.become(Parted, SayLeave)
	case l.state == Parted && e == Finished:
		return l.become(ByeSaid, SayBye)
	case l.state == Parted && e == PeerBye:
		return l.become(ByeHeard, FailReceives)
	case l.state == ByeSaid && e == PeerBye:
		return l.become(Ended, FailReceives)
	case l.state == ByeHeard && e == Finished:
		return l.become(Ended, SayBye)
	case l.state == Ended && e == Released:
		return l.become(Finishing, Finish)
	}
	return 0, true
}

// pausing takes events on a connection that is being paused.
func (l *Life) pausing(e Event) (Action, bool) {
	switch {
	case l.state == PauseSaid && e == PeerPause:
		return l.become(PauseMet, 0)
	case l.state == PauseSaid && e == PeerLeave:
		return l.become(Dismissed, Refuse)
	case l.state == PauseMet && e == Finished:
		return l.become(PauseByeSaid, SayBye)
	case l.state == PauseMet && e == PeerBye:
		return l.become(PauseByeHeard, 0)
	case l.state == PauseByeSaid && e == PeerBye:
		return l.become(PauseEnded, 0)
	case l.state == PauseByeHeard && e == Finished:
		return l.become(PauseEnded, SayBye)
	case l.state == PauseEnded && e == Released:
		return l.become(Resting, Rest)
	}
	return 0, true
}

// clear takes Cleared.
func (l *Life) clear(f Facts) (Action, bool) {
	if l.wish == Forgotten {
		return l.become(Gone, Remove)
	}
	l.state = l.before()
	return l.clearTo(f)
}

// clearTo begins the next connection if something waits for it. Else a wish for it is moot.
func (l *Life) clearTo(f Facts) (Action, bool) {
	switch {
	case !f.Need:
		l.wish = Nothing
	case !f.Quiet:
		return l.dial(f)
	}
	return 0, true
}

// gone takes the loss of a connection, or the failure to make one.
func (l *Life) gone(f Facts) (Action, bool) {
	if l.state == Ended {
		return l.become(Finishing, Finish)
	}
	if l.state == PauseEnded {
		return l.become(Resting, Rest)
	}
	wish := l.wish
	l.wish = Nothing
	switch {
	case l.state == Withdrawn || wish == Forgotten:
		return l.become(Gone, Remove)
	case l.Rests() && !f.Need:
		return l.become(Paused, 0) // the peer may have given up only: what it has sent before the pause stays
	case l.Connecting() && !f.Need:
		return l.become(Idle, Drop)
	}
	return l.become(Broken, Fail)
}

// disconnect takes the program's wish to end the connection.
func (l *Life) disconnect(f Facts) (Action, bool) {
	switch {
	case l.state == Broken:
		return l.become(Idle, 0)
	case l.wish == Forgotten || l.state == Gone || l.state == Withdrawn:
	case l.state == Up:
		return l.become(Leaving, 0)
	case l.state == Hinted:
		return l.become(LeavingHinted, 0)
	case l.Open():
	case l.Connecting() || l.Pausing() || f.Need:
		l.wish = Leave
	}
	return 0, true
}

// forget takes the program's wish to remove the gate.
func (l *Life) forget() (Action, bool) {
	l.wish = Forgotten
	switch l.state {
	case Idle, Paused, Waiting, WaitingAgain, Broken:
		return l.become(Gone, Remove)
	case Dialing, DialingAgain:
		return l.become(Withdrawn, StopDial)
	case Abandoned, AbandonedAgain:
		return l.become(Withdrawn, 0)
	case Up:
		return l.become(Leaving, 0)
	case Hinted:
		return l.become(LeavingHinted, 0)
	}
	return 0, true
}
