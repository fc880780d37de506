//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"fmt"
	"strings"
)

// Error describes a connection that failed: manager, ports, state and cause. It wraps a sentinel of package driver:
// ErrBroken (the peer is gone, silent or unreachable, or a queue pair could not be moved), ErrAuth, ErrVersion,
// ErrClosed (the peer gave up or closed in order), ErrInvalid (the ports do not fit together).
type Error struct {
	manager string // "oob", "rdmacm"
	device  string // device and port, as in "rxe0/1"
	peer    string // EndpointConfig.PeerName, or the incarnation
	state   string // what the endpoint was doing: "requesting", "modifying queue pairs", …
	err     error
}

// Error implements error in one line.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "connect by %s on %s", e.manager, e.device)
	if e.peer != "" {
		if strings.ContainsFunc(e.peer, func(r rune) bool { return r <= ' ' || r > '~' }) {
			fmt.Fprintf(&b, " to %q", e.peer)
		} else {
			b.WriteString(" to " + e.peer)
		}
	}
	if e.state != "" {
		b.WriteString(" (" + e.state + ")")
	}
	return b.String() + ": " + e.err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }
