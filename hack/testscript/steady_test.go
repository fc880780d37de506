//go:build linux

package testscript

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// chance is a package whose TINY_CASE says what goes wrong.
const chance = `package tiny

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"testing"
	"time"
)

func is(what string) bool { return os.Getenv("TINY_CASE") == what }

// second reports whether an even number of processes has asked.
func second() bool {
	f, _ := os.OpenFile(os.Getenv("TINY_MARK"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	defer f.Close()
	fmt.Fprint(f, "x")
	stat, err := f.Stat()
	return err == nil && stat.Size()%2 == 0
}

func TestMain(m *testing.M) {
	code := m.Run()
	if is("outside") {
		fmt.Println("what TestMain found")
		code = 1
	}
	os.Exit(code)
}

func TestSub(t *testing.T) {
	t.Log("BYWASH_SEED=0x7")
	t.Run("good", func(t *testing.T) {})
	t.Run("bad", func(t *testing.T) {
		t.Log("what it does")
		switch {
		case is("fails every second run") && second():
			t.Error("got 1, want 2")
		case is("panics"):
			panic("tiny")
		case is("panics elsewhere"):
			go panic("tiny")
			time.Sleep(time.Hour)
		case is("exits"):
			os.Exit(3)
		case (is("is interrupted") || is("holds on")) && second():
			if is("holds on") {
				signal.Ignore(os.Interrupt) // the child ignores it, too
			}
			child := exec.Command("sleep", "300")
			child.Stdout = os.Stdout
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(os.Getenv("CHILDREN"), fmt.Append(nil, os.Getpid(), " ", child.Process.Pid, "\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		case is("is interrupted"), is("holds on"):
			t.Error("before the interrupt")
		}
	})
}

// the end
`

// steady prepares hack/steady for a tiny module of one package, with what it prints about failed runs below bin.
func steady(t *testing.T, bin, what string, args ...string) *exec.Cmd {
	t.Helper()
	program, err := filepath.Abs("../steady")
	if err != nil {
		t.Fatal(err)
	}
	dir, text := t.TempDir(), chance
	if what == "does not build" {
		text = strings.Replace(text, "// the end", "var x = undefined", 1)
	}
	for name, text := range map[string]string{"go.mod": "module tiny\n\ngo 1.26\n", "verbs/wire/tiny_test.go": text} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "BYWASH_BIN="+bin, "TINY_CASE="+what, "TINY_MARK="+filepath.Join(dir, "mark"),
		"CHILDREN="+filepath.Join(bin, "children"), "GOFLAGS=")
	return cmd
}

// lineOf returns the number of the line of the tiny module's test that contains s.
func lineOf(s string) string {
	before, _, _ := strings.Cut(chance, s)
	return strconv.Itoa(strings.Count(before, "\n") + 1)
}

// hasRow reports whether a table has a row of these words.
func hasRow(table, row string) bool {
	for line := range strings.Lines(table) {
		if strings.Join(strings.Fields(line), " ") == row {
			return true
		}
	}
	return false
}

