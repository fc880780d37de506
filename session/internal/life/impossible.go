package life

// Impossible returns why an event cannot come in a state. It is empty if the event can come.
func Impossible(s State, e Event) string {
	switch s {
	case Finishing, Resting:
		if e != Cleared {
			return "the gate holds its lock until it says Cleared"
		}
		return ""
	}
	connected := s >= Up
	switch e {
	case Want:
		if s == Withdrawn || s == Broken || s == Gone {
			return "calls fail before they want anything"
		}
	case Cleared:
		return "only Finish and Rest are followed by Cleared"
	case Stood, GivenUp:
		if s != Withdrawn && s != Dialing && s != DialingAgain && s != Abandoned && s != AbandonedAgain {
			return "no dial is under way"
		}
	case Overdue:
		if s != Waiting && s != WaitingAgain && s != Dialing && s != DialingAgain {
			return "the timer belongs to one dial and does nothing after it"
		}
	case Freed:
		if s != Waiting && s != WaitingAgain {
			return "only a gate that waits for it is told"
		}
	case Resume:
		switch {
		case s >= Up && s <= Announced:
			return "no connection of a quiet session carries messages"
		case s == Waiting || s == WaitingAgain:
			return "a gate of a quiet session does not wait to dial"
		}
	case Forget:
		if s == Withdrawn || s == Gone {
			return "a gate is forgotten once"
		}
	case RailLost:
		if !connected {
			return "there is no rail"
		}
	case PeerGone:
		if !connected && s != Dialing && s != DialingAgain && s != Abandoned && s != AbandonedAgain && s != Withdrawn {
			return "there is neither a rail nor a dial"
		}
	case PeerSoon, PeerLeave, PeerPause, PeerBye:
		if !connected {
			return "there is no connection to hear the peer"
		}
		return unheard(s, e)
	case Sent, Matched, Finished, Released:
		return unawaited(s, e)
	}
	return ""
}

// unheard returns why the peer cannot say something: a connection keeps the order of what the peer says.
func unheard(s State, e Event) string {
	switch e {
	case PeerSoon:
		switch s {
		case Hinted, LeavingHinted:
			return "the peer says Soon once"
		case Dismissed, Parted, ByeSaid, ByeHeard, Ended:
			return "the peer has said Leave"
		case PauseMet, PauseByeSaid, PauseByeHeard, PauseEnded:
			return "the peer has said Pause, and announces nothing after it"
		}
	case PeerLeave:
		switch s {
		case Dismissed, Parted, ByeSaid, ByeHeard, Ended:
			return "the peer says Leave once"
		case PauseMet, PauseByeSaid, PauseByeHeard, PauseEnded:
			return "the peer has said Pause, and would leave only if it heard Leave"
		}
	case PeerPause:
		switch s {
		case Dismissed, Parted, ByeSaid, ByeHeard, Ended:
			return "the peer has said Leave"
		case PauseMet, PauseByeSaid, PauseByeHeard, PauseEnded:
			return "the peer says Pause once"
		}
	case PeerBye:
		switch s {
		case Parted, ByeSaid, PauseMet, PauseByeSaid:
		case ByeHeard, Ended, PauseByeHeard, PauseEnded:
			return "the peer says Bye once"
		default:
			return "the peer says Bye after Leave or Pause was said and heard"
		}
	}
	return ""
}

// unawaited returns why the gate does not say something of its own progress.
func unawaited(s State, e Event) string {
	if s == Dismissed && e == Sent {
		return "what the peer has not matched failed with its Leave"
	}
	l := Life{state: s}
	want, ok := l.Awaits()
	if ok && (want == e || want == Sent && e == Matched) {
		return ""
	}
	return "the gate says what Awaits names"
}
