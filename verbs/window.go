package verbs

import (
	"fmt"
	"runtime"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// A receive's keys are those of memory windows (type 2), where the device has
// them: bound to the one queue pair and to just that memory when the receive is
// posted, and invalidated before it is given back. A write that comes late, or
// from elsewhere, then fails at the device, although the registration below stays
// in the cache.
//
// The bind must be done before anybody learns the key. It is a request on the
// receiving queue pair, which nothing slow precedes, so that waiting for it
// takes the device microseconds.

// bindTime bounds that wait: a device that takes longer has failed.
const bindTime = 5 * time.Second

// windows are those of a receive slot. They are made when first needed.
type windows struct {
	mw    [maxPieces]*ibv.MW
	bound int    // pieces that have one
	last  uint32 // number of the request that binds, or invalidates, the last
	over  bool   // the receive has ended, and they are being invalidated
	err   error  // what it ended with
}

// hasWindows: not on a connection to oneself, whose one queue pair has data to
// send too.
func (l *large) hasWindows() bool { return l.ctx.windows && l.rx != &l.sq }

// bind puts windows over the pieces of a slot, unless they are reached by the
// keys of their registrations.
func (l *large) bind(s *slot) error {
	w := &s.windows
	w.bound, w.over, w.err = 0, false, nil
	if !l.hasWindows() || s.memory.bounce || s.memory.n == 0 {
		return nil
	}
	return l.bindMore(s)
}

// bindMore puts windows over the pieces of a slot that are registered and have
// none yet.
func (l *large) bindMore(s *slot) error {
	w, from, to := &s.windows, s.windows.bound, s.memory.ready
	for k := from; k < to; k++ {
		if w.mw[k] == nil {
			mw, err := l.ctx.pd.AllocMW(2)
			if err != nil {
				return fmt.Errorf("make a memory window (option windows=off does without): %w", err)
			}
			w.mw[k] = mw
		}
	}
	for k := from; k < to; k++ {
		b, mw := s.memory.piece[k], w.mw[k]
		wr := l.rx.chain.BindMW(mw, l.mr(&s.memory, k), address(b), uint64(len(b)), ibv.IncRKey(mw.RKey()), ibv.AccessRemoteWrite)
		l.rx.number(wr, requestWindow, k == to-1)
	}
	w.bound, w.last = to, l.rx.next-1
	if err := l.rx.post(); err != nil {
		return err
	}
	return l.awaitBind(w)
}

func (l *large) awaitBind(w *windows) error {
	var limit time.Time
	for k := 0; l.rx.holds(w.last); k++ {
		l.ctx.Drain()
		l.take()
		if l.State() != kit.StateUp {
			return l.Failure("bind")
		}
		if k < spins {
			continue
		}
		switch now := time.Now(); {
		case limit.IsZero():
			limit = now.Add(bindTime)
		case now.After(limit):
			return fmt.Errorf("%w: the device does not bind memory windows", driver.ErrBroken)
		}
		runtime.Gosched()
	}
	return nil
}

// key is the remote key of a piece.
func (l *large) key(s *slot, k int) uint32 {
	if k < s.windows.bound {
		return s.windows.mw[k].RKey()
	}
	return l.mr(&s.memory, k).RKey()
}

// invalidate revokes the windows of a slot that has ended with err. False:
// there are none.
func (l *large) invalidate(s *slot, err error) bool {
	w := &s.windows
	if w.bound == 0 || l.State() != kit.StateUp {
		return false
	}
	for k := range w.bound {
		wr, r := l.rx.add(requestWindow, k == w.bound-1)
		wr.LocalInv(w.mw[k].RKey())
		if k == w.bound-1 {
			r.ended = s
		}
	}
	w.over, w.err = true, err
	l.postOn(l.rx)
	return true
}

// closeWindows frees the windows of a slot, and so revokes their keys.
func (s *slot) closeWindows() {
	for k, mw := range s.windows.mw {
		if mw != nil {
			_ = mw.Close()
			s.windows.mw[k] = nil
		}
	}
	s.windows.bound = 0
}
