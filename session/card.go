package session

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/session/internal/rdv"
)

// A business card contains how to reach a process:
//
//	0  magic u32, 4 version u16, 6 rails u16
//	8  rank u32, 12 size u32, 16 incarnation u64
//	24 then for each rail: exclusivity u16, bandwidth u64 (bytes a second),
//	   three times length u16 and bytes: driver, url of the small track, url
//	   of the large track (may be empty)
//	then how many addresses of the session's sockets for connect requests u16, and each as a string
//	then the MAC of all this by the session's secret, with label cardLabel (package internal/handshake)
//
// The MAC keeps peers without the secret from making this process send packets to addresses of their choice. A member
// of the job knows the secret, so addresses are checked besides; see checkAddress.
const (
	cardMagic   = 0x42794344 // "ByCD"
	cardVersion = 5
	cardHeader  = 24
	maxCardURL  = 4096
	cardLabel   = "bywash session card"
)

type card struct {
	rank, size  uint32
	incarnation uint64
	rails       []cardRail
	addresses   []string // "unix:" or "udp:", and where
}

type cardRail struct {
	driver       string
	small, large string
	exclusivity  int
	bandwidth    uint64
}

// sealed is the card as others get it.
func (c *card) sealed(k *handshake.Key) []byte { return seal(c.append(nil), k) }

func seal(card []byte, k *handshake.Key) []byte {
	mac := k.MAC(cardLabel, card)
	return append(card, mac[:]...)
}

func (c *card) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, cardMagic)
	b = le.AppendUint16(b, cardVersion)
	b = le.AppendUint16(b, uint16(len(c.rails)))
	b = le.AppendUint32(b, c.rank)
	b = le.AppendUint32(b, c.size)
	b = le.AppendUint64(b, c.incarnation)
	for _, r := range c.rails {
		b = le.AppendUint16(b, uint16(r.exclusivity))
		b = le.AppendUint64(b, r.bandwidth)
		for _, s := range []string{r.driver, r.small, r.large} {
			b = le.AppendUint16(b, uint16(len(s)))
			b = append(b, s...)
		}
	}
	b = le.AppendUint16(b, uint16(len(c.addresses)))
	for _, s := range c.addresses {
		b = le.AppendUint16(b, uint16(len(s)))
		b = append(b, s...)
	}
	return b
}

// parseCard reads a card that comes from elsewhere. ErrAuth: it was not made with the secret.
func parseCard(b []byte, k *handshake.Key) (*card, error) {
	le := binary.LittleEndian
	if len(b) < 8 || le.Uint32(b) != cardMagic {
		return nil, fmt.Errorf("%w: this is no business card", ErrInvalid)
	}
	if v := le.Uint16(b[4:]); v != cardVersion {
		return nil, fmt.Errorf("%w: business card of version %d, this program has %d: use the same release everywhere", ErrVersion, v, cardVersion)
	}
	bad := fmt.Errorf("%w: malformed business card", ErrInvalid)
	if len(b) < cardHeader+handshake.MACSize {
		return nil, bad
	}
	end := len(b) - handshake.MACSize
	if !k.Check(b[end:], cardLabel, b[:end]) {
		return nil, fmt.Errorf("%w: the business card is damaged, or of a process that has another session secret: both need the same",
			driver.ErrAuth)
	}
	b = b[:end]
	n := int(le.Uint16(b[6:]))
	if len(b) < cardHeader || n > rdv.MaxRails {
		return nil, bad
	}
	c := &card{rank: le.Uint32(b[8:]), size: le.Uint32(b[12:]), incarnation: le.Uint64(b[16:])}
	b = b[cardHeader:]
	text := func() (string, bool) {
		if len(b) < 2 {
			return "", false
		}
		k := int(le.Uint16(b))
		if k > maxCardURL || len(b) < 2+k {
			return "", false
		}
		s := string(b[2 : 2+k])
		b = b[2+k:]
		return s, strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
	}
	for range n {
		if len(b) < 10 {
			return nil, bad
		}
		r := cardRail{exclusivity: int(le.Uint16(b)), bandwidth: le.Uint64(b[2:])}
		b = b[10:]
		for _, s := range []*string{&r.driver, &r.small, &r.large} {
			var ok bool
			if *s, ok = text(); !ok {
				return nil, bad
			}
		}
		c.rails = append(c.rails, r)
	}
	if len(b) < 2 || le.Uint16(b) > maxAddresses {
		return nil, bad
	}
	n = int(le.Uint16(b))
	b = b[2:]
	for range n {
		a, ok := text()
		if !ok {
			return nil, bad
		}
		if err := checkAddress(a, c.incarnation); err != nil {
			return nil, err
		}
		c.addresses = append(c.addresses, a)
	}
	if len(b) != 0 {
		return nil, bad
	}
	return c, nil
}

