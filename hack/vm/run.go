//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	signalGrace    = 10 * time.Second // for the command to end after a signal
	peerGrace      = 20 * time.Second // for the other machine after one command failed
	backtraceGrace = 10 * time.Second // for the kernel of a machine that hangs to say what it is at
)

var errEscape = errors.New("Ctrl-]")

// An event is what the runner waits for: a message, or that a machine has ended (io.EOF).
type event struct {
	rank int
	message
	err error
}

// A stage is how far a machine has come.
type stage int

const (
	booting stage = iota
	ready
	running
	exited
)

var stageNames = [...]string{"booting", "ready", "running", "exited"}

// A run is the machines of one call and what has become of them.
type run struct {
	options  *options
	machines []*machine
	stages   []stage
	taint    uint64
	events   chan event
	status   int
	err      error // why the run ended otherwise than by its commands
	terminal *terminal
}

// runCommand boots the machines, runs the command in them and returns its exit status, or one of ours with an error.
// The calling thread must live on until it returns.
func runCommand(ctx context.Context, o *options, h *hardware, modules []string) (int, error) {
	r := &run{options: o, events: make(chan event, 16)}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	err := r.start(ctx, h, modules)
	if err == nil {
		r.wait(signals)
	}
	for _, m := range r.machines {
		m.stop()
	}
	if r.terminal != nil {
		r.terminal.restore()
	}
	if err != nil {
		return statusBroken, err
	}
	return r.verdict()
}

func (r *run) start(ctx context.Context, h *hardware, modules []string) error {
	var links [2]*os.File
	var err error
	if links[0], links[1], err = socketPair(); err != nil {
		return err
	}
	ranks := 2
	if !r.options.two {
		ranks = 1
		go io.Copy(io.Discard, links[1]) // a network with nobody else
	}
	var mu sync.Mutex
	for rank := range ranks {
		g, err := guestOf(r.options, rank)
		if err != nil {
			return err
		}
		image, err := initrd(ctx, h.kernel, modules, g)
		if err != nil {
			return err
		}
		to := outputs{stdout: os.Stdout, stderr: os.Stderr}
		if r.options.verbose {
			to.console = os.Stderr
		}
		if r.options.two {
			to = prefixed(to, fmt.Sprintf("[%d] ", rank), &mu)
		}
		m, err := startMachine(h, g, image, links[rank], to, func(rank int, msg message, err error) {
			r.events <- event{rank, msg, err}
		})
		if err != nil {
			return err
		}
		r.machines = append(r.machines, m)
		r.stages = append(r.stages, booting)
	}
	return nil
}

// wait returns when the run is over: all commands have exited, or r.err says what happened instead.
func (r *run) wait(signals chan os.Signal) {
	var limit <-chan time.Time
	if r.options.timeout > 0 {
		limit = time.After(r.options.timeout)
	}
	var grace <-chan time.Time
	var told os.Signal
	for r.err == nil && !r.all(exited) {
		select {
		case e := <-r.events:
			r.handle(e)
			if r.status != 0 && grace == nil && len(r.machines) > 1 {
				grace = time.After(peerGrace)
			}
		case s := <-signals:
			if told != nil || r.stages[0] < running {
				r.fail(128+int(s.(syscall.Signal)), "stopped by %v", s)
				return
			}
			told = s
			r.tellAll("signal %d", s)
			grace = time.After(signalGrace)
		case <-grace:
			if told != nil {
				r.fail(128+int(told.(syscall.Signal)), "stopped by %v: the command did not end within %v", told, signalGrace)
				r.backtraces()
			} else {
				r.err = fmt.Errorf("%s %v after the other had failed: stopped", r.lagging(), peerGrace)
			}
		case <-limit:
			r.fail(statusTimeout, "%s after %v: stopped", r.lagging(), r.options.timeout)
		}
	}
}

// backtraces has the machines whose command does not end print what they are at.
func (r *run) backtraces() {
	left := 0
	for i, m := range r.machines {
		if r.stages[i] == running {
			m.backtrace()
			left++
		}
	}
	for limit := time.After(backtraceGrace); left > 0; {
		select {
		case e := <-r.events:
			if errors.Is(e.err, io.EOF) {
				left--
			}
		case <-limit:
			return
		}
	}
}

