//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/lab/terminal"
)

// shells is a job of shells.
func shells(n, script string, flags ...string) *exec.Cmd {
	return bywash(append(append([]string{"run", "-n", n}, flags...), "sh", "-c", script)...)
}

func TestRunGivesEachProcessItsRank(t *testing.T) {
	code, out, stderr := status(t, shells("4", "echo $BYWASH_RANK $BYWASH_SIZE $BYWASH_LAUNCHER ${BYWASH_EXPLAIN-no}"))
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	if want := []string{"0 4 embedded no", "1 4 embedded no", "2 4 embedded no", "3 4 embedded no"}; !slices.Equal(lines, want) || code != 0 || stderr != "" {
		t.Errorf("status %d, %q, %q, want %q", code, lines, stderr, want)
	}
	_, out, _ = status(t, shells("1", "echo $BYWASH_EXPLAIN $BYWASH_DRIVERS", "--explain", "--drivers", "shm,afxdp:eth1"))
	if out != "1 shm,afxdp:eth1\n" {
		t.Errorf("the environment with --explain and --drivers: %q", out)
	}
}

func TestRunTagsWholeLines(t *testing.T) {
	code, out, stderr := status(t, shells("3", "for i in 1 2 3; do printf 'a '; echo b $BYWASH_RANK; done; printf end >&2", "--tag-output"))
	counts := map[string]int{}
	for line := range strings.Lines(out) {
		counts[line]++
	}
	for _, want := range []string{"[0] a b 0\n", "[1] a b 1\n", "[2] a b 2\n"} {
		if counts[want] != 3 {
			t.Errorf("%d lines %q, want 3: %q", counts[want], want, out)
		}
	}
	if code != 0 || len(counts) != 3 || !strings.Contains(stderr, "[1] end\n") {
		t.Errorf("status %d, stdout %q, stderr %q", code, out, stderr)
	}
}

// A rank that writes to a full disk fails; with tags the launcher writes, and fails for it.
func TestTaggedOutputThatIsLostIsAFailure(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	cmd := shells("1", "echo x", "--tag-output")
	cmd.Stdout = full
	_ = cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("status %d, want 1", code)
	}
}

// Signals end the launcher although it cannot write what the ranks have printed.
func TestSignalEndsALauncherWhoseReaderDoesNotRead(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := shells("1", "yes", "--tag-output")
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for limit := time.After(30 * time.Second); ; {
		select {
		case <-ended:
			return
		case <-limit:
			_ = cmd.Process.Kill()
			t.Fatal("the launcher did not end in 30 s")
		case <-time.After(50 * time.Millisecond):
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
}

func TestRunGivesStandardInputToRank0(t *testing.T) {
	cmd := shells("3", "echo $BYWASH_RANK: $(cat)")
	cmd.Stdin = strings.NewReader("some words")
	_, out, _ := status(t, cmd)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	if want := []string{"0: some words", "1:", "2:"}; !slices.Equal(lines, want) {
		t.Errorf("ranks read %q, want %q", lines, want)
	}
}

func TestRunEndsAsTheFirstFailureDid(t *testing.T) {
	for _, c := range []struct {
		script string
		code   int
		says   string
	}{
		{"test $BYWASH_RANK = 1 && exit 5; exec sleep 1000", 5, "rank 1 (process "},
		{"test $BYWASH_RANK = 2 && exit 255; exec sleep 1000", 255, "rank 2 (process "},
		{"test $BYWASH_RANK = 0 && kill -KILL $$; exec sleep 1000", 128 + 9, "was killed by SIGKILL"},
		{"test $BYWASH_RANK = 0 && kill -SEGV $$; sleep 1000", 128 + 11, "was killed by SIGSEGV"},
		{"test $BYWASH_RANK = 1 && exit 3; trap '' TERM; while :; do sleep 1000; done", 3, "ended with status 3"},
		{"exit $BYWASH_RANK", -1, "ended with status "},
		{"test $BYWASH_RANK = 0 && kill -40 $$; sleep 1000", 128 + 40, "was killed by signal 40"},
		{"test $BYWASH_RANK = 1 && exit 5; exec setsid sleep 1000", 5, "rank 1 (process "},
		{"test $BYWASH_RANK = 1 && exit 5; exec setsid sh -c \"trap '' TERM; while :; do sleep 1000; done\"", 5, "rank 1 (process "},
	} {
		code, _, stderr := status(t, shells("3", c.script, "--grace", "200ms"))
		if c.code >= 0 && code != c.code || code == 0 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: status %d, %q; want %d and one line with %q", c.script, code, stderr, c.code, c.says)
		}
	}
	for program, want := range map[string]int{"/nonexistent": 127, "no-such-program-anywhere": 127, "/etc/passwd": 126, "/": 126} {
		code, _, stderr := status(t, bywash("run", "-n", "2", program))
		if code != want || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: status %d, %q; want %d and one line", program, code, stderr, want)
		}
	}
}

