package launch

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// exhausted is a listener of a process without a free descriptor.
type exhausted struct {
	closed   chan struct{}
	attempts chan struct{}
}

func (l *exhausted) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case l.attempts <- struct{}{}:
		return nil, syscall.EMFILE
	}
}

func (l *exhausted) Close() error   { close(l.closed); return nil }
func (l *exhausted) Addr() net.Addr { return &net.TCPAddr{} }

// A server that cannot accept connections says why, once.
func TestAcceptThatFailsIsReportedOnce(t *testing.T) {
	l := &exhausted{make(chan struct{}), make(chan struct{})}
	s := Serve(l, 2, NewSecret())
	for range 3 {
		<-l.attempts
	}
	if err := s.Close(); err != nil { // blocks until accept has returned
		t.Fatal(err)
	}
	var got []error
	for len(s.Refused()) > 0 {
		got = append(got, <-s.Refused())
	}
	if len(got) != 1 || !errors.Is(got[0], syscall.EMFILE) {
		t.Errorf("Refused gives %v, want the error of Accept, once", got)
	}
}
