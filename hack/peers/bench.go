//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/bywash/bywash/internal/lab/veth"
)

// bench measures the plan in its sandbox.
type bench struct {
	options
	box     sandbox
	machine machine
	absent  map[string]string // group: why its peers cannot run
}

// sides of each package group, for versions and reasons.
var packages = map[string]string{
	"openmpi":   "openmpi-bin",
	"mpich":     "mpich",
	"ucx":       "ucx-utils",
	"libfabric": "libfabric-bin",
}

const oursName = "ours"

// setUp compiles the C programs and determines which peers the tree has.
func (b *bench) setUp() error {
	b.absent = map[string]string{}
	cc := []string{"-O2", "-Wall", "-Wextra", "-Werror", "-o"}
	if _, err := b.box.inTree(nil, append([]string{"gcc"}, append(cc, "limits", "limits.c")...)...); err != nil {
		return fmt.Errorf("compile limits.c: %w", err)
	}
	for group := range packages {
		failed, err := os.ReadFile(filepath.Join(b.box.tree, "var/lib/bywash-peers", group+".failed"))
		if err == nil {
			b.absent[group] = "cannot be installed: " + strings.TrimSpace(string(failed))
			continue
		}
		if group != "openmpi" && group != "mpich" {
			continue
		}
		mpicc := append([]string{"mpicc." + group}, append(cc, "mpi_pingpong."+group, "mpi_pingpong.c")...)
		if _, err := b.box.inTree(nil, mpicc...); err != nil {
			b.absent[group] = "mpi_pingpong.c does not compile: " + err.Error()
		}
	}
	b.machine = machine{
		CPU: cpuModel(), CPUs: runtime.NumCPU(), Pinned: b.cpus, Kernel: kernel(), Runs: b.runs,
		Time: time.Now().UTC().Format(time.RFC3339), Versions: map[string]string{},
	}
	for group, pkg := range packages {
		v, err := b.box.inTree(nil, "dpkg-query", "-W", "-f", "${Version}", pkg)
		if err != nil {
			v = missing
			if b.absent[group] == "" {
				b.absent[group] = "package " + pkg + " is not in the tree"
			}
		}
		b.machine.Versions[map[string]string{"openmpi": "Open MPI", "mpich": "MPICH", "ucx": "UCX", "libfabric": "libfabric"}[group]] = v
	}
	return nil
}

func (b *bench) measure() []row {
	quantities := b.chosen()
	var rows []row
	done, total := 0, len(quantities)*b.runs
	for _, q := range quantities {
		m := newMeasurement(b, q)
		for run := range b.runs {
			done++
			m.run(run, fmt.Sprintf("[%d/%d] %s %d B, run %d", done, total, q.test, q.size, run+1))
		}
		rows = append(rows, m.rows()...)
	}
	return rows
}

// measurement is one quantity with all its sides.
type measurement struct {
	b        *bench
	q        quantity
	ours     []series
	peers    []series
	limit    series
	unsteady int
}

func newMeasurement(b *bench, q quantity) *measurement {
	m := &measurement{b: b, q: q, limit: series{Name: q.limit}}
	for _, v := range q.variants {
		s := series{Name: oursName, Commands: []string{strings.Join(ours(b.cpus, "bin/bywash", q, v, b.duration()), " ")}}
		if b.peersOnly {
			s.Reason = "left out by --peers-only"
		}
		m.ours = append(m.ours, s)
	}
	for _, p := range q.peers {
		m.peers = append(m.peers, series{Name: p.name, Commands: p.commands(b.cpus), Reason: b.absent[p.group]})
	}
	return m
}

// run makes each side measure once. It takes the cache-line time around each measurement: a virtual machine's CPUs can
// move closer together or further apart within seconds, which changes that time threefold. Such a run is repeated,
// because its sides did not have the same machine.
func (m *measurement) run(run int, title string) {
	for try := 1; ; try++ {
		figures, lines := m.round(run, title, try < maxTries)
		if !steady(lines) {
			if try < maxTries {
				fmt.Fprintf(os.Stderr, "%s: the machine changed meanwhile (cache line %.0f, then %.0f ns): again\n",
					title, lines[0], lines[len(lines)-1])
				continue
			}
			m.unsteady++
		}
		for i, v := range figures {
			m.side(i).add(v)
		}
		switch m.q.limit {
		case limitLine:
			m.limit.add(median(lines))
		case limitMemcpy:
			v, err := m.memcpy()
			if err != nil {
				m.limit.Reason = err.Error()
			}
			m.limit.add(v)
		}
		return
	}
}

