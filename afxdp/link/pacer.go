package link

import "time"

// pacer is congestion control. It holds the delay that packets queue for near a
// target, as Swift does (Kumar et al., SIGCOMM 2020), which is fair without losing packets; single losses
// do not slow it down, as many paths lose some for other reasons.
type pacer struct {
	cwnd     float64 // fragments that may be under way
	fast     bool    // until queueing is seen, it doubles each round trip
	round    uint64  // the seq whose acknowledgement ends the round
	acked    int     // in this round
	missed   int
	cutAt    Time // when cwnd was lowered last
	pacedAt  Time // when the next may be sent; never: now
	credits  float64
	creditAt Time
	limited  bool // by cwnd or pace, in this round
	asked    int  // fragments since an acknowledgement was asked for
}

const (
	minWindow   = 4
	firstWindow = 32
	targetDelay = Time(150 * time.Microsecond)
	burst       = 32                           // fragments that may leave at once
	freeRTT     = Time(100 * time.Microsecond) // below that pacing would be finer than timers are
	tolerated   = 0.03                         // share of losses that says nothing about congestion
)

func (p *pacer) begin() {
	*p = pacer{cwnd: firstWindow, fast: true, pacedAt: never, credits: burst}
}

func (c *Conn) window() int {
	if c.inflight >= int(c.cwnd) {
		c.limited = true
	}
	return int(c.cwnd)
}

// grew takes that n fragments have arrived.
func (c *Conn) grew(n int) {
	c.acked += n
	if c.srtt == 0 {
		return
	}
	queue := c.latest - c.minRTT
	target := max(targetDelay, c.minRTT/4)
	most := float64(len(c.segs))
	switch {
	case queue > target:
		c.fast = false
		if c.e.now-c.cutAt > c.srtt {
			c.cutAt = c.e.now
			over := float64(queue-target) / float64(queue)
			c.cwnd = max(c.cwnd*(1-min(0.5*over, 0.3)), minWindow)
		}
	case !c.limited && c.inflight+n < int(c.cwnd)/2: // not what holds us back
	case c.fast:
		c.cwnd = min(c.cwnd+float64(n), most)
	default:
		c.cwnd = min(c.cwnd+float64(n)/c.cwnd, most)
	}
	if c.una >= c.round {
		c.endRound()
	}
}

// endRound looks at the losses of a round trip.
func (c *Conn) endRound() {
	c.round = c.next
	total := c.acked + c.missed
	if total >= minWindow && c.missed > 1 {
		rate := float64(c.missed) / float64(total)
		queued := c.latest-c.minRTT > targetDelay/4
		if rate > tolerated {
			c.fast = false
		}
		if rate > tolerated && queued || rate > 5*tolerated {
			c.cwnd = max(c.cwnd*(1-min(rate, 0.5)), minWindow)
			c.cutAt = c.e.now
		}
	}
	c.acked, c.missed, c.limited = 0, 0, false
}

// lostSome takes that n fragments were lost.
func (c *Conn) lostSome(n int) { c.missed += n }

// silence takes that several probes were not answered.
func (c *Conn) silence() {
	c.fast = false
	c.cwnd = max(c.cwnd/2, minWindow)
}

// paced tells whether a fragment may be sent now: they are spread over the round
// trip.
func (c *Conn) paced() bool {
	if c.srtt < freeRTT {
		c.pacedAt, c.credits = never, burst // what is spent meanwhile does not count
		return true
	}
	now := c.e.now
	if c.credits < 1 || now-c.creditAt > c.srtt {
		gain := 1.25
		if c.fast {
			gain = 2
		}
		rate := gain * c.cwnd / float64(c.srtt)
		most := burst + rate*50_000
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

// spent takes that a fragment was sent.
func (c *Conn) spent() { c.credits-- }

// ask tells whether the next fragment shall be acknowledged at once: several times in a
// window that holds the sender back, it cannot wait until the receiver has something to say.
func (c *Conn) ask() bool {
	c.asked++
	if 4*float64(c.asked) < min(c.cwnd, 4*ackEvery) || c.inflight+1 < int(0.75*c.cwnd) {
		return false
	}
	c.asked = 0
	return true
}
