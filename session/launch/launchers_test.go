//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// findProgramIn skips the test where a launcher is not installed.
func findProgramIn(t *testing.T, name, packages string) string {
	t.Helper()
	for _, p := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	t.Skipf("needs %s (Debian: %s)", name, packages)
	return ""
}

// A launcher starts n processes of a program, each with the environment's additions.
type realLauncher struct {
	name string // the Job's
	// Slurm 22.05's mpi/pmix plugin now and then does not end a step one of whose ranks has died, after all have.
	wedges bool
	// crashes: what the launcher prints when it crashes by a fault of its own, after an abort.
	crashes string
	run     func(t *testing.T, program string, n int, env ...string) *exec.Cmd
}

// start has the ranks be this test binary.
func (l *realLauncher) start(t *testing.T, n int, env ...string) *exec.Cmd {
	return l.run(t, program(t), n, env...)
}

// crashed reports whether the launcher itself died in its known fault.
func (l *realLauncher) crashed(out string, err error) bool {
	var exit *exec.ExitError
	if l.crashes == "" || !errors.As(err, &exit) {
		return false
	}
	status := exit.Sys().(syscall.WaitStatus)
	return status.Signaled() && status.Signal() == syscall.SIGSEGV && strings.Contains(out, l.crashes)
}

func program(t *testing.T) string {
	t.Helper()
	p, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func itoa(n int) string { return strconv.Itoa(n) }

func withEnv(cmd *exec.Cmd, env []string) *exec.Cmd {
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

func hydra(flags ...string) func(*testing.T, string, int, ...string) *exec.Cmd {
	return func(t *testing.T, program string, n int, env ...string) *exec.Cmd {
		path := findProgramIn(t, "mpiexec.hydra", "mpich")
		return withEnv(exec.Command(path, append(flags, "-n", itoa(n), program)...), env)
	}
}

func openMPI(t *testing.T, program string, n int, env ...string) *exec.Cmd {
	for _, p := range []string{"prterun", "mpirun.openmpi", "mpirun"} {
		path, err := exec.LookPath(p)
		if err != nil {
			continue
		}
		if out, _ := exec.Command(path, "--version").CombinedOutput(); !bytes.Contains(out, []byte("Open")) && !bytes.Contains(out, []byte("prte")) {
			continue // another MPI's mpirun
		}
		args := []string{"-n", itoa(n)}
		if p == "prterun" {
			args = append(args, "--map-by", ":oversubscribe")
		} else {
			args = append(args, "--oversubscribe")
		}
		if os.Getuid() == 0 {
			args = append(args, "--allow-run-as-root")
		}
		cmd := exec.Command(path, append(args, program)...)
		return withEnv(cmd, append(env, "OMPI_MCA_rmaps_base_oversubscribe=1"))
	}
	t.Skip("needs prterun, or Open MPI's mpirun (Debian: openmpi-bin)")
	return nil
}

func (s *slurm) srun(mpi string) func(*testing.T, string, int, ...string) *exec.Cmd {
	return func(t *testing.T, program string, n int, env ...string) *exec.Cmd {
		path := findProgramIn(t, "srun", "slurm-client")
		cmd := exec.Command(path, "--mpi="+mpi, "-n", itoa(n), "--kill-on-bad-exit=1", "--wait=5", program)
		cmd.Env = s.env()
		cmd.Dir = "/"
		return withEnv(cmd, env)
	}
}

// forEachLauncher tests all launchers; those that are not installed skip when they are started.
func forEachLauncher(t *testing.T, test func(t *testing.T, l realLauncher)) {
	all := []realLauncher{
		{name: nameEmbedded, run: func(t *testing.T, _ string, n int, env ...string) *exec.Cmd { return bywashRun(t, n, env...) }},
		{name: namePMI1, run: hydra()},
		{name: namePMI1, run: hydra("-pmi-port")},
		{name: namePMI2, run: hydra("-genv", EnvLauncher, namePMI2)},
		// The server library of Open MPI 4.1's mpirun now and then follows a nil pointer as it ends.
		{name: namePMIx, crashes: "(PMIx_server_finalize+", run: openMPI},
	}
	for i, name := range []string{"rendezvous", "hydra pmi1", "hydra pmi1 port", "hydra pmi2", "openmpi"} {
		t.Run(name, func(t *testing.T) { test(t, all[i]) })
	}
	if testing.Short() {
		return // Slurm takes seconds to start, and its protocols are those tested above
	}
	// A cluster each: one does not recover from everything that a test does.
	t.Run("slurm pmi2", func(t *testing.T) { test(t, realLauncher{name: namePMI2, run: startSlurm(t).srun("pmi2")}) })
	t.Run("slurm pmix", func(t *testing.T) {
		test(t, realLauncher{name: namePMIx, run: startSlurm(t).srun("pmix"), wedges: true})
	})
}

// place is the output of a rank of the exchange program.
type place struct {
	launcher   string
	rank, size int
	id         string
	traffic    Traffic
}

func places(t *testing.T, out string) []place {
	t.Helper()
	var all []place
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "ok ") {
			continue
		}
		var p place
		if _, err := fmt.Sscanf(line, "ok %s %d %d %s %d %d %d", &p.launcher, &p.rank, &p.size, &p.id,
			&p.traffic.Sent, &p.traffic.Received, &p.traffic.Requests); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, p)
	}
	return all
}

