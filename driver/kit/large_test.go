package kit_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/kit"
)

// shelf is an instance whose packets lie there until somebody finishes them.
type shelf struct {
	kit.Conn
	kit.Large
	posted   [2][]*driver.Packet
	refuse   error
	finish   bool // the next progress finishes the packet
	canceled int
	inside   bool // the device reaches memory after the end
}

func (s *shelf) list(sending bool) *[]*driver.Packet {
	if sending {
		return &s.posted[1]
	}
	return &s.posted[0]
}

func (s *shelf) Posted(sending bool) int { return len(*s.list(sending)) }

func (s *shelf) Holds(p *driver.Packet, sending bool) bool {
	for _, x := range *s.list(sending) {
		if x == p {
			return true
		}
	}
	return false
}

func (s *shelf) start(p *driver.Packet, sending bool) error {
	if s.refuse != nil {
		return s.refuse
	}
	p.Driver.Phase = driver.Posted
	*s.list(sending) = append(*s.list(sending), p)
	return nil
}

func (s *shelf) StartRecv(p *driver.Packet, _ int) error { return s.start(p, false) }
func (s *shelf) StartSend(p *driver.Packet, _ int) error { return s.start(p, true) }
func (s *shelf) CancelRecv(*driver.Packet)               { s.canceled++ }
func (s *shelf) Lingers(*driver.Packet, bool) bool       { return s.inside }

func (s *shelf) Progress(p *driver.Packet, _ bool) {
	if s.finish {
		p.Driver.Finish(nil)
	}
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	s := &shelf{}
	s.Conn.Init("test", "test://peer", 0, &kit.ReadySet{})
	stands(t, &s.Life)
	s.Large.Init(&s.Conn, s, 100)
	return s
}

func TestLargePosts(t *testing.T) {
	for _, sending := range []bool{false, true} {
		s := newShelf(t)
		post, poll := s.RecvPost, s.RecvPoll
		if sending {
			post, poll = s.SendPost, s.SendPoll
		}
		p := room(8)
		if err := post(room(101)); !errors.Is(err, driver.ErrTooLong) {
			t.Errorf("sending %v: too long: %v", sending, err)
		}
		if done, err := poll(p); !done || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("sending %v: not posted: %v, %v", sending, done, err)
		}
		s.refuse = errLost
		if err := post(p); !errors.Is(err, driver.ErrBroken) || p.Driver.Phase != driver.Idle {
			t.Errorf("sending %v: refused: %v, phase %v", sending, err, p.Driver.Phase)
		}
		s.refuse = driver.ErrBusy
		if err := post(p); err != driver.ErrBusy {
			t.Errorf("sending %v: no room: %v, want busy as it is", sending, err)
		}
		s.refuse = nil
		for range kit.LargeDepth - 1 {
			if err := post(room(8)); err != nil {
				t.Fatal(err)
			}
		}
		if err := post(p); err != nil {
			t.Fatal(err)
		}
		if err := post(room(8)); err != driver.ErrBusy || s.Tally.Busy.Load() != 2 {
			t.Errorf("sending %v: beyond the depth: %v, counted %d", sending, err, s.Tally.Busy.Load())
		}
		if err := post(p); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("sending %v: posted twice: %v", sending, err)
		}
		if done, err := poll(p); done || err != nil {
			t.Errorf("sending %v: not done yet: %v, %v", sending, done, err)
		}
		s.finish = true
		if done, err := poll(p); !done || err != nil || p.Driver.Phase != driver.Idle {
			t.Errorf("sending %v: %v, %v, phase %v", sending, done, err, p.Driver.Phase)
		}
		if !s.Enter() {
			t.Errorf("sending %v: a call has not left", sending)
		}
	}
}

// A packet is done only where it was posted.
func TestLargePacketsOfOthers(t *testing.T) {
	s, other := newShelf(t), newShelf(t)
	p := room(8)
	if err := other.RecvPost(p); err != nil {
		t.Fatal(err)
	}
	if done, err := s.RecvPoll(p); !done || !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("another instance's: %v, %v", done, err)
	}
	if done, err := other.SendPoll(p); !done || !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a receive, polled as a send: %v, %v", done, err)
	}
	if err := s.RecvCancel(p); !errors.Is(err, driver.ErrInvalid) || s.canceled != 0 {
		t.Errorf("another instance's is cancelled: %v", err)
	}
	if err := other.RecvCancel(p); err != nil || other.canceled != 1 || p.Driver.Phase != driver.Canceling {
		t.Errorf("%v, asked %d times, phase %v", err, other.canceled, p.Driver.Phase)
	}
	if err := other.RecvCancel(p); err != nil || other.canceled != 1 {
		t.Errorf("again: %v, asked %d times", err, other.canceled)
	}
}

// Memory comes back when the device has let go of it, whatever became of the connection.
func TestLargePacketsOutlastTheConnection(t *testing.T) {
	s := newShelf(t)
	p := room(8)
	if err := s.RecvPost(p); err != nil {
		t.Fatal(err)
	}
	s.inside = true
	s.Close()
	if done, err := s.RecvPoll(p); done || err != nil {
		t.Errorf("the device is inside: %v, %v", done, err)
	}
	s.inside = false
	if done, err := s.RecvPoll(p); !done || !errors.Is(err, driver.ErrClosed) || p.Driver.Phase != driver.Idle {
		t.Errorf("%v, %v, phase %v", done, err, p.Driver.Phase)
	}
}

// TestLargePacketFinishedByAKeeper has a keeper inside, which finishes the packet, when the owner polls it.
func TestLargePacketFinishedByAKeeper(t *testing.T) {
	for _, sending := range []bool{false, true} {
		s := newShelf(t)
		post, poll := s.RecvPost, s.RecvPoll
		if sending {
			post, poll = s.SendPost, s.SendPoll
		}
		p := room(8)
		if err := post(p); err != nil {
			t.Fatal(err)
		}
		if !s.TryEnter() {
			t.Fatal("the keeper is not let in")
		}
		begun, said := make(chan struct{}), make(chan error)
		go func() {
			close(begun)
			done, err := poll(p)
			if !done {
				err = errors.New("it is not done")
			}
			said <- err
		}()
		<-begun
		for range 1000 {
			runtime.Gosched() // the call has looked for the keeper to leave
		}
		*s.list(sending) = nil
		p.Driver.Finish(nil)
		s.Leave()
		if err := <-said; err != nil || p.Driver.Phase != driver.Idle {
			t.Errorf("sending %v: %v, phase %v", sending, err, p.Driver.Phase)
		}
	}
}