// round is one try of a run: each side's figure (0: none) and the cache-line
// times before, between and after them. With abort it ends where they change.
func (m *measurement) round(run int, title string, abort bool) (figures, lines []float64) {
	n := len(m.ours) + len(m.peers)
	figures = make([]float64, n)
	witness := func() {
		v, err := m.line()
		if err != nil {
			m.limit.Reason = "cache line: " + err.Error()
		}
		lines = append(lines, v)
	}
	witness()
	for k := range n {
		i := (k + run) % n // the order rotates
		s := m.side(i)
		if s.Reason != "" {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", title, s.Name)
		var err error
		if i < len(m.ours) {
			figures[i], s.Path, err = m.oursFigure(m.q.variants[i])
		} else {
			figures[i], err = m.peerFigure(m.q.peers[i-len(m.ours)])
		}
		if err != nil {
			// Not tried again: a slow failure would be slow in every run.
			s.Reason = err.Error()
			fmt.Fprintf(os.Stderr, "%s: %s failed: %v\n", title, s.Name, err)
		}
		witness()
		if abort && !steady(lines) {
			break
		}
	}
	return figures, lines
}

func steady(lines []float64) bool {
	low, high := slices.Min(lines), slices.Max(lines)
	return low > 0 && high <= steadyFactor*low
}

func (m *measurement) side(i int) *series {
	if i < len(m.ours) {
		return &m.ours[i]
	}
	return &m.peers[i-len(m.ours)]
}

func (m *measurement) line() (float64, error) {
	out, err := m.b.box.inTree(nil, lineArgs(m.b.cpus, m.b.scale())...)
	reap()
	if err != nil {
		return 0, err
	}
	return parsePairs(out, 64, nanoseconds)
}

func (m *measurement) memcpy() (float64, error) {
	out, err := m.b.box.inTree(nil, memcpyArgs(m.b.cpus, m.q.size, m.b.scale())...)
	reap()
	if err != nil {
		return 0, err
	}
	return parsePairs(out, m.q.size, megabytes)
}

func (m *measurement) oursFigure(v variant) (float64, string, error) {
	out, err := m.b.box.onHost(ours(m.b.cpus, m.b.bin, m.q, v, m.b.duration())...)
	reap()
	if err != nil {
		return 0, "", err
	}
	r, err := parseOurs(out, m.q.ours(), m.q.size)
	if err != nil {
		return 0, "", err
	}
	if r.Version != "" {
		m.b.machine.Versions["Bywash"] = r.Version
	}
	figure, err := r.figure(m.q.unit)
	return figure, r.Path, err
}

func (m *measurement) peerFigure(p side) (float64, error) {
	var out string
	var err error
	switch {
	case p.ether:
		out, err = m.b.overEther(p)
	case p.server:
		server, client := p.pair(m.b.cpus, loopback)
		out, err = m.b.box.pairInTree(here{}, here{}, p.env, server, client, p.port())
	default:
		out, err = m.b.box.inTree(p.env, p.argv...)
	}
	reap()
	if err != nil {
		return 0, err
	}
	return p.parse(out, m.q.size, m.q.unit)
}

// overEther runs a pair in two namespaces of its own.
func (b *bench) overEther(p side) (string, error) {
	pair, err := veth.New(veth.Config{})
	if err != nil {
		return "", err
	}
	defer pair.Close()
	far := &pair.Ends[1]
	server, client := p.pair(b.cpus, far.IPv4.Addr().String())
	return b.box.pairInTree(far, &pair.Ends[0], p.env, server, client, p.port())
}

func (m *measurement) rows() []row {
	var limit *series
	if m.q.limit != "" {
		limit = &m.limit
	}
	var rows []row
	for i, v := range m.q.variants {
		rows = append(rows, newRow(m.q, v, m.ours[i], m.peers, limit, m.unsteady, m.b.machine))
	}
	return rows
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}

func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