// Ranks that fail because another has died are not taken for the cause, though they end at almost the same time.
func TestRunNamesTheFirstFailureNotTheNext(t *testing.T) {
	const script = `
if test $BYWASH_RANK = 0; then echo $$ > pid.new; mv pid.new pid; exit 7; fi
until test -e pid; do :; done
read pid < pid
while read _ _ state _ < /proc/$pid/stat && test $state != Z; do :; done
exit 1`
	for range 10 {
		cmd := shells("3", script)
		cmd.Dir = t.TempDir()
		code, _, stderr := status(t, cmd)
		if code != 7 || !strings.Contains(stderr, "rank 0 (process ") {
			t.Fatalf("status %d, %q; want 7 and rank 0", code, stderr)
		}
	}
}

// follow starts a job that says "up" once a rank, and returns what it says afterwards.
func follow(t *testing.T, cmd *exec.Cmd, ranks int) *bufio.Reader {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // its guard ends the ranks
	r := bufio.NewReader(out)
	for range ranks {
		if line, err := r.ReadString('\n'); line != "up\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	return r
}

// untilEOF: the stream ends when nothing has it open any more, which is when all descendants are gone.
func untilEOF(t *testing.T, r io.Reader) string {
	t.Helper()
	ended := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r)
		ended <- string(b)
	}()
	select {
	case s := <-ended:
		return s
	case <-time.After(30 * time.Second):
		t.Fatal("after 30 s something of the job still runs")
	}
	return ""
}

// With grandchildren that ignore everything, in the rank's process group.
const stubborn = "trap '' INT TERM HUP; (trap '' INT TERM HUP; sleep 1000) & echo up; wait"

func TestNothingOutlivesALauncherThatIsKilled(t *testing.T) {
	cmd := shells("3", stubborn)
	r := follow(t, cmd, 3)
	cmd.Process.Kill()
	untilEOF(t, r)
	cmd.Wait()
}

// Ranks themselves end even without the guard.
func TestRanksEndWithLauncherAndGuardKilled(t *testing.T) {
	cmd := shells("3", "echo up; exec sleep 1000")
	r := follow(t, cmd, 3)
	guard := 0
	stats, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if b, err := os.ReadFile(f); err != nil || !bytes.Contains(b, []byte("run-guard")) {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(filepath.Dir(f), "status")); err == nil && bytes.Contains(b, fmt.Appendf(nil, "\nPPid:\t%d\n", cmd.Process.Pid)) {
			guard = pid
		}
	}
	if guard == 0 {
		t.Fatal("the job has no guard")
	}
	syscall.Kill(guard, syscall.SIGKILL)
	cmd.Process.Kill()
	untilEOF(t, r)
	cmd.Wait()
}

func TestSignalsThatEndTheJob(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		// Ranks that clean up on a signal get the time for it.
		cmd := shells("2", "trap 'echo tidy; exit 0' INT TERM HUP QUIT; echo up; while :; do sleep 0.1; done")
		r := follow(t, cmd, 2)
		cmd.Process.Signal(s)
		if said := untilEOF(t, r); strings.Count(said, "tidy\n") != 2 {
			t.Errorf("%v: ranks said %q, want tidy twice", s, said)
		}
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 128+int(s) && !(s == syscall.SIGINT && code == exitInterrupt) {
			t.Errorf("%v: status %d, want %d", s, code, 128+int(s))
		}
		// Ranks that ignore the signal are killed.
		cmd = shells("2", stubborn, "--grace", "100ms")
		r = follow(t, cmd, 2)
		cmd.Process.Signal(s)
		untilEOF(t, r)
		cmd.Wait()
	}
}

