//go:build linux

package workload

import (
	"encoding/binary"
	"testing"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/launch"
)

// loop is a link whose both ends are in this process.
func loop(t *testing.T, name string, c bench.Case) *link {
	t.Helper()
	b, err := Open(&bench.Setup{
		Plan: bench.Plan{Driver: name}, Job: launch.Alone(), Lead: true, Local: true, Stop: bench.NewStopper(t.Context()),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	l := b.(*link)
	if err := l.reach(l.links()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Prepare(&c); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestUpdatesAreKeptUntilTheSendIsPosted(t *testing.T) {
	c := bench.Case{Test: bench.Lat, Size: 1 << 20, Wait: "poll", Mem: "arena", Validate: true}
	l := loop(t, "inparts", c)
	snd, rcv := l.snd, l.rcv
	rcv.mask = snd.mask // this end receives what it sends
	j := &bench.Round{Case: c, N: 10, Stop: l.s.Stop}
	snd.begin(j.N, 0)
	rcv.begin(j.N, j.N)
	kept := 0
	for range 10000 {
		if _, err := snd.step(); err != nil {
			t.Fatal(err)
		}
		if _, err := rcv.step(); err != nil {
			t.Fatal(err)
		}
	}
	for k := range snd.early {
		for b := snd.early[k]; len(b) > 0; b = b[4+binary.LittleEndian.Uint32(b):] {
			kept++
		}
	}
	if kept < 2 || snd.posted != 0 {
		t.Errorf("%d updates are kept while %d sends are posted, want some and none", kept, snd.posted)
	}
	snd.limit = j.N
	if err := l.pump(j, true); err != nil {
		t.Fatal(err)
	}
}

func TestUpdatesDoNotAllocate(t *testing.T) {
	if RaceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, name := range []string{"shm", "inparts", "inpartsbare"} {
		c := bench.Case{Test: bench.BiBW, Size: 256 << 10, Wait: "poll", Mem: "arena"}
		l := loop(t, name, c)
		j := &bench.Round{Case: c, N: 50, Stop: l.s.Stop, Yield: true}
		once := func() {
			l.snd.begin(j.N, j.N)
			l.rcv.begin(j.N, j.N)
			if err := l.pump(j, true); err != nil {
				t.Fatal(err)
			}
		}
		once()
		least := testing.AllocsPerRun(5, once)
		for range 3 { // others in this process allocate, too, now and then
			least = min(least, testing.AllocsPerRun(5, once))
		}
		if least >= float64(j.N)/10 {
			t.Errorf("%s: %v allocations for %d messages", name, least, j.N)
		}
	}
}

func TestMailThatDoesNotBelongIsRefused(t *testing.T) {
	update := func(seq byte, more ...byte) []byte { return append([]byte{seq, 0, 0, 0, 0, 0, 0, 0}, more...) }
	for _, c := range []struct {
		name string
		kind byte
		b    []byte
		ok   bool
	}{
		{"request", controlPlain, make([]byte, 16), true},
		{"request beyond RdvSize", controlPlain, make([]byte, 17), false},
		{"update of a message that is done", controlUpdate, update(0, 1), true},
		{"update of a message that is not posted", controlUpdate, update(2, 1), true},
		{"update of a message that was not requested", controlUpdate, update(3, 1), false},
		{"update of a message far off", controlUpdate, update(0, 1, 1)[1:], false},
		{"update without a number", controlUpdate, []byte{1}, false},
		{"end before all requests", controlOver, nil, false},
	} {
		x := &sender{requested: 3}
		x.direction = direction{box: &controlLink{kind: c.kind}, slots: make([]slot, 4), n: 10, posted: 2, tail: 2}
		x.early = make([][]byte, len(x.slots))
		for k := range x.slots {
			x.slots[k].rdv = make([]byte, 16)
		}
		if err := x.read(c.b); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for _, updates := range []bool{false, true} {
		for kind := range byte(4) {
			m := controlLink{updates: updates, in: &slot{buf: []byte{kind, 1}, p: driver.Packet{N: 2}}}
			_, _, err := m.take(make([]byte, 1))
			if want := kind == controlPlain || updates && kind <= controlOver; (err == nil) != want {
				t.Errorf("control message of kind %d, updates %v: %v", kind, updates, err)
			}
		}
	}
}

func TestUpdatesOfOneEndOnlyAreRefused(t *testing.T) {
	l := &link{s: &bench.Setup{Plan: bench.Plan{Driver: "verbs"}}}
	if err := l.Start([]byte{1}); !bench.Unavailable(err) {
		t.Errorf("the other end has updates, this one has none: %v", err)
	}
	l.lcaps.RdvUpdate = true
	if err := l.Start([]byte{1}); err != nil {
		t.Errorf("both ends have updates: %v", err)
	}
}
