package life

var stateNames = [States]string{
	"idle", "paused", "waiting", "dialing", "abandoned", "waiting again", "dialing again", "abandoned again", "withdrawn",
	"broken", "gone", "up", "hinted", "leaving", "leaving, hinted", "announced", "left", "dismissed", "parted", "bye said",
	"bye heard", "ended", "pause said", "pause met", "pause, bye said", "pause, bye heard", "pause ended",
	"finishing", "resting",
}

var eventNames = [Events]string{
	"want", "asked", "stood", "given up", "freed", "overdue", "disconnect", "forget", "pause", "resume", "sent", "matched",
	"finished", "released", "cleared", "peer soon", "peer leave", "peer pause", "peer bye", "rail lost", "peer gone",
	"launcher gone",
}

// String returns the state's name.
func (s State) String() string {
	if s < States {
		return stateNames[s]
	}
	return "unknown"
}

// String returns the event's name.
func (e Event) String() string {
	if e < Events {
		return eventNames[e]
	}
	return "unknown"
}
