package kit_test

import (
	"encoding/hex"
	"testing"

	"github.com/bywash/bywash/driver/kit"
)

func TestProofIsHMACSHA256(t *testing.T) {
	// RFC 4231, test case 2.
	const want = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
	for _, got := range [][kit.ProofSize]byte{
		kit.Prove([]byte("Jefe"), "what do ya want for nothing?"),
		kit.Prove([]byte("Jefe"), "what do ya ", []byte("want "), nil, []byte("for nothing?")),
	} {
		if hex.EncodeToString(got[:]) != want {
			t.Errorf("%x, want %s", got, want)
		}
	}
}
