// Testsum runs go test and says, at the end, what happened: how many tests passed and failed, and which were skipped
// and why.
//
//	testsum [flags] [name:] [VAR=value...] go-test-arguments [--|++ [name:] [VAR=value...] go-test-arguments]...
//
// Each group of arguments is one run of "go test -json", one after the other, all under one summary; "++" instead of
// "--" begins a lane, whose groups run beside those before, at a somewhat lower priority. While they run
// there is a line per package, the whole output of tests that fail, and, when nothing was printed for a minute, a line
// that names the tests that are running. The last line of standard output is always
//
//	N passed, N failed, N skipped
//
// How tests are counted:
//
//   - A test without subtests counts as one, and so does a subtest. A test with subtests is only their container: it
//     counts when it failed although none of them did, or when it skipped itself after running some.
//   - A test that began and never ended (panic, timeout, os.Exit, interrupt) has failed. A skipped test never counts
//     as passed.
//   - A package that fails outside of its tests (it does not build, TestMain fails) counts as one failure. A package
//     without tests counts as nothing.
//   - A test that two groups run counts twice, because it ran twice.
//   - A group with -race or -asan on a machine that cannot build with it counts as one skip, with the reason.
//
// The exit status is 0 when tests ran and none failed, 1 when something failed or a group ran no test, 2 for wrong
// usage and 130 after an interrupt. An interrupt is passed on to go test and to the tests it runs.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// killAfter is how long an interrupted go test has to end before it is killed.
const killAfter = 10 * time.Second

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("testsum", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		goCmd     = flags.String("go", "go", "the go `command`")
		heartbeat = flags.Duration("heartbeat", time.Minute, "name the running tests after this much silence")
		slowest   = flags.Int("slowest", 5, "how many of the slowest tests to show")
		lastLine  = flags.String("o", "", "also write the last line to this `file`")
	)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: testsum [flags] [name:] [VAR=value...] go-test-arguments [--|++ …]...")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	lanes, err := parseGroups(flags.Args())
	if err != nil {
		fmt.Fprintln(stderr, "testsum:", err)
		return 2
	}

	r := newReport(stdout, time.Now)
	r.module = modulePath(*goCmd)
	interrupted := runLanes(*goCmd, lanes, r, *heartbeat)
	total := r.summary(*slowest)
	if *lastLine != "" {
		if err := os.WriteFile(*lastLine, []byte(total.String()+"\n"), 0o644); err != nil {
			fmt.Fprintln(stderr, "testsum:", err)
			return 1
		}
	}
	switch {
	case interrupted:
		return 130
	case !r.ok():
		return 1
	}
	return 0
}

// runLanes runs the lanes at the same time, each with a report of its own, which then join r.
func runLanes(goCmd string, lanes [][]groupSpec, r *report, heartbeat time.Duration) (interrupted bool) {
	reports := make([]*report, len(lanes))
	cut := make([]bool, len(lanes))
	var running sync.WaitGroup
	for i, groups := range lanes {
		reports[i] = r.lane(len(lanes) > 1)
		command := []string{goCmd}
		if nice, err := exec.LookPath("nice"); i > 0 && err == nil {
			command = []string{nice, "-n", "3", goCmd} // more would starve what runs in emulated machines
		}
		running.Go(func() { cut[i] = runGroups(command, groups, reports[i], heartbeat) })
	}
	running.Wait()
	for _, lane := range reports {
		r.join(lane)
	}
	return slices.Contains(cut, true)
}

// runGroups runs one group after the other. It tells whether it was interrupted.
func runGroups(goCmd []string, groups []groupSpec, r *report, heartbeat time.Duration) (interrupted bool) {
	// Registered before the first child, so that no interrupt falls between.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	for _, spec := range groups {
		if interrupted {
			break
		}
		r.inTurn(func() { r.beginGroup(spec) })
		if sanitizer := spec.sanitizer(); sanitizer != "" {
			if why := unavailable(goCmd[len(goCmd)-1], sanitizer); why != "" {
				r.inTurn(func() { r.skipGroup(why) })
				continue
			}
		}
		var status error
		status, interrupted = runGroup(goCmd, spec, r, heartbeat, signals)
		r.inTurn(func() { r.endGroup(status, interrupted) })
	}
	return interrupted
}

// A groupSpec is one run of go test.
type groupSpec struct {
	name     string
	env      []string // NAME=value, for this run
	args     []string
	optional bool // all its tests may skip
}

// sanitizer is the flag of go test that needs more of the machine than Go: -race, -asan, or none.
func (g groupSpec) sanitizer() string {
	for _, a := range g.args {
		switch a {
		case "-args", "--args":
			return ""
		case "-race", "--race", "-race=true", "--race=true":
			return "-race"
		case "-asan", "--asan", "-asan=true", "--asan=true":
			return "-asan"
		}
	}
	return ""
}