func TestSteadyCountsFailures(t *testing.T) {
	tests := []struct {
		what, args string
		status     int
		row        string // BIN is where the outputs are
		kept       string // the runs whose output is kept
	}{
		{"fails every second run", "-n 4 ./...", 1, "2 of 4 ./verbs/wire TestSub/bad BYWASH_SEED=0x7 tiny_test.go:LINE: got 1, want 2 [BIN.2]", "2 4"},
		{"exits", "-n 1 ./...", 1, "1 of 1 ./verbs/wire TestSub/bad (never ended) BYWASH_SEED=0x7 exit status 3 [BIN.1]", "1"},
		// Not with -short.
		{"nothing", "-n 2 ./...", 0, "0 of 2 ./verbs/wire", ""},
		{"nothing", "-n 2 -run None ./...", 1, "-- ./verbs/wire: no test ran", "1"},
		{"fails every second run", "-n 4 -run Sub/good ./verbs/wire", 0, "0 of 4 ./verbs/wire", ""},
		{"panics", "-n 2 ./...", 1, "2 of 2 ./verbs/wire TestSub/bad BYWASH_SEED=0x7 panic: tiny [recovered, repanicked] [BIN.1]", "1 2"},
		{"panics elsewhere", "-n 1 ./...", 1, "1 of 1 ./verbs/wire TestSub/bad (never ended) BYWASH_SEED=0x7 panic: tiny [BIN.1]", "1"},
		{"outside", "-n 1 ./...", 1, "1 of 1 ./verbs/wire (outside of the tests) what TestMain found [BIN.1]", "1"},
		{"does not build", "-n 1 ./...", 1, "verbs/wire/tiny_test.go:LAST:9: undefined: undefined", ""},
		{"nothing", "-n 0 ./...", 2, "", ""},
		{"nothing", "-n 1", 2, "", ""},
		{"nothing", "-x ./...", 2, "", ""},
		{"nothing", "./none", 2, "", ""},
	}
	if testing.Short() {
		tests = tests[:2]
	}
	for _, tt := range tests {
		t.Run(tt.what+" "+tt.args, func(t *testing.T) {
			bin := t.TempDir()
			cmd := steady(t, bin, tt.what, strings.Fields(tt.args)...)
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != tt.status {
				t.Errorf("exit status %d, want %d", got, tt.status)
			}
			row := strings.NewReplacer("BIN", filepath.Join(bin, "steady/verbs-wire"), "LINE", lineOf("got 1"), "LAST", lineOf("the end")).Replace(tt.row)
			if row != "" && !hasRow(string(out), row) {
				t.Errorf("no row %q", row)
			}
			if strings.Contains(string(out), " TestSub ") {
				t.Error("a test has a row beside its subtest")
			}
			files, _ := filepath.Glob(filepath.Join(bin, "steady/verbs-wire.[0-9]"))
			var kept []string
			for _, file := range files {
				kept = append(kept, strings.TrimPrefix(filepath.Ext(file), "."))
			}
			if got := strings.Join(kept, " "); got != tt.kept {
				t.Errorf("the outputs of runs %q are kept, want %q", got, tt.kept)
			}
			if t.Failed() {
				logOutput(t, out)
			}
		})
	}
}

// An interrupt ends the test with its children, and the busy loops; the table has the runs that ended before.
func TestSteadyEndsWithItsProcesses(t *testing.T) {
	for _, tt := range []struct {
		what   string
		signal syscall.Signal
	}{{"is interrupted", syscall.SIGINT}, {"holds on", syscall.SIGTERM}} {
		t.Run(tt.what, func(t *testing.T) {
			if tt.what == "holds on" && testing.Short() {
				t.Skip("waits five seconds, until hack/steady kills what ignores an interrupt")
			}
			bin := t.TempDir()
			cmd := steady(t, bin, tt.what, "-load", "./...")
			children := filepath.Join(bin, "children")
			out, stop := startScript(t, cmd)
			defer stop()
			waitFor(t, "the second run", func() bool { text, _ := os.ReadFile(children); return strings.HasSuffix(string(text), "\n") })
			if err := cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(out)
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != 130 {
				t.Errorf("exit status %d, want 130", got)
			}
			row := "1 of 1 ./verbs/wire TestSub/bad BYWASH_SEED=0x7 tiny_test.go:" + lineOf("before the") + ": before the interrupt [" +
				filepath.Join(bin, "steady/verbs-wire.1") + "]"
			if !hasRow(string(text), row) {
				t.Errorf("no row %q", row)
				logOutput(t, text)
			}
			checkGone(t, children)
			waitFor(t, "the busy loops to end", func() bool { return errors.Is(syscall.Kill(-cmd.Process.Pid, 0), syscall.ESRCH) })
		})
	}
}
