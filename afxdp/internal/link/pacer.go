package link

import (
	"math"
	"time"
)

// pacer is the congestion control. Once a round trip it compares the queueing delay with a target, as Swift does (Kumar
// et al., SIGCOMM 2020). Below the target the window grows by one fragment, and up to eight times as fast after many
// round trips without queue and loss; above it the window shrinks by a share. The smaller the window, the higher the target, so that
// many flows find room and unequal flows approach each other.
//
// The delay of a round trip is the least that a packet saw in it and in the one before: a host that does not run for a
// moment delays packets, too, but not all of them, and it must cost no window. Hosts that are busy delay all packets of a
// round trip, by an amount that changes from one to the next. The target grows with that change.
//
// A flow that begins while others fill the queue takes their delay for the delay of the path. So a flow that never sees
// an empty queue looks for it now and then: it sends next to nothing for two round trips, as in LEDBAT++
// (draft-irtf-iccrg-ledbat-plus-plus).
//
// The usual losses of the path have no effect. Losses beyond them shrink the window by their share, because a queue
// that is too short to cause delay overflows. Fragments that the peer got twice were late, not lost, and do not count.
//
// A fragment means a full fragment here: one that takes less credit counts in proportion. Losses are counted by
// packets.
type pacer struct {
	cwnd   float64 // fragments that may be under way; below 1: one, with pauses
	fast   bool    // cwnd doubles each round trip, until queueing is seen
	boost  float64 // factor of growth otherwise
	target Time    // of the queueing delay
	queue  Time    // queueing delay of the last two round trips

	leastOfOne Time // the least that a packet of the last round trip took; never: unknown
	leastOfTwo Time // of the last two round trips; never: none ended yet
	noise      Time // by how much leastOfOne changes from one round trip to the next, smoothed

	trip
	losses
	look
	pace
}

// trip is the present round trip.
type trip struct {
	tripFrom  Time // when it began; it ends when a packet that was sent since has arrived
	tripAcked int  // packets acknowledged in it
	tripSum   Time // of what they took
	tripLeast Time // the least that one took; never: none yet
	limited   bool // cwnd or pace held the sender back
	blocked   bool // a missing fragment held it back, behind which no more than a number may follow
}

// losses counts packets in rounds: a round ends when all that was under way at its beginning is acknowledged.
type losses struct {
	round      uint64 // the first fragment that was sent after the round began
	acked      int
	missed     int     // less those that were late; below 0: more were late than missed in this round
	repeated   int     // fragments sent again lately that may have been late
	loss       float64 // share of losses, smoothed
	floor      float64 // share of losses that is usual on this path
	clean      int     // round trips since the last loss
	unsilenced float64 // cwnd before silence lowered it in this round; 0: it did not
}

// look is a search for an empty queue.
type look struct {
	lookAt    Time // when the next one begins
	lookTo    Time // when the present one ends; 0: none
	lookPause Time
	before    float64 // cwnd before it
	path      Time    // minRTT before it
}

// pace spreads fragments over a round trip.
type pace struct {
	pacedAt  Time    // when the next fragment may be sent; never: now
	credits  float64 // fragments that may leave at once
	creditAt Time
	asked    float64 // fragments since an acknowledgement was asked for
}

const (
	minWindow   = 0.1
	delayWindow = 4.0                         // delay alone does not lower the window further: busy hosts cause delay, too
	firstWindow = 32                          // units, but at least four fragments
	targetDelay = Time(75 * time.Microsecond) // for a window of 100
	noQueue     = targetDelay / 8             // less than it is none
	scaleDelay  = Time(120 * time.Microsecond)
	scaleMost   = Time(300 * time.Microsecond) // the most that a small window adds: scaleDelay / sqrt(window)
	growPeriod  = Time(200 * time.Microsecond) // a longer round trip grows the window by more than one fragment
	mostBoost   = 8                            // the most by which growth is faster
	cleanTrips  = 32                           // growth is faster after so many round trips without a loss
	mostNoise   = Time(100 * time.Microsecond)
	lookLeast   = Time(10 * time.Millisecond)
	lookMost    = Time(200 * time.Millisecond)
	burst       = 8                           // fragments that may leave at once
	burstTime   = 20_000                      // and as many as belong to so many ns
	freeRTT     = Time(50 * time.Microsecond) // timers are too coarse to pace shorter round trips
	tolerated   = 0.03                        // share of losses beyond the usual ones
	roundLeast  = 16                          // fragments whose losses are counted together
)

func (p *pacer) begin(full int) {
	*p = pacer{cwnd: max(firstWindow/float64(full), 4), fast: true, boost: 1}
	p.tripLeast, p.leastOfOne, p.leastOfTwo = never, never, never
	p.lookPause = lookLeast
	p.pacedAt, p.credits = never, burst
	p.aim(0)
}

// aim sets the target for the present window.
func (p *pacer) aim(path Time) {
	scale := Time(float64(scaleDelay) * (1/math.Sqrt(max(p.cwnd, minWindow)) - 0.1))
	p.target = max(targetDelay, path/8) + min(max(scale, 0), scaleMost) + min(2*p.noise, mostNoise)
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
	c.tripAcked += newly.fragments
	if c.srtt == 0 {
		return
	}
	e := c.e
	c.tripLeast = min(c.tripLeast, c.latest)
	c.tripSum += c.latest * Time(newly.fragments)
	most := float64(c.span)
	switch {
	case c.lookTo != 0:
		if e.now >= c.lookTo {
			c.looked()
		}
	case c.latest-c.minRTT > c.target: // a queue, or a host that did not run: endTrip decides
	case !c.limited && c.weight(c.inflight)+n < float64(int(c.cwnd)/2): // the window does not hold the sender back
	case c.blocked: // the window does not hold the sender back, either
	case c.loss > c.floor+tolerated/2: // wait for the effect of the last cut
	case c.fast:
		c.cwnd = min(c.cwnd+n, most)
	default:
		grow := max(float64(min(c.srtt, 8*growPeriod))/float64(growPeriod), min(1, max(c.cwnd, 1)/8))
		c.cwnd = min(c.cwnd+c.boost*grow*n/max(c.cwnd, 1), most)
	}
	if c.newestSent >= c.tripFrom && c.tripAcked >= roundLeast {
		c.endTrip()
	}
	if c.una >= c.round && c.acked+max(c.missed, 0) >= roundLeast {
		c.endRound()
	}
}

