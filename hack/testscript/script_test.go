//go:build linux

// Package testscript tests hack/test and hack/steady, which run tests, with the tests of tiny modules.
package testscript

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/internal/lab/terminal"
)

// fakeGo is a go command whose tests are the tiny module's, that cannot build with -asan, and that builds gotestsum once
// and hack/vm, which no test here starts, not at all.
const fakeGo = `#!/bin/sh
case "$1 $2" in
"build -asan") printf '# runtime/cgo\ngo: -asan requires "cgo"\n' >&2; exit 2 ;;
"build -modfile=hack/tools.mod") [ ! -x "$BYWASH_BIN/gotestsum" ] || exit 0 ;;
"build -o") exit 0 ;;
test*) cd "$TINY" || exit ;;
esac
exec "$REAL_GO" "$@"
`

// fakeKmod is a hack/kmod that has no headers, or no module that builds.
const fakeKmod = `#!/bin/sh
case $TINY_CASE in "no headers"*) echo "vm: no archive here" >&2; exit 3 ;; esac
printf 'nic.c: In function f:\nnic.c:1: error: tiny\nnic.c:2: error: another\n' >&2
exit 1
`

// tiny is a package of the tiny module. TINY_CASE says what goes wrong in it.
const tiny = `package tiny

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"testing"
	"time"
)

// first reports whether what goes wrong has not gone wrong yet.
func first() bool {
	f, err := os.OpenFile(os.Getenv("TINY_MARK"), os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		f.Close()
	}
	return err == nil
}

func is(what string) bool { return os.Getenv("TINY_CASE") == what }

func TestMain(m *testing.M) {
	if code := m.Run(); code != 0 || !is("outside") || !first() {
		os.Exit(code)
	}
	fmt.Println("what TestMain found")
	os.Exit(1)
}

func TestSub(t *testing.T) {
	t.Run("good", func(t *testing.T) { t.Log("quiet please") })
	t.Run("bad", func(t *testing.T) {
		switch {
		case is("fails"), is("fails once") && first():
			t.Error("got 1, want 2")

		case is("integrity") && first():
			t.Error("INTEGRITY: byte 3 differs")
		case is("panics") && first():
			panic("tiny")
		case is("exits") && first():
			os.Exit(1)
		case is("hangs") && first():
			time.Sleep(time.Hour)
		case is("race") && first():
			x, done := 0, make(chan bool)
			go func() { x++; close(done) }()
			x++
			<-done
		case is("is interrupted"), is("holds on"):
			if is("holds on") {
				signal.Ignore(os.Interrupt)
			}
			child := exec.Command("sleep", "300")
			child.Stdout = os.Stdout
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			f, _ := os.OpenFile(os.Getenv("CHILDREN"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			fmt.Fprintln(f, child.Process.Pid)
			f.Close()
			_ = child.Wait() // the interrupt may end it before this process
			time.Sleep(time.Hour)
		}
	})
}

func TestSkip(t *testing.T) {
	t.Log("seed 1")
	t.Skip("needs root: makes namespaces")
}

func TestShows(t *testing.T) { t.Log("panic: what it expects") }

func TestMany(t *testing.T) {
	for k := range 5 {
		t.Run(fmt.Sprint("seed/", k), func(t *testing.T) {})
	}
}

func TestA(t *testing.T) { five(t) }
func TestB(t *testing.T) { five(t) }
func TestC(t *testing.T) { five(t) }
func TestD(t *testing.T) { five(t) }
func TestE(t *testing.T) { five(t) }

func five(t *testing.T) {
	if is("five fail") {
		t.Error("one of five")
	}
}
`

// connect is its other package. Group hw runs both, group unauthenticated this one.
const connect = `package connect

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestUnauthenticated(t *testing.T) {
	if os.Getenv("TINY_CASE") == "is interrupted" {
		f, _ := os.OpenFile(os.Getenv("CHILDREN"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		fmt.Fprintln(f, os.Getpid())
		f.Close()
		time.Sleep(time.Hour)
	}
}
`

