//go:build linux && !(386 || arm || mips || mipsle)

package launch

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// goBuild builds a package of this module into a directory.
func goBuild(t *testing.T, dir, pkg string) string {
	t.Helper()
	file := filepath.Join(dir, filepath.Base(pkg))
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, pkg).CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
	return file
}

// The program that README.md shows runs unchanged under every launcher; with BYWASH_EXPLAIN, its session reports which
// rails it takes and why.
func TestTheReadmesProgramRunsUnderEveryLauncher(t *testing.T) {
	const n = 4
	dir := t.TempDir()
	job, bywash := goBuild(t, dir, "../../examples/job"), goBuild(t, dir, "../../cmd/bywash")
	const drivers = "shm" // a test takes no network interface of the machine
	forEachLauncher(t, func(t *testing.T, l realLauncher) {
		cmd := exec.CommandContext(t.Context(), bywash, "run", "-n", itoa(n), "--explain", "--drivers", drivers, job)
		if l.name != nameEmbedded {
			cmd = l.run(t, job, n, EnvExplain+"=1", EnvDrivers+"="+drivers)
		}
		out, err := finish(t, cmd)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for r := range n {
			left := (r + n - 1) % n
			for _, want := range []string{
				fmt.Sprintf("rank %d: hello from rank %d of %d, by shm:", r, left, n),
				fmt.Sprintf("bywash: rank %d: shm:", r),
				fmt.Sprintf("bywash: rank %d to rank %d: shm:", r, left),
			} {
				if got := strings.Count(out, want); got != 1 {
					t.Errorf("%q was printed %d times, want once:\n%s", want, got, out)
				}
			}
		}
		for line := range linesWith(out, "bywash: rank 0 to rank 1: shm:") {
			if !strings.Contains(line, " taken: highest exclusivity that reaches the peer (48); carried by ") {
				t.Errorf("the choice is explained by %q", line)
			}
		}
	})
}
