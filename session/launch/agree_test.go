//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var mappings = []struct {
	text string
	size int
	one  bool
}{
	{"(vector,(0,1,4))", 4, true},
	{"(vector,(0,1,1))", 1, true},
	{"(vector,(3,1,2))", 7, true}, // round and round
	{"(vector,(0,2,4))", 4, true}, // the second node has none
	{"(vector,(0,1,4),(1,1,4))", 4, true},
	{"(vector,(0,1,2),(0,1,2))", 4, true},
	{"(vector,(0,2,4))", 5, false},
	{"(vector,(0,1,4),(1,1,4))", 5, false},
	{"(vector,(0,4,1))", 4, false},
	{"(vector,(0,1,2147483647))", MaxSize, true},
	{"(vector,(0,1,9999999999))", 4, false},
	{"(vector,(0,1,0))", 4, false},
	{"(vector,(0,0,1))", 4, false},
	{"(vector,(0,-1,4))", 4, false},
	{"(vector,(0,1))", 4, false},
	{"(vector,(0,1,2)(0,1,2))", 4, false},
	{"(vector,(0,1,4),x)", 4, false},
	{"(vector,(0,1,4),(1,1))", 4, false},
	{"(vector,)", 1, false},
	{"(vector", 1, false},
	{"(vector,0)", 2, false},
	{"(matrix,(0,1,4))", 4, false},
	{"", 1, false},
}

func TestMappingOfOneNode(t *testing.T) {
	for _, m := range mappings {
		if got := oneNode(m.text, m.size); got != m.one {
			t.Errorf("%q of %d ranks: %v, want %v", m.text, m.size, got, m.one)
		}
		if got := slowOneNode(m.text, m.size); got != m.one {
			t.Errorf("%q of %d ranks, one by one: %v, want %v", m.text, m.size, got, m.one)
		}
	}
}

// slowOneNode places ranks one by one.
func slowOneNode(text string, size int) bool {
	var blocks [][3]int
	rest, ok := strings.CutPrefix(text, "(vector,(")
	rest, ok2 := strings.CutSuffix(rest, "))")
	if !ok || !ok2 {
		return false
	}
	first := true
	for text := range strings.SplitSeq(rest, "),(") {
		var b [3]int
		numbers := strings.Split(text, ",")
		if len(numbers) != 3 {
			return false
		}
		for i, s := range numbers {
			n, err := strconv.ParseUint(s, 10, 31)
			if err != nil {
				return false
			}
			b[i] = int(n)
		}
		if b[1] < 1 || b[2] < 1 {
			return false
		}
		blocks = append(blocks, b)
	}
	node := 0
	for placed := 0; ; {
		for _, b := range blocks {
			for k := range b[1] {
				for range b[2] {
					if first {
						node, first = b[0]+k, false
					}
					if b[0]+k != node {
						return false
					}
					if placed++; placed >= size {
						return true
					}
				}
			}
		}
	}
}

