package session

import (
	"errors"
	"fmt"

	"github.com/bywash/bywash/driver"
)

// The errors of package driver that sessions return; test for them with
// errors.Is.
var (
	ErrBroken    = driver.ErrBroken    // the peer is gone without a word
	ErrClosed    = driver.ErrClosed    // this side or the peer has closed the gate, or the session is closed
	ErrInvalid   = driver.ErrInvalid   // an argument makes no sense; nothing happened
	ErrCanceled  = driver.ErrCanceled  // the request was cancelled and had no effect
	ErrTruncated = driver.ErrTruncated // the message is longer than the buffer; the value is a *driver.TruncatedError
	ErrBusy      = driver.ErrBusy      // not now: nothing was taken
	ErrVersion   = driver.ErrVersion   // the peer runs another version
)

// ErrLimit means that a peer wanted this process to keep more for it than Config.PeerMemory or Config.PeersMemory
// allows, or than the protocol does. The error is ErrBroken as well, and names the limit.
var ErrLimit = errors.New("limit of what is kept for a peer")

// Error says which operation on which peer failed, and why. It wraps the
// driver's error.
type Error struct {
	Peer int    // the peer's rank; -1: none, or one of another session
	Op   string // verb
	Err  error
	// NonFatal, to Config.OnError: a rail was lost, and others carry on; or, with no peer, the launcher, and what
	// is connected carries on.
	NonFatal bool
}

// Error implements error in one line.
func (e *Error) Error() string {
	if e.Peer < 0 {
		return fmt.Sprintf("session: %s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("session: %s: rank %d: %v", e.Op, e.Peer, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func (g *Gate) fault(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Peer: g.rank, Op: op, Err: err}
}
