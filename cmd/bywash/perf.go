//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/control"
	"github.com/bywash/bywash/cmd/bywash/internal/perf/report"
	"github.com/bywash/bywash/internal/stat"
)

// perfFlags are the flags of perf as the user wrote them.
type perfFlags struct {
	device, rails, prefetch, secret, wait, mem, bind, plot, baseline, listen string
	iters                                                                    int64
	duration, warmup                                                         time.Duration
	peers, ranks, goroutines                                                 int
	validate, json, csv                                                      bool
	drivers, tests, sizes, options                                           []string
}

const perfLong = `Perf measures drivers between two processes: on this machine, pinned to two
cores, or on two machines (--listen there, HOST:PORT here). Without -t it
measures latency, bandwidth, message rate and put bandwidth; with -d all every
driver that can run here, beside the kernel's own sockets sock-tcp, sock-unix and
sock-udp as baselines (system calls, spinning or blocking as --wait says). On one
machine they take loopback; tcp@veth, sock-tcp@veth and sock-udp@veth run between
two network namespaces, as afxdp does. copy-ring and copy-cma, when they are
named, only copy between the two processes, through a ring in shared memory or
with process_vm_readv and process_vm_writev: the least that a message can take.

Tests:
%s
How it is measured: a warm-up, then some rounds that together take --duration;
with -n, one round of that many operations. Reading the clock costs a third of
the fastest operation, so a latency sample is the average of a batch: up to 64
operations when they are fast (a batch takes about 10 µs), one when they take
longer than 5 µs. The percentiles are of these samples; the maximum is that of a
batch too.
Throughput counts until the receiver has said that it has everything. Up to 64
messages are in flight, but no more than 2 MiB (at least two), so that caches
and not DRAM are measured.

Memory: with --mem arena the buffers lie in memory that drivers share or
register once. Messages of the small track are then made and read in place, in
the driver's buffer: the sender stores to every cache line of it and the
receiver loads from every one, and nobody copies. With --mem heap the message
is copied from and to ordinary Go memory. --validate fills and checks every byte
instead, in every test, which takes its time.

Figures: 1 MB/s is 10^6 bytes a second; K, M and G in sizes are 1024. In JSON,
lat_us_p50 and the like are microseconds, cpu_ns_per_byte is the CPU time of both
processes, path says what carried the data, and what a test does not measure is
null.`

const perfExample = `  bywash perf -d all                               everything, as a table
  bywash perf -d shm -t lat -s 1:4M                one driver over all sizes
  bywash perf -d shm,sock-unix -t lat,bw -s 8:1M --plot shm.svg
  bywash perf -d session --rails shm -t multi-pair,all-to-all --ranks 8
  bywash perf -d session,copy-ring,copy-cma -t lat -s 8:4M --mem heap --bind none
  bywash perf -d shm --option path=cma -t bw       bywash info -d shm lists the driver's options
  sudo bywash perf -d afxdp,sock-tcp               over Ethernet, between namespaces that it makes and removes
  bywash perf -d all --json > before.json; bywash perf -d all --baseline before.json
  bywash perf --listen :7000 --secret-file secret  on one machine; copy the file, which it makes, to the other:
  bywash perf --secret-file secret other:7000 -d tcp,sock-tcp`

