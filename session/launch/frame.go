package launch

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
)

// The wire of the embedded launcher, all integers big endian:
//
//	challenge  server, once   magic 4, version 1, 0 3, nonce 32
//	hello      client, once   magic 4, version 1, 0 3, rank 4, size 4, nonce 32, proof 32
//	welcome    server, once   magic 4, version 1, status 1, 0 2, proof 32
//	frame      both, then     length 4 (of what follows), kind 1, body, tag 16
//
// A proof is an HMAC-SHA256 under the secret over its sender's role and all of
// the handshake. A tag is the first half of one under a key of this connection
// and direction, over the frame's number, kind and body, so that frames cannot
// be forged, replayed, reordered or dropped unnoticed.
const (
	magic       = "BWRV"
	wireVersion = 2

	nonceSize     = 32
	proofSize     = sha256.Size
	tagSize       = 16
	challengeSize = 8 + nonceSize
	helloSize     = 16 + nonceSize + proofSize
	welcomeSize   = 8 + proofSize

	maxBody = 5 + MaxCard
	maxWhy  = 256
)

// What a welcome says. Refusals before authentication carry no proof.
type status uint8

const (
	statusOK status = iota
	statusVersion
	statusAuth
	statusSize
	statusRank
	statusTaken
)

// Kinds of frames: of clients, and of the server.
type kind uint8

const (
	kindPublish kind = 1 // card
	kindFence   kind = 2
	kindLookup  kind = 3 // id 4, rank 4
	kindAbort   kind = 4 // code 4, why
	kindBye     kind = 5
	kindAgree   kind = 6 // word

	kindFenced  kind = 129
	kindGone    kind = 130 // rank 4, fate 1: the fence fails
	kindCard    kind = 131 // id 4, found 1, card
	kindAborted kind = 132 // rank 4, code 4, why
	kindAgreed  kind = 133 // 1: all said the same, else 0
)

var errFrame = errors.New("malformed message")

type nonce [nonceSize]byte

func putChallenge(n nonce) []byte {
	b := append([]byte(magic), wireVersion, 0, 0, 0)
	return append(b, n[:]...)
}

// checkMagic tells a foreign program and another version apart.
func checkMagic(b []byte) error {
	if len(b) < 8 || string(b[:4]) != magic {
		return errFrame
	}
	if b[4] != wireVersion {
		return fmt.Errorf("peer has version %d, this program %d: %w", b[4], wireVersion, ErrVersion)
	}
	return nil
}

func parseChallenge(b []byte) (n nonce, err error) {
	if err := checkMagic(b); err != nil {
		return n, err
	}
	if len(b) != challengeSize || b[5]|b[6]|b[7] != 0 {
		return n, errFrame
	}
	copy(n[:], b[8:])
	return n, nil
}

// hello is what a client claims, and with it what both sides prove.
type hello struct {
	rank, size     uint32
	client, server nonce
}

func (h *hello) mac(secret []byte, role string, s status) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("bywash rendezvous 1 " + role))
	m.Write(h.server[:])
	m.Write(h.client[:])
	m.Write(binary.BigEndian.AppendUint32(nil, h.rank))
	m.Write(binary.BigEndian.AppendUint32(nil, h.size))
	m.Write([]byte{byte(s)})
	return m.Sum(nil)
}

func (h *hello) put(secret []byte) []byte {
	b := append([]byte(magic), wireVersion, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.rank)
	b = binary.BigEndian.AppendUint32(b, h.size)
	b = append(b, h.client[:]...)
	return append(b, h.mac(secret, "client", statusOK)...)
}

// parseHello reads what a client answered to a challenge; the error is ErrVersion, ErrAuth or malformed.
func parseHello(b, secret []byte, server nonce) (h hello, err error) {
	if err := checkMagic(b); err != nil {
		return h, err
	}
	if len(b) != helloSize || b[5]|b[6]|b[7] != 0 {
		return h, errFrame
	}
	h.server = server
	h.rank, h.size = binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	copy(h.client[:], b[16:])
	if !hmac.Equal(b[16+nonceSize:], h.mac(secret, "client", statusOK)) {
		return h, ErrAuth
	}
	return h, nil
}

func (h *hello) putWelcome(secret []byte, s status) []byte {
	b := append([]byte(magic), wireVersion, byte(s), 0, 0)
	if s == statusVersion || s == statusAuth {
		return append(b, make([]byte, proofSize)...)
	}
	return append(b, h.mac(secret, "server", s)...)
}

