package nic

import (
	"bytes"
	"fmt"

	"github.com/bywash/bywash/qnix/internal/abi"
)

// MaxName is the length of the longest name of a process or a group, in bytes.
const MaxName = abi.NameLen - 1

// Name is the name of a process or a group, padded with zeros. The zero Name means no name.
type Name [abi.NameLen]byte

// MakeName makes a Name of 1 to 19 printable ASCII characters without spaces. It fails with ErrInvalid for any other
// string.
func MakeName(s string) (n Name, err error) {
	if len(s) == 0 || len(s) > MaxName {
		return Name{}, fmt.Errorf("qnix: name %q: %w: it has 1 to %d characters", s, ErrInvalid, MaxName)
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return Name{}, fmt.Errorf("qnix: name %q: %w: it is of printable ASCII, without spaces", s, ErrInvalid)
		}
	}
	copy(n[:], s)
	return n, nil
}

func (n Name) String() string {
	b, _, _ := bytes.Cut(n[:], []byte{0})
	return string(b)
}
