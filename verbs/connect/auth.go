package connect

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/bywash/bywash/driver"
)

// A link begins with three frames, by which both sides prove that they have the
// session secret:
//
//	dialer                      listener
//	hello          →                         who, whom, nonce
//	               ←            challenge    nonce, MAC
//	proof          →                         MAC
//	               ←            welcome      the first sealed message
//
// refuse may stand in the place of challenge or welcome. Each begins with the
// same eight bytes: magic, version, kind, zero. A message then travels as itself and 16
// bytes of a MAC, which covers it and all before it in that direction.
const (
	protocolVersion = 1
	protocolMagic   = 0x42795263 // "ByRc"

	frameHead  = 8
	nonceBytes = 16
	macBytes   = driver.ProofSize
	sealBytes  = 16

	// maxFrame is the longest frame.
	maxFrame = maxPayload + sealBytes
)

type frameKind uint8

const (
	frameHello frameKind = iota + 1
	frameChallenge
	frameProof
	frameRefuse
)

// Codes of refuse. It is not authenticated: it tells a genuine peer why, and can
// do no more than not answering could.
type refusal uint32

const (
	refuseVersion refusal = iota + 1
	refuseSecret
	refuseStale // another incarnation is here
	refuseBusy
)

var bodyBytes = [...]int{
	frameHello:     8 + 8 + nonceBytes,
	frameChallenge: nonceBytes + macBytes,
	frameProof:     macBytes,
	frameRefuse:    4,
}

// frame is any of the frames before the first message.
type frame struct {
	kind     frameKind
	from, to uint64 // hello: incarnations
	nonce    [nonceBytes]byte
	mac      [macBytes]byte
	code     refusal
}

func (f *frame) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, protocolMagic)
	b = le.AppendUint16(b, protocolVersion)
	b = append(b, byte(f.kind), 0)
	switch f.kind {
	case frameHello:
		b = le.AppendUint64(b, f.from)
		b = le.AppendUint64(b, f.to)
		b = append(b, f.nonce[:]...)
	case frameChallenge:
		b = append(b, f.nonce[:]...)
		b = append(b, f.mac[:]...)
	case frameProof:
		b = append(b, f.mac[:]...)
	case frameRefuse:
		b = le.AppendUint32(b, uint32(f.code))
	}
	return b
}

// parse decodes a frame. ErrVersion for another version of the protocol,
// errMalformed for everything else that is not exactly a frame.
func (f *frame) parse(b []byte) error {
	le := binary.LittleEndian
	if len(b) < frameHead || le.Uint32(b) != protocolMagic {
		return fmt.Errorf("%w: no frame of this protocol", errMalformed)
	}
	if v := le.Uint16(b[4:]); v != protocolVersion {
		return fmt.Errorf("%w: connection protocol %d, this program has %d: %s", driver.ErrVersion, v, protocolVersion, sameRelease)
	}
	kind := frameKind(b[6])
	if b[7] != 0 || kind == 0 || int(kind) >= len(bodyBytes) || len(b) != frameHead+bodyBytes[kind] {
		return fmt.Errorf("%w: frame %d of %d bytes", errMalformed, kind, len(b))
	}
	*f = frame{kind: kind}
	b = b[frameHead:]
	switch kind {
	case frameHello:
		f.from, f.to = le.Uint64(b), le.Uint64(b[8:])
		copy(f.nonce[:], b[16:])
	case frameChallenge:
		copy(f.nonce[:], b)
		copy(f.mac[:], b[nonceBytes:])
	case frameProof:
		copy(f.mac[:], b)
	case frameRefuse:
		f.code = refusal(le.Uint32(b))
	}
	return nil
}

// refuseError is what a refusal means to the dialer.
func refuseError(code refusal) error {
	switch code {
	case refuseVersion:
		return fmt.Errorf("%w: the peer speaks another version of the connection protocol: %s", driver.ErrVersion, sameRelease)
	case refuseSecret:
		return fmt.Errorf("%w: the session secrets differ", driver.ErrAuth)
	case refuseStale:
		return fmt.Errorf("%w: another incarnation answers: the peer has restarted or ended", driver.ErrBroken)
	case refuseBusy:
		return fmt.Errorf("%w: the peer is closing, or has too many links", errTryAgain)
	}
	return fmt.Errorf("%w: the peer refused the link (code %d)", driver.ErrBroken, uint32(code))
}

