//go:build linux

package bench

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSizesAreParsed(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []int
	}{
		{"", nil}, {"8", []int{8}}, {"0", []int{0}}, {"4K", []int{4096}}, {"1G", []int{1 << 30}},
		{"1:8", []int{1, 2, 4, 8}}, {"3:13", []int{3, 6, 12}}, {"8,1M,8", []int{8, 1 << 20}}, {"64:64", []int{64}},
	} {
		got, err := ParseSizes(c.in)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("ParseSizes(%q) = %v, %v; want %v", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{"x", "-1", "2G", "K", "8:4", "0:8", "1:", ":8", "8,,9", "+8", "99999999999999999999", "1e3", "8 "} {
		if got, err := ParseSizes(in); err == nil {
			t.Errorf("ParseSizes(%q) = %v, want an error", in, got)
		}
	}
}

// A measurement stops also when its operations never wait.
func TestStopBetweenOperations(t *testing.T) {
	cause := errors.New("stopped")
	for _, lead := range []bool{true, false} {
		stop := NewStopper(t.Context())
		j := &Round{N: 1 << 30, Lead: lead, Stop: stop, Rec: NewRecorder()}
		n := 0
		err := j.Timed(func(uint64) error {
			if n++; n == 10 {
				stop.Stop(cause)
			}
			if n > 10 {
				time.Sleep(time.Millisecond)
			}
			if n > 10_000 {
				t.Fatal("it does not stop")
			}
			return nil
		})
		if !errors.Is(err, cause) {
			t.Errorf("lead %v: %v, want %v", lead, err, cause)
		}
	}
}

func FuzzParseSizes(f *testing.F) {
	for _, s := range []string{"8", "1:4M", "1K,2K", "0", ":"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sizes, err := ParseSizes(s)
		for _, n := range sizes {
			if err != nil || n < 0 || n > maxSize {
				t.Fatalf("ParseSizes(%q) = %v, %v", s, sizes, err)
			}
		}
	})
}

// A plan or case that is accepted has values within their limits.
func FuzzPlan(f *testing.F) {
	f.Add([]byte(`{"driver":"shm"}`), []byte(`{"test":"lat","wait":"poll","mem":"heap"}`))
	f.Add([]byte(`{"driver":"shm","peers":4,"places":[{}],"cpus":[0,1,0]}`), []byte(`{"test":"lat","size":-1}`))
	f.Fuzz(func(t *testing.T, b, order []byte) {
		var p Plan
		if json.Unmarshal(b, &p) == nil && p.Check(2) == nil && p.Size() != 2 {
			t.Fatalf("accepted %+v", p)
		}
		var c Case
		if json.Unmarshal(order, &c) == nil && c.Check() == nil && (c.Size < 0 || c.Size > maxSize || InfoOf(c.Test) == nil) {
			t.Fatalf("accepted %+v", c)
		}
	})
}

// A plan whose sizes, peers, ranks or options are out of range is refused.
func TestFollowerRefusesPlans(t *testing.T) {
	for _, p := range []Plan{
		{Peers: -1}, {Peers: maxPeers + 1}, {Peers: 1}, {Ranks: 3}, {Ranks: -1},
		{Options: map[string]string{"path": strings.Repeat("x", MaxOptions)}},
	} {
		if p.Check(2) == nil {
			t.Errorf("taken: %.100v", p)
		}
	}
}

func TestPercentilesAreOfHalfRoundTrips(t *testing.T) {
	r := NewRecorder()
	r.Reset(time.Microsecond, true)
	if r.batch != 10 {
		t.Errorf("batch for 1 µs = %d, want 10", r.batch)
	}
	for i := 1; i <= 100; i++ {
		r.Add(time.Duration(i)*20*time.Microsecond, 10) // i µs half a round trip
	}
	l := r.Latencies()
	for _, c := range []struct {
		name      string
		got, want float64
	}{{"p50", l.P50, 50}, {"p99", l.P99, 99}, {"max", l.Max, 100}, {"avg", l.Avg, 50.5}} {
		if c.got < c.want*0.999 || c.got > c.want*1.002 {
			t.Errorf("%s = %v µs, want %v", c.name, c.got, c.want)
		}
	}
	for _, c := range []struct {
		op   time.Duration
		want int
	}{{0, 1}, {time.Nanosecond, 64}, {200 * time.Nanosecond, 50}, {6 * time.Microsecond, 1}, {time.Second, 1}} {
		if got := batchFor(c.op); got != c.want {
			t.Errorf("batchFor(%v) = %d, want %d", c.op, got, c.want)
		}
	}
}

func TestPatternFindsEveryWrongByte(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 64, 1001} {
		b := make([]byte, n)
		Fill(b, 7)
		if err := Verify(b, 7); err != nil {
			t.Fatal(err)
		}
		for i := range b {
			b[i] ^= 1
			if Verify(b, 7) == nil {
				t.Errorf("byte %d of %d is wrong and was not found", i, n)
			}
			b[i] ^= 1
		}
		if n > 0 && Verify(b, 8) == nil {
			t.Errorf("message 7 of %d bytes passed for message 8", n)
		}
	}
}

func TestAllocationsOnTheDataPath(t *testing.T) {
	b := make([]byte, 4096)
	if n := testing.AllocsPerRun(100, func() { Fill(b, 1); _ = Verify(b, 1) }); n != 0 {
		t.Errorf("pattern: %v allocations", n)
	}
	r := NewRecorder()
	if n := testing.AllocsPerRun(100, func() { r.Add(time.Microsecond, 10) }); n != 0 {
		t.Errorf("recorder: %v allocations", n)
	}
}
