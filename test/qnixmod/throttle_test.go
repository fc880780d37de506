//go:build linux && !(386 || arm || mips || mipsle)

package qnixmod

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() {
	roles["bulk"] = func([]string) error { return roleBulk() }
	roles["spin"] = func([]string) error { return roleSpin() }
}

// begin tells the test that this process begins its work, and returns what is true once its input has ended.
func begin() *atomic.Bool {
	over := new(atomic.Bool)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	fmt.Println("ready")
	return over
}

// roleSpin keeps a CPU busy until its input ends.
func roleSpin() error {
	over := begin()
	for !over.Load() {
	}
	return nil
}

// roleBulk sends messages of 1 MiB from this process on one NIC to itself on another, until its input ends.
func roleBulk() error {
	const size = 1 << 20
	var ends [2]*process
	for i, access := range []uint32{accessRead, accessWrite} {
		p, err := register(i, small(fmt.Sprintf("bulk%d", i)))
		if err != nil {
			return err
		}
		memory, err := anonymous(size)
		if err != nil {
			return err
		}
		h, err := p.translate(memory, access)
		if err != nil {
			return err
		}
		p.describe(i == 1, 0, descriptor{Handle: h, Len: size})
		ends[i] = p
	}
	over := begin()
	for !over.Load() {
		for i, cmd := range []uint32{cmdSend, cmdReceive} {
			err := ends[i].transfer(cmd, 0, sendContext{Process: ends[1-i].reg.Name, Flags: flagDoorbell, Len: size, Descriptors: 1})
			if err != nil {
				return err
			}
		}
		for i, p := range ends {
			if state, _, err := p.await(i == 1, 0); err != nil || state != stateDone {
				return fmt.Errorf("a message ended with state %d, %w", state, err)
			}
		}
	}
	return nil
}

// throttledPeriods returns how many periods of the cgroup ended with its processes waiting for processor time.
func throttledPeriods(t *testing.T, cgroup string) int {
	t.Helper()
	text, err := readFile(filepath.Join(cgroup, "cpu.stat"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		var n int
		if _, err := fmt.Sscanf(line, "nr_throttled %d", &n); err == nil {
			return n
		}
	}
	t.Fatalf("cpu.stat has no nr_throttled:\n%s", text)
	return 0
}

// A process whose cgroup has used up its processor time does not stop the NIC: while its load waits for the next period of
// a second, messages of 8 bytes between two other processes go on.
func TestThrottledProcessDelaysNoOther(t *testing.T) {
	const quota, period = 50 * time.Millisecond, time.Second
	load(t, "nics=2")
	cgroup := newCgroup(t, "cpu")
	limit := fmt.Sprintf("%d %d", quota.Microseconds(), period.Microseconds())
	if err := os.WriteFile(filepath.Join(cgroup, "cpu.max"), []byte(limit), 0); err != nil {
		t.Skipf("needs a kernel with CONFIG_CFS_BANDWIDTH: %v", err)
	}
	a, b := mustRegister(t, 0, small("a")), mustRegister(t, 0, small("b"))
	cmd, in := started(t, "bulk")
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	longest, messages, want := time.Duration(0), 0, 10
	if testing.Short() {
		want = 4
	}
	first, begun := throttledPeriods(t, cgroup), time.Now()
	for periods := 0; periods < want; periods = throttledPeriods(t, cgroup) - first {
		if time.Since(begun) > time.Minute {
			t.Fatalf("the load has waited for processor time in %d periods of a minute, want %d", periods, want)
		}
		for range 50 {
			start := time.Now()
			checkShort(t, a, b, 0)
			longest = max(longest, time.Since(start))
			messages++
		}
	}
	in.Close()
	if err := os.WriteFile(filepath.Join(cgroup, "cpu.max"), []byte("max"), 0); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the load: %v", err)
	}
	t.Logf("%d messages, the longest takes %v", messages, longest)
	if most := (period - quota) / 2; longest > most {
		t.Errorf("a message takes %v, want at most %v, half of what the throttled process waits", longest, most)
	}
}

// A process of the lowest priority, which gets hardly any processor time beside busy ones, does not hold the NIC while it
// waits for its turn: messages of 8 bytes between two other processes go on.
func TestProcessesOfLowPriorityDelayNoOther(t *testing.T) {
	for name, attr := range map[string]unix.SchedAttr{
		"idle": {Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE},
		"nice": {Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: 19},
	} {
		t.Run(name, func(t *testing.T) {
			load(t, "nics=2")
			a, b := mustRegister(t, 0, small("a")), mustRegister(t, 0, small("b"))
			cmd, in := started(t, "bulk")
			threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range threads {
				if tid, _ := strconv.Atoi(x.Name()); unix.SchedSetAttr(tid, &attr, 0) != nil {
					t.Fatalf("thread %s keeps its priority", x.Name())
				}
			}
			for range runtime.NumCPU() {
				_, spins := started(t, "spin")
				defer spins.Close()
			}
			longest := time.Duration(0)
			const messages = 500
			for range messages {
				start := time.Now()
				checkShort(t, a, b, 0)
				longest = max(longest, time.Since(start))
			}
			in.Close()
			t.Logf("%d messages, the longest takes %v", messages, longest)
			if most := time.Second; longest > most {
				t.Errorf("a message takes %v, want at most %v", longest, most)
			}
		})
	}
}
