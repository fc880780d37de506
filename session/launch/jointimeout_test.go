//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// Rank 0 prints which ranks are missing, then gives them up: its fence fails with their number, and they are refused.
func TestRank0NamesMissingRanks(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	secret := NewSecret()
	ln, err := Listen(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(ln, 5, secret)
	defer s.Close()
	var jobs []Job
	for _, rank := range []int{0, 2} {
		j, err := Join(ctx, s.Addr(), rank, 5, secret)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		jobs = append(jobs, j)
	}
	lines := make(chan string, 1)
	s.limitJoining(func(line string) { lines <- line }, time.Millisecond, 20*time.Millisecond)
	if line := <-lines; !strings.Contains(line, "for ranks 1, 3-4 to join at "+s.Addr()) {
		t.Errorf("rank 0 prints %q", line)
	}
	for _, j := range jobs {
		if err := j.Publish(ctx, []byte("card")); err != nil {
			t.Fatal(err)
		}
		err := j.Fence(ctx)
		var rank *RankError
		if !errors.As(err, &rank) || rank.Rank != 1 || !strings.Contains(rank.Why, "did not join in time") {
			t.Errorf("fence: %v, want that rank 1 did not join in time", err)
		}
	}
	if _, err := Join(ctx, s.Addr(), 3, 5, secret); !errors.Is(err, ErrLate) {
		t.Errorf("a rank that joins later: %v, want %v", err, ErrLate)
	}
}

func TestJoinLimit(t *testing.T) {
	for text, want := range map[string]time.Duration{"": defaultJoinTime, "0": 0, "90s": 90 * time.Second, "-1s": -1, "soon": -1} {
		got, err := joinLimit(func(string) string { return text })
		if want < 0 {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v, %v; want %v", text, got, err, ErrInvalid)
			}
		} else if got != want || err != nil {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
}

func TestListRanks(t *testing.T) {
	var even []int
	for r := range 12 {
		even = append(even, 2*r)
	}
	for _, tt := range []struct {
		ranks []int
		want  string
	}{{[]int{3}, "rank 3"}, {[]int{1, 2, 3, 7}, "ranks 1-3, 7"}, {even, "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 4 more"}} {
		if got := listRanks(tt.ranks); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.ranks, got, tt.want)
		}
	}
}

// Ends are reported once, several in one message, also those from before the watch; how a rank left is not changed by
// its exit status.
func TestEndsAreReportedOnce(t *testing.T) {
	st := newServerState(5)
	for r := range uint32(5) {
		if st, _ := st.join(&hello{rank: r, size: 5}); st != statusOK {
			t.Fatal(st)
		}
	}
	ends := func(posts []post) (all []End) {
		for _, p := range posts {
			if p.kind == kindEnded {
				e, err := parseEnds(p.body, 5)
				if err != nil || p.to != 0 {
					t.Fatalf("to rank %d: %v", p.to, err)
				}
				all = append(all, e...)
			}
		}
		return all
	}
	if _, err := st.handle(1, kindBye, nil); err != nil {
		t.Fatal(err)
	}
	posts, err := st.handle(0, kindWatch, nil)
	if got := ends(posts); err != nil || len(got) != 1 || got[0] != (End{1, Left, 0}) {
		t.Errorf("ends before the watch: %v, %v", got, err)
	}
	if _, err := st.handle(0, kindWatch, nil); err == nil {
		t.Error("a second watch is accepted")
	}
	st.leave(3, rankDied, "died")
	if st.addEnd(End{1, Exited, 3}) || !st.addEnd(End{2, Killed, 9}) || !st.addEnd(End{3, Exited, 3}) || st.addEnd(End{3, Lost, 0}) {
		t.Error("an end is noted twice, or not at all")
	}
	posts = st.reportEnds()
	if got := ends(posts); len(posts) != 1 || len(got) != 2 || got[0] != (End{2, Killed, 9}) || got[1] != (End{3, Exited, 3}) {
		t.Errorf("later ends: %v", posts)
	}
	if posts := st.reportEnds(); posts != nil {
		t.Errorf("reported again: %v", posts)
	}
}

// FuzzEnds: what is parsed can be written again, and is within the job.
func FuzzEnds(f *testing.F) {
	f.Add(putEnds([]End{{1, Exited, 3}, {2, Killed, 9}}))
	f.Add(putEnds([]End{{4, Left, 0}}))
	f.Add([]byte{0, 0, 0, 1, 9, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		ends, err := parseEnds(b, 4)
		if err != nil {
			return
		}
		if string(putEnds(ends)) != string(b) || len(ends) == 0 {
			t.Errorf("%x becomes %v", b, ends)
		}
		for _, e := range ends {
			if e.Rank < 0 || e.Rank >= 4 || e.Err().Code > 128+255 || e.Err().Why == "" {
				t.Errorf("end %+v", e)
			}
		}
	})
}
