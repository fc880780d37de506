//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/session"
)

// A waiter that is alone on its CPU skips yields, and yields again as soon as another process wants the CPU.
func TestYieldsAreSkippedWhileNobodyWantsTheCPU(t *testing.T) {
	runtime.LockOSThread() // and not unlocked: the thread ends with the test
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !allowed.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	s := joinAll(t, 2, nil)[0]
	s.Oversubscribe(true)
	// Beside other load it is alone only if it goes first, which a process without privileges cannot ask for.
	first := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 1}, 0) == nil
	yieldUntil := func(ok func(skip uint32) bool) bool {
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			if ok(s.Yield()) {
				return true
			}
		}
		return false
	}
	if !yieldUntil(func(skip uint32) bool { return skip == session.MaxSkip }) {
		if d := session.FastestYield(); d >= session.IdleYield {
			t.Skipf("a yield takes at least %v here, whether another process wants the CPU or not", d)
		}
		t.Error("nobody wants the CPU, and the waiter yields after each batch of polls")
	}
	if first {
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_NORMAL}, 0); err != nil {
			t.Fatal(err)
		}
	}
	other := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done") // on the same CPU
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if !yieldUntil(func(skip uint32) bool { return skip == 0 }) {
		t.Error("another process wants the CPU, and the waiter skips yields")
	}
	_ = other.Process.Kill()
	_ = other.Wait()
}
