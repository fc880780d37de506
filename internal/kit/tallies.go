package kit

import (
	"sync/atomic"

	"github.com/bywash/bywash/driver"
)

// Tallies are the counters of one connection, for drivers. Those that are
// counted on the data path have one writer, the connection's owner; the last four
// may have several.
type Tallies struct {
	Sent, Received, BytesSent, BytesReceived Tally // messages, and bytes of them
	Puts, Gets, Atomics                      Tally
	Busy                                     Tally // posts that found a queue full
	Waited                                   Tally // sends that waited for credit
	Slept, Woke                              Tally
	Truncated, Canceled                      Tally
	Hits, Misses                             Tally // registrations or mappings that were there, or not
	Connects, disconnects, Broken, Bad       atomic.Uint32
}

// addTo adds the counts so far to c.
func (t *Tallies) addTo(c *driver.Counters) {
	c.MessagesSent += t.Sent.Load()
	c.MessagesReceived += t.Received.Load()
	c.BytesSent += t.BytesSent.Load()
	c.BytesReceived += t.BytesReceived.Load()
	c.Puts += t.Puts.Load()
	c.Gets += t.Gets.Load()
	c.Atomics += t.Atomics.Load()
	c.Busy += t.Busy.Load()
	c.CreditsWaited += t.Waited.Load()
	c.Waits += t.Slept.Load()
	c.Wakeups += t.Woke.Load()
	c.Truncated += t.Truncated.Load()
	c.Canceled += t.Canceled.Load()
	c.RegistrationHits += t.Hits.Load()
	c.RegistrationMisses += t.Misses.Load()
	c.Connects += uint64(t.Connects.Load())
	c.Disconnects += uint64(t.disconnects.Load())
	c.BrokenPeers += uint64(t.Broken.Load())
	c.BadFrames += uint64(t.Bad.Load())
}