// checkAddress refuses an address that no session has for connect requests: only a socket of its own in the abstract
// namespace, or a port that needs no privilege at the address of one host. Names are not looked up.
func checkAddress(a string, incarnation uint64) error {
	network, at, _ := strings.Cut(a, ":")
	switch network {
	case "unix":
		if at == socketName(incarnation) {
			return nil
		}
	case "udp":
		to, err := netip.ParseAddrPort(at)
		if err == nil && to.Port() >= 1024 && to.Addr().Zone() == "" && to.Addr().Unmap().IsGlobalUnicast() {
			return nil
		}
	}
	return fmt.Errorf("%w: the business card names %q, which is no address of a session", ErrInvalid, a)
}

// choose picks the rails to a peer: those of the highest exclusivity that both ends have and that reach it. Both ends
// come to the same result, in the same order, from both cards; index pairs name the rails of the two cards. reaches
// returns why a rail of mine does not reach one of theirs, or nil; the other end gets the same result for the two
// (driver.Reacher). why has every rail of either end; own has the index of mine for each, or -1.
func choose(mine, theirs *card, reaches func(my, their int) error) (pairs [][2]int, why []Choice, own []int) {
	// The card of the lower incarnation leads: pairs come in its order.
	first, second, swap := mine, theirs, false
	if theirs.incarnation < mine.incarnation {
		first, second, swap = theirs, mine, true
	}
	all := pairUp(first, second, func(a, b int) error {
		if swap {
			a, b = b, a
		}
		return reaches(a, b)
	})
	best := -1
	for _, p := range all {
		best = max(best, p.exclusivity)
	}
	for _, p := range all {
		c := Choice{Driver: p.driver}
		a, b := p.a, p.b
		if swap {
			a, b = b, a
		}
		switch {
		case p.exclusivity >= 0 && p.exclusivity == best:
			c.Taken, c.Why = true, fmt.Sprintf("highest exclusivity that reaches the peer (%d)", best)
			pairs = append(pairs, [2]int{a, b})
		case p.exclusivity >= 0:
			c.Why = fmt.Sprintf("exclusivity %d, another has %d", p.exclusivity, best)
		case p.err != nil:
			c.Why = reason(p.err)
		case a < 0:
			c.Why = "this process has no such driver, or fewer of them"
		default:
			c.Why = "the peer has no such driver, or fewer of them"
		}
		why, own = append(why, c), append(own, a)
	}
	return pairs, why, own
}

// matched is a rail of one card beside one of the other.
type matched struct {
	driver      string
	a, b        int   // rails of the first and second card; -1: none
	exclusivity int   // -1: they carry nothing
	err         error // why they do not reach each other
}

// pairUp gives each rail of the first card the first one of the second that it reaches and that no earlier rail has.
// The remaining rails are paired for the explanation only.
func pairUp(first, second *card, reaches func(a, b int) error) []matched {
	all := make([]matched, len(first.rails))
	used := make([]bool, len(second.rails))
	for a, x := range first.rails {
		m := &all[a]
		*m = matched{driver: x.driver, a: a, b: -1, exclusivity: -1}
		for b, y := range second.rails {
			if x.driver != y.driver || used[b] {
				continue
			}
			if err := reaches(a, b); err != nil {
				m.err = err
				continue
			}
			m.b, m.exclusivity, m.err = b, min(x.exclusivity, y.exclusivity), nil
			used[b] = true
			break
		}
	}
	for a := range all {
		for b, y := range second.rails {
			if m := &all[a]; m.err != nil && m.b < 0 && y.driver == m.driver && !used[b] {
				m.b, used[b] = b, true
			}
		}
	}
	for b, y := range second.rails {
		if !used[b] {
			all = append(all, matched{driver: y.driver, a: -1, b: b, exclusivity: -1})
		}
	}
	return all
}

// knows reports whether one of the card's urls has that incarnation.
func (c *card) knows(incarnation uint64) bool {
	for _, r := range c.rails {
		for _, s := range []string{r.small, r.large} {
			if u, err := driver.ParseURL(s, maxCardURL); err == nil && u.Incarnation == incarnation {
				return true
			}
		}
	}
	return false
}
