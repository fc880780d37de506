package link

import (
	"fmt"
	"time"
)

// recovery detects losses: RACK (RFC 8985), and a probe after a silence. Each packet's time stamp is echoed, so that a
// packet that is sent again cannot be mistaken for the first one.
type recovery struct {
	srtt, rttvar Time
	peerDelay    Time // by which the peer delays acknowledgements, recently at most
	minRTT       Time // least of this and the last period
	minThis      Time
	minSince     Time
	latest       Time
	newestSent   Time // sending time of the newest packet that has arrived at the peer
	reorder      int  // reordering that is allowed for, in quarters of minRTT
	reorderHolds int  // recoveries until reorder is lowered
	lossAt       Time // when checkLoss must be called
	progressAt   Time // when something was last acknowledged, or sent into silence
	advancedAt   Time // when una last grew, the fragment there was first sent, or the path came back
	backoff      uint
}

const (
	minRTTPeriod = Time(10e9)
	stampUnit    = Time(1 << 10)
	mostSpare    = Time(100 * time.Microsecond) // the most that stands in for a small variance of the round trip
	firstProbe   = Time(20 * time.Millisecond)
	maxReorder   = 16
	maxBackoff   = 5
)

func (r *recovery) begin() { *r = recovery{reorder: 1, lossAt: never, minRTT: never, minThis: never} }

// measured evaluates the time stamp that a packet echoes.
func (c *Conn) measured(h *header, newly arrival) {
	e := c.e
	if d := h.dups - c.peerDups; d != 0 && h.pn == c.newest {
		c.peerDups = h.dups
		c.reorder, c.reorderHolds = min(c.reorder+1, maxReorder), 16
		c.needless(int(d))
	}
	if newly.fragments > 0 {
		c.progressAt, c.backoff = e.now, 0
	}
	if h.echo == 0 {
		return
	}
	now := uint64(e.now >> 10)
	sent := Time(expand(now, h.echo) << 10)
	if sent > e.now {
		return
	}
	if sent > c.newestSent {
		c.newestSent = sent
		delay := Time(h.delay) << 10
		if rtt := e.now - sent - delay; h.delay < 0xffff && rtt >= 0 {
			c.sample(max(rtt, stampUnit))
			if newly.fragments > 0 { // else the packet may be one that nobody answers
				c.peerDelay = max(min(delay, firstProbe), c.peerDelay-c.peerDelay/4)
			}
		}
	}
	if newly.fragments > 0 {
		c.grew(newly)
	}
	if c.inflight > 0 {
		c.checkLoss()
	}
}

func (c *Conn) sample(rtt Time) {
	c.latest = rtt
	if c.srtt == 0 {
		c.srtt, c.rttvar = rtt, rtt/2
	} else {
		c.rttvar += (max(c.srtt-rtt, rtt-c.srtt) - c.rttvar) / 4
		c.srtt += (rtt - c.srtt) / 8
	}
	now := c.e.now
	c.minThis = min(c.minThis, rtt)
	if now-c.minSince > minRTTPeriod {
		c.minRTT, c.minThis, c.minSince = c.minThis, rtt, now
	}
	c.minRTT = min(c.minRTT, rtt)
}

// reorderTime returns by how much packets may overtake each other before they count as lost.
func (c *Conn) reorderTime() Time {
	if c.minRTT == never {
		return Time(time.Millisecond)
	}
	return min(max(c.minRTT/4, 4*stampUnit)*Time(c.reorder), max(c.srtt, 4*stampUnit))
}

