package qnix

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/qnix/nic"
)

// Name is the driver's name.
const Name = "qnix"

// urlVersion is the version in this driver's urls, and in its control messages.
const urlVersion = 2

// processName is what a context registers its process under: it is made of the
// incarnation, so that the url names it, and unlike that of any context before.
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
//	nic,track
//
// the coordinates of the NIC that the process is registered with, for errors, and a letter.
type place struct {
	nic   uint16
	track driver.Track
}

func (p place) String() string { return fmt.Sprintf("%d,%c", p.nic, trackLetter(p.track)) }

// parsePlace reads the rest of a url that comes from elsewhere.
func parsePlace(s string) (p place, err error) {
	number, letter, _ := strings.Cut(s, ",")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != number {
		return p, fmt.Errorf("%w: url: %q is not nic,track: the coordinates of a NIC", driver.ErrInvalid, s)
	}
	p.nic = uint16(n)
	switch letter {
	case "s":
	case "l":
		p.track = driver.Large
	default:
		return p, fmt.Errorf("%w: url: %q is not nic,track: the track is s or l", driver.ErrInvalid, s)
	}
	return p, nil
}

// placeOf is where the context is that published a url.
func placeOf(u driver.URL) (place, error) {
	if u.Incarnation == 0 {
		return place{}, fmt.Errorf("%w: url %q: incarnation 0", driver.ErrInvalid, u)
	}
	return parsePlace(u.Rest)
}
