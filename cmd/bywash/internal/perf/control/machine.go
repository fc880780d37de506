//go:build linux

package control

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// machine describes this machine in a line.
func machine() string {
	host, _ := os.Hostname()
	kernel := ""
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	cpu, n := cpuModel()
	return fmt.Sprintf("%s: %d × %s, Linux %s", host, n, cpu, kernel)
}

func cpuModel() (model string, n int) {
	model = "CPU"
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return model, 1
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		k, v, _ := strings.Cut(s.Text(), ":")
		switch strings.TrimSpace(k) {
		case "processor":
			n++
		case "model name":
			model = strings.TrimSpace(v)
		}
	}
	return model, n
}

// Heading describes what a run measures, for people.
func Heading(c *Config) string {
	var b strings.Builder
	fmt.Fprintf(&b, "bywash %s on %s\n", c.Version, machine())
	p, err := choosePair()
	switch {
	case c.HasRanks() && c.Remote == "":
		fmt.Fprintf(&b, "between %s on this machine", c.processes())
		if c.Unbound {
			b.WriteString(", on any CPUs")
		}
	case c.Remote != "":
		fmt.Fprintf(&b, "between this machine and %s", c.Remote)
	case err != nil:
	case p.shared:
		fmt.Fprintf(&b, "between two processes that share CPU %d, the only one here: latencies are those of the scheduler",
			p.lead)
	case c.Unbound:
		b.WriteString("between two processes on any CPUs")
	default:
		fmt.Fprintf(&b, "between two processes on CPUs %d and %d", p.lead, p.follow)
	}
	if ns := p.lineTime(); ns > 0 && c.Remote == "" {
		fmt.Fprintf(&b, "; a cache line goes from core to core in %d ns", ns)
	}
	fmt.Fprintf(&b, "; wait: %s, memory: %s", c.Wait, c.Mem)
	if c.Peers > 0 {
		fmt.Fprintf(&b, ", %d idle peers", c.Peers)
	}
	if c.Goroutines > 0 {
		fmt.Fprintf(&b, ", %d goroutines", c.Goroutines)
	}
	if c.Validate {
		b.WriteString(", every byte checked")
	}
	return b.String()
}