// checkLoss marks fragments as lost that were sent well before one that has arrived.
func (c *Conn) checkLoss() {
	c.lossAt = never
	allowed := c.reorderTime()
	marked := 0
	for seq := c.sacked.skip(c.una); seq < c.next; seq = c.sacked.skip(seq + 1) {
		s := c.seg(seq)
		if s.state != segSent {
			continue
		}
		late := c.newestSent - s.sent - stampUnit
		if late < 0 {
			if !s.again {
				break // all that follow were sent later, or again
			}
			continue
		}
		if late < allowed && c.e.now < s.sent+c.srtt+allowed {
			c.lossAt = min(c.lossAt, max(s.sent+c.srtt+allowed, c.e.now+stampUnit))
			continue
		}
		c.markLost(seq)
		s.losses = min(s.losses+1, fewLosses)
		marked++
	}
	if marked > 0 {
		c.lostSome(marked)
		if c.reorderHolds--; c.reorderHolds <= 0 && c.reorder > 1 {
			c.reorder, c.reorderHolds = c.reorder-1, 16
		}
		c.e.look(c)
	}
	if c.lossAt != never {
		c.soon(c.lossAt)
	}
}

func (c *Conn) markLost(seq uint64) {
	s := c.seg(seq)
	s.state = segLost
	c.inflight -= int(s.w)
	c.lost++
	c.lostFrom = min(c.lostFrom, seq)
}

// stuck returns when the connection ends because the oldest fragment under way was not acknowledged for the dead time,
// although the peer answers. A peer that has closed acknowledges nothing for the dead time: its end comes first.
func (c *Conn) stuck() Time {
	if c.una == c.next || c.lastReceived-c.advancedAt < Time(c.e.cfg.DeadTime)/2 {
		return never
	}
	return c.advancedAt + Time(c.e.cfg.DeadTime)*9/8
}

// undelivered describes what did not arrive for the dead time.
func (c *Conn) undelivered() error {
	shortest, longest, n := c.seg(c.una).size(), 0, 0 // of those that did not arrive, and of those that did
	for seq := c.una; seq < c.next; seq++ {
		if s := c.seg(seq); s.state == segAcked && seq > c.una {
			longest = max(longest, s.size())
		} else {
			shortest, n = min(shortest, s.size()), n+1
		}
	}
	err := fmt.Errorf("%w: %d packets under way, the shortest of %d bytes, the oldest not acknowledged for %v", errLost, n, shortest, c.e.cfg.DeadTime)
	if shortest > max(longest, MinMTU) {
		err = fmt.Errorf("%w: the path may take only smaller packets (path MTU)", err)
	}
	return err
}

// starved reports whether the sender waits for credit alone: the packet that brought it may be lost.
func (c *Conn) starved() bool { return c.waited && c.inflight+c.lost == 0 && c.needsCredit() }

// probeAt returns when a silence has lasted long enough for a probe.
func (c *Conn) probeAt() Time {
	if c.inflight == 0 && !c.starved() {
		return never
	}
	pause := firstProbe
	if c.srtt > 0 {
		pause = c.srtt + max(min(c.srtt, mostSpare), 4*c.rttvar) + max(ackDelay, c.peerDelay)
	}
	if c.backoff > 0 { // jitter: flows that lost packets together would lose them together again
		pause += pause * Time((c.id>>16+c.pn)*0x9e3779b97f4a7c15>>56) >> 8
	}
	pause = min(pause<<c.backoff, max(pause, Time(c.e.cfg.DeadTime)/8))
	if c.inflight == 0 {
		return c.progressAt + pause
	}
	return max(c.progressAt, c.seg(c.una).sent) + pause
}

// probe sends the oldest segment again, whose acknowledgement shows which others are missing, or asks for credit.
func (c *Conn) probe() {
	if c.e.now < c.probeAt() {
		return
	}
	c.progressAt = c.e.now
	c.backoff = min(c.backoff+1, maxBackoff)
	if c.inflight == 0 {
		c.wantPing = true
		return
	}
	c.mustProbe = true
	for seq := c.una; seq < c.next; seq++ {
		if s := c.seg(seq); s.state == segSent {
			c.markLost(seq)
			c.suspects(s)
			break
		}
	}
	if c.backoff > 2 {
		c.silence()
	}
}
