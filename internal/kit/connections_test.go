package kit_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

type connection struct {
	num  uint32
	life kit.Life
}

func newConnections() *kit.Connections[connection] {
	s := &kit.Connections[connection]{}
	s.Init(func(c *connection) *kit.Life { return &c.life })
	return s
}

func add(t *testing.T, s *kit.Connections[connection]) *connection {
	t.Helper()
	num, err := s.Free()
	if err != nil {
		t.Fatal(err)
	}
	c := &connection{num: num}
	c.life.Init("test", "test://peer", num, &s.Ready, new(kit.AnyWaits))
	s.Put(num, c)
	s.Open(c)
	establish(t, &c.life)
	return c
}

func TestNumbersAreUnique(t *testing.T) {
	s := newConnections()
	var all []*connection
	for range kit.MaxInstances {
		all = append(all, add(t, s))
	}
	for k, c := range all {
		if s.At(c.num) != c {
			t.Fatalf("connection %d has another's number, %d", k, c.num)
		}
	}
	if _, err := s.Free(); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("one more: %v, want busy", err)
	}
	gone := all[7000]
	s.Remove(gone.num, gone)
	if k, err := s.Free(); err != nil || k != gone.num || s.At(k) != nil {
		t.Errorf("%d, %v, want the one number that is free, %d", k, err, gone.num)
	}
}

func TestNumbersRestAndStayLow(t *testing.T) {
	s := newConnections()
	var last uint32
	for k := range 10 * kit.MaxInstances {
		c := add(t, s)
		if k > 0 && c.num == last {
			t.Fatalf("number %d is given again at once", last)
		}
		last = c.num
		s.Remove(c.num, c)
	}
	for range 1000 {
		c := add(t, s)
		if c.num > 256 {
			t.Fatalf("number %d, though no other connection is open", c.num)
		}
		s.Remove(c.num, c)
	}
}

func TestReadyConnectionsAreNamed(t *testing.T) {
	s := newConnections()
	a, b, c := add(t, s), add(t, s), add(t, s)
	if x := s.TakeReady(); x != nil {
		t.Errorf("connection %d is ready", x.num)
	}
	for _, x := range []*connection{a, b, c} {
		x.life.Arrived()
	}
	s.Remove(b.num, b)
	got := []*connection{s.TakeReady(), s.TakeReady()}
	if s.TakeReady() != nil || !slices.Contains(got, a) || !slices.Contains(got, c) {
		t.Errorf("named %v, want those that are there", got)
	}
}

func TestCountersOutliveConnections(t *testing.T) {
	s := newConnections()
	a, b := add(t, s), add(t, s)
	for _, x := range []*connection{a, b} {
		x.life.Sent(100)
	}
	check := func(when string) {
		t.Helper()
		var sum driver.Counters
		s.Counters(&sum)
		if sum.BytesSent != 200 || sum.Connects != 2 {
			t.Errorf("%s: %+v", when, sum)
		}
	}
	check("open")
	s.Remove(a.num, a)
	check("one is removed")
	if l := s.List(); s.Len() != 1 || len(l) != 1 || l[0] != b {
		t.Errorf("open: %v", l)
	}
	s.Remove(b.num, b)
	check("all are removed")
}
