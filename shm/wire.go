//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/rights"
)

// The set-up protocol: datagrams on a Unix socket of type SOCK_SEQPACKET, one
// socket a connection. The side with the lower incarnation dials.
//
//	dialer                          listener
//	hello            →
//	                 ←              challenge     (both prove the secret)
//	proof            →
//	                 ←              queued        unless accept can follow at once
//	                 ←              accept + 3 fds  segment, wake-up page, regions
//	confirm + 2 fds  →                            wake-up page, regions: the connection is established
//
// Neither end accepts descriptors from one that has not proved the secret (package
// rights explains why).
//
// The listener answers with accept once its user has called Connect, too. A
// dialer lets its next connection to the same peer begin after queued or accept,
// so that the nth there is matched with the nth here. The socket then stays open: it carries the messages arena, forget
// and goodbye, and its end shows the peer's end.
//
// Every message starts with the same eight bytes: magic, version, kind.
const (
	protocolVersion = 5
	protocolMagic   = 0x42795368 // "BySh"

	headerBytes = 8
	maxMessage  = 256 // any message is shorter

	nonceBytes = 16
	macBytes   = kit.ProofSize
)

type messageKind uint8

const (
	msgHello messageKind = iota + 1
	msgChallenge
	msgProof
	msgAccept
	msgConfirm
	msgReject
	msgGoodbye
	msgArena
	msgForget
	msgQueued
)

// Flags of hello and challenge.
const (
	flagLarge   = 1 << 0 // large track
	flagBarrier = 1 << 1 // registered for membarrier
	flagWatch   = 1 << 2 // hello: only watches whether the listener lives
)

// Codes of reject.
const (
	rejectAuth uint32 = iota + 1
	rejectUser
	rejectVersion
	rejectTrack
	rejectStale // the listener is another incarnation
	rejectBusy
	rejectProtocol
	rejectWaiting   // more dialers and watchers than a peer, or a user, may have
	rejectStuck     // descriptors of this user block in close
	rejectResources // the listener lacks descriptors or memory
)

// errBusy: the listener has no room for unauthenticated dialers now.
var errBusy = errors.New("the peer has too many connections being made")

func rejectError(code uint32) error {
	switch code {
	case rejectAuth:
		return fmt.Errorf("%w: the session secrets differ", driver.ErrAuth)
	case rejectUser:
		return fmt.Errorf("%w: the peer runs as another user and does not admit this one (option allow-uids)", driver.ErrAuth)
	case rejectVersion:
		return fmt.Errorf("%w: the peer speaks another version of the set-up protocol: use the same release on both sides", driver.ErrVersion)
	case rejectTrack:
		return fmt.Errorf("%w: the peer's context is for the other track", driver.ErrInvalid)
	case rejectStale:
		return fmt.Errorf("%w: the peer process was restarted (a different process answers at its address)", driver.ErrBroken)
	case rejectBusy:
		return fmt.Errorf("%w: %w (at most %d of a user)", driver.ErrBroken, errBusy, maxUnproven)
	case rejectWaiting:
		return fmt.Errorf("%w: too many connections wait for the peer's Connect (at most %d of a context, %d of a user): "+
			"let it connect, or disconnect some", driver.ErrBroken, maxWaitingPeer, maxWaitingUser)
	case rejectStuck:
		return fmt.Errorf("%w: the peer refuses this user, whose processes have passed it %d descriptors "+
			"that block in close: end these processes", driver.ErrBroken, rights.MaxHeld)
	case rejectResources:
		return fmt.Errorf("%w: the peer has no descriptors or no memory left for the connection (raise its limit of open files, ulimit -n, or free memory)", driver.ErrBroken)
	}
	return fmt.Errorf("%w: the peer refused the connection (code %d)", driver.ErrBroken, code)
}

