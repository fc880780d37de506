package handshake

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
)

// Sizes in bytes.
const (
	minSecret = 16          // of a secret
	MACSize   = sha256.Size // of what [Key.MAC] returns
	minMAC    = 16          // of what [Key.Check] accepts
)

// errShortSecret means that a secret could be guessed.
var errShortSecret = errors.New("the secret is too short")

// KeyID identifies one of a listener's secrets. It is derived from the secret and does not reveal it.
type KeyID [8]byte

// Key is derived from a session's secret. It is safe for concurrent use.
type Key struct {
	id   KeyID
	psk  [32]byte // of Noise
	mac  [32]byte // of datagrams
	root Subkey
}

// NewKey derives a key. The error is errShortSecret for fewer than minSecret bytes.
func NewKey(secret []byte) (*Key, error) {
	if len(secret) < minSecret {
		return nil, fmt.Errorf("%w: %d bytes can be guessed, use %d random bytes or more",
			errShortSecret, len(secret), minSecret)
	}
	return derive(secret), nil
}

// NoSecret is the key of peers that agreed to have no secret: it is public. A listener with a secret refuses it.
func NoSecret() *Key { return derive(nil) }

// OptionalKey is NewKey for callers that may have no secret: for none it returns NoSecret.
func OptionalKey(secret []byte) (*Key, error) {
	if len(secret) == 0 {
		return NoSecret(), nil
	}
	return NewKey(secret)
}

func derive(secret []byte) *Key {
	k := &Key{}
	all := map[string][]byte{"key id": k.id[:], "psk": k.psk[:], "datagram": k.mac[:], "subkeys": k.root[:]}
	for info, to := range all {
		b, err := hkdf.Key(sha256.New, secret, nil, "bywash handshake 1 "+info, len(to))
		if err != nil {
			panic(err) // hkdf refuses more than 8160 bytes, nothing else
		}
		copy(to, b)
	}
	return k
}

// Find returns k if it has this id, else nil. A listener with a single secret passes it to [Accept].
func (k *Key) Find(id KeyID) *Key {
	if k.id == id {
		return k
	}
	return nil
}

// MAC authenticates parts for the purpose that label names, by HMAC-SHA256. Lengths go into the MAC: no other
// division into parts has the same. A sender may truncate it to minMAC bytes.
func (k *Key) MAC(label string, parts ...[]byte) (mac [MACSize]byte) {
	return [MACSize]byte(k.Signer(label).MAC(parts...))
}

// Check reports whether mac, of minMAC to MACSize bytes, is the beginning of the MAC of label and parts. How long it
// takes does not depend on which byte differs.
func (k *Key) Check(mac []byte, label string, parts ...[]byte) bool {
	return k.Signer(label).Check(mac, parts...)
}

// Signer computes MACs of one label without allocating: for callers that hash datagrams of unauthenticated peers. It is
// used by one goroutine at a time.
type Signer struct {
	hash  hash.Hash
	label []byte // as a field
	size  [4]byte
	sum   [MACSize]byte
}

// Signer returns what computes the MACs of [Key.MAC] and [Key.Check] for this label.
func (k *Key) Signer(label string) *Signer {
	return &Signer{hash: hmac.New(sha256.New, k.mac[:]), label: appendField(nil, []byte(label))}
}

// MAC is that of [Key.MAC], of MACSize bytes, which are valid until the next call.
func (s *Signer) MAC(parts ...[]byte) []byte {
	s.hash.Reset()
	s.hash.Write(s.label)
	for _, p := range parts {
		binary.LittleEndian.PutUint32(s.size[:], uint32(len(p)))
		s.hash.Write(s.size[:])
		s.hash.Write(p)
	}
	return s.hash.Sum(s.sum[:0])
}

// Check is that of [Key.Check].
func (s *Signer) Check(mac []byte, parts ...[]byte) bool {
	return len(mac) >= minMAC && len(mac) <= MACSize && hmac.Equal(mac, s.MAC(parts...)[:len(mac)])
}

// appendField appends a field and its length, so that fields one behind the other are those of one division only.
func appendField(b, field []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(field))), field...)
}

// Subkey is a key that was derived from a [Key], or from another Subkey: the same on both sides, if they name the same
// parts. It does not reveal what it was derived from.
type Subkey [32]byte

// Subkey derives the key for the purpose that label names, from parts that both sides know: those that are fresh make
// the key fresh. It is HKDF-Expand of SHA-256; label and parts become fields, as in [Key.MAC].
func (k *Key) Subkey(label string, parts ...[]byte) Subkey { return k.root.Subkey(label, parts...) }

// Subkey is [Key.Subkey], from s. A chain of them goes one way: the next key does not reveal the one before.
func (s *Subkey) Subkey(label string, parts ...[]byte) (sub Subkey) {
	info := appendField(nil, []byte(label))
	for _, p := range parts {
		info = appendField(info, p)
	}
	b, err := hkdf.Expand(sha256.New, s[:], string(info), len(sub))
	if err != nil {
		panic(err) // hkdf refuses more than 8160 bytes, nothing else
	}
	return Subkey(b)
}
