package session

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/internal/rdv"
)

// Which mode carries a long message in less time differs from host to host and from minute to minute. Fragments on the
// small track are copied twice, while they are in a cache; the large track needs system calls, and copies once. So a
// link measures both, for each class of lengths: from the moment when the receiver has the request and the memory, or has
// the message before if messages overlap, until it has the message. Messages take the mode that was cheaper lately. Now
// and then one takes the other mode, so seldom that this costs at most 1/64 of the time.
//
// Memory in arenas always takes the large track, which reads and writes it in place. Links whose driver registers
// memory, and gates with several rails, do not choose either: registration would have been begun in vain, and several
// rails keep copies of fragments.

const (
	shortestChoice = 1 << 13   // the first class has lengths from here to twice as much
	longestChoice  = 512 << 10 // from here on the large track is always cheaper
	choices        = 6
	firstTrials    = 8 // messages of a class after which fragments are tried
	trials         = 4
	soonestTrial   = 8
	rarestTrial    = 1 << 12
)

// choice is what the two modes cost for a class of lengths.
type choice struct {
	fragments, large time.Duration // moving averages; 0: not measured
	n                int           // messages until the first trials are over
	wait             int           // messages until the next trial
	pause            int           // messages between the last two trials
}

// linkChoices are the choices of a link, by class of lengths.
type linkChoices [choices]choice

func classOf(n int) int { return bits.Len(uint(n/shortestChoice)) - 1 }

// choiceFor returns the choice for a message of n bytes that is received into the memory; nil if there is none.
func (l *link) choiceFor(r *Request, n int) *choice {
	s := l.g.s
	if n < shortestChoice || n >= longestChoice || l.fetcher != nil || len(l.g.links) > 1 || s.cfg.Chunk > 0 {
		return nil
	}
	if contiguous(r.layout) {
		if _, _, shared := driver.ArenaOf(span(r.buf, r.layout, 0, n)); shared {
			return nil
		}
	}
	if l.choices == nil {
		l.choices = new(linkChoices)
	}
	return &l.choices[classOf(n)]
}

// best is the mode that was cheaper lately.
func (c *choice) best() rdv.Mode {
	if c.fragments > 0 && c.large > 0 && c.fragments < c.large {
		return rdv.Null
	}
	return rdv.Cooperative
}

// next returns the mode of the next message.
func (c *choice) next() rdv.Mode {
	best, other, costs, would := rdv.Cooperative, rdv.Null, c.large, c.fragments
	if c.best() == rdv.Null {
		best, other, costs, would = other, best, would, costs
	}
	switch {
	case c.n < firstTrials+trials:
		if c.n++; c.n > firstTrials {
			return rdv.Null
		}
		return rdv.Cooperative
	case c.wait > 0:
		c.wait--
		return best
	}
	// The first costs are those of cold memory: trials begin soon after one another.
	c.pause = min(max(soonestTrial, 2*c.pause), int(64*max(would, 1)/max(costs, 1)), rarestTrial)
	c.wait = c.pause
	return other
}

// took records how long a message took. The average follows shorter times at once and longer ones slowly: what makes a
// message take longer than the mode does, as a process without CPU or cold memory, is no property of the mode.
func (c *choice) took(mode rdv.Mode, d time.Duration) {
	cost := &c.large
	if mode == rdv.Null {
		cost = &c.fragments
	}
	switch d = max(d, 1); {
	case *cost == 0:
		*cost = d
	case d < *cost:
		*cost -= (*cost - d + 1) / 2
	default:
		*cost += (min(d, 4**cost) - *cost) / 16
	}
}

// fragmented describes the lengths that go in fragments though the large track could carry them; "" if there are none.
func (l *link) fragmented() (text string) {
	if l.choices == nil {
		return ""
	}
	const unit = shortestChoice >> 10
	for k := 0; k < choices; k++ {
		from := k
		for k < choices && l.choices[k].best() == rdv.Null {
			k++
		}
		if k > from {
			text += fmt.Sprintf(", %d to %d KiB in fragments", unit<<from, unit<<k)
		}
	}
	return text
}