func perfCommand() *cobra.Command {
	var f perfFlags
	cmd := &cobra.Command{
		Use:     "perf [flags] [HOST:PORT]",
		Short:   "Measure drivers and the kernel's sockets",
		Long:    fmt.Sprintf(perfLong, bench.TestHelp()),
		Example: perfExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.iters == 0 && cmd.Flags().Changed("iters") {
				return usagef("-n 0: it is a number of iterations from 1 to 2^40")
			}
			if !cmd.Flags().Changed("ranks") {
				f.ranks = 0
			} else if f.ranks == 0 {
				return usagef("--ranks 0: it is from 2 on")
			}
			return runPerf(cmd, &f, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringSliceVarP(&f.drivers, "driver", "d", []string{"all"}, "`drivers`, commas between, or all: "+strings.Join(control.DriverNames(), ", ")+"; or session, "+strings.Join(bench.Copies, ", "))
	fl.StringVar(&f.device, "dev", "", "`device` of the driver, as listed by bywash info")
	fl.StringArrayVar(&f.options, "option", nil, "`key=value`, an option of the driver that -d names (bywash info -d lists them); may be repeated")
	fl.StringVar(&f.rails, "rails", "", "`drivers` that share the load (with -d session)")
	fl.StringSliceVarP(&f.tests, "test", "t", nil, "`tests`, commas between; or all, alone: all but those of a session")
	fl.StringSliceVarP(&f.sizes, "size", "s", nil, "message `sizes`: 8, 4K, 1:4M (powers of two), 8,1M")
	fl.Int64VarP(&f.iters, "iters", "n", 0, "`iterations` of each test (instead of --duration)")
	fl.DurationVar(&f.duration, "duration", 500*time.Millisecond, "`time` for each test and size")
	fl.DurationVar(&f.warmup, "warmup", 100*time.Millisecond, "`time` before that")
	fl.StringVar(&f.wait, "wait", "poll", "`how` to wait: poll (spin) or block (sleep)")
	fl.StringVar(&f.mem, "mem", "arena", "`memory` of messages: arena or heap")
	fl.StringVar(&f.prefetch, "prefetch", "", "`whether` drivers register memory before it is posted: on or off (with -d session)")
	fl.StringVar(&f.bind, "bind", "core", "`where` the processes run: core (each pinned to a core) or none (where the kernel puts them, with all cores)")
	fl.IntVar(&f.peers, "peers", 0, "`number` of idle peers connected beside the measured one, which the receiver probes")
	fl.IntVar(&f.ranks, "ranks", bench.DefaultRanks, "`number` of processes of "+bench.RanksTests()+" (with -d session)")
	fl.IntVar(&f.goroutines, "goroutines", 0, "`number` of goroutines that send the messages of am-rate, each waiting for its own (with -d session)")
	fl.BoolVar(&f.validate, "validate", false, "check every byte")
	fl.BoolVar(&f.json, "json", false, "print one JSON object a line")
	fl.BoolVar(&f.csv, "csv", false, "print comma-separated values")
	fl.StringVar(&f.plot, "plot", "", "draw latency and bandwidth over size into `file`.svg or .html")
	fl.StringVar(&f.baseline, "baseline", "", "add the change against an earlier run, a `file` that --json wrote")
	fl.StringVar(&f.listen, "listen", "", "serve the other end of measurements from another machine, at `:port`")
	fl.StringVar(&f.secret, "secret-file", "", "`file` with the secret that both machines share; the listener makes one when it is missing")
	completeList(cmd, "driver", slices.Concat(control.DriverNames(), bench.Copies, []string{bench.Session, "all"}))
	completeList(cmd, "test", append(bench.TestNames(), "all"))
	completeList(cmd, "option", nil) // no file names: only the driver knows its options
	completeList(cmd, "wait", []string{"poll", "block"})
	completeList(cmd, "mem", []string{"arena", "heap"})
	completeList(cmd, "prefetch", []string{"on", "off"})
	completeList(cmd, "bind", []string{"core", "none"})
	return cmd
}

// peerCommand is the other process of a measurement on this machine.
func peerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    control.PeerCommand,
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s, err := stat.Serve(); err == nil {
				defer s.Close()
			}
			return control.ServeChild(cmd.Context(), programVersion())
		},
	}
}

// config checks the flags.
func (f *perfFlags) config(args []string) (*control.Config, error) {
	c := &control.Config{Device: f.device, SecretFile: f.secret, Iters: f.iters, Duration: f.duration, Warmup: f.warmup,
		Wait: f.wait, Mem: f.mem, Peers: f.peers, Unbound: f.bind == "none", Validate: f.validate, Version: programVersion()}
	var err error
	if c.Drivers, err = control.ParseDrivers(strings.Join(f.drivers, ",")); err != nil {
		return nil, err
	}
	if c.Options, err = control.ParseOptions(f.options); err != nil {
		return nil, err
	}
	if err := control.CheckOptions(c.Drivers, c.Options); err != nil {
		return nil, err
	}
	if c.Tests, err = bench.ParseTests(strings.Join(f.tests, ",")); err != nil {
		return nil, err
	}
	if c.Sizes, err = bench.ParseSizes(strings.Join(f.sizes, ",")); err != nil {
		return nil, err
	}
	if f.rails != "" {
		if err := c.SetRails(f.rails); err != nil {
			return nil, err
		}
	}
	if f.prefetch != "" {
		if err := c.SetPrefetch(f.prefetch); err != nil {
			return nil, err
		}
	}
	if err := c.SetRanks(f.ranks); err != nil {
		return nil, err
	}
	if err := c.SetGoroutines(f.goroutines); err != nil {
		return nil, err
	}
	if len(args) == 1 {
		c.Remote = args[0]
	}
	if err := c.CheckVeth(); err != nil {
		return nil, err
	}
	if f.listen == "" { // else the machine that measures names the rails
		if err := c.CheckDevice(); err != nil {
			return nil, err
		}
	}
	if f.plot != "" && !c.HasPlot() {
		return nil, fmt.Errorf("--plot: %w", report.ErrNotDrawn)
	}
	return c, f.check(args)
}

