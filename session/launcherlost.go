package session

import (
	"context"
	"errors"
	"time"

	"github.com/bywash/bywash/session/launch"
)

// When a launcher dies, ranks can no longer look up cards. Gates whose card is known go on, and can connect again.
// Operations that need another card fail, because they would wait for ever.

// launcher is what has started this process.
type launcher struct {
	job  launch.Job
	own  bool          // job ends with the session
	err  error         // why there is no launcher any more
	ends map[int]error // of ranks, as the launcher reports them
}

// launcherLostTimeout is how long an attempt to connect may go on when the launcher is gone: a peer without the card
// of this rank can no longer answer.
const launcherLostTimeout = 5 * time.Second

// launcherWatcher is a job that notices when its launcher is gone, as launch.Client does.
type launcherWatcher interface {
	Lost() <-chan struct{}
	Err() error
}

// watchLauncher waits for the launcher's end.
func (s *Session) watchLauncher(w launcherWatcher) {
	select {
	case <-s.ctx.Done():
	case <-w.Lost():
		s.launcherLost(w.Err())
	}
}

// launcherLost records that the launcher is gone.
func (s *Session) launcherLost(err error) {
	s.mu.lock()
	defer s.leave()
	if s.closed || s.launcher.err != nil {
		return
	}
	s.launcher.err = err
	for _, g := range s.gates {
		switch {
		case g == nil:
		case g.state == gateConnecting:
			g.cancelDialLater()
		case g.unconnectable() && s.table.Awaits(g.index):
			g.failUnconnectable()
		}
	}
	s.reportError(&Error{Peer: -1, Op: "launcher", Err: err, NonFatal: true})
}

// unconnectable reports whether an idle gate cannot be connected: its rank has ended, or its card is unknown and the
// launcher is gone.
func (g *Gate) unconnectable() bool {
	if len(g.s.launcher.ends) > 0 && g.state == gateIdle && g.rank >= 0 && g.s.launcher.ends[g.rank] != nil {
		return true
	}
	return g.s.launcher.err != nil && g.state == gateIdle && g.dialing.card == nil && g.foreign == nil && g.rank != g.s.rank
}

// failUnconnectable fails a gate that is unconnectable.
func (g *Gate) failUnconnectable() { g.fail(g.fault("connect", g.unreachable())) }

// unreachable returns why the gate's peer cannot be reached: its end, if the launcher has reported that, else that the
// launcher is gone; nil: neither is known.
func (g *Gate) unreachable() error {
	if end := g.s.launcher.ends[g.rank]; end != nil {
		return end
	}
	return g.s.launcher.err
}

// cancelDialLater cancels, after launcherLostTimeout, an attempt to connect to a rank whose card was unknown: that
// rank may not have this one's card either.
func (g *Gate) cancelDialLater() {
	if g.foreign != nil || g.dialing.card != nil {
		return
	}
	g.cancelDialAfter(launcherLostTimeout, func() bool { return true })
}

// cancelDialAfter cancels this attempt to connect if it still goes on after the timeout and unwanted then holds.
func (g *Gate) cancelDialAfter(timeout time.Duration, unwanted func() bool) {
	s, number := g.s, g.dialing.begun
	time.AfterFunc(timeout, func() {
		s.mu.lock()
		defer s.leave()
		if !s.closed && g.state == gateConnecting && g.dialing.begun == number && unwanted() {
			g.dialing.cancel()
		}
	})
}

// lookup returns the card of the gate's peer.
func (g *Gate) lookup(ctx context.Context) (*card, error) {
	s := g.s
	switch {
	case g.foreign != nil:
		return g.foreign, nil
	case g.rank == s.rank:
		return s.card, nil
	}
	s.mu.lock()
	end := s.launcher.ends[g.rank]
	s.mu.unlock()
	if end != nil {
		return nil, end
	}
	b, err := s.launcher.job.Lookup(ctx, g.rank)
	if err == nil {
		return parseCard(b, s.key)
	}
	s.mu.lock()
	defer s.mu.unlock()
	if g.dialing.card != nil && (s.launcher.err != nil || errors.Is(err, launch.ErrLauncher)) {
		return g.dialing.card, nil
	}
	return nil, err
}