// cut lowers the window by a share of it.
func (c *Conn) cut(share float64) {
	c.fast = false
	c.cwnd = max(c.cwnd*(1-share), minWindow)
}

// endTrip evaluates the delays of a round trip.
func (c *Conn) endTrip() {
	c.leastOfTwo = min(c.tripLeast, c.leastOfOne)
	c.queue = c.leastOfTwo - c.minRTT
	if c.blocked { // the pause that a missing fragment causes empties the queue, whatever the window
		c.queue = c.tripSum/Time(c.tripAcked) - c.minRTT
	}
	if c.queue > c.target && c.lookTo == 0 {
		c.unsilenced = 0
		over := float64(c.queue-c.target) / float64(c.queue)
		c.cut(min(0.8*over, 0.5, max(1-delayWindow/c.cwnd, 0)))
	}
	if c.clean++; c.clean > cleanTrips && c.limited && c.queue < noQueue {
		c.boost = min(2*c.boost, mostBoost)
	} else {
		c.boost = 1
	}
	if now := c.e.now; c.limited && !c.fast && c.lookTo == 0 && now >= c.lookAt && c.cwnd > 1 {
		c.before, c.lookTo, c.cwnd = c.cwnd, now+2*c.roundTrip(), min(c.cwnd/4, 2)
		c.path = c.minRTT
	}
	if c.leastOfOne != never && c.lookTo == 0 {
		change := max(c.tripLeast-c.leastOfOne, c.leastOfOne-c.tripLeast)
		c.noise += (min(change, mostNoise) - c.noise) / 8
	}
	c.aim(c.minRTT)
	c.leastOfOne, c.trip = c.tripLeast, trip{tripFrom: c.e.now, tripLeast: never}
}

// endRound evaluates the losses of a round, which lasts at least one round trip.
func (c *Conn) endRound() {
	c.missed = max(c.missed, -c.acked)
	rate := float64(c.missed) / float64(c.acked+max(c.missed, 0))
	c.loss = max(c.loss+(rate-c.loss)/8, 0)
	if rate >= 0 {
		c.floor = min(c.floor, c.loss)
	}
	rise := 0.0 // of the floor, as a share of what is missing: with an empty queue, losses are the path's
	if c.queue < noQueue {
		rise = 1.0 / 64
	}
	if c.loss > c.floor+tolerated && c.missed > 0 && c.lookTo == 0 {
		c.floor += 8 * rise * (c.loss - c.floor)
		c.cut(min(max(2*(c.loss-c.floor), 0.25), 0.5))
		c.loss = (c.loss + c.floor) / 2
	} else {
		c.floor += rise * (c.loss - c.floor)
	}
	c.round = c.next
	c.acked, c.missed, c.unsilenced = 0, 0, 0
	c.repeated /= 2
}

// looked ends a look. The pause before the next one grows if the look found nothing new.
func (c *Conn) looked() {
	c.cwnd, c.lookTo = c.before, 0
	c.leastOfOne, c.trip = never, trip{tripFrom: c.e.now, tripLeast: never} // with an empty queue of our own making
	if c.path-c.minRTT > c.target/8 {
		c.lookPause = lookLeast
	} else {
		c.lookPause = min(2*c.lookPause, lookMost)
	}
	c.lookAt = c.e.now + max(c.lookPause, 64*c.roundTrip())
}

// lostSome counts n fragments as lost.
func (c *Conn) lostSome(n int) { c.missed, c.clean = c.missed+n, 0 }

// silence lowers the window after several probes without an answer.
func (c *Conn) silence() {
	if c.lookTo != 0 {
		c.looked()
	}
	if c.unsilenced == 0 {
		c.unsilenced = c.cwnd
	}
	c.cut(0.5)
}

// needless takes back what the loss of n fragments did to the window: the peer has got them twice, so they were late.
// There may be fewer, because a path doubles packets, too.
func (c *Conn) needless(n int) {
	if n = min(n, c.repeated); n == 0 {
		return
	}
	c.repeated -= n
	c.missed -= n
	if c.lookTo != 0 {
		c.before = max(c.before, c.unsilenced)
	} else {
		c.cwnd = max(c.cwnd, c.unsilenced)
	}
	c.unsilenced = 0
}

// paced reports whether a fragment may be sent now: fragments are spread over the round trip.
func (c *Conn) paced() bool {
	rtt := c.roundTrip()
	if rtt < freeRTT && c.cwnd >= 2 {
		c.pacedAt, c.credits = never, burst
		return true
	}
	now := c.e.now
	if c.credits < 1 || now-c.creditAt > rtt {
		gain := 1.25
		if c.fast {
			gain = 2
		}
		rate, most := gain*c.cwnd/float64(max(rtt, 1)), 1.0
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

// roundTrip returns what a packet takes there and back while both hosts run.
func (c *Conn) roundTrip() Time { return min(c.srtt, c.leastOfTwo, c.tripLeast) }

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
