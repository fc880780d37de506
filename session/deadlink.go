package session

import (
	"time"

	"github.com/bywash/bywash/driver"
)

// The driver of a dead link may still use packets, and with them memory of the program: its connection may well be
// alive, as after a malformed message. The packets are polled until the driver gives them back.

// takeBack takes a message back from a dead link. If the driver still uses the message, it stays in l.sending; its
// request then fails at once, unless the memory is the program's.
func (s *Session) takeBack(l *link, msg *outMsg, err error) {
	if done, _ := l.small.SendPoll(&msg.p); done {
		s.msgFailed(msg, err)
		return
	}
	if msg.iov[1] == nil {
		if msg.req != nil {
			s.complete(msg.req, err)
			msg.req = nil
		}
	} else if r, ok := s.transfers.syncs.get(msg.sync); ok && r.g == l.g {
		s.dropSync(r) // the request ends when the driver gives the message back
		msg.req = r
	}
	if msg.out != nil {
		msg.out, msg.id = nil, 0
	}
	msg.sync = 0
	l.endErr = err
	l.sending.push(msg)
}

// releaseLink disconnects a dead link, at which the peer learns that its gate has ended, and releases it once its drivers
// use none of its packets and pieces. Until then it is called again: when a piece ends, or by pollUnreleased. It reports
// whether the link is released.
func (s *Session) releaseLink(l *link) bool {
	l.unfetchReceives()
	switch {
	case l.released:
		return true
	case l.pieces > l.chunks(): // an operation, or a handler that reads a buffer of the driver
		return false
	case l.sending.n > 0:
		s.releaseLater(l)
		return false
	}
	if l.rp.Driver.Phase == driver.BufferOut {
		_ = l.small.RecvBufRelease(&l.rp)
	}
	for _, i := range []driver.Instance{l.small, l.large} {
		if i != nil && i.Disconnect() == driver.ErrBusy {
			s.releaseLater(l)
			return false
		}
	}
	if l.pieces > 0 {
		return false
	}
	l.released = true
	delete(s.links, l.small)
	if s.progress.preferred == l {
		s.progress.preferred = nil
	}
	return true
}

// chunks counts the sends and receives of the large track that the driver has. They end with the connection at the
// latest: sends when the peer, which learns of the end by the small track, has disconnected.
func (l *link) chunks() (n int) {
	for _, pc := range l.g.s.transfers.pieces {
		if pc.l == l && (pc.kind == pieceSend || pc.kind == pieceRecv) {
			n++
		}
	}
	return n
}

// releaseLater puts a dead link on the list that pollUnreleased polls.
func (s *Session) releaseLater(l *link) {
	if l.inUnreleased {
		return
	}
	l.inUnreleased = true
	l.g.dialing.unreleased++
	s.unreleased = append(s.unreleased, l)
	s.kickMover()
}

// pollUnreleased polls the drivers for the packets of dead links, and releases links that have none. It reports
// whether any packet was given back.
func (s *Session) pollUnreleased() bool {
	moved := false
	for i := 0; i < len(s.unreleased); i++ {
		l := s.unreleased[i]
		for l.sending.n > 0 {
			msg := l.sending.first
			if done, _ := l.small.SendPoll(&msg.p); !done {
				break
			}
			moved = true
			l.sending.pop()
			if l.endErr == nil {
				s.msgSent(msg) // Gate.relay holds a copy
			} else {
				s.msgFailed(msg, l.endErr)
			}
		}
		if !s.releaseLink(l) {
			continue
		}
		moved = true
		l.inUnreleased = false
		last := len(s.unreleased) - 1
		s.unreleased[i], s.unreleased[last] = s.unreleased[last], nil
		s.unreleased = s.unreleased[:last]
		i--
		g := l.g
		if g.dialing.unreleased--; g.dialing.unreleased == 0 && g.dialing.later {
			g.dialing.later = false
			if g.state == gateConnecting && !s.closed {
				g.beginDial()
			}
		}
	}
	return moved
}

// awaitDrivers waits, after the drivers' contexts are closed, until they have given back all posted packets, so that
// their requests end. It returns false if stop was closed first.
func (s *Session) awaitDrivers(stop <-chan struct{}) bool {
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
