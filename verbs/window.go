//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// If the device has memory windows of type 2, the keys of a receive are those of windows. A window is bound to one
// queue pair and to exactly the receive's memory when the receive is posted, and invalidated before the receive is
// given back. The device then refuses a late write, or one from elsewhere, although the memory stays registered in the
// cache.
//
// The bind must be complete before the peer gets the key. It is a request on the receiving queue pair, so that the wait
// takes microseconds: behind a read of the peer's claims, or a sign of life, nothing is bound, as they take seconds if the
// peer's host is gone.

// bindTime bounds the wait for a bind: a device that takes longer has failed.
const bindTime = 5 * time.Second

// windows are the memory windows of a receive slot. They are allocated when first needed.
type windows struct {
	mw    [maxPieces]*ibv.MW
	bound int    // pieces that have a window
	last  uint32 // number of the last request that binds or invalidates
	over  bool   // the receive has ended, and its windows are being invalidated
	err   error  // with which the receive ended
}

// canWindow reports whether the device claims to support memory windows of type 2. Some devices refuse them all the
// same.
func (c *opened) canWindow() bool {
	mw, err := c.pd.AllocMW()
	if err != nil {
		return false
	}
	return mw.Close() == nil
}

// errNoWindow is the reason why a receive has no windows: the device has given out all that it has, or refuses to bind
// one.
var errNoWindow = errors.New("the device has no memory window for the receive")

// maxWindow is the most bytes of a receive that uses windows: mlx5 (rdma-core, providers/mlx5/qp.c) refuses to bind one
// to more.
const maxWindow = 1 << 31

// hasWindows reports whether receives use windows. A connection to oneself does not, as its only queue pair also sends
// data.
func (l *large) hasWindows() bool { return l.ctx.windows.Load() && !l.noWindows && l.rx != &l.sq }

// windowed reports whether a receive of n bytes uses windows.
func (l *large) windowed(n int) bool { return l.hasWindows() && n <= maxWindow }

// bind binds windows to the pieces of a slot that receives n bytes, unless the peer uses the keys of their
// registrations. It returns errNoWindow if the device has too few.
func (l *large) bind(s *slot, n int) error {
	w := &s.windows
	w.bound, w.over, w.err = 0, false, nil
	if !l.windowed(n) || s.memory.bounce || s.memory.n == 0 {
		return nil
	}
	if l.reads > 0 || l.rx.probing() {
		return driver.ErrBusy
	}
	for k := range s.memory.n {
		if w.mw[k] == nil {
			mw, err := l.ctx.pd.AllocMW()
			if err != nil {
				return fmt.Errorf("%w: %w", errNoWindow, err)
			}
			w.mw[k] = mw
		}
	}
	return l.bindMore(s)
}

// bindMore binds windows to the pieces of a slot that have been registered since.
func (l *large) bindMore(s *slot) error {
	w, from, to := &s.windows, s.windows.bound, s.memory.ready
	if err := l.rx.post(); err != nil { // what waits there is none of this
		return err
	}
	unsignaled := l.rx.unsignaled
	for k := from; k < to; k++ {
		b, mw := s.memory.piece[k], w.mw[k]
		wr := l.rx.chain.BindMW(mw, l.mr(&s.memory, k), address(b), uint64(len(b)), ibv.IncRKey(mw.RKey()), ibv.AccessRemoteWrite)
		l.rx.number(wr, requestWindow, k == to-1)
	}
	w.bound, w.last = to, l.rx.next-1
	if err := l.rx.post(); err != nil {
		n := l.rx.retract(unsignaled)
		if w.bound -= n; w.bound > from {
			return err // some were posted, and no completion is asked for
		}
		return fmt.Errorf("%w: %w", errNoWindow, err)
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

// key returns the remote key of a piece.
func (l *large) key(s *slot, k int) uint32 {
	if k < s.windows.bound {
		return s.windows.mw[k].RKey()
	}
	return l.mr(&s.memory, k).RKey()
}

// invalidate begins to revoke the windows of a slot that has ended with err. It returns false if there are none, or none
// any more: after the end of the connection, whose queue pairs may still live, they are freed.
func (l *large) invalidate(s *slot, err error) bool {
	w := &s.windows
	if w.bound > 0 && l.State() != kit.StateUp {
		s.closeWindows()
	}
	if w.bound == 0 {
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
