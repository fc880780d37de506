package kit

import (
	"fmt"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
)

// ProofSize is the length of a proof in bytes.
const ProofSize = handshake.MACSize

// Key proves to a peer that this side knows the session's secret, and checks the peer's proof. It is safe for
// concurrent use. A proof is a MAC; docs/wire.md has the bytes. Its label begins with "bywash" and names the driver and
// the side's role. The parts name both ends and hold a fresh nonce of each: so a proof fits neither another role, nor
// connection, nor driver.
type Key = handshake.Key

// NewKey returns the key of [driver.Attributes].Secret. Without a secret that is a publicly known key; it fits
// no secret. The error is ErrInvalid for 1 to 15 bytes, which could be guessed. Open of each driver calls it.
func NewKey(secret []byte) (*Key, error) {
	k, err := handshake.OptionalKey(secret)
	if err != nil {
		return nil, fmt.Errorf("%w: session secret: %w", driver.ErrInvalid, err)
	}
	return k, nil
}