// variable reports whether a word sets a variable of the environment.
var variable = regexp.MustCompile("^[A-Za-z_][A-Za-z0-9_]*=").MatchString

// parseGroups splits arguments at "++" into lanes, and those at "--" into groups; a first word that ends in a colon
// names the group, and words like NAME=value after it are its environment. With "?:" at its end all tests of the group may skip; otherwise a group in which none ran has failed.
func parseGroups(args []string) (lanes [][]groupSpec, err error) {
	seen := map[string]bool{}
	n := 0
	for lane := range splitAt(args, "++") {
		var groups []groupSpec
		for words := range splitAt(lane, "--") {
			n++
			g := groupSpec{name: fmt.Sprintf("group %d", n), args: words}
			if len(words) > 0 && len(words[0]) > 1 && strings.HasSuffix(words[0], ":") {
				g.name, g.optional = strings.CutSuffix(strings.TrimSuffix(words[0], ":"), "?")
				g.args = words[1:]
			}
			for len(g.args) > 0 && variable(g.args[0]) {
				g.env, g.args = append(g.env, g.args[0]), g.args[1:]
			}
			if len(g.args) == 0 {
				return nil, fmt.Errorf("group %d has no arguments for go test (say ./...)", n)
			}
			if seen[g.name] {
				return nil, fmt.Errorf("two groups are named %q", g.name)
			}
			seen[g.name] = true
			groups = append(groups, g)
		}
		lanes = append(lanes, groups)
	}
	return lanes, nil
}

// splitAt yields what stands between the words that are sep.
func splitAt(words []string, sep string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for {
			at := slices.Index(words, sep)
			if at < 0 {
				yield(words)
				return
			}
			if !yield(words[:at]) {
				return
			}
			words = words[at+1:]
		}
	}
}

// modulePath is cut from the front of package names, to keep lines short. Unknown is fine.
func modulePath(goCmd string) string {
	out, err := exec.Command(goCmd, "list", "-m").Output()
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(first)
}

// unavailable says why this machine cannot build with a sanitizer, or nothing when it can. It tries, because the answer
// depends on the architecture, CGO_ENABLED, the C compiler and the C library's headers; the build lands in the cache
// and the tests need it anyway.
func unavailable(goCmd, sanitizer string) string {
	out, err := exec.Command(goCmd, "build", sanitizer, "runtime/cgo").CombinedOutput()
	if err == nil {
		return ""
	}
	why := err.Error()
	for line := range strings.Lines(string(out)) {
		// "# runtime/cgo" names the package; the line after it the cause.
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			why = strings.TrimPrefix(line, "go: ")
			break
		}
	}
	name := map[string]string{"-race": "the race detector", "-asan": "the address sanitizer"}[sanitizer]
	return name + " cannot be built here: " + why
}

// runGroup runs go test and feeds r with its events until it has ended and both its outputs are drained.
func runGroup(goCmd []string, spec groupSpec, r *report, heartbeat time.Duration, signals <-chan os.Signal) (status error, interrupted bool) {
	words := slices.Concat(goCmd, []string{"test", "-json"}, spec.args)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), spec.env...)
	// A process group of its own, so that a signal reaches go test and the tests once, whether it came from a
	// terminal or from kill.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err, false
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err, false
	}
	if err := cmd.Start(); err != nil {
		return err, false
	}

	lines := readLines(stdout, stderr)
	tick := time.NewTicker(max(min(heartbeat/10, time.Second), time.Millisecond))
	defer tick.Stop()
	var kill <-chan time.Time
	killGroup := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	for {
		select {
		case in, ok := <-lines:
			if !ok {
				return cmd.Wait(), interrupted
			}
			r.inTurn(func() { r.take(in) })
		case s := <-signals:
			if interrupted {
				killGroup()
				continue
			}
			interrupted = true
			r.inTurn(func() { r.note("%v: stopping the tests (again: kill them)", s) })
			_ = syscall.Kill(-cmd.Process.Pid, s.(syscall.Signal))
			kill = time.After(killAfter)
		case <-kill:
			killGroup()
		case <-tick.C:
			r.inTurn(func() { r.beat(heartbeat) })
		}
	}
}

// input is a line that go test has written.
type input struct {
	line   []byte
	stderr bool
}

// readLines merges both outputs, line by line, until both have ended.
func readLines(stdout, stderr io.Reader) <-chan input {
	lines := make(chan input, 64)
	var readers sync.WaitGroup
	read := func(from io.Reader, isErr bool) {
		in := bufio.NewReaderSize(from, 64<<10)
		for {
			line, err := in.ReadBytes('\n')
			if len(line) > 0 {
				lines <- input{line, isErr}
			}
			if err != nil {
				return
			}
		}
	}
	readers.Go(func() { read(stdout, false) })
	readers.Go(func() { read(stderr, true) })
	go func() { readers.Wait(); close(lines) }()
	return lines
}
