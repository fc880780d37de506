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

// urlVersion is the version of this driver's urls and control messages.
const urlVersion = 2

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
//	nic,track
//
// nic is the number of the NIC with which the process is registered, for errors; track is a letter.
type place struct {
	nic   uint16
	track driver.Track
}

func (p place) String() string { return fmt.Sprintf("%d,%c", p.nic, trackLetter(p.track)) }

// parsePlace parses the rest of a peer's url.
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

// placeOf returns the place of the context that published a url.
func placeOf(u driver.URL) (place, error) {
	if u.Incarnation == 0 {
		return place{}, fmt.Errorf("%w: url %q: incarnation 0", driver.ErrInvalid, u)
	}
	return parsePlace(u.Rest)
}
