package driver

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// URL is the parsed form of what a context publishes:
//
//	name:version:incarnation:rest
//
// with the version in decimal and the incarnation, drawn when the context was
// opened (see [NewIncarnation]), as 16 hexadecimal digits. What rest holds is the
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

// ParseURLFor parses a url that the named driver is to connect to, and checks
// that it is one of that driver (ErrInvalid) and version (ErrVersion).
func ParseURLFor(name string, version int, s string, limit int) (URL, error) {
	u, err := ParseURL(s, limit)
	switch {
	case err != nil:
		return URL{}, err
	case u.Driver != name:
		return URL{}, fmt.Errorf("%w: url %q is of driver %s, not %s", ErrInvalid, s, u.Driver, name)
	case u.Version != version:
		return URL{}, fmt.Errorf("%w: url %q has version %d, this program has %d: use the same release on both sides", ErrVersion, s, u.Version, version)
	}
	return u, nil
}

// maxWideURLs bounds what UnpackURLs accepts.
const maxWideURLs = 1 << 20

// PackURLs joins one url an instance into a wide url, for drivers that need
// one each. A wide url starts with '*'.
func PackURLs(urls []string) string {
	var b strings.Builder
	b.WriteByte('*')
	for _, u := range urls {
		b.WriteString(strconv.Itoa(len(u)))
		b.WriteByte(',')
		b.WriteString(u)
	}
	return b.String()
}

// UnpackURLs splits a wide url; one that is not wide stands for itself.
// ErrInvalid if it is damaged.
func UnpackURLs(s string) ([]string, error) {
	if !strings.HasPrefix(s, "*") {
		return []string{s}, nil
	}
	var urls []string
	for rest := s[1:]; rest != ""; {
		num, tail, ok := strings.Cut(rest, ",")
		n, err := strconv.ParseUint(num, 10, 31)
		if !ok || err != nil || int(n) > len(tail) || strconv.FormatUint(n, 10) != num {
			return nil, fmt.Errorf("%w: damaged wide url at entry %d", ErrInvalid, len(urls))
		}
		if len(urls) == maxWideURLs {
			return nil, fmt.Errorf("%w: wide url with more than %d entries", ErrInvalid, maxWideURLs)
		}
		urls = append(urls, tail[:n])
		rest = tail[n:]
	}
	return urls, nil
}

// rankBits is how much of an incarnation names the rank.
const rankBits = 20

// NewIncarnation draws the incarnation of a context that is opened with a: a
// random number, never 0, so that a restarted process has another one. In a session
// some of its bits are the rank, so that a driver which knows a peer by its
// incarnation alone can say who that is.
func NewIncarnation(a Attributes) uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	n := binary.LittleEndian.Uint64(b[:])
	if a.SessionSize > 0 && a.Rank >= 0 && a.Rank < 1<<rankBits {
		n = n&^((1<<rankBits-1)<<1) | uint64(a.Rank)<<1
	}
	return n | 1
}

// RankOf is the rank that an incarnation claims, if its context was opened in
// a session of at most 2^20 processes; else a random number.
func RankOf(incarnation uint64) int { return int(incarnation >> 1 & (1<<rankBits - 1)) }
