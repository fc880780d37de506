package driver

import (
	"fmt"
	"strconv"
	"strings"
)

// URL is the parsed form of the url that a context publishes:
//
//	name:version:incarnation:rest
//
// with the version in decimal and the incarnation, drawn when the context was
// opened (drivers draw it with kit.NewIncarnation), as 16 hexadecimal digits. What rest holds is the
// driver's matter; it is printable ASCII without spaces.
type URL struct {
	Driver      string
	Version     int
	Incarnation uint64
	Rest        string
}

// String formats the url.
func (u URL) String() string {
	return fmt.Sprintf("%s:%d:%016x:%s", u.Driver, u.Version, u.Incarnation, u.Rest)
}

// ParseURL parses a url that comes from elsewhere. ErrInvalid, with the reason,
// if it is malformed or longer than limit bytes.
func ParseURL(s string, limit int) (URL, error) {
	if len(s) > limit {
		return URL{}, fmt.Errorf("%w: url of %d bytes, limit is %d", ErrInvalid, len(s), limit)
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return URL{}, fmt.Errorf("%w: url has byte %#02x at %d", ErrInvalid, s[i], i)
		}
	}
	f := strings.SplitN(s, ":", 4)
	if len(f) != 4 || !validName(f[0]) {
		return URL{}, fmt.Errorf("%w: url %q is not name:version:incarnation:…", ErrInvalid, s)
	}
	v, err := strconv.ParseUint(f[1], 10, 16)
	if err != nil {
		return URL{}, fmt.Errorf("%w: url %q: version %q", ErrInvalid, s, f[1])
	}
	n, err := strconv.ParseUint(f[2], 16, 64)
	if err != nil || len(f[2]) != 16 {
		return URL{}, fmt.Errorf("%w: url %q: incarnation %q", ErrInvalid, s, f[2])
	}
	return URL{Driver: f[0], Version: int(v), Incarnation: n, Rest: f[3]}, nil
}

// RankBits is the number of bits of an incarnation that hold the rank.
const RankBits = 20

// RankOf returns the rank that an incarnation claims, if its context was opened in
// a session of at most 2^RankBits processes; else a random number.
func RankOf(incarnation uint64) int { return int(incarnation >> 1 & (1<<RankBits - 1)) }
