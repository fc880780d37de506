package kit_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// fakeLarge is an instance whose packets stay posted until the test finishes them.
type fakeLarge struct {
	kit.Conn
	kit.Large
	refuse   error
	finish   bool // the next progress finishes the packet
	canceled int
	inside   bool // the device reaches memory after the end
}

func (s *fakeLarge) start(slots *kit.Slots) (int, error) {
	if s.refuse != nil {
		return 0, s.refuse
	}
	return slots.Free(), nil
}

func (s *fakeLarge) StartRecv(*driver.Packet, int) (int, error) { return s.start(&s.Receives) }
func (s *fakeLarge) StartSend(*driver.Packet, int) (int, error) { return s.start(&s.Sends) }
func (s *fakeLarge) CancelRecv(*driver.Packet)                  { s.canceled++ }
func (s *fakeLarge) InFlight(*driver.Packet, bool) bool         { return s.inside }

func (s *fakeLarge) Progress(p *driver.Packet, sending bool) {
	if s.finish {
		s.end(p, sending)
	}
}

func (s *fakeLarge) end(p *driver.Packet, sending bool) {
	if sending {
		s.EndSend(int(p.Driver.Slot), 8, 8, nil)
	} else {
		s.EndRecv(int(p.Driver.Slot), s.Received(int(p.Driver.Slot), 8, 8))
	}
}

func newFakeLarge(t *testing.T) *fakeLarge {
	t.Helper()
	s := &fakeLarge{}
	s.Conn.Init("test", "test://peer", 0, &kit.ReadySet{}, new(kit.AnyWaits))
	establish(t, &s.Life)
	s.Large.Init(&s.Conn, s, 100)
	return s
}

func TestLargePosts(t *testing.T) {
	for _, sending := range []bool{false, true} {
		s := newFakeLarge(t)
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
	s, other := newFakeLarge(t), newFakeLarge(t)
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
	s := newFakeLarge(t)
	p := room(8)
	if err := s.RecvPost(p); err != nil {
		t.Fatal(err)
	}
	s.inside = true
	s.Close()
	s.EndClose()
	if done, err := s.RecvPoll(p); done || err != nil {
		t.Errorf("the device is inside: %v, %v", done, err)
	}
	s.inside = false
	if done, err := s.RecvPoll(p); !done || !errors.Is(err, driver.ErrClosed) || p.Driver.Phase != driver.Idle {
		t.Errorf("%v, %v, phase %v", done, err, p.Driver.Phase)
	}
}

// TestLargePacketFinishedByKeepAlive has the keep-alive goroutine inside, which finishes the packet, while the owner
// polls it.
func TestLargePacketFinishedByKeepAlive(t *testing.T) {
	for _, sending := range []bool{false, true} {
		s := newFakeLarge(t)
		post, poll := s.RecvPost, s.RecvPoll
		if sending {
			post, poll = s.SendPost, s.SendPoll
		}
		p := room(8)
		if err := post(p); err != nil {
			t.Fatal(err)
		}
		if !s.TryEnter() {
			t.Fatal("the keep-alive goroutine is not let in")
		}
		begun, result := make(chan struct{}), make(chan error)
		go func() {
			close(begun)
			done, err := poll(p)
			if !done {
				err = errors.New("it is not done")
			}
			result <- err
		}()
		<-begun
		for range 1000 {
			runtime.Gosched() // the call has waited for the keep-alive goroutine to leave
		}
		s.end(p, sending)
		s.Leave()
		if err := <-result; err != nil || p.Driver.Phase != driver.Idle {
			t.Errorf("sending %v: %v, phase %v", sending, err, p.Driver.Phase)
		}
	}
}

// TestLargeFullTable posts beyond the depth when a packet that is posted has come to its end.
func TestLargeFullTable(t *testing.T) {
	s := newFakeLarge(t)
	first := room(8)
	for k := range kit.LargeDepth {
		p := first
		if k > 0 {
			p = room(8)
		}
		if err := s.RecvPost(p); err != nil {
			t.Fatal(err)
		}
	}
	if p := room(8); s.RecvPost(p) != driver.ErrBusy || s.Receives.Holds(p) {
		t.Error("a full table takes a packet")
	}
	s.finish = true
	if err := s.RecvPost(room(8)); err != nil || s.Receives.Len() != kit.LargeDepth || s.Receives.Holds(first) {
		t.Errorf("after the end of a packet: %v, %d posted", err, s.Receives.Len())
	}
}

func TestLargeTruncated(t *testing.T) {
	s := newFakeLarge(t)
	p := room(8)
	if err := s.RecvPost(p); err != nil {
		t.Fatal(err)
	}
	s.EndRecv(int(p.Driver.Slot), s.Received(int(p.Driver.Slot), 10, 8))
	var short *driver.TruncatedError
	if done, err := s.RecvPoll(p); !done || !errors.As(err, &short) || *short != (driver.TruncatedError{Message: 10, Buffer: 8}) {
		t.Errorf("%v, %v", done, err)
	}
	if n, b := s.Tally.Truncated.Load(), s.Tally.BytesReceived.Load(); n != 1 || b != 8 || p.N != 8 {
		t.Errorf("counted %d truncated, %d bytes; N is %d", n, b, p.N)
	}
}

// ahead prefetches the buffers that it is given.
type ahead struct{ err error }

func (a *ahead) Prefetch(p *driver.Packet, _ bool) error {
	if a.err == nil {
		p.Driver.Phase = driver.Prefetched
	}
	return a.err
}

func (a *ahead) Unfetch(p *driver.Packet) error {
	p.Driver.Phase = driver.Idle
	return a.err
}

func TestPrefetcher(t *testing.T) {
	s, a := newFakeLarge(t), &ahead{}
	var f kit.Prefetcher
	f.Init(&s.Conn, a)
	for what, call := range map[string][2]func(*driver.Packet) error{
		"send":    {f.SendPrefetch, f.SendUnfetch},
		"receive": {f.RecvPrefetch, f.RecvUnfetch},
	} {
		p := room(8)
		a.err = nil
		if err := call[0](p); err != nil || p.Driver.Phase != driver.Prefetched {
			t.Errorf("%s: %v", what, err)
		}
		if err := call[0](p); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s, twice: %v", what, err)
		}
		if err := call[1](p); err != nil || p.Driver.Phase != driver.Idle {
			t.Errorf("%s, undone: %v", what, err)
		}
		a.err = driver.ErrBusy
		if err := call[0](p); err != driver.ErrBusy {
			t.Errorf("%s, busy: %v", what, err)
		}
		a.err = errLost
		if err := call[1](p); !errors.Is(err, driver.ErrBroken) {
			t.Errorf("%s, refused: %v", what, err)
		}
	}
	if !s.Enter() {
		t.Error("a call has not left")
	}
	s.Leave()
	s.Close()
	if err := f.SendPrefetch(room(8)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
