package kit_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/bywash/bywash/internal/kit"
)

type recorder []string

func (r *recorder) Frame(f kit.Frame) { *r = append(*r, string(f.Data)) }

func show(t *kit.Tap, text string) {
	for _, s := range t.Sinks() {
		s.Frame(kit.Frame{Data: []byte(text)})
	}
}

func TestTapShowsFramesToAttachedReaders(t *testing.T) {
	tap := &kit.Tap{Driver: "x", Device: "eth0"}
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
		t.Error("no reader is attached, and Sinks is not nil")
	}
}

func TestWatchersLearnOfEveryTap(t *testing.T) {
	before, later := &kit.Tap{Device: "before"}, &kit.Tap{Device: "later"}
	kit.AddTap(before)
	defer kit.RemoveTap(before)
	var got []string
	stop := kit.WatchTaps(func(t *kit.Tap, open bool) {
		if t == before || t == later {
			got = append(got, fmt.Sprint(t.Device, " ", open))
		}
	})
	kit.AddTap(later)
	kit.RemoveTap(later)
	kit.RemoveTap(later)
	stop()
	kit.RemoveTap(before)
	if want := []string{"before true", "later true", "later false"}; !slices.Equal(got, want) {
		t.Errorf("notified of %q, want %q", got, want)
	}
}

// The cost of a tap while no process captures.
func BenchmarkTapIdle(b *testing.B) {
	tap := &kit.Tap{}
	for b.Loop() {
		if tap.Sinks() != nil {
			b.Fatal("attached")
		}
	}
}
