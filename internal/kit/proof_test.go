package kit_test

import (
	"errors"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// The proofs themselves are tested in internal/handshake.
func TestKeysOfSecrets(t *testing.T) {
	for _, n := range []int{1, 15} {
		if _, err := kit.NewKey(make([]byte, n)); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a secret of %d bytes: got %v, want %v", n, err, driver.ErrInvalid)
		}
	}
	none, err := kit.NewKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	some, err := kit.NewKey(make([]byte, 16))
	if err != nil {
		t.Fatal(err)
	}
	proof := some.MAC("bywash test dialer", []byte("nonce"))
	if len(proof) != kit.ProofSize {
		t.Errorf("a proof has %d bytes, want %d", len(proof), kit.ProofSize)
	}
	for k, want := range map[*kit.Key]bool{some: true, none: false} {
		if got := k.Check(proof[:], "bywash test dialer", []byte("nonce")); got != want {
			t.Errorf("a proof by a secret is good: %v, want %v", got, want)
		}
	}
}
