//go:build linux

package main

import (
	"bytes"
	"regexp"
	"strings"
)

// A consoleScanner reads the kernel's console and keeps it, with the reports of faults in it.
type consoleScanner struct {
	partial []byte
	log     bytes.Buffer
	faults  []fault
	more    int // lines that still belong to the last fault
}

// A fault is a line that no healthy kernel prints, and the lines after it.
type fault struct {
	what  string
	lines []string
}

const (
	faultLines  = 80      // shown of each fault, and of each processor that it makes the kernel show
	consoleKept = 4 << 20 // bytes kept of the console
)

var (
	// linePrefix matches the timestamp and, in some kernels, the thread or CPU.
	linePrefix = regexp.MustCompile(`^(<\d+>)?\[ *\d+\.\d+\](\[ *[TC]\d+\])? ?`)
	// faultStart matches the beginning of a message only, so that programs that print about faults are not mistaken for
	// faults.
	faultStart = regexp.MustCompile(`^(` + strings.Join([]string{
		`WARNING: `, // WARN_ON, and most of lockdep's
		`(watchdog: )?BUG: `, `kernel BUG at `, `Oops[: ]`, `Kernel panic`, `general protection fault`, `Internal error: `,
		`(Unable|unable) to handle kernel`, `Fixing recursive fault`, `traps: PANIC`, `double fault`,
		`INFO: (possible|inconsistent|suspicious|task .* blocked for|lockdep|HARDIRQ|trying to register)`,
		`(rcu: )?INFO: rcu_\S+ .*(stall|detected)`, `\[ INFO: `, `DEBUG_LOCKS_WARN_ON`, `UBSAN: `, `kmemleak: \d+ new suspected`,
		`list_(add|del) corruption`, `refcount_t: `, `ODEBUG: `, `Voluntary context switch within RCU`, `Bad page state`,
		`KASAN: `, `Slab corruption`, `ida_free called for`, `unregister_netdevice: waiting for`,
	}, "|") + `)`)
)

// Write never fails.
func (s *consoleScanner) Write(p []byte) (int, error) {
	if s.log.Len() < consoleKept {
		s.log.Write(p)
	}
	s.partial = append(s.partial, p...)
	for {
		line, rest, ok := bytes.Cut(s.partial, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		s.line(strings.TrimRight(string(line), "\r"))
		s.partial = rest
	}
}

// finish handles a last line without a newline.
func (s *consoleScanner) finish() {
	if len(s.partial) > 0 {
		s.line(strings.TrimRight(string(s.partial), "\r"))
		s.partial = nil
	}
}

func (s *consoleScanner) line(line string) {
	text := linePrefix.ReplaceAllString(line, "")
	if len(s.faults) > 0 && strings.HasPrefix(text, "NMI backtrace for cpu ") {
		s.more = faultLines
	}
	if s.more > 0 {
		last := &s.faults[len(s.faults)-1]
		last.lines = append(last.lines, line)
		s.more--
		if strings.HasPrefix(text, "---[ end") {
			s.more = 0
		}
		return
	}
	if faultStart.MatchString(text) {
		s.faults = append(s.faults, fault{what: text, lines: []string{line}})
		s.more = faultLines - 1
	}
}
