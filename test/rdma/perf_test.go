//go:build linux && !(386 || arm || mips || mipsle)

package rdma

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/internal/lab/machines"
)

const perfPort = "7000"

// buildTool puts the tool and a secret where both machines see them.
func buildTool(t *testing.T, dir string) {
	goBuild(t, "build", "-o", filepath.Join(dir, "bywash"), "../../cmd/bywash")
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("a secret of two machines, long enough to be one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func tool(ctx context.Context, args ...string) *exec.Cmd {
	dir := os.Getenv(envDir)
	args = append([]string{"perf", "--secret-file", filepath.Join(dir, "secret")}, args...)
	return exec.CommandContext(ctx, filepath.Join(dir, "bywash"), args...)
}

// listen is machine 1: it serves until machine 0 has what it wants.
func listen(t *testing.T) {
	cmd := tool(t.Context(), "--listen", machines.Here(perfPort))
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := new(bytes.Buffer)
	lines := bufio.NewReader(io.TeeReader(out, said))
	if _, err := lines.ReadString('\n'); err != nil { // it listens now: machine 0 may begin
		t.Fatal(err)
	}
	all := make(chan struct{})
	go func() {
		defer close(all)
		_, _ = io.Copy(io.Discard, lines)
	}()
	w := meet(t)
	var end string
	_ = w.c.SetReadDeadline(time.Time{}) // as long as machine 0 measures
	err := w.dec.Decode(&end)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	left := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer left.Stop()
	ended := cmd.Wait()
	_ = in.Close()
	<-all
	t.Logf("listener: %v\n%s", ended, said)
	if err != nil {
		t.Errorf("machine 0 does not say that it has measured: %v", err)
	}
	if cmd.ProcessState.ExitCode() < 0 {
		t.Errorf("listener: %v, want that it ends by itself after SIGTERM", ended)
	}
	if !strings.Contains(said.String(), "listening on") || strings.Count(said.String(), "\n") > 2 {
		t.Errorf("listener says %q, want no more than where it listens", said)
	}
}

// perfTests are the tests of the tool, each with the size that it measures here.
var perfTests = map[string]int{
	"lat": 8, "bw": 64 << 10, "rate": 8, "bibw": 64 << 10, "put-lat": 8, "put-bw": 64 << 10,
	"get-lat": 8, "get-bw": 64 << 10, "fadd-lat": 8, "cswap-lat": 8, "connect": 0,
}

// measure is machine 0.
func measure(t *testing.T) {
	w := meet(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	bySize := make(map[int][]string)
	for test, size := range perfTests {
		bySize[size] = append(bySize[size], test)
	}
	for size, tests := range bySize {
		args := []string{machines.There(perfPort), "-d", "verbs", "--validate", "--json", "--duration", "100ms", "--warmup", "20ms", "-t", strings.Join(tests, ",")}
		if size > 0 {
			args = append(args, "-s", fmt.Sprint(size))
		}
		cmd := tool(ctx, args...)
		var out, why bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &why
		err := cmd.Run()
		t.Logf("%q\n%s%s", cmd.Args[1:], &out, &why)
		if err != nil {
			t.Errorf("bywash %q: %v", cmd.Args[1:], err)
		}
		for lines := bufio.NewScanner(&out); lines.Scan(); {
			var r struct {
				Driver, Test string
				Size         int
				Iters        int64
			}
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				t.Fatalf("line %q: %v", lines.Bytes(), err)
			}
			if r.Driver == "verbs" && r.Iters > 0 && r.Size == perfTests[r.Test] {
				delete(perfTests, r.Test)
			}
		}
	}
	for test, size := range perfTests {
		t.Errorf("%s at %d bytes: no result", test, size)
	}
	noErr(t, "tell", w.tell("measured"))
}
