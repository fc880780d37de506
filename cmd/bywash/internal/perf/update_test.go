package perf

import (
	"context"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session/launch"
)

func TestUpdatesOfRdvDataReachTheSender(t *testing.T) {
	for _, mode := range []struct{ driver, wait, mem string }{
		{"amender", "poll", "arena"}, {"amender", "block", "heap"}, {"amenderbare", "poll", "heap"},
	} {
		c := config(mode.driver, BW, BiBW, Lat)
		c.Wait, c.Mem, c.Validate = mode.wait, mode.mem, true
		// Small messages after large ones: nothing may be left for them.
		c.Sizes = []int{64, 256 << 10, 1 << 20}
		if raceEnabled || testing.Short() { // checking bytes takes some seconds, and with -race most of a minute
			c.Sizes = []int{64, 1 << 10, 64 << 10}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		var got collector
		err := Run(ctx, c, &got)
		cancel()
		if err != nil || len(got.results) != 9 {
			t.Errorf("%+v: %v, %d results, want 9; missing: %v", mode, err, len(got.results), got.missing)
		}
	}
}

// loop is a link whose both ends are in this process.
func loop(t *testing.T, name string, c Case) *link {
	t.Helper()
	b, err := open(&setup{
		plan: plan{Driver: name, MaxSize: c.Size}, job: launch.Alone(), lead: true, local: true, stop: newStopper(t.Context()),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.close() })
	l := b.(*link)
	if err := l.reach(l.links()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.prepare(&c); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestUpdatesAreKeptUntilTheSendIsPosted(t *testing.T) {
	c := Case{Test: Lat, Size: 1 << 20, Wait: "poll", Mem: "arena", Validate: true}
	l := loop(t, "amender", c)
	snd, rcv := l.snd.(*largeSender), l.rcv.(*largeReceiver)
	j := &job{Case: c, n: 10, stop: l.s.stop}
	snd.begin(j.n)
	rcv.begin(j.n)
	snd.limit = 0
	kept := 0
	for range 10000 {
		if _, err := snd.step(); err != nil {
			t.Fatal(err)
		}
		if _, err := rcv.step(); err != nil {
			t.Fatal(err)
		}
	}
	for k := range snd.up.early {
		kept += len(snd.up.early[k].ends)
	}
	if kept < 2 || snd.sent != 0 {
		t.Errorf("%d updates are kept while %d sends are posted, want some and none", kept, snd.sent)
	}
	snd.limit = j.n
	if err := l.settle(j, snd, rcv); err != nil {
		t.Fatal(err)
	}
}

func TestUpdatesDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, name := range []string{"shm", "amender", "amenderbare"} {
		c := Case{Test: BiBW, Size: 256 << 10, Wait: "poll", Mem: "arena"}
		l := loop(t, name, c)
		j := &job{Case: c, n: 50, stop: l.s.stop, yield: true}
		once := func() {
			l.snd.begin(j.n)
			l.rcv.begin(j.n)
			if err := runFlows(j, l.snd, l.rcv); err != nil {
				t.Fatal(err)
			}
		}
		once()
		least := testing.AllocsPerRun(5, once)
		for range 3 { // others in this process allocate, too, now and then
			least = min(least, testing.AllocsPerRun(5, once))
		}
		if least >= float64(j.n)/10 {
			t.Errorf("%s: %v allocations for %d messages", name, least, j.n)
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
		{"request", mailPlain, make([]byte, 16), true},
		{"request beyond RdvSize", mailPlain, make([]byte, 17), false},
		{"update of a message that is done", mailUpdate, update(0, 1), true},
		{"update of a message that is not posted", mailUpdate, update(2, 1), true},
		{"update of a message that was not requested", mailUpdate, update(3, 1), false},
		{"update of a message far off", mailUpdate, update(0, 1, 1)[1:], false},
		{"update without a number", mailUpdate, []byte{1}, false},
		{"end before all requests", mailOver, nil, false},
	} {
		x := &largeSender{box: &mailbox{kind: c.kind}, slots: make([]slot, 4), n: 10, requested: 3, sent: 2, tail: 2}
		for k := range x.slots {
			x.slots[k].rdv = make([]byte, 16)
		}
		x.up = newUpdateSink(nil, 16, len(x.slots))
		if err := x.read(c.b); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for _, updates := range []bool{false, true} {
		for kind := range byte(4) {
			m := mailbox{updates: updates, inBuf: []byte{kind, 1}, in: driver.Packet{N: 2}}
			_, _, err := m.take(make([]byte, 1))
			if want := kind == mailPlain || updates && kind <= mailOver; (err == nil) != want {
				t.Errorf("mail of kind %d, updates %v: %v", kind, updates, err)
			}
		}
	}
}

func TestUpdatesOfOneEndOnlyAreRefused(t *testing.T) {
	l := &link{s: &setup{plan: plan{Driver: "verbs"}}}
	if err := l.start([]byte{1}); !unavailable(err) {
		t.Errorf("the other end has updates, this one has none: %v", err)
	}
	l.lcaps.RdvUpdate = true
	if err := l.start([]byte{1}); err != nil {
		t.Errorf("both ends have updates: %v", err)
	}
}
