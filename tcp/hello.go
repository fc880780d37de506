//go:build linux && !(386 || arm || mips || mipsle)

package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/internal/kit"
)

// protocol is what both sides bind into the handshake.
const protocol = "bywash tcp 2"

// The frames of the handshake's connection, before it carries messages; little-endian:
//
//	claim    the dialer's    track u8, flags u8, 0 u16, dead time u32 in ms, from u64, to u64
//	welcome  the listener's  kind u8, code u8: 0, or why not; 0 u16, dead time u32 in ms, 0 if not
//	take     the leader's    kind u8, 0 u8[7], token u64
//	seen     the answer      kind u8
//	stand    the follower's  kind u8, 0 u8[7], token u64
//	up       the leader's    kind u8; messages follow
const (
	claimSize   = 24
	welcomeSize = 8
	takeSize    = 16
	seenSize    = 1
	upSize      = 1
	noteLimit   = 16 // bytes of a frame
)

const flagEncrypt = 1

type noteKind uint8

const (
	noteWelcome noteKind = iota + 1
	noteTake
	noteSeen
	noteStand
	noteUp
)

// refusal is why a listener turns a dialer away that has proved the secret.
type refusal uint8

const (
	welcome       refusal = iota
	refuseStale           // the dialer wants another context
	refuseTrack           // this context is for the other track
	refuseEncrypt         // the option encrypt differs
	refuseBusy            // too many connections wait
)

func (r refusal) err() error {
	switch r {
	case refuseStale:
		return errStale
	case refuseTrack:
		return fmt.Errorf("%w: the peer's context is for the other track", driver.ErrInvalid)
	case refuseEncrypt:
		return fmt.Errorf("%w: one side encrypts and the other does not: give both the same option encrypt",
			driver.ErrInvalid)
	case refuseBusy:
		return errBusy
	}
	return errMalformed
}

var (
	errStale     = fmt.Errorf("%w: the peer's process is gone, another one answers at its address", driver.ErrBroken)
	errBusy      = fmt.Errorf("%w: too many connections to the peer wait for its program", driver.ErrBroken)
	errMalformed = errors.New("malformed")
)

// claim is the dialer's description of itself.
type claim struct {
	track    driver.Track
	encrypt  bool
	deadTime time.Duration // in ms; so often the dialer wants signs of life
	from, to uint64        // incarnations
}

func (m claim) append(b []byte) []byte {
	le := binary.LittleEndian
	flags := byte(0)
	if m.encrypt {
		flags = flagEncrypt
	}
	b = le.AppendUint32(append(b, byte(m.track), flags, 0, 0), uint32(m.deadTime.Milliseconds()))
	return le.AppendUint64(le.AppendUint64(b, m.from), m.to)
}

// parseDeadTime reads a dead time; ok is false if no option allows it.
func parseDeadTime(b []byte) (d time.Duration, ok bool) {
	d = time.Duration(binary.LittleEndian.Uint32(b)) * time.Millisecond
	return d, d >= kit.MinDeadTime && d <= kit.MaxDeadTime
}

func parseClaim(b []byte) (m claim, err error) {
	le := binary.LittleEndian
	if len(b) != claimSize || b[0] > byte(driver.Large) || b[1] > flagEncrypt || le.Uint16(b[2:]) != 0 {
		return m, errMalformed
	}
	m = claim{track: driver.Track(b[0]), encrypt: b[1] == flagEncrypt, from: le.Uint64(b[8:]), to: le.Uint64(b[16:])}
	var ok bool
	if m.deadTime, ok = parseDeadTime(b[4:]); !ok || m.from == m.to {
		return m, errMalformed
	}
	return m, nil
}

// note is a frame after the claim.
type note struct {
	kind     noteKind
	code     refusal
	deadTime time.Duration // of the listener that welcomes, in ms
	token    uint64        // of rdv data for the sender of the note
}

func (m note) append(b []byte) []byte {
	switch m.kind {
	case noteWelcome:
		return binary.LittleEndian.AppendUint32(append(b, byte(m.kind), byte(m.code), 0, 0), uint32(m.deadTime.Milliseconds()))
	case noteSeen, noteUp:
		return append(b, byte(m.kind))
	}
	b = append(b, byte(m.kind), 0, 0, 0, 0, 0, 0, 0)
	return binary.LittleEndian.AppendUint64(b, m.token)
}

func parseNote(b []byte) (m note, err error) {
	if len(b) == 0 {
		return m, errMalformed
	}
	m.kind = noteKind(b[0])
	switch {
	case m.kind == noteWelcome && len(b) == welcomeSize && b[1] <= byte(refuseBusy) && b[2] == 0 && b[3] == 0:
		m.code = refusal(b[1])
		var ok bool
		if m.deadTime, ok = parseDeadTime(b[4:]); m.code == welcome && !ok || m.code != welcome && m.deadTime != 0 {
			return note{}, errMalformed
		}
	case m.kind == noteSeen && len(b) == seenSize:
	case m.kind == noteUp && len(b) == upSize:
	case (m.kind == noteTake || m.kind == noteStand) && len(b) == takeSize && [7]byte(b[1:8]) == [7]byte{}:
		m.token = binary.LittleEndian.Uint64(b[8:])
	default:
		return note{}, errMalformed
	}
	return m, nil
}

// peerError returns the driver's error for an error of the handshake.
func peerError(err error) error {
	switch {
	case errors.Is(err, handshake.ErrSecret):
		return fmt.Errorf("%w: %w", driver.ErrAuth, err)
	case errors.Is(err, handshake.ErrVersion):
		return fmt.Errorf("%w: %w", driver.ErrVersion, err)
	case errors.Is(err, driver.ErrBroken), errors.Is(err, driver.ErrInvalid):
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrBroken, err)
}
