package session

import (
	"time"

	"github.com/bywash/bywash/driver"
)

// A link that is dead may still have packets in its driver's hands, with memory of programs: the
// connection itself may well be alive, as after nonsense of the peer. They are polled until the
// driver gives them back; then the link is disconnected.

// orphan takes a parcel back from a link that is dead. Memory that the driver still holds stays with it; the program is
// told at once unless that memory is its own.
func (s *Session) orphan(l *link, pc *parcel, err error) {
	if done, _ := l.small.SendPoll(&pc.p); done {
		s.lost(pc, err)
		return
	}
	if pc.iov[1] == nil {
		if pc.req != nil {
			s.complete(pc.req, err)
			pc.req = nil
		}
	} else if r, ok := s.syncs.get(pc.sync); ok && r.g == l.g { // it ends with the parcel
		s.dropSync(pc.sync, r)
		pc.req = r
	}
	if pc.out != nil {
		pc.out, pc.id = nil, 0
	}
	pc.sync = 0
	l.end = err
	l.sending.push(pc)
}

// held is how much of the connection that has ended drivers have not given back. Each ends, and is counted down, when
// they do.
func (g *Gate) held() (n int) {
	s := g.s
	s.outs.each(func(_ uint64, o *outgoing) {
		if o.g == g && !o.parked {
			n++
		}
	})
	for in := g.ins; in != nil; in = in.after {
		n++
	}
	for _, o := range s.liveOps {
		if o.g == g {
			n++
		}
	}
	return n
}

// bury disconnects a dead link once its drivers have nothing of it any more. Until then it is asked again: by who
// ends its last piece, or by undertake. True when it is done.
func (s *Session) bury(l *link) bool {
	switch {
	case l.buried:
		return true
	case l.pieces > 0:
		return false
	case l.sending.n > 0:
		s.linger(l)
		return false
	}
	if l.rp.Driver.Phase == driver.BufferOut {
		_ = l.small.RecvBufRelease(&l.rp)
	}
	for _, i := range []driver.Instance{l.small, l.large} {
		if i != nil && i.Disconnect() == driver.ErrBusy {
			s.linger(l)
			return false
		}
	}
	l.buried = true
	delete(s.links, l.small)
	if s.hot == l {
		s.hot = nil
	}
	for i, x := range s.stalled {
		if x == l {
			s.stalled = append(s.stalled[:i], s.stalled[i+1:]...)
			break
		}
	}
	return true
}

// linger puts a dead link on the list of those that are asked again.
func (s *Session) linger(l *link) {
	if l.lingers {
		return
	}
	l.lingers = true
	l.g.lingering++
	s.dying = append(s.dying, l)
	s.kickMover()
}

// undertake asks the drivers for what they still have of dead links. It reports whether anything was given back.
func (s *Session) undertake() bool {
	moved := false
	for i := 0; i < len(s.dying); i++ {
		l := s.dying[i]
		for l.sending.n > 0 {
			pc := l.sending.first
			if done, _ := l.small.SendPoll(&pc.p); !done {
				break
			}
			moved = true
			l.sending.pop()
			s.reclaimed(l, pc)
		}
		if !s.bury(l) {
			continue
		}
		moved = true
		l.lingers = false
		last := len(s.dying) - 1
		s.dying[i], s.dying[last] = s.dying[last], nil
		s.dying = s.dying[:last]
		i--
		g := l.g
		if g.lingering--; g.lingering == 0 && g.dialLater {
			g.dialLater = false
			if g.state == gateConnecting && !s.closed {
				g.beginDial()
			}
		}
	}
	return moved
}

// reclaimed ends a parcel that the driver of a dead link has given back.
func (s *Session) reclaimed(l *link, pc *parcel) {
	if l.end == nil {
		s.left(pc) // a copy is kept
		return
	}
	s.lost(pc, l.end)
}

// reap waits, after the drivers' contexts are closed, until they have given back what was posted, so that everything
// that waits for it ends. False if stop came before.
func (s *Session) reap(stop <-chan struct{}) bool {
	const shortest, longest = 5 * time.Microsecond, time.Millisecond
	for pause := shortest; ; pause = min(2*pause, longest) {
		s.mu.lock()
		for s.pushAll() {
		}
		done := !s.outstanding()
		s.leave()
		if done {
			return true
		}
		select {
		case <-stop:
			return false
		case <-time.After(pause):
		}
	}
}