// script starts hack/test with the fake go command. Its programs are built once, in bin.
func script(t *testing.T, bin, what string, args ...string) *exec.Cmd {
	t.Helper()
	realGo, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := tiny
	if what == "does not build" {
		text += "\nvar x = undefined\n"
	}
	for name, text := range map[string]string{
		"bin/go": fakeGo, "bin/kmod": fakeKmod, "go.mod": "module tiny\n\ngo 1.26\n",
		"verbs/tiny_test.go": text, "verbs/internal/connect/connect_test.go": connect,
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	flags := "-p 1 -count=1 -timeout 1m -vet=off -ldflags=-w"
	switch what {
	case "race":
		flags += " -race"
	case "hangs":
		flags = strings.Replace(flags, "1m", "3s", 1)
	case "wrong usage":
		flags = "-count=x"
	}
	cmd := exec.Command("../test", args...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "REAL_GO="+realGo, "TINY="+dir,
		"BYWASH_BIN="+bin, "BYWASH_KMOD="+filepath.Join(dir, "bin/kmod"), "DEV=none", "TESTFLAGS="+flags, "TINY_CASE="+what, "TINY_MARK="+filepath.Join(dir, "mark"),
		"CHILDREN="+filepath.Join(bin, "children"), "GOFLAGS=")
	if what == "no headers, which is no failure" {
		cmd.Env = append(cmd.Env, "BYWASH_SKIP=-skip")
	}
	return cmd
}

func lastLine(s string) string {
	s = strings.TrimSuffix(s, "\n")
	return s[strings.LastIndexByte(s, '\n')+1:]
}

func TestSummary(t *testing.T) {
	bin := t.TempDir()
	const all = "14 passed, 0 failed, 1 skipped"
	tests := []struct {
		what, args string
		status     int
		last       string
		shows      []string
	}{
		{"nothing", "hw ++ unauthenticated", 0, "15 passed, 0 failed, 1 skipped",
			[]string{"  1 needs root: makes namespaces\n", "[hw] PASS  tiny/verbs ", "hw: 14 passed, 0 failed, 1 skipped;", "unauthenticated: 1 passed"}},
		{"fails once", "hw", 0, all, []string{"Unsteady", "[hw] tiny/verbs.TestSub/bad: 2 runs, 1 failures", "got 1, want 2"}},
		{"fails", "hw", 1, "13 passed, 1 failed, 1 skipped", []string{"got 1, want 2", "Failed:\n  tiny/verbs\tTestSub/bad\t[hw]\n"}},
		{"race", "hw", 1, "13 passed, 1 failed, 1 skipped", []string{"WARNING: DATA RACE", "TestSub/bad\t[hw]"}},
		{"integrity", "hw", 1, "14 passed, 1 failed, 1 skipped", []string{"byte 3 differs", "no second run excuses: INTEGRITY", "the group\t[hw]"}},
		{"exits", "hw", 1, "3 passed, 1 failed, 0 skipped", []string{"TestSub/bad: never ended"}},
		{"does not build", "hw", 1, "1 passed, 1 failed, 0 skipped", []string{"undefined: undefined"}},
		// Not with -short.
		{"nothing", "hw asan", 0, "14 passed, 0 failed, 2 skipped", []string{"-asan cannot be built here: go: -asan requires cgo"}},
		{"nothing", "asan", 1, "0 passed, 0 failed, 1 skipped", nil},
		{"five fail", "hw", 1, "9 passed, 5 failed, 1 skipped", []string{"one of five", "TestE\t[hw]"}},
		{"panics", "hw", 1, "2 passed, 1 failed, 0 skipped", []string{"panic: tiny", "TestSub/bad\t[hw]"}},
		{"hangs", "hw", 1, "2 passed, 1 failed, 0 skipped", []string{"test timed out after 3s", "TestSub/bad\t[hw]"}},
		{"outside", "hw", 1, "14 passed, 1 failed, 1 skipped", []string{"what TestMain found", "tiny/verbs\t\t[hw]"}},
		{"no headers", "hw kmod-6.1", 1, "14 passed, 1 failed, 1 skipped", []string{"no headers of kernel 6.1: vm: no archive here"}},
		{"no headers, which is no failure", "hw kmod-6.1", 0, "14 passed, 0 failed, 2 skipped", []string{"1 no headers of kernel 6.1: vm: no archive here"}},
		{"module does not build", "kmod-6.1", 1, "0 passed, 1 failed, 0 skipped",
			[]string{"the module does not build for kernel 6.1: nic.c:1: error: tiny\n", "Failed:\n  all of kmod-6.1\tTests\t[kmod-6.1]\n"}},
		{"wrong usage", "hw", 1, "0 passed, 1 failed, 0 skipped", []string{`invalid value "x"`}},
	}
	if testing.Short() {
		tests = tests[:7]
	}
	for _, tt := range tests {
		t.Run(tt.what+" "+tt.args, func(t *testing.T) {
			if tt.what == "race" {
				if out, err := exec.Command("go", "build", "-race", "runtime/cgo").CombinedOutput(); err != nil {
					t.Skipf("needs the race detector: %s", out)
				}
			}
			cmd := script(t, bin, tt.what, append([]string{"group"}, strings.Fields(tt.args)...)...)
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != tt.status {
				t.Errorf("exit status %d, want %d", got, tt.status)
			}
			if got := lastLine(string(out)); got != tt.last {
				t.Errorf("last line %q, want %q", got, tt.last)
			}
			if file, _ := os.ReadFile(filepath.Join(bin, "test", "summary")); lastLine(string(file)) != tt.last {
				t.Errorf("the file's last line is %q, want %q", lastLine(string(file)), tt.last)
			}
			for _, s := range append(tt.shows, "\nSlowest:\n") {
				if !strings.Contains(string(out), s) {
					t.Errorf("%q is missing", s)
				}
			}
			if tt.status == 0 && (strings.Contains(string(out), "quiet please") || strings.Contains(string(out), "seed 1")) {
				t.Error("the output of a test that passed is shown")
			}
			if t.Failed() {
				logOutput(t, out)
			}
		})
	}
	for _, args := range []string{"group none", "rest none", "nonsense"} {
		cmd := script(t, bin, "nothing", strings.Fields(args)...)
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 {
			t.Errorf("%q: exit status %d, want 2\n%s", args, cmd.ProcessState.ExitCode(), out)
		}
	}
}

// An interrupt reaches the tests of every lane, also one that is typed; the summary so far is printed, and nothing is left
// running.
func TestInterruptEndsEveryLane(t *testing.T) {
	bin := t.TempDir()
	for _, tt := range []struct {
		args, what string
		signal     syscall.Signal // 0: Ctrl-C is typed at the terminal
		last       string
	}{
		{"group hw ++ unauthenticated", "is interrupted", 0, "1 passed, 2 failed, 0 skipped"},
		{"group hw unauthenticated", "is interrupted", syscall.SIGTERM, "1 passed, 2 failed, 0 skipped"},
		{"group hw", "holds on", syscall.SIGINT, "1 passed, 1 failed, 0 skipped"},
	} {
		t.Run(tt.what+" "+tt.args, func(t *testing.T) {
			if tt.what == "holds on" && testing.Short() {
				t.Skip("waits ten seconds, until hack/test kills what ignores an interrupt")
			}
			cmd := script(t, bin, tt.what, strings.Fields(tt.args)...)
			children := filepath.Join(bin, "children")
			os.Remove(children)
			var user *os.File
			if tt.signal == 0 {
				var program *os.File
				user, program = terminal.New(t)
				cmd.Stdin, cmd.Stderr = program, program // bash looks at the latter
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			}
			out, stop := startScript(t, cmd)
			defer stop()
			lanes := strings.Count(tt.args, "++") + 1
			waitFor(t, "the tests to run", func() bool { text, _ := os.ReadFile(children); return bytes.Count(text, []byte("\n")) == lanes })
			interrupt := func() error { return cmd.Process.Signal(tt.signal) }
			if tt.signal == 0 {
				interrupt = func() error { _, err := user.WriteString("\x03"); return err }
			}
			if err := interrupt(); err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(out)
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != 130 {
				t.Errorf("exit status %d, want 130", got)
			}
			if got := lastLine(string(text)); got != tt.last {
				t.Errorf("last line %q, want %q", got, tt.last)
			}
			want := []string{"stopping the tests", "TestSub/bad\t[hw]"}
			if tt.what == "holds on" {
				want = append(want, "SIGQUIT", "tiny_test.go:") // its goroutines
			}
			for _, want := range want {
				if !strings.Contains(string(text), want) {
					t.Errorf("%q is missing", want)
				}
			}
			if t.Failed() {
				logOutput(t, text)
			}
			checkGone(t, children)
		})
	}
}

// logOutput logs what a script printed, in which the words that no second run excuses are those of the tiny module.
func logOutput(t *testing.T, text []byte) {
	t.Helper()
	t.Logf("%s", strings.NewReplacer("panic: ", "panic_", "RACE", "R_CE", "INTEGRITY", "INT_GRITY").Replace(string(text)))
}

func startScript(t *testing.T, cmd *exec.Cmd) (out io.Reader, stop func()) {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return out, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// checkGone waits until the processes whose ids are in a file have ended.
func checkGone(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for pid := range strings.FieldsSeq(string(text)) {
		waitFor(t, "process "+pid+" to end", func() bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			return err != nil || bytes.Contains(stat, []byte(") Z ")) // a zombie nobody has waited for
		})
	}
}
