//go:build linux && !(386 || arm || mips || mipsle)

package session

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
)

func exampleCard() *card {
	return &card{rank: 3, size: 8, incarnation: 5, rails: []cardRail{
		{driver: "shm", small: "shm:1:0000000000000011:/a", large: "shm:1:0000000000000013:/b", exclusivity: 48, bandwidth: 40e9},
		{driver: "afxdp", small: "afxdp:1:0000000000000015:x", exclusivity: 16, bandwidth: 1e9},
	}, addresses: []string{"unix:@bywash-0000000000000005", "udp:192.0.2.1:5000"}}
}

func TestCardsOfOtherVersionsAndDamagedOnesAreRefused(t *testing.T) {
	b := exampleCard().sealed(testKey)
	for i := range b {
		if _, err := parseCard(b[:i], testKey); err == nil {
			t.Errorf("a card cut to %d bytes is taken", i)
		}
	}
	if _, err := parseCard(append(bytes.Clone(b), 0), testKey); !errors.Is(err, driver.ErrAuth) {
		t.Errorf("a longer card: %v", err)
	}
	newer := bytes.Clone(b)
	newer[4]++
	if _, err := parseCard(newer, testKey); !errors.Is(err, ErrVersion) {
		t.Errorf("a card of another version: %v", err)
	}
}

// A process without the session's secret can neither make nor change a card.
func TestForgedCardsAreRefused(t *testing.T) {
	b := exampleCard().sealed(testKey)
	if c, err := parseCard(b, testKey); err != nil || !reflect.DeepEqual(c, exampleCard()) {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := parseCard(b, otherKey); !errors.Is(err, driver.ErrAuth) {
		t.Errorf("with another secret: %v, want %v", err, driver.ErrAuth)
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 1
		if _, err := parseCard(bad, testKey); err == nil {
			t.Errorf("with byte %d changed it is taken", i)
		}
	}
}

// Nor can a member that knows the secret make this process send datagrams to any address. A card names only the socket
// of its session's incarnation, or unprivileged UDP ports of literal unicast addresses.
func TestCardsNameOnlyAddressesOfSessions(t *testing.T) {
	for _, a := range []string{
		"udp:localhost:5000", "udp:example.org:5000", "udp:127.0.0.1:5000", "udp:0.0.0.0:5000", "udp:255.255.255.255:5000", "udp:224.0.0.1:5000", "udp:[ff02::1]:5000",
		"udp:[fe80::1%lo]:5000", "udp:[::ffff:127.0.0.1]:5000", "udp:192.0.2.1:53", "udp:192.0.2.1", "unix:/run/systemd/notify", "unix:@another", "unix:@bywash-0000000000000006",
		"tcp:192.0.2.1:5000", "",
	} {
		c := exampleCard()
		c.addresses = []string{a}
		if _, err := parseCard(c.sealed(testKey), testKey); !errors.Is(err, ErrInvalid) {
			t.Errorf("a card with %q: %v, want %v", a, err, ErrInvalid)
		}
	}
}

// A card that parses is written back to the same bytes.
func FuzzCard(f *testing.F) {
	f.Add(exampleCard().append(nil)) // the MAC is made below: else nothing but that would be tested
	f.Add((&card{}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseCard(seal(bytes.Clone(b), testKey), testKey)
		if err != nil {
			return
		}
		if again := c.append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x was written back as %x", b, again)
		}
	})
}

