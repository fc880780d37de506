package match_test

import (
	"slices"
	"testing"

	"github.com/bywash/bywash/session/internal/match"
	"pgregory.net/rapid"
)

// model is the same in the plainest way: two lists that are searched.
type model struct {
	posted  []*match.Receive
	place   map[*match.Receive]int
	arrived []*match.Arrival
}

func (m *model) post(r *match.Receive) *match.Arrival {
	if a := m.peek(&r.Pattern); a != nil {
		m.take(a)
		return a
	}
	if m.place == nil {
		m.place = make(map[*match.Receive]int)
	}
	if m.place[r] == 0 {
		m.place[r] = len(m.place) + 1
	}
	m.posted = append(m.posted, r)
	slices.SortFunc(m.posted, func(a, b *match.Receive) int { return m.place[a] - m.place[b] })
	return nil
}

func (m *model) arrive(from uint32, tag uint64) *match.Receive {
	for _, r := range m.posted {
		if r.Matches(from, tag) {
			m.cancel(r)
			return r
		}
	}
	return nil
}

func (m *model) cancel(r *match.Receive) bool {
	for i := range m.posted {
		if m.posted[i] == r {
			m.posted = append(m.posted[:i:i], m.posted[i+1:]...)
			return true
		}
	}
	return false
}

func (m *model) peek(p *match.Pattern) *match.Arrival {
	for _, a := range m.arrived {
		if p.Matches(a.From, a.Tag) {
			return a
		}
	}
	return nil
}

func (m *model) take(a *match.Arrival) bool {
	for i := range m.arrived {
		if m.arrived[i] == a {
			m.arrived = append(m.arrived[:i:i], m.arrived[i+1:]...)
			return true
		}
	}
	return false
}

// In any order of calls, the table pairs as two lists would. There are more masks than the table has classes.
func TestPairsAsTwoListsWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, m := match.New(), new(model)
		var matched []*match.Receive
		from := rapid.Uint32Range(0, 3)
		tag := rapid.Uint64Range(0, 31)
		mask := rapid.SampledFrom([]uint64{match.Exact, match.Exact, match.Exact, 0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 1 << 63})
		source := rapid.Custom(func(t *rapid.T) uint32 {
			if rapid.IntRange(0, 3).Draw(t, "any") == 0 {
				return match.Any
			}
			return from.Draw(t, "from")
		})
		pattern := func() match.Pattern {
			return match.Pattern{From: source.Draw(t, "source"), Tag: tag.Draw(t, "tag"), Mask: mask.Draw(t, "mask")}
		}
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			switch rapid.IntRange(0, 10).Draw(t, "step") {
			case 0, 1, 2, 3:
				r := &match.Receive{Pattern: pattern()}
				want := m.post(r)
				if got := table.Post(r); got != want {
					t.Fatalf("post %+v took %v, want %v", r.Pattern, got, want)
				}
			case 4, 5, 6, 7:
				f, g := from.Draw(t, "from"), tag.Draw(t, "tag")
				want := m.arrive(f, g)
				if got := table.Arrive(f, g); got != want {
					t.Fatalf("arrival %d %d went to %v, want %v", f, g, got, want)
				}
				if want != nil {
					matched = append(matched, want)
				} else {
					a := &match.Arrival{From: f, Tag: g}
					m.arrived = append(m.arrived, a)
					table.Keep(a)
				}
			case 8:
				p := pattern()
				want := m.peek(&p)
				if got := table.Peek(&p); got != want {
					t.Fatalf("peek %+v found %v, want %v", p, got, want)
				}
				if want != nil && rapid.Bool().Draw(t, "take") {
					if !m.take(want) || !table.Take(want) || table.Take(want) {
						t.Fatal("Take of an arrival in the table must work once")
					}
				}
			case 9:
				if len(m.posted) == 0 {
					continue
				}
				r := m.posted[rapid.IntRange(0, len(m.posted)-1).Draw(t, "which")]
				if !m.cancel(r) || !table.Cancel(r) || table.Cancel(r) {
					t.Fatal("cancelling what is posted works once")
				}
			case 10:
				if len(matched) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(matched)-1).Draw(t, "which")
				r := matched[i]
				matched = slices.Delete(matched, i, i+1)
				want := m.post(r)
				if got := table.PostAgain(r); got != want {
					t.Fatalf("post %+v again took %v, want %v", r.Pattern, got, want)
				}
			}
			if table.Posted() != len(m.posted) || table.Waiting() != len(m.arrived) {
				t.Fatalf("%d posted, %d waiting, want %d, %d", table.Posted(), table.Waiting(), len(m.posted), len(m.arrived))
			}
		}
	})
}

