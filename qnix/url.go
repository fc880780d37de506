//go:build linux && !(386 || arm || mips || mipsle)

package qnix

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/qnix/nic"
)

// Versions of this driver's urls and of its control messages.
const (
	urlVersion     = 3
	controlVersion = 2
)

// processName returns the name of a context's process. It is made of the incarnation, so that the url determines it,
// and differs from the name of every earlier context.
func processName(incarnation uint64, t driver.Track) nic.Name {
	n, err := nic.MakeName(fmt.Sprintf("bw%016x%c", incarnation, trackLetter(t)))
	if err != nil {
		panic(err)
	}
	return n
}

func trackLetter(t driver.Track) byte {
	if t == driver.Large {
		return 'l'
	}
	return 's'
}

// place is the rest of a url:
//
//	nic,track,home
//
// nic is the number of the NIC with which the process is registered; track is a letter. home, 16 hexadecimal digits,
// distinguishes that NIC from all others that have its number in another cluster.
type place struct {
	nic   uint16
	track driver.Track
	home  uint64
}

// homeOf identifies the NIC at a path: a device by its number and the running kernel, a softnic by its socket.
func homeOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR {
		return kit.Identity("device %x %x", kit.Host(), st.Rdev), nil
	}
	return kit.Identity("socket %x %x %x", kit.Host(), st.Dev, st.Ino), nil
}

func (p place) String() string {
	return fmt.Sprintf("%d,%c,%016x", p.nic, trackLetter(p.track), p.home)
}

// apart returns why processes at two places cannot be connected, or "" if nothing is known against it. It is symmetric.
// NICs of different numbers may be in one cluster.
func (p place) apart(q place) string {
	switch {
	case p.track != q.track:
		return "the peer's context is for the other track"
	case p.nic == q.nic && p.home != q.home:
		return fmt.Sprintf("the peer's NIC is another one than this one's, and both have number %d: they are in no common cluster "+
			"(one NIC for all, or numbers and peers: bywash softnic --help)", p.nic)
	}
	return ""
}

// domain names the processes that are registered with one NIC, for one track.
func (p place) domain() string { return fmt.Sprintf("%016x,%c", p.home, trackLetter(p.track)) }

// parsePlace parses the rest of a peer's url.
func parsePlace(s string) (p place, err error) {
	bad := func(what string) (place, error) {
		return place{}, fmt.Errorf("%w: url: %q is not nic,track,home: %s", driver.ErrInvalid, s, what)
	}
	f := strings.Split(s, ",")
	if len(f) != 3 {
		return bad("number of fields")
	}
	n, err := strconv.ParseUint(f[0], 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != f[0] {
		return bad("the coordinates of a NIC")
	}
	if p.home, err = strconv.ParseUint(f[2], 16, 64); err != nil || fmt.Sprintf("%016x", p.home) != f[2] {
		return bad("the home has 16 hexadecimal digits")
	}
	p.nic = uint16(n)
	switch f[1] {
	case "s":
	case "l":
		p.track = driver.Large
	default:
		return bad("the track is s or l")
	}
	return p, nil
}

// placeOf returns the place of the context that published a url.
func placeOf(u driver.URL) (place, error) {
	if u.Incarnation == 0 {
		return place{}, fmt.Errorf("%w: url %q: incarnation 0", driver.ErrInvalid, u)
	}
	return parsePlace(u.Rest)
}
