//go:build linux

package control

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

// pair is the two CPUs of a local run.
type pair struct {
	lead, follow int
	shared       bool // there is only one
	rest         []int
}

// of returns the CPU of a rank: first the two of the pair, then the others, and so on in turn.
func (p *pair) of(rank int) int {
	all := append([]int{p.lead, p.follow}, p.rest...)
	return all[rank%len(all)]
}

// choosePair chooses two CPUs that this process may use, on different cores of one package if the machine reports its
// topology.
func choosePair() (pair, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return pair{}, fmt.Errorf("read the CPUs this process may use: %w", err)
	}
	var cpus []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	if len(cpus) == 0 {
		return pair{}, errors.New("no CPU in this process's affinity mask")
	}
	p := pair{lead: cpus[0], follow: cpus[0], shared: true}
	best := -1
	for _, c := range cpus[1:] {
		score := 0
		if topology(c, "physical_package_id") == topology(p.lead, "physical_package_id") {
			score++
		}
		if topology(c, "core_id") != topology(p.lead, "core_id") || score == 0 {
			score += 2
		}
		if score > best {
			best, p.follow, p.shared = score, c, false
		}
	}
	for _, c := range cpus[1:] {
		if c != p.follow {
			p.rest = append(p.rest, c)
		}
	}
	return p, nil
}

// lineTime returns the nanoseconds that a cache line takes from one CPU of the pair to the other: half a round trip,
// the least of some tries. It is 0 if the threads cannot run at the same time.
func (p *pair) lineTime() int64 {
	if p.lead == p.follow || runtime.GOMAXPROCS(0) < 2 {
		return 0
	}
	const warm, rounds, tries = 100, 1000, 5 // both threads run and are on their CPUs after warm rounds
	var line struct {
		_    [bench.Line]byte
		turn atomic.Uint64
		_    [bench.Line]byte
	}
	bounce := func(cpu int, first uint64) time.Duration {
		runtime.LockOSThread() // for good: the thread ends with its goroutine, and its CPU mask with it
		var set unix.CPUSet
		set.Set(cpu)
		_ = unix.SchedSetaffinity(0, &set)
		var start time.Time
		for n := first; n <= warm+rounds; n += 2 {
			for line.turn.Load() != n {
			}
			if n == warm {
				start = time.Now()
			}
			line.turn.Store(n + 1)
		}
		return time.Since(start)
	}
	least := time.Duration(math.MaxInt64)
	for range tries {
		line.turn.Store(0)
		var both sync.WaitGroup
		both.Go(func() { bounce(p.follow, 1) })
		both.Go(func() { least = min(least, bounce(p.lead, 0)) })
		both.Wait()
	}
	return least.Nanoseconds() / rounds
}

func topology(cpu int, name string) string {
	b, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/%s", cpu, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// pin moves every thread of this process to cpu; threads made later inherit it. It also limits the process to one
// running goroutine, as more would take turns with the measuring loop on the CPU.
func pin(cpu int) (undo func(), err error) {
	var old, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	set.Set(cpu)
	if err := setAll(&set); err != nil {
		return nil, fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	procs := runtime.GOMAXPROCS(1)
	return func() {
		runtime.GOMAXPROCS(procs)
		_ = setAll(&old)
	}, nil
}

func setAll(set *unix.CPUSet) error {
	// An unpinned thread may create another one while the list is read, so do it twice.
	for range 2 {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			if err := unix.SchedSetaffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}
