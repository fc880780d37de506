package life

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// scenario is a world to start from, and its rules.
type scenario struct {
	name  string
	rules rules
	a, b  budget
}

var scenarios = []scenario{
	{"both leave", rules{}, budget{sends: 1, leaves: 1}, budget{sends: 1, leaves: 1}},
	{"one leaves twice", rules{}, budget{sends: 2, leaves: 2}, budget{}},
	{"nobody receives", rules{deaf: true}, budget{sends: 1, leaves: 1}, budget{leaves: 1}},
	{"pause and leave", rules{}, budget{sends: 1, pauses: 1}, budget{sends: 1, leaves: 1}},
	{"pause, and nobody receives", rules{deaf: true}, budget{sends: 1, leaves: 1}, budget{pauses: 1}},
	{"both pause", rules{slow: true}, budget{sends: 1, pauses: 1}, budget{sends: 1, pauses: 1}},
	{"pause twice and leave", rules{}, budget{sends: 1, leaves: 1, pauses: 2}, budget{}},
	{"forget", rules{}, budget{sends: 1, forgets: 1}, budget{sends: 1, leaves: 1}},
	{"forget and pause", rules{slow: true}, budget{sends: 1, forgets: 1, pauses: 1}, budget{pauses: 1}},
	{"slow drivers", rules{slow: true}, budget{sends: 2, leaves: 1, forgets: 1}, budget{leaves: 1}},
	{"rails are lost", rules{}, budget{sends: 1, leaves: 2, losses: 2}, budget{leaves: 1}},
	{"the peer dies", rules{}, budget{sends: 1, leaves: 1}, budget{sends: 1, deaths: 1, leaves: 1}},
	{"the peer dies in a pause", rules{}, budget{sends: 1, pauses: 1, leaves: 1}, budget{deaths: 1}},
	{"the launcher is gone", rules{slow: true}, budget{sends: 1, leaves: 1, orphans: 1}, budget{pauses: 1}},
	{"sends after a pause", rules{}, budget{sends: 2, pauses: 1}, budget{}},
	{"forget after a pause", rules{}, budget{sends: 1, pauses: 2, forgets: 1}, budget{}},
	{"rails are lost in a pause", rules{}, budget{pauses: 1, sends: 1, losses: 1}, budget{losses: 1}},
	{"the launcher is gone while closing", rules{deaf: true}, budget{sends: 1, leaves: 1}, budget{orphans: 1, leaves: 1}},
	{"the launcher is gone after a pause", rules{}, budget{sends: 1, pauses: 2, orphans: 1}, budget{}},
	{"the launcher is gone, and the peer leaves", rules{}, budget{orphans: 1}, budget{sends: 1, leaves: 1}},
	{"the peer dies while both leave", rules{}, budget{leaves: 1}, budget{sends: 2, deaths: 1}},
	{"the peer dies while both pause", rules{}, budget{pauses: 1}, budget{sends: 2, deaths: 1}},
	{"pauses again before it has connected", rules{deaf: true}, budget{sends: 1, pauses: 3}, budget{}},
	{"sends before it has connected again", rules{deaf: true}, budget{sends: 2, pauses: 2}, budget{}},
	{"forget beside one that leaves", rules{deaf: true}, budget{sends: 1, leaves: 1}, budget{forgets: 1, leaves: 1}},
	{"pause beside one that leaves", rules{deaf: true}, budget{sends: 1, leaves: 1}, budget{pauses: 1, leaves: 1}},
}

// safe reports whether nothing happens that may break a gate.
func (c *scenario) safe() bool {
	for _, b := range []budget{c.a, c.b} {
		if b.pauses+b.forgets+b.losses+b.deaths+b.orphans > 0 {
			return false
		}
	}
	return true
}

func (c *scenario) world() world { return world{{budget: c.a}, {budget: c.b}} }

// explorer visits worlds and keeps how it came to each.
type explorer struct {
	rules
	seen  map[world]int32
	nodes []visit
	steps int
	cells [States][Events]bool
	fault string
}

type visit struct {
	w    world
	from int32
	by   string
}

// try makes one move.
func (x *explorer) try(w *world, m move) run {
	r := run{world: *w, rules: x.rules, cells: &x.cells}
	m.do(&r, m.side)
	x.steps++
	return r
}

// all visits every world that can follow, up to a number of worlds, and returns the first fault.
func (x *explorer) all(start world, limit int) {
	x.seen, x.nodes = map[world]int32{start: 0}, []visit{{w: start, from: -1}}
	var list []move
	for at := 0; at < len(x.nodes) && x.fault == "" && len(x.nodes) < limit; at++ {
		w := x.nodes[at].w
		list = w.moves(w.moves(list[:0], 0, x.rules), 1, x.rules)
		quiet := true
		for _, m := range list {
			r := x.try(&w, m)
			by := fmt.Sprint(m.side, " ", m.name)
			quiet = quiet && (fate(m.name) || r.world == w)
			if r.fault != "" {
				x.fault = r.fault + "\n" + x.trace(at) + by
				return
			}
			if _, ok := x.seen[r.world]; !ok {
				x.seen[r.world] = int32(len(x.nodes))
				x.nodes = append(x.nodes, visit{r.world, int32(at), by})
			}
		}
		if quiet {
			r := run{world: w, rules: x.rules, cells: &x.cells}
			if r.end(); r.fault != "" {
				x.fault = r.fault + "\n" + x.trace(at)
			}
		}
	}
}

