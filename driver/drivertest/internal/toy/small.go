//go:build linux

package toy

import (
	"errors"
	"runtime"
	"unsafe"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// small is an instance on the small track: a message is copied when it is posted, and waits to be written.
type small struct {
	conn
	kit.Small
	posts   int
	garbage []byte // fault alloc
}

func (s *small) SendPost(p *driver.Packet) error { return s.post(p, s.send) }

func (s *small) send(p *driver.Packet) error {
	if !s.Enter() {
		return s.Failure("send")
	}
	defer s.Leave()
	if s.c.fault == "alloc" {
		s.garbage = make([]byte, 16)
	}
	if _, err := s.AdmitSend(p, s.Longest()); err != nil {
		return err
	}
	if !s.Stalled() && s.Start(p) {
		return nil
	}
	err := s.Later(p)
	if err == driver.ErrBusy && s.c.fault == "busy-takes" {
		s.queue(s.copied(p))
	}
	return err
}

func (s *small) Start(p *driver.Packet) bool {
	if !s.hasRoom() {
		return false
	}
	data := s.copied(p)
	if s.posts++; s.c.fault != "lose-every-7th" || s.posts%7 != 0 {
		s.queue(data)
	}
	p.N = len(data)
	s.Sent(p.N)
	p.Driver.Finish(nil)
	return true
}

// Launch implements kit.Starter: queue wakes the writer.
func (s *small) Launch() {}

func (s *small) hasRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sendq) < depth
}

// copied is a copy of a message, in which a fault may have a byte wrong.
func (s *small) copied(p *driver.Packet) []byte {
	data := s.alloc(p.Len())
	c := p.Cursor()
	c.Gather(data)
	if s.spoils(p, len(data)) {
		data[len(data)-1] ^= 1
	}
	return data
}

// queue has a message written.
func (s *small) queue(data []byte) {
	s.mu.Lock()
	s.sendq = append(s.sendq, frame{h: header{kind: msgFrame, len: uint32(len(data))}, data: data})
	s.work.Signal()
	s.mu.Unlock()
}

func (s *small) Settle() { s.Push() }

func (s *small) First(int) (piece []byte, more, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.inbox) == 0 {
		return nil, false, false
	}
	s.late(s.inbox[0].data)
	return s.inbox[0].data, false, true
}

func (s *small) Consumed(int) {
	s.mu.Lock()
	m, _ := s.take(0)
	s.mu.Unlock()
	s.free(m.data)
}

func (s *small) Longest() int { return s.c.longest() }

func (s *small) Room() []byte {
	if !s.hasRoom() {
		return nil
	}
	return s.alloc(bufferSize)
}

func (s *small) Filled(buf []byte, n int) error {
	if n < 0 {
		s.free(buf)
		return nil
	}
	s.queue(buf[:n])
	s.Sent(n)
	return nil
}

func (s *small) awaits(uint64) bool { return true }

// wrote implements track: there is room for what waits, should its owner make no call.
func (s *small) wrote() {
	for s.Stalled() && s.State() == kit.StateUp {
		if s.TryEnter() {
			s.Push()
			s.Leave()
			return
		}
		runtime.Gosched()
	}
}

func (s *small) Pending() bool {
	s.Push()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Stalled() || len(s.sendq)+s.opsBusy > 0
}

func (s *small) OnClose(before kit.State) {
	s.Drop()
	s.conn.OnClose(before)
}

// From here on methods add faults to those of the kit.

func (s *small) RecvPost(p *driver.Packet) error { return s.post(p, s.Small.RecvPost) }

func (s *small) RecvPoll(p *driver.Packet) (bool, error) { return s.polled(p, s.Small.RecvPoll) }

func (s *small) RecvCancel(p *driver.Packet) error { return s.canceled(p, s.Small.RecvCancel) }

func (s *small) SendBufPost(p *driver.Packet, n int) error {
	if n < 0 && s.c.fault == "buffer-late" {
		n = 1
	}
	return s.Small.SendBufPost(p, n)
}

// spoils reports whether a fault wants the last byte of a message of n bytes wrong.
func (n *conn) spoils(p *driver.Packet, length int) bool {
	switch n.c.fault {
	case "wrong-byte":
		return length >= 1000
	case "wrong-byte-layout":
		_, whole := p.Contiguous()
		return !whole && length > 0
	}
	return false
}

// spoiled does to a receive that is done what faults want, and returns its error.
func (n *conn) spoiled(p *driver.Packet, err error) error {
	switch {
	case n.c.fault == "truncate-silently":
		if short := new(driver.TruncatedError); errors.As(err, &short) {
			return nil
		}
	case n.c.fault == "overrun" && err == nil && p.N > 0:
		c := p.Cursor()
		b := c.Next(p.N)
		*(*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), len(b))) ^= 1
	}
	return err
}