// parseWelcome returns nil when the server knows the secret and takes us.
func (h *hello) parseWelcome(b, secret []byte) error {
	if err := checkMagic(b); err != nil {
		return err
	}
	if len(b) != welcomeSize || b[6]|b[7] != 0 {
		return errFrame
	}
	s := status(b[5])
	switch s {
	case statusVersion:
		return fmt.Errorf("refused: %w", ErrVersion)
	case statusAuth:
		return fmt.Errorf("refused: %w", ErrAuth)
	}
	if !hmac.Equal(b[8:], h.mac(secret, "server", s)) {
		return fmt.Errorf("the other side of the rendezvous: %w", ErrAuth)
	}
	switch s {
	case statusOK:
		return nil
	case statusSize:
		return fmt.Errorf("the job has not %d ranks: %w", h.size, ErrInvalid)
	case statusRank:
		return fmt.Errorf("the job has no rank %d: %w", h.rank, ErrInvalid)
	case statusTaken:
		return fmt.Errorf("rank %d has joined already: %w", h.rank, ErrInvalid)
	}
	return errFrame
}

// sealer makes and checks the tags of one direction.
type sealer struct {
	mac hash.Hash
	seq uint64
}

func (h *hello) sealer(secret []byte, role string) sealer {
	return sealer{mac: hmac.New(sha256.New, h.mac(secret, role+" frames", statusOK))}
}

func (s *sealer) tag(k kind, body []byte) []byte {
	s.mac.Reset()
	s.mac.Write(append(binary.BigEndian.AppendUint64(nil, s.seq), byte(k)))
	s.mac.Write(body)
	s.seq++
	return s.mac.Sum(nil)[:tagSize]
}

// seal returns the frame's bytes; frames go out in the order of its calls.
func (s *sealer) seal(k kind, body []byte) []byte {
	b := make([]byte, 0, frameSize(len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(1+len(body)+tagSize))
	b = append(append(b, byte(k)), body...)
	return append(b, s.tag(k, body)...)
}

func frameSize(body int) int { return 5 + body + tagSize }

// open reads the next frame. The body is the caller's.
func (s *sealer) open(r io.Reader) (kind, []byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 1+tagSize || n > 1+maxBody+tagSize {
		return 0, nil, errFrame
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, noEOF(err)
	}
	k, body, tag := kind(b[0]), b[1:n-tagSize], b[n-tagSize:]
	if !hmac.Equal(tag, s.tag(k, body)) {
		return 0, nil, fmt.Errorf("message is not the peer's: %w", ErrAuth)
	}
	return k, body, nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func putLookup(id, rank uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, id), rank)
}

func parseLookup(b []byte) (id, rank uint32, err error) {
	if len(b) != 8 {
		return 0, 0, errFrame
	}
	return binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), nil
}

func putCard(id uint32, card []byte) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 5+len(card)), id)
	if card == nil {
		return append(b, 0)
	}
	return append(append(b, 1), card...)
}

// parseCard returns a nil card where the rank has published none.
func parseCard(b []byte) (id uint32, card []byte, err error) {
	if len(b) < 5 {
		return 0, nil, errFrame
	}
	id, card = binary.BigEndian.Uint32(b), b[5:]
	switch {
	case b[4] == 0 && len(card) == 0:
		return id, nil, nil
	case b[4] == 1 && len(card) > 0:
		return id, card, nil
	}
	return 0, nil, errFrame
}

func putAbort(code int, why string) []byte {
	if len(why) > maxWhy {
		why = why[:maxWhy]
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(exitCode(code))), why...)
}

func parseAbort(b []byte) (code int, why string, err error) {
	if len(b) < 4 || len(b) > 4+maxWhy {
		return 0, "", errFrame
	}
	n := binary.BigEndian.Uint32(b)
	if n < 1 || n > 255 {
		return 0, "", errFrame
	}
	return int(n), plain(string(b[4:])), nil
}

func putAborted(rank, code int, why string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(rank)), putAbort(code, why)...)
}

func parseAborted(b []byte) (rank, code int, why string, err error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b) > math.MaxInt32 {
		return 0, 0, "", errFrame
	}
	code, why, err = parseAbort(b[4:])
	return int(binary.BigEndian.Uint32(b)), code, why, err
}

func putGone(rank int, f fate) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(rank)), byte(f))
}

func parseGone(b []byte) (rank int, f fate, err error) {
	if len(b) != 5 || binary.BigEndian.Uint32(b) > math.MaxInt32 {
		return 0, 0, errFrame
	}
	f = fate(b[4])
	if f != fateLeft && f != fateDied {
		return 0, 0, errFrame
	}
	return int(binary.BigEndian.Uint32(b)), f, nil
}

// plain makes a peer's text harmless on a terminal and in one line.
func plain(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c < 0x20 || c > 0x7e {
			b[i] = '?'
		}
	}
	return string(b)
}
