package link

import (
	"crypto/aes"
	"crypto/cipher"

	"github.com/bywash/bywash/internal/handshake"
)

// secrets are the keys that an endpoint derives from the session secret and from its own.
type secrets struct {
	key      *handshake.Key
	greeting *handshake.Signer
	note     *handshake.Signer
	cookie   *handshake.Signer // by a key that no other host has
}

// newSecrets wants random bytes, own, for cookies.
func newSecrets(session, own []byte) (*secrets, error) {
	key, err := handshake.OptionalKey(session)
	if err != nil {
		return nil, err
	}
	ours, err := handshake.NewKey(own)
	if err != nil {
		return nil, err
	}
	return &secrets{
		key: key, greeting: key.Signer("bywash link greeting"), note: key.Signer("bywash link note"),
		cookie: ours.Signer("bywash link cookie"),
	}, nil
}

// cipherKey is one direction's key in one phase.
type cipherKey struct {
	secret handshake.Subkey
	aead   cipher.AEAD
	iv     [12]byte
}

func newCipherKey(secret handshake.Subkey) cipherKey {
	key, iv := secret.Subkey("key"), secret.Subkey("iv")
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // 32 bytes are a key
	}
	k := cipherKey{secret: secret}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		panic(err)
	}
	copy(k.iv[:], iv[:])
	return k
}

// next derives the key of the next phase, from which the present key cannot be found.
func (k *cipherKey) next() cipherKey { return newCipherKey(k.secret.Subkey("next")) }

// sealer encrypts and decrypts the packets of one connection.
type sealer struct {
	send, recv   cipherKey
	before, then cipherKey // keys of recv's previous and next phase
	sendPhase    uint8
	recvPhase    uint8
	sendSince    uint64 // packet number with which the phase began
	sendFrom     Time   // when the phase began
	hasBefore    bool
	changes      int // of both directions
	nonce        [12]byte
	replay       replayWindow
}

// keys derives the keys of both directions from the greetings.
func (s *secrets) keys(dialer bool, dial, accept *greeting) *sealer {
	ids := le.AppendUint64(le.AppendUint64(nil, dial.id), accept.id)
	base := s.key.Subkey("bywash link connection", dial.nonce[:], accept.nonce[:], ids)
	a, b := newCipherKey(base.Subkey("dialer")), newCipherKey(base.Subkey("listener"))
	x := &sealer{send: a, recv: b}
	if !dialer {
		x.send, x.recv = b, a
	}
	x.then = x.recv.next()
	return x
}

func (x *sealer) nonceOf(k *cipherKey, pn uint64) []byte {
	x.nonce = k.iv
	le.PutUint64(x.nonce[4:], le.Uint64(x.nonce[4:])^pn)
	return x.nonce[:]
}

// change takes the next sending key after every packets, but not before a packet with the present key has arrived: the
// peer cannot follow two changes that it has not seen.
func (x *sealer) change(pn, every uint64, now, arrived Time) {
	if pn-x.sendSince >= every && arrived > x.sendFrom+stampUnit {
		x.send, x.sendSince, x.sendFrom = x.send.next(), pn, now
		x.sendPhase ^= 1
		x.changes++
	}
}

// seal encrypts all but the first 48 bytes of a packet into dst, which may be b itself, and returns the packet with its
// tag.
func (x *sealer) seal(dst, b []byte, pn uint64) []byte {
	n := len(b) + tagSize
	dst = dst[:n]
	if &dst[0] != &b[0] {
		copy(dst, b[:ackSize])
	}
	dst[1] |= flagSealed
	if x.sendPhase == 1 {
		dst[1] |= flagPhase
	}
	le.PutUint16(dst[2:], uint16(n))
	le.PutUint32(dst[4:], 0)
	x.send.aead.Seal(dst[ackSize:ackSize], x.nonceOf(&x.send, pn), b[ackSize:], dst[:ackSize])
	return dst
}

// open decrypts in place and returns the packet without its tag, or nil if it is a forgery or a replay.
func (x *sealer) open(b []byte, pn uint64) []byte {
	if b[1]&flagSealed == 0 || len(b) < ackSize+tagSize || le.Uint32(b[4:]) != 0 || !x.replay.fresh(pn) {
		return nil
	}
	phase := uint8(0)
	if b[1]&flagPhase != 0 {
		phase = 1
	}
	k, later := &x.recv, false
	if phase != x.recvPhase {
		// The packet overtook the change of keys, or was overtaken by it.
		if x.hasBefore && pn < x.replay.top {
			k = &x.before
		} else {
			k, later = &x.then, true
		}
	}
	if _, err := k.aead.Open(b[ackSize:ackSize], x.nonceOf(k, pn), b[ackSize:], b[:ackSize]); err != nil {
		return nil
	}
	if later {
		x.before, x.recv, x.hasBefore = x.recv, x.then, true
		x.then = x.recv.next()
		x.recvPhase = phase
		x.changes++
	}
	x.replay.mark(pn)
	return b[:len(b)-tagSize]
}

// replayWindow remembers which of the last 2048 packet numbers have arrived.
type replayWindow struct {
	top  uint64
	bits [32]uint64
}

func (w *replayWindow) fresh(pn uint64) bool {
	if pn > w.top {
		return true
	}
	if w.top-pn >= 64*uint64(len(w.bits))-64 {
		return false
	}
	return w.bits[pn/64%uint64(len(w.bits))]&(1<<(pn%64)) == 0
}

func (w *replayWindow) mark(pn uint64) {
	if pn > w.top {
		for k := w.top/64 + 1; k <= pn/64 && k <= w.top/64+uint64(len(w.bits)); k++ {
			w.bits[k%uint64(len(w.bits))] = 0
		}
		w.top = pn
	}
	w.bits[pn/64%uint64(len(w.bits))] |= 1 << (pn % 64)
}