// votesOf has all ranks of a job call Agree over a key-value space in memory.
func votesOf(t *testing.T, words []string) []bool {
	m := newMemKV(len(words))
	out := make([]bool, len(words))
	var wg sync.WaitGroup
	for r, w := range words {
		wg.Go(func() {
			var err error
			if out[r], err = agree(m.rank(), r, len(words), []byte(w)); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
	return out
}

// In jobs whose tree has one, two and three levels, all ranks notice if any rank has another word.
func TestOneDifferentWordIsFoundByAllRanks(t *testing.T) {
	for _, size := range []int{1, 2, arity, arity + 1, arity + 2, arity*arity + 2*arity} {
		for _, other := range []int{-1, 0, 1, size / 2, size - 1} {
			words := make([]string, size)
			for i := range words {
				words[i] = "same"
			}
			if other >= 0 {
				words[min(other, size-1)] = "other"
			}
			for r, same := range votesOf(t, words) {
				if want := other < 0 || size == 1; same != want {
					t.Fatalf("%d ranks, rank %d has another word: rank %d gets %v", size, other, r, same)
				}
			}
		}
	}
}

func TestAgreeOfProcesses(t *testing.T) {
	forEachLauncher(t, func(t *testing.T, l realLauncher) {
		const n = 4
		for _, differs := range []int{-1, 0, 2} {
			out, err := finish(t, l.start(t, n, envProgram+"=agree", "BYWASH_TEST_DIFFERS="+itoa(differs)))
			if got := strings.Count(out, fmt.Sprintf("agreed %v\n", differs < 0)); got != n || err != nil {
				t.Errorf("rank %d has another word: %d of %d report that, %v:\n%s", differs, got, n, err, out)
			}
		}
	})
}

// A rank that dies before it calls Agree blocks no other rank: the fence then names it.
func TestFenceNamesRankThatDiedBeforeAgree(t *testing.T) {
	out, err := finish(t, bywashRun(t, 3, envProgram+"=agree", "BYWASH_TEST_DIES=1"))
	// The launcher may learn of the lost connection before it has the exit status: the rank "died", or "has died".
	named := len(regexp.MustCompile(`rank 1: ((has )?died|ended with exit status 3), so that`).FindAllString(out, -1))
	if got := strings.Count(out, "agreed false\n"); got != 2 || err == nil || named != 2 {
		t.Errorf("%d of 2 report no agreement, %v:\n%s", got, err, out)
	}
}

func TestAgreeIsCalledOnceAndBeforePublish(t *testing.T) {
	forEachJob := map[string]func(t *testing.T) *Client{
		nameAlone:    func(*testing.T) *Client { return Alone() },
		nameEmbedded: func(t *testing.T) *Client { return join(t, newServer(t, 1), 0) },
		"kvs": func(t *testing.T) *Client {
			j, err := joinKV(t.Context(), "mem", 0, 1, newMemKV(1).rank())
			if err != nil {
				t.Fatal(err)
			}
			return j
		},
	}
	for name, job := range forEachJob {
		t.Run(name, func(t *testing.T) {
			j := job(t)
			for _, word := range [][]byte{nil, make([]byte, MaxWord+1)} {
				if _, err := job(t).Agree(t.Context(), word); !errors.Is(err, ErrInvalid) {
					t.Errorf("a word of %d bytes: %v, want ErrInvalid", len(word), err)
				}
			}
			if same, err := j.Agree(t.Context(), []byte("word")); err != nil || !same {
				t.Errorf("one rank agrees with itself: %v, %v", same, err)
			}
			if _, err := j.Agree(t.Context(), []byte("word")); !errors.Is(err, ErrInvalid) {
				t.Errorf("a second word: %v, want ErrInvalid", err)
			}
			k := job(t)
			if err := k.Publish(t.Context(), []byte("card")); err != nil {
				t.Fatal(err)
			}
			if _, err := k.Agree(t.Context(), []byte("word")); !errors.Is(err, ErrInvalid) {
				t.Errorf("a word after the card: %v, want ErrInvalid", err)
			}
			if err := k.Close(); err != nil {
				t.Error(err)
			}
			if _, err := k.Agree(t.Context(), []byte("word")); !errors.Is(err, ErrClosed) {
				t.Errorf("a word after the end: %v, want ErrClosed", err)
			}
		})
	}
}

// A rank that waits for others learns of the launcher's end, and may give up.
func TestAgreeEndsWithLauncher(t *testing.T) {
	s := newServer(t, 2)
	j := join(t, s, 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := j.Agree(ctx, []byte("word")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("given up: %v", err)
	}
	k := join(t, s, 1)
	done := make(chan error)
	s2 := newServer(t, 2)
	w := join(t, s2, 0)
	go func() { _, err := w.Agree(t.Context(), []byte("word")); done <- err }()
	s2.Close()
	if err := <-done; !errors.Is(err, ErrLauncher) {
		t.Errorf("the launcher ends: %v", err)
	}
	if same, err := k.Agree(t.Context(), []byte("word")); err != nil || !same {
		t.Errorf("the word of a rank that stopped waiting counts: %v, %v", same, err)
	}
}
