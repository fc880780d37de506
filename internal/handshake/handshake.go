package handshake

import (
	"errors"
	"fmt"
	"io"

	"github.com/flynn/noise"
)

// Limits in bytes.
const (
	maxClaim     = 1024    // of the dialer's claim
	maxLimit     = 1 << 20 // of Config.Limit
	defaultLimit = 64 << 10
)

// Config is what both sides must have alike, and Limit.
type Config struct {
	// Protocol names what the frames will carry, with its version and, if one program serves several, its kind:
	// "bywash connect oob 2".
	Protocol string

	// bind is what both sides know of each other before they speak: a job's size, for example.
	bind []byte

	// Limit is the longest payload that Receive takes, up to maxLimit; 0 is defaultLimit.
	Limit int

	random io.Reader // of tests; nil is crypto/rand
}

var suite = noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashSHA256)

// prologue is mixed into the handshake, which fails unless both sides have the same.
func (c *Config) prologue(id KeyID) []byte {
	b := append([]byte("bywash handshake"), version)
	b = append(b, id[:]...)
	return appendField(appendField(b, []byte(c.Protocol)), c.bind)
}

func (c *Config) state(k *Key, dials bool) (*noise.HandshakeState, error) {
	if c.Limit < 0 || c.Limit > maxLimit {
		return nil, fmt.Errorf("handshake: limit of %d bytes, want at most %d", c.Limit, maxLimit)
	}
	return noise.NewHandshakeState(noise.Config{
		CipherSuite: suite, Random: c.random, Pattern: noise.HandshakeNN, Initiator: dials,
		Prologue: c.prologue(k.id), PresharedKey: k.psk[:],
	})
}

// Dial proves k to a listener and sends it claim, of at most maxClaim bytes. Errors are ErrSecret, ErrVersion,
// ErrMalformed, or those of rw, which stays open and is of no use after one.
func Dial(rw io.ReadWriter, k *Key, cfg *Config, claim []byte) (*Conn, error) {
	if len(claim) > maxClaim {
		return nil, fmt.Errorf("handshake: claim of %d bytes, limit is %d", len(claim), maxClaim)
	}
	hs, err := cfg.state(k, true)
	if err != nil {
		return nil, err
	}
	hello := append(appendHead(nil, kindHello, 0), k.id[:]...)
	if hello, _, _, err = hs.WriteMessage(hello, nil); err != nil {
		return nil, err
	}
	if _, err := rw.Write(hello); err != nil {
		return nil, err
	}
	answer, err := readAnswer(rw)
	if err != nil {
		return nil, err
	}
	payload, there, back, err := hs.ReadMessage(nil, answer)
	if err != nil || len(payload) != 0 {
		return nil, fmt.Errorf("%w: its answer has a wrong tag", ErrSecret)
	}
	c := newConn(rw, cfg, there, back)
	return c, c.Send(claim)
}

// Accept lets a dialer prove one of the keys that find knows, and returns its claim. find returns nil for an id that
// it does not know. The dialer receives the reason if it is refused. Errors are those of Dial; io.EOF means that the
// dialer sent nothing. Until Accept returns, the dialer may be any process.
func Accept(rw io.ReadWriter, find func(KeyID) *Key, cfg *Config) (c *Conn, claim []byte, err error) {
	id, hello, err := readHello(rw)
	if errors.Is(err, ErrVersion) {
		err = refuse(rw, refuseVersion, err)
		// A socket that is closed with unread bytes takes back the bytes that were sent.
		_, _ = io.CopyN(io.Discard, rw, int64(helloSize-headSize))
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	k := find(id)
	if k == nil {
		return nil, nil, refuse(rw, refuseSecret, fmt.Errorf("%w: no key with id %x", ErrSecret, id))
	}
	hs, err := cfg.state(k, false)
	if err != nil {
		return nil, nil, err
	}
	if payload, _, _, err := hs.ReadMessage(nil, hello); err != nil || len(payload) != 0 {
		return nil, nil, refuse(rw, refuseSecret, fmt.Errorf("%w: its hello has a wrong tag", ErrSecret))
	}
	answer, there, back, err := hs.WriteMessage(appendHead(nil, kindAnswer, 0), nil)
	if err != nil { // the public key is one of those that give no secret
		return nil, nil, refuse(rw, refuseSecret, fmt.Errorf("%w: %w", ErrSecret, err))
	}
	if _, err := rw.Write(answer); err != nil {
		return nil, nil, err
	}
	c = newConn(rw, cfg, back, there)
	if claim, err = c.receive(maxClaim); err != nil {
		return nil, nil, noEOF(err)
	}
	return c, append([]byte(nil), claim...), nil
}

func refuse(w io.Writer, code uint16, err error) error {
	_, _ = w.Write(appendHead(nil, kindRefusal, code))
	return err
}
