//go:build linux

package veth

import (
	"testing"
	"time"
)

// A frame of 1000 bytes takes 1 ms at the rate of these tests.
func TestShaper(t *testing.T) {
	const ms = time.Millisecond
	type frame struct{ at, due time.Duration } // due 0: dropped from the tail
	tests := []struct {
		name   string
		box    Box
		frames []frame
	}{
		{"delay alone", Box{Delay: 5 * ms}, []frame{{0, 5 * ms}, {0, 5 * ms}, {ms, 6 * ms}}},
		{"rate alone", Box{Rate: 1e6, Queue: 9}, []frame{{0, ms}, {0, 2 * ms}, {5 * ms, 6 * ms}}},
		{"rate, then delay", Box{Rate: 1e6, Queue: 9, Delay: 5 * ms}, []frame{{0, 6 * ms}, {0, 7 * ms}, {ms, 8 * ms}}},
		{"the tail is dropped", Box{Rate: 1e6, Queue: 2}, []frame{{0, ms}, {0, 2 * ms}, {0, 3 * ms}, {0, 0}, {0, 0}}},
		{"a frame that is being sent does not wait", Box{Rate: 1e6, Queue: 2}, []frame{
			{0, ms}, {0, 2 * ms}, {0, 3 * ms}, {ms - 1, 0}, {ms, 4 * ms}, {ms, 0}, {2 * ms, 5 * ms},
		}},
		{"frames in flight do not wait", Box{Rate: 1e6, Queue: 1, Delay: time.Hour}, []frame{
			{0, time.Hour + ms}, {0, time.Hour + 2*ms}, {0, 0}, {ms, time.Hour + 3*ms},
		}},
		{"the lowest rate", Box{Rate: 1, Queue: 1}, []frame{{0, 1000 * time.Second}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newShaper(tt.box, 0)
			for k, f := range tt.frames {
				v := s.admit(f.at, 1000)
				want := verdict{due: f.due, copies: 1}
				if f.due == 0 {
					want = verdict{reason: dropped}
				}
				if v != want {
					t.Errorf("frame %d at %v: got %+v, want %+v", k, f.at, v, want)
				}
			}
		})
	}
}
