package session

import (
	"errors"
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/descriptors"
)

// The errors of package driver that sessions return; test for them with
// errors.Is.
var (
	ErrBroken    = driver.ErrBroken    // the peer is gone without closing
	ErrClosed    = driver.ErrClosed    // this side or the peer has closed the gate, or the session is closed
	ErrInvalid   = driver.ErrInvalid   // an argument is invalid; nothing happened
	ErrCanceled  = driver.ErrCanceled  // the request was cancelled and had no effect
	ErrTruncated = driver.ErrTruncated // the message is longer than the buffer; the value is a *driver.TruncatedError
	ErrBusy      = driver.ErrBusy      // not now: nothing was taken
	ErrVersion   = driver.ErrVersion   // the peer runs another version
)

// errSessionClosed is the cause of an operation after Session.Close.
var errSessionClosed = fmt.Errorf("%w: by Session.Close of this process", ErrClosed)

// ErrLimit means that a peer needed more memory of this process than Config.PeerMemory, Config.PeersMemory or the
// protocol allows. The error is ErrBroken as well, and names the limit.
var ErrLimit = errors.New("memory limit for this peer exceeded")

// Causes of calls of Config.OnError that are NonFatal: the session goes on, but the program may wait for ever.
var (
	ErrUnreceived    = errors.New("messages wait that nobody receives")
	ErrHandlerBlocks = errors.New("a handler does not return")
	ErrNoHandler     = errors.New("an active message has no handler")
)

// Error names a failed operation, its peer and its cause. It wraps the driver's error.
type Error struct {
	Peer int    // the peer's rank; -1: none, or one of another session
	Gate *Gate  // the gate to the peer; nil: none
	Op   string // verb
	Err  error
	// NonFatal is set in calls of Config.OnError if the session carries on: a rail was lost and others remain; without
	// a peer, the launcher was lost and connections remain; or the program holds a peer up (ErrUnreceived,
	// ErrHandlerBlocks) or has no handler for its message (ErrNoHandler).
	NonFatal bool
}

// Error implements error in one line.
func (e *Error) Error() string {
	peer := ""
	switch {
	case e.Peer >= 0:
		peer = fmt.Sprintf(" rank %d:", e.Peer)
	case e.Gate != nil:
		peer = " peer of another session:"
	}
	if d, ok := e.Err.(*driver.Error); ok { // without its operation and url: the peer is named
		return fmt.Sprintf("session: %s:%s %v (%s)%s", e.Op, peer, d.Err, d.Driver, descriptors.Remedy(e.Err))
	}
	return fmt.Sprintf("session: %s:%s %v%s", e.Op, peer, e.Err, descriptors.Remedy(e.Err))
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// fault returns the error of an operation; g is nil where it has no gate yet.
func (g *Gate) fault(op string, err error) error {
	if err == nil {
		return nil
	}
	if g == nil {
		return &Error{Peer: -1, Op: op, Err: err}
	}
	return &Error{Peer: g.rank, Gate: g, Op: op, Err: err}
}