func TestCancelFromLeavesOtherSources(t *testing.T) {
	table := match.New()
	var mine, all int
	for i := range 3000 {
		from := uint32(i % 3)
		if i%5 == 0 {
			from = match.Any
		}
		if from == 1 {
			mine++
		}
		all++
		table.Post(&match.Receive{Pattern: match.Pattern{From: from, Tag: uint64(i), Mask: match.Exact << (i % 12)}})
	}
	if !table.Awaits(1) || table.Awaits(9) {
		t.Fatalf("awaits 1: %v, awaits 9: %v", table.Awaits(1), table.Awaits(9))
	}
	n := 0
	table.CancelFrom(1, func(r *match.Receive) {
		if r.From != 1 || r.Posted() {
			t.Fatalf("cancelled %+v", r.Pattern)
		}
		n++
	})
	if n != mine || table.Posted() != all-mine || table.Awaits(1) || !table.Awaits(2) {
		t.Fatalf("cancelled %d of %d, %d left of %d", n, mine, table.Posted(), all)
	}
	table.CancelAll(func(*match.Receive) { n++ })
	if n != all || table.Posted() != 0 {
		t.Fatalf("cancelled %d of %d", n, all)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	table := match.New()
	rs := make([]match.Receive, 1000)
	as := make([]match.Arrival, 1000)
	round := func() {
		for i := range rs {
			rs[i].Pattern = match.Pattern{From: uint32(i % 7), Tag: uint64(i), Mask: match.Exact}
			if i%3 == 0 {
				rs[i].From = match.Any
			}
			table.Post(&rs[i])
		}
		for i := range rs {
			if table.Arrive(uint32(i%7), uint64(i)) != &rs[i] {
				t.Fatal("wrong receive")
			}
		}
		for i := range as {
			as[i].From, as[i].Tag = uint32(i%7), uint64(i)
			table.Keep(&as[i])
		}
		for i := range as {
			if table.Post(&rs[i]) != &as[i] {
				t.Fatal("wrong arrival")
			}
		}
	}
	round()
	if n := testing.AllocsPerRun(10, round); n != 0 {
		t.Fatalf("%v allocations, want none", n)
	}
}

func benchmarkPosted(b *testing.B, posted int, any bool) {
	table := match.New()
	rs := make([]match.Receive, posted)
	for i := range rs {
		rs[i].Pattern = match.Pattern{From: 1, Tag: uint64(i), Mask: match.Exact}
		if any && i%2 == 1 {
			rs[i].From = match.Any
		}
		table.Post(&rs[i])
	}
	b.ReportAllocs()
	i := uint64(0)
	for b.Loop() {
		r := table.Arrive(1, i)
		table.Post(r)
		if i++; i == uint64(posted) {
			i = 0
		}
	}
}

func BenchmarkArrive1(b *testing.B)       { benchmarkPosted(b, 1, false) }
func BenchmarkArrive1000(b *testing.B)    { benchmarkPosted(b, 1000, false) }
func BenchmarkArriveAny2(b *testing.B)    { benchmarkPosted(b, 2, true) }
func BenchmarkArriveAny1000(b *testing.B) { benchmarkPosted(b, 1000, true) }