// finish runs a command that has a minute, and returns what it printed.
func finish(t *testing.T, cmd *exec.Cmd) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	err := cmd.Wait()
	if !timer.Stop() {
		t.Errorf("not finished in a minute:\n%s", out.String())
	}
	return out.String(), err
}

// checkExchange wants every rank of one job, once.
func checkExchange(t *testing.T, l realLauncher, n int, out string, err error) (id string) {
	t.Helper()
	all := places(t, out)
	seen := make([]bool, n)
	for _, p := range all {
		if p.launcher != l.name || p.size != n || p.rank < 0 || p.rank >= n || seen[p.rank] || p.id != all[0].id {
			t.Errorf("unexpected rank %+v", p)
			continue
		}
		seen[p.rank] = true
	}
	if err != nil || len(all) != n {
		t.Fatalf("%d of %d ranks exchanged cards, %v:\n%s", len(all), n, err, out)
	}
	return all[0].id
}

func TestEveryRankFindsAllOthers(t *testing.T) {
	forEachLauncher(t, func(t *testing.T, l realLauncher) {
		for _, c := range []struct{ n, card int }{{1, 1}, {2, 700}, {4, 300}, {3, MaxCard}} {
			out, err := finish(t, l.start(t, c.n, envProgram+"=exchange", "BYWASH_TEST_CARD="+itoa(c.card)))
			checkExchange(t, l, c.n, out, err)
		}
	})
}

func TestTwoJobsAtOnceAreTwoJobs(t *testing.T) {
	forEachLauncher(t, func(t *testing.T, l realLauncher) {
		type result struct {
			out string
			err error
		}
		results := make(chan result, 2)
		for range 2 {
			cmd := l.start(t, 3, envProgram+"=exchange")
			go func() {
				out, err := cmd.CombinedOutput()
				results <- result{string(out), err}
			}()
		}
		a, b := <-results, <-results
		if x, y := checkExchange(t, l, 3, a.out, a.err), checkExchange(t, l, 3, b.out, b.err); x == y {
			t.Errorf("both jobs have ID %s", x)
		}
	})
}

func TestFenceWaitsForAll(t *testing.T) {
	forEachLauncher(t, func(t *testing.T, l realLauncher) {
		out, err := finish(t, l.start(t, 4, envProgram+"=barrier", "BYWASH_TEST_FILE="+filepath.Join(t.TempDir(), "entered")))
		if n := strings.Count(out, "ok\n"); n != 4 || err != nil {
			t.Errorf("%d of 4 ranks went on, %v:\n%s", n, err, out)
		}
	})
}

func TestJoiningTwiceFails(t *testing.T) {
	forEachLauncher(t, func(t *testing.T, l realLauncher) {
		out, err := finish(t, l.start(t, 2, envProgram+"=twice"))
		if n := strings.Count(out, "ok\n"); n != 2 || err != nil {
			t.Errorf("%d of 2 ranks went on, %v:\n%s", n, err, out)
		}
	})
}

