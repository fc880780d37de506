//go:build linux && !(386 || arm || mips || mipsle)

package connect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/bywash/bywash/driver"
)

// Include and exclude lists: an unknown name, or one in both, is an error.
func TestIncludeAndExclude(t *testing.T) {
	for _, tt := range []struct {
		include, exclude string
		want             string // names chosen, or the error
	}{
		{"", "", "oob rdmacm"},
		{"rdmacm", "", "rdmacm"},
		{"rdmacm oob", "", "oob rdmacm"},
		{"", "rdmacm", "oob"},
		{"four", "", `no connection manager "four" (there are oob, rdmacm)`},
		{"", "four", `no connection manager "four"`},
		{"", "Oob", `no connection manager "Oob"`},
		{"oob", "oob", "both included and excluded"},
		{"", "oob rdmacm", "every connection manager is excluded"},
	} {
		cfg := Config{Include: strings.Fields(tt.include), Exclude: strings.Fields(tt.exclude)}
		chosen, err := cfg.choose()
		var names []string
		for _, m := range chosen {
			names = append(names, m.name)
		}
		if got := strings.Join(names, " "); err == nil && got != tt.want || err != nil && (!errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("include %q exclude %q: got %q, %v; want %s", tt.include, tt.exclude, got, err, tt.want)
		}
	}
}

// On a device that both managers serve, an excluded one is not in the card.
func TestExcludedManagerIsNotInTheCard(t *testing.T) {
	onDevice(t)
	for exclude, want := range map[string]string{"": "oob rdmacm", "rdmacm": "oob", "oob": "rdmacm"} {
		h := aHost(t, func(c *Config, _ *Port) { c.Include, c.Exclude = nil, strings.Fields(exclude) })
		list := must[[]entry](t)(parseCard(h.m.Card()))
		var names []string
		for _, e := range list {
			names = append(names, e.name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("without %q the card has %q, want %q", exclude, got, want)
		}
	}
}

// A manager that cannot serve the port is left out, unless it was asked for; when none is left, the error has all
// reasons.
func TestManagersThatCannot(t *testing.T) {
	onHost(t)
	m := must[*Managers](t)(Open(Config{Incarnation: 1}, aPort("a")))
	if !slices.Equal(m.Names(), []string{"oob"}) {
		t.Errorf("a port without a device is served by %q, want oob", m.Names())
	}
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	if _, err := m.NewEndpoint(&EndpointConfig{PeerIncarnation: 2, PeerCard: m.Card(), QPs: []QP{&fakeQP{}}}); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("endpoint after Close: %v, want %v", err, driver.ErrClosed)
	}
	for _, include := range [][]string{{"rdmacm"}, {"oob", "rdmacm"}} {
		_, err := Open(Config{Incarnation: 1, Include: include}, aPort("a"))
		if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "connection manager rdmacm") {
			t.Errorf("include %q: %v, want %v", include, err, driver.ErrUnsupported)
		}
	}
	p := aPort("a")
	p.Addrs = nil
	_, err := Open(Config{Incarnation: 1}, p)
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "oob: ") || !strings.Contains(err.Error(), "rdmacm: ") {
		t.Errorf("a port that no manager serves: %v, want %v with both reasons", err, driver.ErrUnsupported)
	}
}

// Ports, endpoints and configurations that make no sense are ErrInvalid.
func TestInvalidParameters(t *testing.T) {
	onHost(t)
	cfg := testConfig(1)
	for what, change := range map[string]func(*Port){
		"link layer": func(p *Port) { p.LinkLayer = 7 }, "GID type": func(p *Port) { p.GIDType = GIDInfiniBand }, "MTU": func(p *Port) { p.MTU = 1500 },
	} {
		p := aPort("a")
		change(p)
		if _, err := Open(cfg, p); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, want %v that names it", what, err, driver.ErrInvalid)
		}
	}
	h := aHost(t, nil)
	for what, cfg := range map[string]EndpointConfig{
		"incarnation":           {},
		"0 queue pairs":         {PeerIncarnation: 1},
		"5 queue pairs":         {PeerIncarnation: 1, QPs: make([]QP, 5)},
		"user data":             {PeerIncarnation: 1, QPs: make([]QP, 1), UserData: make([]byte, maxUserData+1)},
		"no connection manager": {PeerIncarnation: 1, QPs: make([]QP, 1), PeerCard: "other,50,AAAA"},
		"card entry":            {PeerIncarnation: 1, QPs: make([]QP, 1), PeerCard: ""},
	} {
		if _, err := h.m.NewEndpoint(&cfg); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, want %v that names it", what, err, driver.ErrInvalid)
		}
	}
	if _, err := Open(Config{}, aPort("a")); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "incarnation") {
		t.Errorf("no incarnation: %v, want %v that names it", err, driver.ErrInvalid)
	}
}

func entries(t *rapid.T, label string) []entry {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"oob", "rdmacm", "three", "four", "five6"}), 1, 5, rapid.ID).Draw(t, label)
	var list []entry
	for _, n := range names {
		list = append(list, entry{n, rapid.IntRange(0, 3).Draw(t, "priority") * 33, rapid.SliceOfN(rapid.Byte(), 0, maxBlob).Draw(t, "blob")})
	}
	return list
}

// Both sides choose the same manager from any two cards, and no common manager is better for both.
func TestBothSidesChooseAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := entries(t, "a"), entries(t, "b")
		i, k := match(a, b)
		k2, i2 := match(b, a)
		if i != i2 || k != k2 {
			t.Fatalf("one side chooses %d and %d, the other %d and %d", i, k, i2, k2)
		}
		for x := range a {
			for y := range b {
				if a[x].name != b[y].name {
					continue
				}
				if i < 0 {
					t.Fatalf("%s is in common and was not chosen", a[x].name)
				}
				if min(a[x].priority, b[y].priority) > min(a[i].priority, b[k].priority) {
					t.Fatalf("%s is better than %s for both", a[x].name, a[i].name)
				}
			}
		}
		if i >= 0 && a[i].name != b[k].name {
			t.Fatalf("%s meets %s", a[i].name, b[k].name)
		}
	})
}

// The rule is the documented one.
func TestPriorities(t *testing.T) {
	for _, tt := range []struct{ a, b, want string }{
		{"oob,50,;rdmacm,30,", "oob,50,;rdmacm,30,", "oob"},
		{"oob,50,;rdmacm,30,", "oob,20,;rdmacm,30,", "rdmacm"},
		{"oob,30,;rdmacm,30,", "oob,30,;rdmacm,40,", "rdmacm"},
		{"oob,30,;rdmacm,40,", "oob,40,;rdmacm,30,", "oob"},
		{"rdmacm,0,;oob,0,", "oob,0,;rdmacm,0,", "oob"},
		{"rdmacm,0,", "oob,100,;rdmacm,0,", "rdmacm"},
		{"rdmacm,10,", "oob,10,", ""},
	} {
		a, err := parseCard(tt.a)
		if err != nil {
			t.Fatal(err)
		}
		b, err := parseCard(tt.b)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if i, _ := match(a, b); i >= 0 {
			got = a[i].name
		}
		if got != tt.want {
			t.Errorf("%s and %s: got %q, want %q", tt.a, tt.b, got, tt.want)
		}
	}
}

// Cards survive their way, and fit into a url.
func TestCardsSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := entries(t, "card")
		text := formatCard(want)
		got, err := parseCard(text)
		if err != nil || formatCard(got) != text || len(got) != len(want) {
			t.Fatalf("%q: got %v (%v), want %v", text, got, err, want)
		}
		if _, err := driver.ParseURL("verbs:1:0123456789abcdef:"+text, 1<<16); err != nil {
			t.Fatalf("%q does not fit into a url: %v", text, err)
		}
	})
	v4 := []entry{{"oob", 50, make([]byte, 8)}, {"rdmacm", 30, make([]byte, 8)}}
	if n := len(formatCard(v4)); n > 64 {
		t.Errorf("card of both managers over IPv4 has %d bytes", n)
	}
}

// Damaged cards are ErrInvalid, in one line.
func TestDamagedCards(t *testing.T) {
	for _, s := range []string{
		"", ";", "oob", "oob,50", "oob,50,,", "oob,,", "oob,-1,", "oob,101,", "oob,050,", "oob,5 0,", "Oob,50,", ",50,", "oob,50,A", "oob,50,AB==",
		"oob,50,AA;", "oob,50,AA;oob,50,AA", "oob,50,*", "oob,50,AB", "oob,50,AAAA\n", strings.Repeat("a", maxName+1) + ",1,",
		"oob,1," + strings.Repeat("A", 344), strings.Repeat("x", maxCard+1),
	} {
		if got, err := parseCard(s); !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: got %v, %v; want %v", s, got, err, driver.ErrInvalid)
		}
	}
	var many []string
	for k := range maxEntries + 1 {
		many = append(many, fmt.Sprintf("m%d,1,", k))
	}
	if _, err := parseCard(strings.Join(many, ";")); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("%d entries: %v", len(many), err)
	}
}
