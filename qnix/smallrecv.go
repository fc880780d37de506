//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// nothing reports, without entering the instance, that a posted receive cannot complete now. Latency depends on fast
// polls without a result.
func (s *small) nothing() bool {
	// The background goroutine gives credit while this side lacks receives, or is stalled: then it is asked first.
	if !s.Waited() || s.HasMessage() || s.Stalled() || s.lacksReceives.Load() || s.creditDue() {
		return false
	}
	s.ctx.Drain()
	return !s.HasMessage() && s.State() == kit.StateUp
}

func (s *small) RecvPoll(p *driver.Packet) (done bool, err error) {
	if p.Driver.Phase == driver.Posted && s.nothing() {
		return false, nil
	}
	return s.Small.RecvPoll(p)
}

// First implements kit.SmallHooks. A message lies in its Context Region.
func (s *small) First(int) (message []byte, more, ok bool) {
	i := s.receives.at + int(s.taken%s.window)
	region := s.ctx.proc.ReceiveRegion(i)
	_, n := s.ctx.proc.ReceiveDoorbell(i) // arrives has checked it, but a faulty NIC may have changed it
	return region[dataHead:min(max(n, dataHead), len(region))], false, true
}

func (s *small) Consumed(int) {
	s.taken++
	if s.State() == kit.StateUp {
		s.replenish() // polls without a message do not
	}
}