// message is any message of the protocol; which fields it has depends on its
// kind. One struct keeps encoding and decoding next to each other.
type message struct {
	kind  messageKind
	flags uint32
	code  uint32
	from  uint64 // hello: incarnation of the dialer
	to    uint64 // hello: of the listener
	nonce [nonceBytes]byte
	mac   [macBytes]byte
	probe uint64 // address of the sender's nonce, for trying CMA
	arena uint64
	size  uint64
}

var errMalformed = errors.New("malformed message")

// sizes of the bodies, by kind.
var bodyBytes = [...]int{
	msgHello:     4 + 8 + 8 + nonceBytes,
	msgChallenge: 4 + nonceBytes + macBytes,
	msgProof:     macBytes,
	msgAccept:    8 + nonceBytes,
	msgConfirm:   8 + nonceBytes,
	msgReject:    4,
	msgGoodbye:   0,
	msgArena:     16,
	msgForget:    8,
	msgQueued:    0,
}

// append encodes m.
func (m *message) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, protocolMagic)
	b = le.AppendUint16(b, protocolVersion)
	b = append(b, byte(m.kind), 0)
	switch m.kind {
	case msgHello:
		b = le.AppendUint32(b, m.flags)
		b = le.AppendUint64(b, m.from)
		b = le.AppendUint64(b, m.to)
		b = append(b, m.nonce[:]...)
	case msgChallenge:
		b = le.AppendUint32(b, m.flags)
		b = append(b, m.nonce[:]...)
		b = append(b, m.mac[:]...)
	case msgProof:
		b = append(b, m.mac[:]...)
	case msgAccept, msgConfirm:
		b = le.AppendUint64(b, m.probe)
		b = append(b, m.nonce[:]...)
	case msgReject:
		b = le.AppendUint32(b, m.code)
	case msgArena:
		b = le.AppendUint64(b, m.arena)
		b = le.AppendUint64(b, m.size)
	case msgForget:
		b = le.AppendUint64(b, m.arena)
	}
	return b
}

// parse decodes a datagram. ErrVersion for another version, errMalformed for
// everything else that is not exactly a message.
func (m *message) parse(b []byte) error {
	le := binary.LittleEndian
	if len(b) < headerBytes || le.Uint32(b) != protocolMagic {
		return errMalformed
	}
	if v := le.Uint16(b[4:]); v != protocolVersion {
		return fmt.Errorf("%w: set-up protocol %d, this program has %d: use the same release on both sides", driver.ErrVersion, v, protocolVersion)
	}
	kind := messageKind(b[6])
	if b[7] != 0 || kind == 0 || int(kind) >= len(bodyBytes) || len(b) != headerBytes+bodyBytes[kind] {
		return errMalformed
	}
	*m = message{kind: kind}
	b = b[headerBytes:]
	switch kind {
	case msgHello:
		m.flags, m.from, m.to = le.Uint32(b), le.Uint64(b[4:]), le.Uint64(b[12:])
		copy(m.nonce[:], b[20:])
	case msgChallenge:
		m.flags = le.Uint32(b)
		copy(m.nonce[:], b[4:])
		copy(m.mac[:], b[4+nonceBytes:])
	case msgProof:
		copy(m.mac[:], b)
	case msgAccept, msgConfirm:
		m.probe = le.Uint64(b)
		copy(m.nonce[:], b[8:])
	case msgReject:
		m.code = le.Uint32(b)
	case msgArena:
		m.arena, m.size = le.Uint64(b), le.Uint64(b[8:])
	case msgForget:
		m.arena = le.Uint64(b)
	}
	return nil
}

// Labels of proofs: a proof fits neither the other role nor another connection.
const (
	listenerProof = "bywash shm listener"
	dialerProof   = "bywash shm dialer"
)

// proven has the messages of both sides before they prove the secret: hello, and challenge without its proof.
func proven(hello, challenge *message) [][]byte {
	flags := binary.LittleEndian.AppendUint32(nil, challenge.flags)
	return [][]byte{hello.append(nil), flags, challenge.nonce[:]}
}
