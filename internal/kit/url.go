package kit

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/bywash/bywash/driver"
)

// ParseURL parses a url that the named driver is to connect to, and checks
// that it is one of that driver (ErrInvalid) and version (ErrVersion).
func ParseURL(name string, version int, s string, limit int) (driver.URL, error) {
	u, err := driver.ParseURL(s, limit)
	switch {
	case err != nil:
		return driver.URL{}, err
	case u.Driver != name:
		return driver.URL{}, fmt.Errorf("%w: url %q is of driver %s, not %s", driver.ErrInvalid, s, u.Driver, name)
	case u.Version != version:
		return driver.URL{}, fmt.Errorf("%w: url %q has version %d, this program has %d: use the same release on both sides", driver.ErrVersion, s, u.Version, version)
	}
	return u, nil
}

// NewIncarnation draws the incarnation of a context that is opened with a: a
// random number, never 0, so that a restarted process has another one. In a session
// some of its bits are the rank, so that a driver which knows a peer by its
// incarnation alone identifies the process.
func NewIncarnation(a driver.Attributes) uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	n := binary.LittleEndian.Uint64(b[:])
	if a.SessionSize > 0 && a.Rank >= 0 && a.Rank < 1<<driver.RankBits {
		n = n&^((1<<driver.RankBits-1)<<1) | uint64(a.Rank)<<1
	}
	return n | 1
}
