package launch

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// A rank 0 that serves the rendezvous prints after waitNoticeTime which ranks are missing, and gives up after a limit:
// by default defaultJoinTime, else that of EnvJoinTime.
const (
	waitNoticeTime  = 5 * time.Second
	defaultJoinTime = 5 * time.Minute
)

// joinLimit reads EnvJoinTime; 0: no limit.
func joinLimit(env environ) (time.Duration, error) {
	text := env(EnvJoinTime)
	if text == "" {
		return defaultJoinTime, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s=%s: want a time as 90s or 10m, or 0 for no limit: %w", EnvJoinTime, plain(text), ErrInvalid)
	}
	return d, nil
}

// limitJoining calls report after first with the ranks that have not joined, and gives them up after limit, if that is
// not 0: the fence of those that have joined then fails with a RankError that names one of them.
func (s *Server) limitJoining(report func(string), first, limit time.Duration) {
	giveUp := func() {
		s.mu.Lock()
		var posts []post
		for _, rank := range s.state.missing() {
			posts = append(posts, s.state.leave(rank, rankLate, "did not join in time")...)
		}
		s.deliver(posts)
	}
	if limit != 0 && limit <= first {
		time.AfterFunc(limit, giveUp)
		return
	}
	time.AfterFunc(first, func() {
		s.mu.Lock()
		missing, closed := s.state.missing(), s.closed
		s.mu.Unlock()
		if len(missing) > 0 && !closed {
			report(fmt.Sprintf("bywash: rank 0 has waited %s for %s to join at %s", first, listRanks(missing), s.Addr()))
		}
		if limit != 0 { // not before the report, however late that is
			time.AfterFunc(limit-first, giveUp)
		}
	})
}

func printToStderr(line string) { fmt.Fprintln(os.Stderr, line) }

// missing returns the ranks that have never joined.
func (st *serverState) missing() (ranks []int) {
	for r := range st.ranks {
		if st.ranks[r].state == rankAbsent {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// maxListed is how many ranges of ranks one line names.
const maxListed = 8

// listRanks names ranks, which ascend, by ranges.
func listRanks(ranks []int) string {
	var parts []string
	named := 0
	for i := 0; i < len(ranks) && len(parts) < maxListed; {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if j == i {
			parts = append(parts, fmt.Sprint(ranks[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		}
		named += j - i + 1
		i = j + 1
	}
	what := "ranks "
	if len(ranks) == 1 {
		what = "rank "
	}
	list := what + strings.Join(parts, ", ")
	if more := len(ranks) - named; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}
