package driver

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The sentinel errors of the contract. Test for them with [errors.Is]; the
// value returned usually is an [*Error] that adds driver, peer, operation and
// cause.
//
// ErrBusy and ErrAgain are answers, not failures. Posts and probes return them
// as they are, other calls may wrap them.
var (
	// ErrBroken: the peer is gone without a close message (killed, unreachable, or it
	// violated the protocol). Every pending operation on the instance fails
	// with it, and so does every later one. Connect again to recover.
	ErrBroken = errors.New("connection broken")

	// ErrClosed: this side or the peer disconnected in order. Messages that
	// the peer sent before it disconnected can still be received.
	ErrClosed = errors.New("connection closed")

	// ErrUnsupported: this driver, device or kernel lacks the feature. It is
	// [errors.ErrUnsupported].
	ErrUnsupported = errors.ErrUnsupported

	// ErrInvalid: a parameter is wrong. Nothing happened.
	ErrInvalid = errors.New("invalid argument")

	// ErrBusy: not now. A queue is full and nothing was taken, or a peer may
	// still access the memory; make progress and try again.
	ErrBusy = errors.New("busy, try again")

	// ErrAgain: nothing there now (a probe that found no message).
	ErrAgain = errors.New("no completion or message yet")

	// ErrCanceled: the operation was cancelled and had no effect. The buffer
	// is the caller's again and will not be written any more.
	ErrCanceled = errors.New("operation canceled")

	// ErrTruncated: the message is longer than the receive buffer. The value
	// is a [*TruncatedError]. The message is consumed.
	ErrTruncated = errors.New("message truncated")

	// ErrTooLong: a send is longer than [Capabilities.MaxMessage]. It is an
	// [ErrInvalid] as well.
	ErrTooLong = fmt.Errorf("%w: message too long", ErrInvalid)

	// ErrVersion: the peer speaks another version of the wire format or of
	// the url.
	ErrVersion = errors.New("incompatible version")

	// ErrAuth: the peer could not prove its identity: another session secret, or
	// a user that is not admitted.
	ErrAuth = errors.New("authentication failed")

	// ErrUnreachable: the urls of two contexts show that they cannot be connected; see [Reacher].
	ErrUnreachable = errors.New("peer is not reachable by this driver")

	// ErrRemoteKey: a remote key is damaged, foreign, or names a region that
	// has been deregistered.
	ErrRemoteKey = errors.New("invalid remote key")

	// ErrAccess: the region was registered without the access flag that the
	// operation needs.
	ErrAccess = errors.New("access denied by region")

	// ErrBounds: the operation leaves the remote region.
	ErrBounds = errors.New("access beyond the end of the registered region")

	// ErrAlignment: an atomic on an address that is not a multiple of its
	// size.
	ErrAlignment = errors.New("misaligned")
)

// Error describes what failed: which driver, on which peer, in which operation, and
// why. It wraps its cause.
type Error struct {
	Driver string // the driver's name
	Peer   string // url of the peer, or empty
	Op     string // verb: "connect", "send", "open", …
	Err    error  // the cause; a sentinel of this package is in its chain
}

// Error implements error in one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Driver)
	b.WriteString(": ")
	b.WriteString(e.Op)
	if e.Peer != "" {
		b.WriteString(" ")
		if strings.ContainsFunc(e.Peer, func(r rune) bool { return r <= ' ' || r > '~' }) {
			b.WriteString(strconv.Quote(e.Peer)) // it may come from anywhere
		} else {
			b.WriteString(e.Peer)
		}
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// TruncatedError has both sizes of a truncated receive, in bytes.
type TruncatedError struct {
	Message int // length of the message as sent
	Buffer  int // room in the receive buffer
}

// Error implements error.
func (e *TruncatedError) Error() string {
	return fmt.Sprintf("message truncated: %d bytes sent, receive buffer holds %d", e.Message, e.Buffer)
}

// Is makes errors.Is(err, ErrTruncated) true.
func (e *TruncatedError) Is(target error) bool { return target == ErrTruncated }

// UnavailableError describes why a driver or device cannot be used on this machine
// and what to do about it. errors.Is(err, ErrUnsupported) is true.
type UnavailableError struct {
	Driver string
	Device string // empty: the whole driver
	Reason string // what is missing, one line
	Remedy string // what to do, one line; may be empty
	Err    error  // the kernel's or library's error, if there is one
	Absent bool   // the machine has no such hardware, and nothing is wrong
}

// Error implements error in one line.
func (e *UnavailableError) Error() string {
	s := e.Driver
	if e.Device != "" {
		s += " " + e.Device
	}
	s += " unavailable: " + e.Reason
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Remedy != "" {
		s += " (" + e.Remedy + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrUnsupported) true.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnsupported }
