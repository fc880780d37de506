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

// fakeManager writes down what is done with it.
type fakeManager struct {
	name     string
	calls    *[]string
	priority int
	blob     int // length
	init     error
	query    error
	option   string // value of option "x"
}

func (m *fakeManager) call(s string) { *m.calls = append(*m.calls, m.name+" "+s) }

func (m *fakeManager) Name() string { return m.name }

func (m *fakeManager) Register(o *options) {
	m.call("register")
	m.option = o.lookup("x", "default", func(v string) error {
		if v == "bad" {
			return errors.New("it is bad")
		}
		return nil
	})
}

func (m *fakeManager) Init(*Env) error {
	m.call("init")
	return m.init
}

func (m *fakeManager) Query(p *Port) (Module, error) {
	m.call("query " + p.Device)
	if m.query != nil {
		return nil, m.query
	}
	return &fakeModule{m, p.Device}, nil
}

func (m *fakeManager) Finalize() error {
	m.call("finalize")
	return nil
}

type fakeModule struct {
	*fakeManager
	device string
}

func (m *fakeModule) Priority() int { return m.priority }
func (m *fakeModule) Blob() []byte  { return make([]byte, m.blob) }
func (m *fakeModule) UsesCTS() bool { return false }
func (m *fakeModule) Stats(*Stats)  {}

func (m *fakeModule) NewEndpoint(_ *EndpointConfig, blob []byte) (Endpoint, error) {
	m.call(fmt.Sprintf("endpoint %d", len(blob)))
	return nil, nil
}

func (m *fakeModule) Finalize() error {
	m.call("finalize module " + m.device)
	return nil
}

func fakes(calls *[]string, names ...string) (list []Manager) {
	for k, n := range names {
		list = append(list, &fakeManager{name: n, calls: calls, priority: 10 * (k + 1), blob: k})
	}
	return list
}

// Managers live through register, init, query of each port, endpoints, finalize of modules, finalize; each once, in
// that order.
func TestLifeCycle(t *testing.T) {
	var calls []string
	s, err := Open(Config{Incarnation: 1, NoSecret: true, managers: fakes(&calls, "one", "two")})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Query(aPort("a"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Query(aPort("b"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.NewEndpoint(&EndpointConfig{PeerIncarnation: 2, PeerCard: b.Card(), QPs: []QP{&fakeQP{}}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(a.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Query(aPort("c")); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("query after close: %v, want %v", err, driver.ErrClosed)
	}
	want := []string{
		"one register", "two register", "one init", "two init", "one query a", "two query a", "one query b", "two query b", "two endpoint 1",
		"two finalize module a", "one finalize module a", "two finalize module b", "one finalize module b", "two finalize", "one finalize",
	}
	if !slices.Equal(calls, want) {
		t.Errorf("got  %q\nwant %q", calls, want)
	}
}

// Include and exclude lists: an unknown name, or one in both, is an error; of an excluded
// manager nothing but the name is asked.
func TestIncludeAndExclude(t *testing.T) {
	for _, tt := range []struct {
		include, exclude string
		want             string // names used, or the error
	}{
		{"", "", "one two three"},
		{"two", "", "two"},
		{"three one", "", "one three"},
		{"", "two", "one three"},
		{"one two", "three", "one two"},
		{"four", "", `no connection manager "four" (there are one, two, three)`},
		{"", "four", `no connection manager "four"`},
		{"", "One", `no connection manager "One"`},
		{"one", "one", "both included and excluded"},
		{"", "one two three", "every connection manager is excluded"},
	} {
		var calls []string
		s, err := Open(Config{Incarnation: 1, NoSecret: true, managers: fakes(&calls, "one", "two", "three"),
			Include: strings.Fields(tt.include), Exclude: strings.Fields(tt.exclude)})
		if err != nil {
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), tt.want) || len(calls) > 0 {
				t.Errorf("include %q exclude %q: %v after %q, want %s", tt.include, tt.exclude, err, calls, tt.want)
			}
			continue
		}
		m, err := s.Query(aPort("a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		used := strings.Fields(tt.want)
		if !slices.Equal(m.Names(), used) {
			t.Errorf("include %q exclude %q: uses %q, want %q", tt.include, tt.exclude, m.Names(), used)
		}
		for _, c := range calls {
			if name, _, _ := strings.Cut(c, " "); !slices.Contains(used, name) {
				t.Errorf("include %q exclude %q: call %q", tt.include, tt.exclude, c)
			}
		}
	}
}

// Options are checked; those of a manager that is not used are not looked at.
func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		options map[string]string
		exclude []string
		want    string // options that manager one gets, or the error
	}{
		{nil, nil, "default"},
		{map[string]string{"one-x": "5"}, nil, "5"},
		{map[string]string{"one-x": "bad"}, nil, `option one-x="bad": it is bad`},
		{map[string]string{"one-y": "5"}, nil, `no option "one-y" for connecting (there are one-x, two-x)`},
		{map[string]string{"x": "5"}, nil, `no option "x"`},
		{map[string]string{"two-x": "bad"}, []string{"two"}, "default"},
	} {
		var calls []string
		list := fakes(&calls, "one", "two")
		s, err := Open(Config{Incarnation: 1, NoSecret: true, managers: list, Options: tt.options, Exclude: tt.exclude})
		switch {
		case err == nil:
			if got := list[0].(*fakeManager).option; got != tt.want {
				t.Errorf("options %v: got %q, want %q", tt.options, got, tt.want)
			}
			_ = s.Close()
		case !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), tt.want):
			t.Errorf("options %v: %v, want %s", tt.options, err, tt.want)
		}
	}
}

// A manager that cannot work here is left out with its reason, unless it was asked for; when none is left, the error
// has all reasons.
func TestManagersThatCannot(t *testing.T) {
	cannot := fmt.Errorf("%w: no such hardware", driver.ErrUnsupported)
	var calls []string
	list := fakes(&calls, "one", "two", "three")
	list[0].(*fakeManager).init, list[1].(*fakeManager).query = cannot, cannot
	s, err := Open(Config{Incarnation: 1, NoSecret: true, managers: list})
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Query(aPort("a"))
	if err != nil || !slices.Equal(m.Names(), []string{"three"}) || len(m.leftOut) != 2 {
		t.Fatalf("uses %q, left out %q (%v)", m.Names(), m.leftOut, err)
	}
	list[2].(*fakeManager).query = cannot
	_, err = s.Query(aPort("b"))
	if !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("query without a manager that can: %v, want %v", err, driver.ErrUnsupported)
	}
	for _, n := range []string{"one: ", "two: ", "three: ", "no such hardware"} {
		if !strings.Contains(err.Error(), n) {
			t.Errorf("error %q does not contain %q", err, n)
		}
	}
	_ = s.Close()
	for _, name := range []string{"one", "two"} {
		s, err := Open(Config{Incarnation: 1, NoSecret: true, managers: list, Include: []string{name, "three"}})
		if err == nil {
			_, err = s.Query(aPort("a"))
			_ = s.Close()
		}
		if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("include %s: %v, want %v", name, err, driver.ErrUnsupported)
		}
	}
	calls = nil
	list[0].(*fakeManager).init = errors.New("broken")
	if _, err := Open(Config{Incarnation: 1, NoSecret: true, managers: list[1:2]}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Incarnation: 1, NoSecret: true, managers: []Manager{list[1], list[0]}}); err == nil || calls[len(calls)-1] != "two finalize" {
		t.Errorf("open with a broken manager: %v, calls %q", err, calls)
	}
}