// A second signal kills the ranks at once, and the status names it.
func TestSecondSignalKills(t *testing.T) {
	cmd := shells("2", stubborn, "--grace", "10m")
	r := follow(t, cmd, 2)
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(50 * time.Millisecond):
				_ = cmd.Process.Signal(syscall.SIGTERM)
			}
		}
	}()
	untilEOF(t, r)
	close(over)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("status %d, want %d", code, 128+int(syscall.SIGTERM))
	}
}

// A terminal that closes sends SIGHUP twice, and so does timeout(1) its signal: ranks have the grace all the same.
func TestHangupThatComesTwiceKillsNobody(t *testing.T) {
	cmd := shells("2", "trap '' HUP; trap 'echo asked; until test -e go; do sleep 0.02; done; echo tidy; exit 0' TERM; echo up; while :; do sleep 0.1; done", "--grace", "10m")
	cmd.Dir = t.TempDir()
	r := follow(t, cmd, 2)
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM, syscall.SIGHUP} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if line, err := r.ReadString('\n'); line != "asked\n" {
			t.Fatalf("%q, %v; want asked: SIGTERM reaches the ranks", line, err)
		}
	}
	if err := os.WriteFile(filepath.Join(cmd.Dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if said := untilEOF(t, r); said != "tidy\ntidy\n" {
		t.Errorf("ranks said %q, want tidy twice", said)
	}
	cmd.Wait()
}

// A process that has left its rank's group, and so is not killed, does not keep the job from ending.
func TestOutputOfEscapedProcess(t *testing.T) {
	start := time.Now()
	code, out, stderr := status(t, shells("1", "setsid sleep 60 & echo done", "--tag-output"))
	if d := time.Since(start); code != 0 || out != "[0] done\n" || d > 30*time.Second {
		t.Errorf("status %d after %v: %q, %q", code, d, out, stderr)
	}
}

func TestUserSignalsReachAllRanks(t *testing.T) {
	cmd := shells("3", "trap 'echo got; exit 0' USR1; echo up; while :; do sleep 0.1; done")
	r := follow(t, cmd, 3)
	cmd.Process.Signal(syscall.SIGUSR1)
	if said := untilEOF(t, r); strings.Count(said, "got\n") != 3 {
		t.Errorf("ranks said %q, want got three times", said)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestStopAndContinue(t *testing.T) {
	cmd := shells("2", "trap 'echo cont; exit 0' CONT; echo up; while :; do sleep 0.1; done")
	r := follow(t, cmd, 2)
	cmd.Process.Signal(syscall.SIGTSTP)
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		t.Fatalf("launcher: %v, %v; want it stopped", ws, err)
	}
	cmd.Process.Signal(syscall.SIGCONT)
	if said := untilEOF(t, r); strings.Count(said, "cont\n") != 2 {
		t.Errorf("ranks said %q, want cont twice", said)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestWhatRanksLeaveRunningEndsWithTheJob(t *testing.T) {
	cmd := shells("2", "(trap '' TERM; sleep 1000) & echo done")
	var out bytes.Buffer
	cmd.Stdout = &out
	timer := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
	err := cmd.Run() // waits for the end of the output
	if !timer.Stop() || err != nil || strings.Count(out.String(), "done\n") != 2 {
		t.Errorf("%v, %q", err, out.String())
	}
}

// With --keep-going the others outlive a rank that fails, unless the job is aborted; the exit status stays that of the
// first failure.
func TestRunKeepsGoing(t *testing.T) {
	code, out, stderr := status(t, shells("3", "test $BYWASH_RANK = 1 && exit 5; sleep 0.1; echo on", "--keep-going"))
	if code != 5 || strings.Count(out, "on\n") != 2 || !strings.Contains(stderr, "ended with status 5; the others go on") {
		t.Errorf("status %d, %q, %q", code, out, stderr)
	}
	// What ends the job afterwards is said, too.
	_, _, stderr = status(t, shells("2", "exit $((5 + $BYWASH_RANK))", "--keep-going"))
	if !strings.Contains(stderr, "ended with status 5") || !strings.Contains(stderr, "ended with status 6") {
		t.Errorf("of two failures it says %q", stderr)
	}
	cmd := shells("2", "test $BYWASH_RANK = 1 && exit 5; trap 'echo tidy; exit 0' TERM; echo up; while :; do sleep 0.02; done", "--keep-going")
	r := follow(t, cmd, 1)
	cmd.Process.Signal(syscall.SIGTERM)
	if said := untilEOF(t, r); said != "tidy\n" {
		t.Errorf("after SIGTERM the survivor says %q", said)
	}
	cmd.Wait()
}

// A launcher whose messages nobody reads forwards signals.
func TestSignalsReachRanksWhileMessagesBlock(t *testing.T) {
	errors, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer errors.Close()
	size, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, size)); err != nil { // now it is full
		t.Fatal(err)
	}
	const script = `
exec 2>/dev/null # shells tell of processes that a signal has ended
if test $BYWASH_RANK = 1; then echo $$ > pid.new; mv pid.new pid; exit 5; fi
trap 'echo tidy; exit 0' TERM
until test -e pid; do sleep 0.02; done
read pid < pid
while test -e /proc/$pid; do sleep 0.02; done
echo up; while :; do sleep 0.02; done`
	cmd := shells("2", script, "--keep-going")
	cmd.Dir, cmd.Stderr = t.TempDir(), w
	r := follow(t, cmd, 1)
	w.Close()
	defer time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() }).Stop()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if line, err := r.ReadString('\n'); line != "tidy\n" {
		t.Fatalf("rank 0 says %q, %v; want tidy", line, err)
	}
	said, _ := io.ReadAll(errors)
	cmd.Wait()
	if !strings.Contains(string(said), "ended with status 5; the others go on\n") {
		t.Errorf("it says %q of rank 1", said[size:])
	}
}