func (r *run) all(s stage) bool {
	return !slices.ContainsFunc(r.stages, func(other stage) bool { return other != s })
}

func (r *run) fail(status int, format string, args ...any) {
	r.status, r.err = status, fmt.Errorf(format, args...)
}

func (r *run) tellAll(format string, args ...any) {
	for i, m := range r.machines {
		if r.stages[i] == running {
			m.tell(format, args...)
		}
	}
}

// handle takes what a machine says.
func (r *run) handle(e event) {
	stage := &r.stages[e.rank]
	switch {
	case errors.Is(e.err, io.EOF):
		r.fail(statusBroken, "machine %d ended while %s%s", e.rank, stageNames[*stage], r.qemuSaid(e.rank))
	case e.err == errEscape:
		r.fail(128+int(syscall.SIGTERM), "stopped by Ctrl-]")
	case e.err != nil:
		r.fail(statusBroken, "machine %d: %w", e.rank, e.err)
	case e.kind == "error":
		r.fail(statusBroken, "prepare machine %d: %s", e.rank, e.text)
	case e.kind == "ready" && *stage == booting:
		*stage = ready
		if r.all(ready) {
			r.startCommands()
		}
	case e.kind == "exit" && *stage == running:
		*stage = exited
		r.taint |= e.taint
		if r.status == 0 {
			r.status = e.status
		}
	default:
		r.fail(statusBroken, "machine %d said %q while %s", e.rank, e.kind, stageNames[*stage])
	}
}

func (r *run) startCommands() {
	for i, m := range r.machines {
		r.stages[i] = running
		m.tell("go")
	}
	if r.options.shell {
		r.terminal = connectTerminal(r.machines[0], func() { r.events <- event{err: errEscape} })
	}
}

// lagging says which machines are not done, and at what they are.
func (r *run) lagging() string {
	var names []string
	for i, s := range r.stages {
		if s != exited {
			names = append(names, fmt.Sprintf("machine %d was still %s", i, stageNames[s]))
		}
	}
	return strings.Join(names, " and ")
}

func (r *run) qemuSaid(rank int) string {
	// QEMU's own words are complete once it has ended, as it has, or else cannot be talked to.
	m := r.machines[rank]
	m.cmd.Process.Kill()
	m.cmd.Wait()
	if said := strings.TrimSpace(m.qemu.String()); said != "" {
		return ": " + said
	}
	return ""
}

// lastWords is the end of the consoles, for who wonders why nothing happened.
func (r *run) lastWords() string {
	var b strings.Builder
	for _, m := range r.machines {
		if text := lastLines(m.console.log.String(), 10); text != "" && !r.options.verbose {
			fmt.Fprintf(&b, "\nthe console of machine %d ends with:\n%s", m.rank, text)
		}
	}
	return b.String()
}

// verdict is for after the machines have stopped.
func (r *run) verdict() (int, error) {
	var report strings.Builder
	for _, m := range r.machines {
		for _, f := range m.console.faults {
			fmt.Fprintf(&report, "\nmachine %d: %s\n  %s\n", m.rank, f.what, strings.Join(f.lines, "\n  "))
		}
	}
	switch {
	case report.Len() > 0:
		return statusFault, fmt.Errorf("the guest's kernel reported a fault%s:\n%s", r.commandStatus(), report.String())
	case r.taint&taintFaults != 0:
		return statusFault, fmt.Errorf(
			"the guest's kernel is tainted (%#x), so it found a fault, and its report was not on the console%s",
			r.taint, r.commandStatus())
	}
	if r.status == statusBroken || r.status == statusTimeout {
		return r.status, fmt.Errorf("%w%s", r.err, r.lastWords())
	}
	return r.status, r.err
}

func (r *run) commandStatus() string {
	if r.err != nil {
		return fmt.Sprintf(" (and: %v)", r.err)
	}
	return fmt.Sprintf(" (the command's status: %d)", r.status)
}

// prefixed marks each line; lines of all writers with the same lock come out whole.
func prefixed(to outputs, prefix string, mu *sync.Mutex) outputs {
	wrap := func(w io.Writer) io.Writer {
		if w == nil {
			return nil
		}
		return &prefixWriter{to: w, prefix: prefix, mu: mu}
	}
	return outputs{stdout: wrap(to.stdout), stderr: wrap(to.stderr), console: wrap(to.console)}
}
