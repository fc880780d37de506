package connect

import (
	"fmt"
	"strings"
)

// Error describes a connection that failed: manager, ports, state and cause. It wraps a sentinel of package driver:
// ErrBroken (the peer is gone, silent or unreachable, or a queue pair could not be moved), ErrAuth, ErrVersion,
// ErrClosed (the peer gave up or closed in order), ErrInvalid (the ports do not fit together).
type Error struct {
	Manager string // "oob", "rdmacm"
	Device  string // device and port, as in "rxe0/1"
	Peer    string // EndpointConfig.PeerName, or the incarnation
	State   string // step that failed: "request", "modify to RTR", …
	Err     error
}

// Error implements error in one line.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "connect by %s on %s", e.Manager, e.Device)
	if e.Peer != "" {
		if strings.ContainsFunc(e.Peer, func(r rune) bool { return r <= ' ' || r > '~' }) {
			fmt.Fprintf(&b, " to %q", e.Peer)
		} else {
			b.WriteString(" to " + e.Peer)
		}
	}
	if e.State != "" {
		b.WriteString(" (" + e.State + ")")
	}
	return b.String() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
