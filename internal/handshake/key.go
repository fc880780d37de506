package handshake

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Sizes in bytes.
const (
	MinSecret = 16          // of a secret
	MACSize   = sha256.Size // of what [Key.MAC] returns
	MinMAC    = 16          // of what [Key.Check] accepts
)

// ErrShortSecret says that a secret could be guessed.
var ErrShortSecret = errors.New("the secret is too short")

// KeyID tells the secrets of one listener apart. It is derived from the secret and does not reveal it.
type KeyID [8]byte

// Key is derived from a session's secret. It is safe for concurrent use.
type Key struct {
	id  KeyID
	psk [32]byte // of Noise
	mac [32]byte // of datagrams
}

// NewKey derives a key. The error is ErrShortSecret for fewer than MinSecret bytes.
func NewKey(secret []byte) (*Key, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("%w: %d bytes can be guessed, use %d random bytes or more",
			ErrShortSecret, len(secret), MinSecret)
	}
	return derive(secret), nil
}

// NoSecret is the key of those who agreed to have no secret: everybody knows it. A listener with a secret refuses it.
func NoSecret() *Key { return derive(nil) }

func derive(secret []byte) *Key {
	k := &Key{}
	for info, to := range map[string][]byte{"key id": k.id[:], "psk": k.psk[:], "datagram": k.mac[:]} {
		b, err := hkdf.Key(sha256.New, secret, nil, "bywash handshake 1 "+info, len(to))
		if err != nil {
			panic(err) // hkdf refuses more than 8160 bytes, nothing else
		}
		copy(to, b)
	}
	return k
}

// ID returns the key's id.
func (k *Key) ID() KeyID { return k.id }

// Find returns k if it has this id, else nil. A listener with a single secret passes it to [Accept].
func (k *Key) Find(id KeyID) *Key {
	if k.id == id {
		return k
	}
	return nil
}

// MAC authenticates parts for the purpose that label names, by HMAC-SHA256. Lengths go into the MAC: no other
// division into parts has the same. A sender may truncate it to MinMAC bytes.
func (k *Key) MAC(label string, parts ...[]byte) (mac [MACSize]byte) {
	h := hmac.New(sha256.New, k.mac[:])
	put := func(b []byte) {
		var n [4]byte
		binary.LittleEndian.PutUint32(n[:], uint32(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	put([]byte(label))
	for _, p := range parts {
		put(p)
	}
	h.Sum(mac[:0])
	return mac
}

// Check reports whether mac, of MinMAC to MACSize bytes, is the beginning of the MAC of label and parts. How long it
// takes does not depend on which byte differs.
func (k *Key) Check(mac []byte, label string, parts ...[]byte) bool {
	if len(mac) < MinMAC || len(mac) > MACSize {
		return false
	}
	want := k.MAC(label, parts...)
	return hmac.Equal(mac, want[:len(mac)])
}