// A rank, which is in the background, is not stopped by the terminal: it may write to it and reads an error.
func TestTerminalStopsNoRank(t *testing.T) {
	_, out, stderr := status(t, shells("1", "grep SigIgn /proc/self/status"))
	var ignored uint64
	if _, err := fmt.Sscanf(out, "SigIgn: %x", &ignored); err != nil {
		t.Fatalf("%q, %q: %v", out, stderr, err)
	}
	for _, s := range []syscall.Signal{syscall.SIGTTIN, syscall.SIGTTOU} {
		if ignored&(1<<(s-1)) == 0 {
			t.Errorf("a rank does not ignore %v", s)
		}
	}
}

// A launcher that begins in the background of its terminal passes on what is typed when it is in the foreground.
func TestRank0ReadsTheTerminalInTheForeground(t *testing.T) {
	user, program := terminal.New(t)
	cmd := exec.Command("sh", "-c", `set -m; /proc/$PPID/exe run -n 1 sh -c 'echo up; read x; echo got $x' & read go; fg`)
	cmd.Env = bywash().Env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	defer time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() }).Stop() // which ends the terminal
	program.Close()
	var said strings.Builder
	for in := bufio.NewScanner(user); in.Scan(); {
		fmt.Fprintln(&said, in.Text())
		switch {
		case in.Text() == "up":
			if _, err := user.WriteString("go\nword\n"); err != nil {
				t.Fatal(err)
			}
		case in.Text() == "got word":
			return
		}
	}
	t.Errorf("rank 0 has not got the word:\n%s", said.String())
}

// A job for which there are too few descriptors does not start.
func TestRunNeedsDescriptors(t *testing.T) {
	cmd := exec.Command("sh", "-c", "ulimit -n 60; exec /proc/$PPID/exe run -n 20 sh -c 'echo started'")
	cmd.Env = bywash().Env
	code, out, stderr := status(t, cmd)
	if code != 1 || out != "" || !strings.Contains(stderr, "ulimit -n") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("status %d, %q, %q; want 1 and the remedy", code, out, stderr)
	}
}