// A module with a priority or blob out of range is refused and finalized.
func TestModulesOutOfRange(t *testing.T) {
	for _, m := range []*fakeManager{{priority: 101}, {priority: -1}, {blob: 256}} {
		var calls []string
		m.name, m.calls = "one", &calls
		s, err := Open(Config{Incarnation: 1, NoSecret: true, managers: []Manager{m}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Query(aPort("a")); !errors.Is(err, driver.ErrInvalid) || calls[len(calls)-1] != "one finalize module a" {
			t.Errorf("%+v: %v, calls %q", m, err, calls)
		}
		_ = s.Close()
	}
}

// Ports, endpoints and configurations that make no sense are ErrInvalid.
func TestInvalidParameters(t *testing.T) {
	var calls []string
	s, err := Open(Config{Incarnation: 1, NoSecret: true, managers: fakes(&calls, "one")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for what, change := range map[string]func(*Port){
		"link layer": func(p *Port) { p.LinkLayer = 7 }, "GID type": func(p *Port) { p.GIDType = GIDInfiniBand }, "MTU": func(p *Port) { p.MTU = 1500 },
		"retry count": func(p *Port) { p.Quality.RetryCount = 7 }, "RNR retry": func(p *Port) { p.Quality.RNRRetry = 7 },
		"service level": func(p *Port) { p.Quality.ServiceLevel = 16 }, "flow label": func(p *Port) { p.Quality.FlowLabel = 1 << 20 },
		"acknowledgement": func(p *Port) { p.Quality.AckTimeout = 32 }, "RNR timer": func(p *Port) { p.Quality.MinRNRTimer = 32 },
	} {
		p := aPort("a")
		change(p)
		if _, err := s.Query(p); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, want %v that names it", what, err, driver.ErrInvalid)
		}
	}
	m, err := s.Query(aPort("a"))
	if err != nil {
		t.Fatal(err)
	}
	for what, cfg := range map[string]EndpointConfig{
		"incarnation":           {},
		"0 queue pairs":         {PeerIncarnation: 1},
		"5 queue pairs":         {PeerIncarnation: 1, QPs: make([]QP, 5)},
		"user data":             {PeerIncarnation: 1, QPs: make([]QP, 1), UserData: make([]byte, maxUserData+1)},
		"no connection manager": {PeerIncarnation: 1, QPs: make([]QP, 1), PeerCard: "other,50,AAAA"},
		"card entry":            {PeerIncarnation: 1, QPs: make([]QP, 1), PeerCard: ""},
	} {
		if _, err := m.NewEndpoint(&cfg); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, want %v that names it", what, err, driver.ErrInvalid)
		}
	}
	for what, cfg := range map[string]Config{
		"incarnation": {NoSecret: true}, "secret": {Incarnation: 1},
		"name": {Incarnation: 1, NoSecret: true, managers: fakes(&calls, "Bad Name")}, `name "one"`: {Incarnation: 1, NoSecret: true, managers: fakes(&calls, "one", "one")},
	} {
		if _, err := Open(cfg); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, want %v that names it", what, err, driver.ErrInvalid)
		}
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
