//go:build linux

package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

// Baseline is an earlier run to compare with.
type Baseline map[baselineKey]float64

type baselineKey struct {
	driver, test, mem, wait, bind string
	size, ranks, peers            int
	goroutines                    int
	validate                      bool
}

// ReadBaseline reads the output of perf --json. The last result of a kind counts.
func ReadBaseline(name string) (Baseline, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("baseline: %w", err)
	}
	defer f.Close()
	b, err := parseBaseline(io.LimitReader(f, 256*bench.MiB))
	if err != nil {
		return nil, fmt.Errorf("baseline %s: %w", name, err)
	}
	return b, nil
}

func parseBaseline(r io.Reader) (Baseline, error) {
	b := Baseline{}
	s := bufio.NewScanner(r)
	s.Buffer(nil, 64*bench.KiB)
	for n := 1; s.Scan(); n++ {
		if len(s.Bytes()) == 0 {
			continue
		}
		var res Result
		if err := json.Unmarshal(s.Bytes(), &res); err != nil || bench.InfoOf(bench.Test(res.Test)) == nil {
			return nil, fmt.Errorf("line %d is not a result of bywash perf --json", n)
		}
		if v, _ := res.Main(); v > 0 {
			b[res.key()] = v
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("it holds no results of bywash perf --json")
	}
	return b, nil
}

func (r *Result) key() baselineKey {
	return baselineKey{r.Driver, r.Test, r.Mem, r.Wait, r.Bind, r.Size, r.Ranks, r.Peers, r.Goroutines, r.Validate}
}

// Compare fills in a result's change.
func (b Baseline) Compare(r *Result) {
	old, ok := b[r.key()]
	now, _ := r.Main()
	if ok && old > 0 && now > 0 {
		r.Change = figure((now/old - 1) * 100)
	}
}
