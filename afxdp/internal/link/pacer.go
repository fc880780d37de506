package link

import (
	"math"
	"time"
)

// pacer is the congestion control. Once a round trip it compares the queueing delay with a target, as Swift does (Kumar
// et al., SIGCOMM 2020). Below the target the window grows by one fragment; above it the window shrinks by a share. The
// smaller the window, the higher the target, so that many flows find room and unequal flows approach each other.
//
// A flow that begins while others fill the queue takes their delay for the delay of the path. So a flow that never sees
// an empty queue looks for it now and then: it sends next to nothing for two round trips, as in LEDBAT++
// (draft-irtf-iccrg-ledbat-plus-plus).
//
// The usual losses of the path have no effect. Losses beyond them shrink the window by their share, because a queue
// that is too short to cause delay overflows.
//
// A fragment means a full fragment here: one that takes less credit counts in proportion. Losses are counted by
// packets.
type pacer struct {
	cwnd      float64 // fragments that may be under way; below 1: one, with pauses
	fast      bool    // doubles each round trip, until queueing is seen
	limited   bool    // cwnd or pace held the sender back in this round
	target    Time    // of the queueing delay
	round     uint64  // its acknowledgement ends the round
	acked     int     // packets acknowledged in this round
	missed    int
	loss      float64 // share of losses, smoothed
	floor     float64 // share of losses that is usual on this path
	sum       Time    // of the queueing delays of this round
	cutAt     Time    // when cwnd was last lowered
	lookAt    Time    // when the next look for an empty queue begins
	lookTo    Time    // when the present look ends; 0: none
	lookPause Time
	before    float64 // cwnd before the look
	path      Time    // minRTT before the look
	pacedAt   Time    // when the next fragment may be sent; never: now
	credits   float64
	creditAt  Time
	asked     float64 // fragments since an acknowledgement was asked for
}

const (
	minWindow   = 0.1
	delayWindow = 4.0                         // delay alone does not lower the window further: busy hosts cause delay, too
	firstWindow = 32                          // units, but at least four fragments
	targetDelay = Time(75 * time.Microsecond) // for a window of 100
	scaleDelay  = Time(120 * time.Microsecond)
	scaleMost   = Time(300 * time.Microsecond) // the most that a small window adds: scaleDelay / sqrt(window)
	growPeriod  = Time(200 * time.Microsecond) // a longer round trip grows the window by more than one fragment
	lookLeast   = Time(10 * time.Millisecond)
	lookMost    = Time(200 * time.Millisecond)
	burst       = 8                           // fragments that may leave at once
	burstTime   = 20_000                      // and as many as belong to so many ns
	freeRTT     = Time(50 * time.Microsecond) // timers are too coarse to pace shorter round trips
	tolerated   = 0.03                        // share of losses beyond the usual ones
	roundLeast  = 16                          // fragments whose losses are counted together
)

func (p *pacer) begin(full int) {
	*p = pacer{cwnd: max(firstWindow/float64(full), 4), fast: true, pacedAt: never, credits: burst, lookPause: lookLeast}
	p.aim(0)
}

// aim sets the target for the present window.
func (p *pacer) aim(path Time) {
	scale := Time(float64(scaleDelay) * (1/math.Sqrt(max(p.cwnd, minWindow)) - 0.1))
	p.target = max(targetDelay, path/8) + min(max(scale, 0), scaleMost)
}

func (c *Conn) window() int {
	n := max(int(c.cwnd*float64(c.full)), 1)
	if c.inflight >= n {
		c.limited = true
	}
	return n
}

// grew adapts the window to fragments that were acknowledged.
func (c *Conn) grew(newly arrival) {
	n := c.weight(newly.units)
	c.acked += newly.fragments
	if c.srtt == 0 {
		return
	}
	e := c.e
	queue := c.latest - c.minRTT
	c.sum += queue * Time(newly.fragments)
	most := float64(c.span)
	switch {
	case c.lookTo != 0:
		if e.now >= c.lookTo {
			c.looked()
		}
	case queue > c.target:
		if e.now-c.cutAt > c.srtt {
			over := float64(queue-c.target) / float64(queue)
			c.cut(min(0.8*over, 0.5, max(1-delayWindow/c.cwnd, 0)))
		}
	case !c.limited && c.weight(c.inflight)+n < float64(int(c.cwnd)/2): // the window does not hold the sender back
	case c.loss > c.floor+tolerated/2: // wait for the effect of the last cut
	case c.fast:
		c.cwnd = min(c.cwnd+n, most)
	default:
		grow := max(float64(min(c.srtt, 8*growPeriod))/float64(growPeriod), min(1, max(c.cwnd, 1)/8))
		c.cwnd = min(c.cwnd+grow*n/max(c.cwnd, 1), most)
	}
	if c.una >= c.round && c.acked+c.missed >= roundLeast {
		c.endRound()
	}
}

