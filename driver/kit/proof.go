package kit

import (
	"crypto/hmac"
	"crypto/sha256"
)

// ProofSize is how many bytes Prove gives.
const ProofSize = sha256.Size

// Prove computes what a side says to prove that it knows a session's secret, for drivers: HMAC-SHA256, with the
// secret as its key, of a label and parts, one behind the other. The label begins with "bywash" and names the
// driver and the side's role; parts have fixed sizes, say who connects to whom, and hold a nonce of each side: so
// a proof fits neither another role, nor connection, nor driver. Proofs are compared with hmac.Equal.
func Prove(secret []byte, label string, parts ...[]byte) (mac [ProofSize]byte) {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(label))
	for _, p := range parts {
		h.Write(p)
	}
	h.Sum(mac[:0])
	return mac
}
