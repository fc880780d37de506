package driver

// Counters are totals since a context was opened. All are always on. What a
// driver does not have stays 0.
type Counters struct {
	MessagesSent     uint64 `json:"messages_sent"`
	MessagesReceived uint64 `json:"messages_received"`
	BytesSent        uint64 `json:"bytes_sent"`
	BytesReceived    uint64 `json:"bytes_received"`
	Puts             uint64 `json:"puts"`
	Gets             uint64 `json:"gets"`
	Atomics          uint64 `json:"atomics"`

	Busy          uint64 `json:"busy"`           // posts that returned ErrBusy
	CreditsWaited uint64 `json:"credits_waited"` // times a sender ran out of credit or room
	Waits         uint64 `json:"waits"`          // times a waiter went to sleep
	Wakeups       uint64 `json:"wakeups"`        // times a peer was woken
	Truncated     uint64 `json:"truncated"`
	Canceled      uint64 `json:"canceled"`

	Retransmits uint64 `json:"retransmits"`
	BadFrames   uint64 `json:"bad_frames"` // foreign bytes that failed a check

	RegistrationHits      uint64 `json:"registration_hits"`
	RegistrationMisses    uint64 `json:"registration_misses"`
	RegistrationEvictions uint64 `json:"registration_evictions"`

	Connects    uint64 `json:"connects"`     // connections that were established
	Refused     uint64 `json:"refused"`      // attempts refused: secret, user, version, too many, or too long unanswered
	Disconnects uint64 `json:"disconnects"`  // in order
	BrokenPeers uint64 `json:"broken_peers"` // without a close message

	// DeregisterBusy counts deregistrations that returned ErrBusy, because a peer was inside the region.
	DeregisterBusy uint64 `json:"deregister_busy"`
}

// Add adds o to c.
func (c *Counters) Add(o *Counters) {
	c.MessagesSent += o.MessagesSent
	c.MessagesReceived += o.MessagesReceived
	c.BytesSent += o.BytesSent
	c.BytesReceived += o.BytesReceived
	c.Puts += o.Puts
	c.Gets += o.Gets
	c.Atomics += o.Atomics
	c.Busy += o.Busy
	c.CreditsWaited += o.CreditsWaited
	c.Waits += o.Waits
	c.Wakeups += o.Wakeups
	c.Truncated += o.Truncated
	c.Canceled += o.Canceled
	c.Retransmits += o.Retransmits
	c.BadFrames += o.BadFrames
	c.RegistrationHits += o.RegistrationHits
	c.RegistrationMisses += o.RegistrationMisses
	c.RegistrationEvictions += o.RegistrationEvictions
	c.Connects += o.Connects
	c.Refused += o.Refused
	c.Disconnects += o.Disconnects
	c.BrokenPeers += o.BrokenPeers
	c.DeregisterBusy += o.DeregisterBusy
}
