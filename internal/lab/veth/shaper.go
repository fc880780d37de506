//go:build linux

package veth

import (
	"math/rand/v2"
	"time"
)

// A shaper decides what happens to each frame of one direction. Its clock is that of its caller.
type shaper struct {
	box    Box
	chance *rand.Rand

	free   time.Duration   // when the link has sent all frames that the queue has accepted
	starts []time.Duration // ring of box.Queue: when the frames in the queue begin to be sent
	first  int             // of the ring
	queued int
}

// A verdict is what happens to a frame.
type verdict struct {
	due    time.Duration // when it leaves
	copies int           // how often; 0: it is dropped
	jumps  bool          // ahead of the frames that came before
	reason int           // counter of a frame that is dropped
}

func newShaper(b Box, direction uint64) *shaper {
	return &shaper{box: b, chance: rand.New(rand.NewPCG(b.Seed, direction)), starts: make([]time.Duration, b.Queue)}
}

// meets reports whether a frame is one of a share. Each share that is not 0 takes one number a frame, so that the same
// frames are chosen in each run.
func (s *shaper) meets(share float64) bool { return share != 0 && s.chance.Float64() < share }

// admit decides about a frame of length bytes that came at now, which never decreases.
func (s *shaper) admit(now time.Duration, length int) verdict {
	isLost, twice, jumps := s.meets(s.box.Loss), s.meets(s.box.Duplicate), s.meets(s.box.Reorder)
	if isLost {
		return verdict{reason: lost}
	}
	if s.box.Rate != 0 {
		for ; s.queued > 0 && s.starts[s.first] <= now; s.queued-- {
			s.first = (s.first + 1) % len(s.starts)
		}
		start := max(now, s.free)
		if start > now {
			if s.queued == len(s.starts) {
				return verdict{reason: dropped}
			}
			s.starts[(s.first+s.queued)%len(s.starts)] = start
			s.queued++
		}
		s.free = start + time.Duration(uint64(length)*uint64(time.Second)/s.box.Rate)
	} else {
		s.free = now
	}
	v := verdict{due: s.free + s.box.Delay, copies: 1, jumps: jumps}
	if twice {
		v.copies = 2
	}
	return v
}
