package session

import (
	"fmt"
	"io"
	"strings"

	"github.com/bywash/bywash/driver"
)

// Dump writes the state of the session for a human reader: what its drivers have counted, gates, messages that wait to
// leave, receives, unexpected messages, long messages and their chunks. The writer may call the session.
func (s *Session) Dump(w io.Writer) error {
	_, err := io.WriteString(w, s.dump())
	return err
}

func (s *Session) dump() string {
	s.mu.lock()
	defer s.mu.unlock()
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("rank %d of %d, job %s (%s): %+v", s.rank, s.size, s.launcher.job.ID(), s.launcher.job.Name(), s.stats)
	line("%d receives posted, %d unexpected messages, %d bytes for more, %d peers wait for room, %d long active messages wait for memory",
		s.table.Posted(), s.table.Waiting(), s.credit.pool.Free(), len(s.credit.short), len(s.active.waiting))
	for _, n := range s.nics {
		var c driver.Counters
		if n.small.Counters(&c); n.large != nil {
			n.large.Counters(&c)
		}
		line("driver %s on %s: %d connections established, %d attempts refused, %d broken, %d bad frames, %d posts busy",
			n.Driver, n.Device, c.Connects, c.Refused, c.BrokenPeers, c.BadFrames, c.Busy)
	}
	for _, g := range s.gates {
		if g == nil || g.state == gateIdle && g.queues.backlog.n+g.queues.later.n == 0 {
			continue
		}
		line("gate %d (rank %d): %s, %d waiting, %d for the next connection, leaving %v, bye sent %v seen %v, error %v",
			g.index, g.rank, gateStates[g.state], g.queues.backlog.n, g.queues.later.n,
			g.close.asked, g.close.sent.bye, g.close.seen.bye, g.err)
		for _, l := range g.links {
			line("  rail %d: %s %s, %d in the driver, %d pieces", l.rail, l.nic.Driver, l.nic.Device, l.sending.n, l.pieces)
		}
	}
	s.transfers.outs.each(func(id uint64, o *outgoing) {
		line("send %#x to gate %d: %d bytes, matched %v, %d chunks held, %d fragments, error %v", id, o.g.index, o.total, o.Matched(), o.Hold(), o.frags, o.err)
	})
	s.transfers.ins.each(func(id uint64, in *incoming) {
		line("receive %#x from gate %d: %d of %d bytes, %v, %d chunks held, error %v", id, in.g.index, in.want, in.total, in.mode, in.Hold(), in.err)
	})
	for _, pc := range s.transfers.pieces {
		line("piece kind %d of %+v, posted %v", pc.kind, pc.chunk, pc.posted)
	}
	return b.String()
}
