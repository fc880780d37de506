package handshake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// version is the version of the protocol.
const version = 1

// Errors of a handshake and of frames. Each is wrapped with what was seen.
var (
	// ErrSecret: the peer has another secret, another protocol or other bound values; or bytes were changed on the way.
	ErrSecret = errors.New("the peer has another session secret")
	// ErrVersion: the peer speaks another version of this protocol.
	ErrVersion = errors.New("the peer speaks another version of the handshake")
	// ErrMalformed: the bytes are none of this protocol, or a frame exceeds the limit.
	ErrMalformed = errors.New("malformed handshake")
)

// The head of each message up to the first frame: magic, version, kind, code (0 but in a refusal), little-endian.
const (
	magic    = 0x73487942 // "ByHs"
	headSize = 8

	noiseSize  = 32 + 16 // a public key and a tag
	helloSize  = headSize + len(KeyID{}) + noiseSize
	answerSize = headSize + noiseSize
)

// Bytes on the wire, for callers that count them: those that Dial sends before the claim's frame, those of Accept, and
// those that a frame adds to its payload.
const (
	DialBytes   = helloSize
	AcceptBytes = answerSize
	FrameBytes  = lengthSize + Overhead
)

type kind uint8

const (
	kindHello kind = iota + 1
	kindAnswer
	kindRefusal
)

// Codes of a refusal.
const (
	refuseVersion uint16 = iota + 1
	refuseSecret
)

func appendHead(b []byte, k kind, code uint16) []byte {
	b = binary.LittleEndian.AppendUint32(b, magic)
	b = append(b, version, byte(k))
	return binary.LittleEndian.AppendUint16(b, code)
}

// parseHead returns kind and code. Another version is ErrVersion, everything else that is no head ErrMalformed.
func parseHead(b []byte) (kind, uint16, error) {
	le := binary.LittleEndian
	if len(b) < headSize || le.Uint32(b) != magic {
		return 0, 0, fmt.Errorf("%w: no message of this protocol", ErrMalformed)
	}
	if b[4] != version {
		return 0, 0, fmt.Errorf("%w: it has %d, this program %d: use the same release on both sides",
			ErrVersion, b[4], version)
	}
	k, code := kind(b[5]), le.Uint16(b[6:])
	if k < kindHello || k > kindRefusal || (code != 0) != (k == kindRefusal) {
		return 0, 0, fmt.Errorf("%w: kind %d with code %d", ErrMalformed, k, code)
	}
	return k, code, nil
}

// refusalError is the meaning of a refusal to the dialer.
func refusalError(code uint16) error {
	switch code {
	case refuseVersion:
		return fmt.Errorf("%w: use the same release on both sides", ErrVersion)
	case refuseSecret:
		return fmt.Errorf("%w: handshake refused", ErrSecret)
	}
	return fmt.Errorf("%w: refusal with code %d", ErrMalformed, code)
}

// readHello reads the dialer's first message.
func readHello(r io.Reader) (id KeyID, msg []byte, err error) {
	var b [helloSize]byte
	if _, err := io.ReadFull(r, b[:headSize]); err != nil {
		return id, nil, err
	}
	k, _, err := parseHead(b[:])
	if err == nil && k != kindHello {
		err = fmt.Errorf("%w: kind %d instead of a hello", ErrMalformed, k)
	}
	if err != nil {
		return id, nil, err
	}
	if _, err := io.ReadFull(r, b[headSize:]); err != nil {
		return id, nil, noEOF(err)
	}
	copy(id[:], b[headSize:])
	return id, b[headSize+len(id):], nil
}

// readAnswer reads the listener's message.
func readAnswer(r io.Reader) (msg []byte, err error) {
	var b [answerSize]byte
	if _, err := io.ReadFull(r, b[:headSize]); err != nil {
		return nil, noEOF(err)
	}
	switch k, code, err := parseHead(b[:]); {
	case err != nil:
		return nil, err
	case k == kindRefusal:
		return nil, refusalError(code)
	case k != kindAnswer:
		return nil, fmt.Errorf("%w: kind %d instead of an answer", ErrMalformed, k)
	}
	_, err = io.ReadFull(r, b[headSize:])
	return b[headSize:], noEOF(err)
}

// noEOF distinguishes a stream that ended within a message from one that ended before it.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