// Both ends compute the same pairs of rails in the same order: those that reach each other, the first that fits.
func TestChoiceIsTheSameAtBothEnds(t *testing.T) {
	// Rails reach each other if one of their nets is the same; by default they are in net 0.
	rail := func(name string, excl int, nets ...string) cardRail {
		return cardRail{driver: name, exclusivity: excl, small: strings.Join(append(nets, ""), ",")}
	}
	for _, tt := range []struct {
		name string
		a, b []cardRail
		want [][2]int
	}{
		{"all reach", []cardRail{rail("afxdp", 16), rail("shm", 48)}, []cardRail{rail("shm", 48), rail("afxdp", 16)}, [][2]int{{1, 0}}},
		{"shm does not", []cardRail{rail("afxdp", 16), rail("shm", 48, "a")}, []cardRail{rail("shm", 48, "b"), rail("afxdp", 16)}, [][2]int{{0, 1}}},
		{"two of a kind", []cardRail{rail("verbs", 32), rail("verbs", 32)}, []cardRail{rail("verbs", 32), rail("verbs", 32), rail("verbs", 32)}, [][2]int{{0, 0}, {1, 1}}},
		{"crossed cables", []cardRail{rail("verbs", 32, "x"), rail("verbs", 32, "y")}, []cardRail{rail("verbs", 32, "y"), rail("verbs", 32, "x")}, [][2]int{{0, 1}, {1, 0}}},
		{"one cable", []cardRail{rail("verbs", 32, "x"), rail("verbs", 32, "y")}, []cardRail{rail("verbs", 32, "z"), rail("verbs", 32, "x")}, [][2]int{{0, 1}}},
		{"the first that fits", []cardRail{rail("verbs", 32, "x", "y"), rail("verbs", 32, "y")}, []cardRail{rail("verbs", 32, "x"), rail("verbs", 32, "y")}, [][2]int{{0, 0}, {1, 1}}},
		{"equals share", []cardRail{rail("a", 32), rail("b", 32)}, []cardRail{rail("b", 32), rail("a", 32)}, [][2]int{{0, 1}, {1, 0}}},
		{"nothing in common", []cardRail{rail("verbs", 32)}, []cardRail{rail("afxdp", 16)}, nil},
		{"only shm, which does not reach", []cardRail{rail("shm", 48, "a")}, []cardRail{rail("shm", 48, "b")}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := &card{incarnation: 1, rails: tt.a}, &card{incarnation: 2, rails: tt.b}
			chosen := func(a, b *card) ([][2]int, []Choice, []int) {
				return choose(a, b, func(i, k int) error { return testReach(&a.rails[i], &b.rails[k]) })
			}
			got, why, own := chosen(a, b)
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("pairs are %v, want %v", got, tt.want)
			}
			if !explained(why, own, tt.a, tt.b) {
				t.Errorf("not every rail of both ends is explained once: %v", why)
			}
			back, why, own := chosen(b, a)
			if !explained(why, own, tt.b, tt.a) {
				t.Errorf("at the other end, not every rail of both ends is explained once: %v", why)
			}
			for i := range back {
				back[i][0], back[i][1] = back[i][1], back[i][0]
			}
			if !reflect.DeepEqual(back, got) && len(back)+len(got) > 0 {
				t.Errorf("the other end pairs %v, this one %v", back, got)
			}
			if len(got) == 0 && tt.a[0].driver == tt.b[0].driver && why[0].Why != "peer is not reachable by this driver: another net" {
				t.Errorf("the reason is %q", why[0].Why)
			}
		})
	}
}

// testReach returns an error unless two rails of TestChoiceIsTheSameAtBothEnds have a net in common.
func testReach(a, b *cardRail) error {
	for net := range strings.SplitSeq(a.small, ",") {
		if slices.Contains(strings.Split(b.small, ","), net) && (net != "" || a.small == b.small) {
			return nil
		}
	}
	return &driver.Error{Driver: a.driver, Op: "reach", Err: fmt.Errorf("%w: another net", driver.ErrUnreachable)}
}

// explained reports whether each rail of mine has a reason, and each of theirs that is not one of those.
func explained(why []Choice, own []int, mine, theirs []cardRail) bool {
	left := map[string]int{}
	for _, r := range theirs {
		left[r.driver]++
	}
	seen := map[int]bool{-1: false}
	for k, c := range why {
		if c.Why == "" || c.Driver == "" || own[k] >= 0 && (seen[own[k]] || mine[own[k]].driver != c.Driver) {
			return false
		}
		if own[k] >= 0 {
			seen[own[k]] = true
			left[c.Driver] = max(0, left[c.Driver]-1)
			continue
		}
		left[c.Driver]--
	}
	for _, n := range left {
		if n != 0 {
			return false
		}
	}
	return len(seen) == len(mine)+1
}

// A key that Import accepts has a positive length and as many rails as it announces.
func FuzzKey(f *testing.F) {
	f.Add([]byte{keyVersion, 7, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{keyVersion, 7, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 5, 5})
	g := &Gate{}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := g.Import(b)
		if err == nil && (r.n <= 0 || len(r.rails) != int(b[2])) {
			t.Fatalf("%+v", r)
		}
	})
}
