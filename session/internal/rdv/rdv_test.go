package rdv

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestSenderRefusesWhatMakesNoSense(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    Chunk
		want int
	}{
		{"beyond the message", Chunk{Off: 90, Len: 20}, 100},
		{"more than the message", Chunk{Len: 10}, 101},
		{"beyond what is wanted", Chunk{Off: 40, Len: 20}, 50},
		{"a number from the future", Chunk{ID: 1, Len: 1}, 100},
		{"negative", Chunk{Off: -1, Len: 1}, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s Sender
			s.Begin(100)
			was := s
			if start, err := s.Asked(tt.c, tt.want); start || !errors.Is(err, ErrProtocol) {
				t.Errorf("start %v, error %v, want a violation", start, err)
			}
			if s != was {
				t.Errorf("sender is %+v, was %+v", s, was)
			}
		})
	}
}

func TestFastRailGetsMore(t *testing.T) {
	var r Receiver
	const mb = 1 << 20
	r.Begin(64*mb, Rail{true, mb, 2}, Rail{true, mb, 2})
	var bytes [2]int
	var under [2][]uint32
	for !r.Complete() {
		for {
			c, ok := r.Next()
			if !ok {
				break
			}
			under[c.Rail] = append(under[c.Rail], c.ID)
			bytes[c.Rail] += c.Len
		}
		// Rail 0 does three chunks in the time of one on rail 1.
		for k, n := range []int{3, 1} {
			for ; n > 0 && len(under[k]) > 0; n-- {
				r.Done(under[k][0])
				under[k] = under[k][1:]
				if k == 0 {
					if c, ok := r.Next(); ok {
						under[c.Rail] = append(under[c.Rail], c.ID)
						bytes[c.Rail] += c.Len
					}
				}
			}
		}
	}
	if bytes[0] < 2*bytes[1] || bytes[0]+bytes[1] != 64*mb {
		t.Errorf("rails carried %v bytes", bytes)
	}
}

// Chunks cover the message once, whatever fails and however rails cut.
func TestChunksCoverTheMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.IntRange(0, 300).Draw(t, "want")
		rails := []Rail{{true, rapid.IntRange(1, 100).Draw(t, "chunk"), 2}, {true, rapid.IntRange(1, 100).Draw(t, "chunk"), 3}, {true, 7, 20}}
		var r Receiver
		r.Begin(want, rails...)
		covered := make([]int, want)
		var under []Chunk
		for steps := 0; !r.Complete(); steps++ {
			for {
				c, ok := r.Next()
				if !ok {
					break
				}
				under = append(under, c)
			}
			if len(under) == 0 || len(under) > window {
				t.Fatalf("%d chunks under way, not complete", len(under))
			}
			i := rapid.IntRange(0, len(under)-1).Draw(t, "which")
			c := under[i]
			under = append(under[:i], under[i+1:]...)
			if steps < 200 && rapid.IntRange(0, 2).Draw(t, "fails") == 0 {
				r.Failed(c.ID)
				continue
			}
			r.Done(c.ID)
			for k := c.Off; k < c.Off+c.Len; k++ {
				covered[k]++
			}
		}
		for k, n := range covered {
			if n != 1 {
				t.Fatalf("byte %d was received %d times", k, n)
			}
		}
	})
}