func (f *perfFlags) check(args []string) error {
	switch {
	case len(args) > 1:
		return fmt.Errorf("perf takes one HOST:PORT, not %d arguments", len(args))
	case f.listen != "" && len(args) > 0:
		return fmt.Errorf("perf takes --listen or HOST:PORT, not both")
	case f.iters < 0 || f.iters > 1<<40:
		return fmt.Errorf("-n %d: it is a number of iterations from 1 to 2^40", f.iters)
	case f.duration <= 0 || f.duration > time.Hour:
		return fmt.Errorf("--duration %s: it is from 1ns to 1h", f.duration)
	case f.warmup < 0 || f.warmup > time.Hour:
		return fmt.Errorf("--warmup %s: it is from 0s to 1h", f.warmup)
	case f.wait != "poll" && f.wait != "block":
		return fmt.Errorf("--wait %q: it is poll or block", f.wait)
	case f.mem != "arena" && f.mem != "heap":
		return fmt.Errorf("--mem %q: it is arena or heap", f.mem)
	case f.bind != "core" && f.bind != "none":
		return fmt.Errorf("--bind %q: it is core or none", f.bind)
	case f.peers < 0 || f.peers > 4096:
		return fmt.Errorf("--peers %d: it is from 0 to 4096", f.peers)
	case f.peers > 0 && len(args) > 0:
		return fmt.Errorf("--peers is for both ends on one machine, not for HOST:PORT")
	case f.json && f.csv:
		return fmt.Errorf("--json and --csv exclude each other")
	case f.plot != "" && filepath.Ext(f.plot) != ".svg" && filepath.Ext(f.plot) != ".html":
		return fmt.Errorf("--plot %q: the file's name ends in .svg or .html", f.plot)
	}
	for _, a := range append([]string{f.listen}, args...) {
		if a == "" {
			continue
		}
		_, port, err := net.SplitHostPort(a)
		if err == nil && port != "" {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil || port == "" {
			return fmt.Errorf("address %q: it is HOST:PORT or :PORT, with a port up to 65535", a)
		}
	}
	if f.listen != "" && f.secret == "" {
		return fmt.Errorf("--listen needs --secret-file F: it makes the file if it is missing; copy it to the other machine")
	}
	if len(args) > 0 && f.secret == "" {
		return fmt.Errorf("HOST:PORT needs --secret-file F, a copy of the file that the listener uses")
	}
	if f.secret != "" && f.listen == "" && len(args) == 0 {
		return fmt.Errorf("--secret-file goes with --listen or HOST:PORT")
	}
	return nil
}

// listenerFlags are those of a listener; the machine that measures says the rest.
var listenerFlags = []string{"listen", "secret-file", "driver", "dev", "option"}

func runPerf(cmd *cobra.Command, f *perfFlags, args []string) error {
	var idle error
	cmd.Flags().Visit(func(fl *pflag.Flag) {
		if f.listen != "" && !slices.Contains(listenerFlags, fl.Name) {
			idle = usagef("--%s has no effect with --listen: give it on the machine that measures", fl.Name)
		}
	})
	if idle != nil {
		return idle
	}
	c, err := f.config(args)
	if err != nil {
		return &usageError{err}
	}
	if s, err := stat.Serve(); err == nil {
		defer s.Close()
	}
	if f.listen != "" {
		return served(control.Serve(cmd.Context(), c, f.listen, os.Stderr))
	}
	if f.baseline != "" {
		b, err := report.ReadBaseline(f.baseline)
		if err != nil {
			return &usageError{err}
		}
		c.Compare = b.Compare
	}
	// On a terminal, results that come one by one show the progress; tables come at the end.
	bar := newProgress(!f.json && !f.csv || !term.IsTerminal(int(os.Stdout.Fd())))
	c.Progress, c.Notes = bar.show, bar
	to, err := f.reporter(cmd.OutOrStdout(), bar, c)
	if err == nil {
		err = control.Run(cmd.Context(), c, to)
	}
	bar.close()
	if to != nil {
		err = errors.Join(err, to.Close())
	}
	return err
}

// reporter puts together what the flags ask for; info takes lines about what was not measured.
func (f *perfFlags) reporter(w, info io.Writer, c *control.Config) (report.Reporter, error) {
	var r report.Reporter
	head := ""
	if f.plot != "" || !f.json && !f.csv {
		head = control.Heading(c)
	}
	switch {
	case f.json:
		r = report.NewJSON(w, info)
	case f.csv:
		r = report.NewCSV(w, info, c.HasRanks(), f.baseline != "")
	default:
		r = report.NewTable(w, head)
	}
	if f.plot == "" {
		return r, nil
	}
	p, err := report.NewPlot(f.plot, head)
	if err != nil {
		return nil, err
	}
	return report.Tee(p, r), nil // a reader of r that is gone ends this process (SIGPIPE): the picture is drawn before
}
