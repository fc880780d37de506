//go:build linux

// Command peers measures Open MPI, MPICH, UCX and libfabric over shared
// memory beside bin/bywash, in one run on one machine, and prints the ratios.
// Start it with hack/peers/run; README.md says what it runs.
package main

import (
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed c
var programs embed.FS

// missing is the version of a side that is not installed.
const missing = "missing"

// steadyFactor is how much the cache-line time may change within a run.
const steadyFactor = 1.25

// maxTries is how often a run is repeated because the machine was unsteady.
const maxTries = 4

type options struct {
	runs      int
	quick     bool
	peersOnly bool
	dryRun    bool
	cpuList   string
	only      string
	jsonFile  string
	bin       string
	mirror    string
	timeout   time.Duration
	source    string
	cache     string

	cpus cpus
}

const usage = `usage: hack/peers/run [flags]

Measures Open MPI, MPICH, UCX and libfabric over shared memory, and libfabric
over TCP on a virtual Ethernet pair, beside bin/bywash and prints the ratios.
Needs root. The first run makes a Debian 13 tree of 1 GB in
${XDG_CACHE_HOME:-~/.cache}/bywash; delete it whenever you like.
A run takes about three minutes, progress is on standard error.

  --runs N          runs of every measurement, median of all (3)
  --quick           a smoke test: one short run
  --peers-only      without bin/bywash
  --bin FILE        our tool (bin/bywash of this repository)
  --only DRIVER     only what is about this driver of ours: shm or afxdp;
                    or about session, which runs over shm
  --cpus A,B        bind the two processes to these (two cores that may be used)
  --json FILE       also write the rows as JSON, one object a line
  --timeout D       limit for one measurement (1m)
  --mirror URL      Debian archive for the tree (from this machine's apt sources)
  --dry-run         print every command line and stop

Exit status: 0 all of ours measured, 1 not, 2 wrong use. A missed target does
not change it.
`

func main() {
	if len(os.Args) > 1 && os.Args[1] == insideArg {
		os.Args = append(os.Args[:1], os.Args[2:]...)
		o, _ := parse(os.Args[1:])
		os.Exit(inside(o))
	}
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(usage)
		return
	}
	if err != nil {
		complain("%v (see --help)", err)
		os.Exit(2)
	}
	if o.dryRun {
		printPlan(o)
		return
	}
	if err := outside(o); err != nil {
		complain("%v", err)
		os.Exit(1)
	}
	os.Exit(enter())
}

func complain(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "hack/peers: "+format+"\n", a...)
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	f.SetOutput(new(tail))
	f.IntVar(&o.runs, "runs", 3, "")
	f.BoolVar(&o.quick, "quick", false, "")
	f.BoolVar(&o.peersOnly, "peers-only", false, "")
	f.BoolVar(&o.dryRun, "dry-run", false, "")
	f.StringVar(&o.cpuList, "cpus", "", "")
	f.StringVar(&o.only, "only", "", "")
	f.StringVar(&o.jsonFile, "json", "", "")
	f.StringVar(&o.bin, "bin", "", "")
	f.StringVar(&o.mirror, "mirror", "", "")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "")
	f.StringVar(&o.source, "source", ".", "")
	f.StringVar(&o.cache, "cache", "", "")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.runs < 1 || o.runs > 1000 {
		return o, fmt.Errorf("--runs %d: from 1 to 1000", o.runs)
	}
	if !slices.Contains([]string{"", "shm", "afxdp", "session"}, o.only) {
		return o, fmt.Errorf("--only %s: shm, afxdp or session", o.only)
	}
	if o.timeout <= 0 {
		return o, fmt.Errorf("--timeout %v: must be positive", o.timeout)
	}
	if o.quick {
		o.runs = 1
	}
	if o.bin == "" {
		o.bin = filepath.Join(o.source, "../../bin/bywash")
	}
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return o, err
	}
	o.bin = bin
	o.cpus, err = chooseCPUs(o.cpuList)
	return o, err
}

func (o options) tree() string { return filepath.Join(o.cache, "peers-trixie") }

func (o options) scale() float64 {
	if o.quick {
		return 0.1
	}
	return 1
}

// chosen returns the part of the plan that the options select.
func (o options) chosen() []quantity {
	return slices.DeleteFunc(plan(o.cpus, o.scale()), func(q quantity) bool { return o.only != "" && q.ours() != o.only })
}

