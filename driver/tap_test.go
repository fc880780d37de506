package driver_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/bywash/bywash/driver"
)

type recorder []string

func (r *recorder) Frame(f driver.Frame) { *r = append(*r, string(f.Data)) }

func show(t *driver.Tap, text string) {
	for _, s := range t.Sinks() {
		s.Frame(driver.Frame{Data: []byte(text)})
	}
}

func TestTapShowsThoseWhoAreAttached(t *testing.T) {
	tap := &driver.Tap{Driver: "x", Device: "eth0"}
	var a, b recorder
	show(tap, "0")
	tap.Attach(&a)
	show(tap, "1")
	tap.Attach(&b)
	show(tap, "2")
	tap.Detach(&a)
	show(tap, "3")
	tap.Detach(&a)
	tap.Detach(&b)
	show(tap, "4")
	if !slices.Equal(a, recorder{"1", "2"}) || !slices.Equal(b, recorder{"2", "3"}) {
		t.Errorf("sinks saw %q and %q, want [1 2] and [2 3]", a, b)
	}
	if tap.Sinks() != nil {
		t.Error("nobody is attached, and Sinks is not nil")
	}
}

func TestWatchersLearnOfEveryTap(t *testing.T) {
	before, later := &driver.Tap{Device: "before"}, &driver.Tap{Device: "later"}
	driver.AddTap(before)
	defer driver.RemoveTap(before)
	var got []string
	stop := driver.WatchTaps(func(t *driver.Tap, open bool) {
		if t == before || t == later {
			got = append(got, fmt.Sprint(t.Device, " ", open))
		}
	})
	driver.AddTap(later)
	driver.RemoveTap(later)
	driver.RemoveTap(later)
	stop()
	driver.RemoveTap(before)
	if want := []string{"before true", "later true", "later false"}; !slices.Equal(got, want) {
		t.Errorf("told of %q, want %q", got, want)
	}
}

// What a tap costs when nobody captures.
func BenchmarkTapIdle(b *testing.B) {
	tap := &driver.Tap{}
	for b.Loop() {
		if tap.Sinks() != nil {
			b.Fatal("attached")
		}
	}
}