// A rank that dies ends the job: launchers kill the others, or the fence fails.
func TestJobEndsWhenARankDiesBeforeTheFence(t *testing.T) {
	forEachLauncher(t, func(t *testing.T, l realLauncher) {
		if l.wedges {
			t.Skip("needs a launcher that reliably ends jobs of which a rank died")
		}
		out, err := finish(t, l.start(t, 3, envProgram+"=die"))
		if err == nil || strings.Contains(out, "found a dead rank") {
			t.Errorf("job ended with %v:\n%s", err, out)
		}
	})
}

func TestAbortEndsTheJob(t *testing.T) {
	forEachLauncher(t, func(t *testing.T, l realLauncher) {
		if l.wedges {
			t.Skip("needs a launcher that reliably ends jobs of which a rank died")
		}
		out, err := finish(t, l.start(t, 3, envProgram+"=abort"))
		for again := 3; again > 0 && l.crashed(out, err); again-- {
			t.Logf("the launcher itself crashed:\n%s", out)
			out, err = finish(t, l.start(t, 3, envProgram+"=abort"))
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || strings.Contains(out, "found a dead rank") {
			t.Fatalf("job ended with %v:\n%s", err, out)
		}
		// PMI-2 cannot transmit the code.
		if l.name != namePMI2 && exit.ExitCode() != 42 {
			t.Errorf("exit code %d, want 42:\n%s", exit.ExitCode(), out)
		}
	})
}

// The process that started a rank answers its requests; when it dies the rank must not wait for ever.
func TestRanksEndWhenTheirLauncherDies(t *testing.T) {
	forEachLauncher(t, func(t *testing.T, l realLauncher) {
		const n = 3
		cmd := l.start(t, n, envProgram+"=hang")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
		defer timer.Stop()
		var pids []int
		parent := 0
		for lines := bufio.NewScanner(out); len(pids) < n && lines.Scan(); {
			var rank, pid, p int
			if _, err := fmt.Sscanf(lines.Text(), "joined %d %d %d", &rank, &pid, &p); err == nil {
				pids, parent = append(pids, pid), p
			}
		}
		if len(pids) < n {
			cmd.Wait()
			t.Fatalf("%d of %d ranks joined:\n%s", len(pids), n, stderr.String())
		}
		var ends []*os.Process
		for _, pid := range pids {
			p, err := os.FindProcess(pid) // holds a pidfd
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, p)
		}
		if err := syscall.Kill(parent, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for i, p := range ends {
			if !awaitEnd(p, 30*time.Second) {
				t.Errorf("process %d still runs 30 s after its launcher died", pids[i])
				p.Kill()
			}
		}
		cmd.Process.Kill() // where that is another process
		rest, _ := io.ReadAll(out)
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s%s", rest, stderr.String())
		}
	})
}

// awaitEnd waits for a process that need not be our child.
func awaitEnd(p *os.Process, limit time.Duration) bool {
	ended := false
	err := p.WithHandle(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for until := time.Now().Add(limit); !ended && time.Now().Before(until); {
			n, _ := unix.Poll(poll, int(time.Until(until).Milliseconds())+1)
			ended = n > 0
		}
	})
	return ended || errors.Is(err, os.ErrProcessDone)
}

// bywashRun is a minimal launcher over Server, in a process of this test binary: bywash run has its own tests.
func bywashRun(t *testing.T, n int, env ...string) *exec.Cmd {
	cmd := exec.Command(program(t))
	cmd.Env = append(os.Environ(), "BYWASH_TEST_RANKS="+itoa(n))
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		if name == envProgram {
			name = "BYWASH_TEST_RANK_PROGRAM"
		}
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Env = append(cmd.Env, envProgram+"=launcher")
	return cmd
}

// linesWith yields the lines that begin so.
func linesWith(s, prefix string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(s) {
			if strings.HasPrefix(line, prefix) && !yield(line) {
				return
			}
		}
	}
}