// handshake is one side's part in the beginning of a link: frames in, frames
// out.
type handshake struct {
	secret  []byte
	manager string
	hello   frame
	chal    frame
}

// proof computes what the side in the given role answers to both nonces. Who
// does not have the secret cannot, and it fits neither the other role, nor another link,
// nor another manager.
func (h *handshake) proof(role string) [macBytes]byte {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], h.hello.from)
	binary.LittleEndian.PutUint64(b[8:], h.hello.to)
	return driver.Prove(h.secret, "bywash connect "+h.manager+" "+role, b[:], h.hello.nonce[:], h.chal.nonce[:])
}

// dial begins as the dialer.
func (h *handshake) dial(self, peer uint64) *frame {
	h.hello = frame{kind: frameHello, from: self, to: peer}
	_, _ = rand.Read(h.hello.nonce[:])
	return &h.hello
}

// answer checks a challenge; the frame, proof or refusal, is for the listener
// even with an error.
func (h *handshake) answer(f *frame) (*frame, error) {
	switch f.kind {
	case frameRefuse:
		return nil, refuseError(f.code)
	case frameChallenge:
	default:
		return nil, fmt.Errorf("%w: frame %d instead of a challenge", errMalformed, f.kind)
	}
	h.chal = *f
	want := h.proof("listener")
	if !hmac.Equal(want[:], f.mac[:]) {
		return &frame{kind: frameRefuse, code: refuseSecret}, refuseError(refuseSecret)
	}
	return &frame{kind: frameProof, mac: h.proof("dialer")}, nil
}

// listen answers a hello; the frame, challenge or refusal, is for the dialer
// even with an error.
func (h *handshake) listen(f *frame, self uint64) (*frame, error) {
	if f.kind != frameHello {
		return nil, fmt.Errorf("%w: frame %d instead of a hello", errMalformed, f.kind)
	}
	if f.to != self || f.from == self || f.from == 0 {
		return &frame{kind: frameRefuse, code: refuseStale}, refuseError(refuseStale)
	}
	h.hello = *f
	h.chal = frame{kind: frameChallenge}
	_, _ = rand.Read(h.chal.nonce[:])
	h.chal.mac = h.proof("listener")
	return &h.chal, nil
}

// check ends the listener's part; a refusal is for the dialer.
func (h *handshake) check(f *frame) (*frame, error) {
	switch {
	case f.kind == frameRefuse && f.code == refuseSecret:
		return nil, refuseError(f.code)
	case f.kind != frameProof:
		return nil, fmt.Errorf("%w: frame %d instead of a proof", errMalformed, f.kind)
	}
	if want := h.proof("dialer"); !hmac.Equal(want[:], f.mac[:]) {
		return &frame{kind: frameRefuse, code: refuseSecret}, refuseError(refuseSecret)
	}
	return nil, nil
}

// seals returns the seals of both directions: dialer to listener, and back.
func (h *handshake) seals() (there, back *seal) {
	return newSeal(h.secret, h.proof("dialer messages")), newSeal(h.secret, h.proof("listener messages"))
}

// seal authenticates the messages of one direction, in their order. The
// receiver's is in step with the sender's.
type seal struct {
	key   [macBytes]byte
	chain [macBytes]byte // MAC of what came last
}

// newSeal makes a key that only who has the secret can, from what only this
// link has.
func newSeal(secret []byte, link [macBytes]byte) *seal {
	return &seal{key: driver.Prove(secret, "bywash connect seal", link[:])}
}

func (s *seal) next(payload []byte) {
	m := hmac.New(sha256.New, s.key[:])
	m.Write(s.chain[:])
	m.Write(payload)
	m.Sum(s.chain[:0])
}

// close appends the MAC to a message.
func (s *seal) close(payload []byte) []byte {
	s.next(payload)
	return append(payload, s.chain[:sealBytes]...)
}

// open checks and removes the MAC. After an error the seal is of no use.
func (s *seal) open(b []byte) ([]byte, error) {
	if len(b) < sealBytes {
		return nil, fmt.Errorf("%w: %d bytes", errMalformed, len(b))
	}
	payload, mac := b[:len(b)-sealBytes], b[len(b)-sealBytes:]
	s.next(payload)
	if !hmac.Equal(mac, s.chain[:sealBytes]) {
		return nil, fmt.Errorf("%w: a message is not the peer's", driver.ErrAuth)
	}
	return payload, nil
}