// fate reports whether a move need not happen.
func fate(name string) bool {
	switch name {
	case "sends", "disconnects", "resumes", "quiesces", "forgets", "loses a rail", "loses the last rail",
		"loses the launcher", "dies, and another takes its place", "is asked late":
		return true
	}
	return false
}

func (x *explorer) trace(at int) string {
	var b []string
	for ; at > 0; at = int(x.nodes[at].from) {
		b = append([]string{x.nodes[at].by}, b...)
	}
	return strings.Join(b, "\n") + "\n"
}

// walk goes one random way to the end.
func (x *explorer) walk(w world, random *rand.Rand) {
	var trace []string
	for range 400 {
		list := w.moves(w.moves(nil, 0, x.rules), 1, x.rules)
		var live []move
		for _, m := range list {
			if r := x.try(&w, m); r.world != w || r.fault != "" {
				live = append(live, m)
			}
		}
		quiet := true
		for _, m := range live {
			quiet = quiet && fate(m.name)
		}
		if quiet {
			r := run{world: w, rules: x.rules, cells: &x.cells}
			if r.end(); r.fault != "" {
				x.fault = r.fault + "\n" + strings.Join(trace, "\n")
				return
			}
		}
		if len(live) == 0 {
			return
		}
		m := live[random.IntN(len(live))]
		trace = append(trace, fmt.Sprint(m.side, " ", m.name))
		r := x.try(&w, m)
		if r.fault != "" {
			x.fault = r.fault + "\n" + strings.Join(trace, "\n")
			return
		}
		w = r.world
		x.seen[w]++
	}
}

// In every order of events a connection ends once and for both, no wish is lost and nothing waits for ever. Each cell
// of the table is reached or shown to be impossible.
func TestEveryOrderOfEvents(t *testing.T) {
	limit := 20_000
	if os.Getenv("BYWASH_SOAK") != "" {
		limit = 1_000_000
	}
	var cells [States][Events]bool
	for _, c := range scenarios {
		x := explorer{rules: c.rules, cells: cells}
		x.safe = c.safe()
		x.all(c.world(), limit)
		cells = x.cells
		t.Logf("%s: %d states, %d transitions", c.name, len(x.nodes), x.steps)
		if x.fault != "" {
			t.Errorf("%s: %s", c.name, x.fault)
		}
	}
	x := explorer{cells: cells}
	x.random(t)
	cells = x.cells
	if testing.Verbose() {
		t.Log(table(&cells))
	}
	for s := range States {
		for e := range Events {
			if !cells[s][e] && Impossible(s, e) == "" {
				t.Errorf("%v in %v: neither reached nor impossible", e, s)
			}
		}
	}
}

// random has both gates live long random lives, with everything at once. BYWASH_SEED repeats one.
func (x *explorer) random(t *testing.T) {
	walks, first := 2000, uint64(1)
	if os.Getenv("BYWASH_SOAK") != "" {
		walks = 50_000
	}
	if v, err := strconv.ParseUint(os.Getenv("BYWASH_SEED"), 10, 64); err == nil {
		walks, first = 1, v
	}
	x.seen, x.steps = map[world]int32{}, 0
	for seed := first; seed < first+uint64(walks); seed++ {
		random := rand.New(rand.NewPCG(seed, 0))
		some := func() budget {
			n := func() uint8 { return uint8(random.IntN(4)) }
			return budget{
				sends: n(), leaves: n(), pauses: n(),
				forgets: n() / 3, losses: n() / 2, deaths: n() / 3, orphans: n() / 3,
			}
		}
		x.rules = rules{deaf: random.IntN(3) == 0, slow: random.IntN(2) == 0}
		if x.walk(world{{budget: some()}, {budget: some()}}, random); x.fault != "" {
			t.Fatalf("BYWASH_SEED=%d: %s", seed, x.fault)
		}
	}
	t.Logf("random lives: %d states, %d transitions", len(x.seen), x.steps)
}

// Two gates whose requests have no number connect again after both have closed, if a request comes late.
func TestLateRequestWithoutNumberIsFound(t *testing.T) {
	x := explorer{rules: rules{unnumbered: true}}
	x.all(world{{budget: budget{sends: 1, leaves: 1}}, {budget: budget{leaves: 1}}}, 200_000)
	if !strings.Contains(x.fault, "connects without need") {
		t.Errorf("the explorer does not find it in %d states: %s", len(x.nodes), x.fault)
	}
	t.Log(x.fault)
}

// table shows what the explorer has reached.
func table(cells *[States][Events]bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "x: reached, -: impossible\n%16s", "")
	for e := range Events {
		fmt.Fprintf(&b, " %.6s", fmt.Sprintf("%-6s", e))
	}
	for s := range States {
		fmt.Fprintf(&b, "\n%-16s", s)
		for e := range Events {
			mark := "?"
			if Impossible(s, e) != "" {
				mark = "-"
			} else if cells[s][e] {
				mark = "x"
			}
			fmt.Fprintf(&b, " %-6s", mark)
		}
	}
	return b.String()
}