func (o options) duration() string {
	if o.quick {
		return "100ms"
	}
	return "500ms"
}

// outside makes all early checks, takes the lock and makes the tree.
func outside(o options) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root, for namespaces and chroot: run it with sudo")
	}
	if !o.peersOnly {
		if _, err := os.Stat(o.bin); err != nil {
			return fmt.Errorf("%s is missing: run 'make build' first, or pass --peers-only", o.bin)
		}
	}
	if o.jsonFile != "" {
		f, err := os.OpenFile(o.jsonFile, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return fmt.Errorf("cannot write: %w", err)
		}
		f.Close()
	}
	// Held for the life of this process: two runs would spoil each other.
	lock, err := syscall.Open(filepath.Join(o.cache, "peers.lock"), syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("open lock in %s: %w", o.cache, err)
	}
	if syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return errors.New("another hack/peers run is under way on this machine: wait for it")
	}
	runtime.LockOSThread()
	cmd := exec.Command(filepath.Join(o.source, "tree"), o.cache, o.mirror)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("no Debian 13 tree: %w", err)
	}
	return nil
}

// inside runs the measurements, as init of its own namespaces.
func inside(o options) int {
	tree, err := filepath.Abs(o.tree())
	if err == nil {
		err = prepare(tree)
	}
	if err != nil {
		complain("%v", err)
		return 1
	}
	b := bench{options: o, box: sandbox{tree: tree, timeout: o.timeout}}
	if err := b.setUp(); err != nil {
		complain("%v", err)
		return 1
	}
	rows := b.measure()

	writeText(os.Stdout, rows)
	if o.jsonFile != "" {
		out, err := os.Create(o.jsonFile)
		if err == nil {
			err = errors.Join(writeJSON(out, rows), out.Close())
		}
		if err != nil {
			complain("%v", err)
			return 1
		}
	}
	for _, r := range rows {
		if !o.peersOnly && r.Ours.Median == 0 {
			return 1
		}
	}
	return 0
}

func printPlan(o options) {
	for _, q := range o.chosen() {
		for _, v := range q.variants {
			fmt.Printf("# %s\n%s\n", v.name, strings.Join(ours(o.cpus, o.bin, q, v, o.duration()), " "))
		}
		for _, p := range q.peers {
			for _, c := range p.commands(o.cpus) {
				fmt.Println(c)
			}
		}
	}
	fmt.Println("# limits")
	fmt.Println(strings.Join(lineArgs(o.cpus, o.scale()), " "))
	fmt.Println(strings.Join(memcpyArgs(o.cpus, 1<<20, o.scale()), " "))
}

// chooseCPUs takes the two named, or the first two that this process may use
// and that are not two threads of one core.
func chooseCPUs(list string) (cpus, error) {
	if list != "" {
		a, b, ok := strings.Cut(list, ",")
		x, errA := strconv.Atoi(a)
		y, errB := strconv.Atoi(b)
		if !ok || errA != nil || errB != nil || x < 0 || y < 0 || x == y {
			return cpus{}, fmt.Errorf("--cpus %s: two different CPUs, as in 0,1", list)
		}
		return cpus{x, y}, nil
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return cpus{}, err
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return twoCores(expand(strings.TrimSpace(v)), func(cpu int) []int {
				b, _ := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
				return expand(strings.TrimSpace(string(b)))
			})
		}
	}
	return cpus{}, errors.New("no Cpus_allowed_list in /proc/self/status")
}

func twoCores(allowed []int, siblings func(int) []int) (cpus, error) {
	if len(allowed) < 2 {
		return cpus{}, errors.New("needs two CPUs, may use one: ask for more with taskset or cpuset")
	}
	threads := map[int]bool{}
	for _, s := range siblings(allowed[0]) {
		threads[s] = true
	}
	for _, c := range allowed[1:] {
		if !threads[c] {
			return cpus{allowed[0], c}, nil
		}
	}
	return cpus{allowed[0], allowed[1]}, nil
}

// expand parses a list of the kernel like "0-2,5". It skips parts that are not numbers.
func expand(list string) []int {
	var out []int
	for _, part := range strings.Split(list, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(lo)
		if err != nil {
			continue
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(hi); err != nil {
				continue
			}
		}
		for ; a <= b; a++ {
			out = append(out, a)
		}
	}
	return out
}