// cut lowers the window by a share of it.
func (c *Conn) cut(share float64) {
	c.fast = false
	c.cutAt = c.e.now
	c.cwnd = max(c.cwnd*(1-share), minWindow)
}

// endRound evaluates the losses of a round, which lasts at least one round trip.
func (c *Conn) endRound() {
	rate := float64(c.missed) / float64(c.acked+c.missed)
	c.loss += (rate - c.loss) / 8
	c.floor = min(c.floor, c.loss)
	if c.loss > c.floor+tolerated && c.missed > 0 && c.lookTo == 0 {
		if c.sum/Time(max(c.acked, 1)) < targetDelay/8 { // the queue was empty: the losses are the path's
			c.floor += (c.loss - c.floor) / 8
		}
		c.cut(min(max(2*(c.loss-c.floor), 0.25), 0.5))
		c.loss = (c.loss + c.floor) / 2
	}
	if now := c.e.now; c.limited && !c.fast && c.lookTo == 0 && now >= c.lookAt && c.cwnd > 1 {
		c.before, c.lookTo, c.cwnd = c.cwnd, now+2*c.srtt, min(c.cwnd/4, 2)
		c.path = c.minRTT
	}
	c.aim(c.minRTT)
	c.round = c.next
	c.acked, c.missed, c.limited, c.sum = 0, 0, false, 0
}

// looked ends a look. The pause before the next one grows if the look found nothing new.
func (c *Conn) looked() {
	c.cwnd, c.lookTo, c.cutAt = c.before, 0, c.e.now
	if c.path-c.minRTT > c.target/8 {
		c.lookPause = lookLeast
	} else {
		c.lookPause = min(2*c.lookPause, lookMost)
	}
	c.lookAt = c.e.now + max(c.lookPause, 64*c.srtt)
}

// lostSome counts n fragments as lost.
func (c *Conn) lostSome(n int) { c.missed += n }

// silence lowers the window after several probes without an answer.
func (c *Conn) silence() {
	c.lookTo = 0
	c.cut(0.5)
}

// paced reports whether a fragment may be sent now: fragments are spread over the round trip.
func (c *Conn) paced() bool {
	if c.srtt < freeRTT && c.cwnd >= 2 {
		c.pacedAt, c.credits = never, burst
		return true
	}
	now := c.e.now
	if c.credits < 1 || now-c.creditAt > c.srtt {
		gain := 1.25
		if c.fast {
			gain = 2
		}
		rate, most := gain*c.cwnd/float64(max(c.srtt, 1)), 1.0
		if c.cwnd >= 2 {
			most = burst + rate*burstTime
		}
		c.credits = min(c.credits+rate*float64(now-c.creditAt), most)
		c.creditAt = now
		if c.credits < 1 {
			c.limited = true
			c.pacedAt = now + Time((1-c.credits)/rate) + 1
			c.soon(c.pacedAt)
			return false
		}
	}
	c.pacedAt = never
	return true
}

// weight converts units to full fragments.
func (c *Conn) weight(units int) float64 { return float64(units) / float64(c.full) }

// spent takes w units off the pacing credits.
func (c *Conn) spent(w int) { c.credits = max(c.credits-c.weight(w), -1) }

// ask reports whether the next fragment asks for an acknowledgement at once. It does several times in a window that
// holds the sender back, which then cannot wait for the receiver's own data.
func (c *Conn) ask(w int) bool {
	c.asked += c.weight(w)
	if 4*c.asked < min(c.cwnd, 4*ackEvery) || c.weight(c.inflight+w) < float64(int(0.75*c.cwnd)) {
		return false
	}
	c.asked = 0
	return true
}
