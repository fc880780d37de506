package drivertest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/integrity"
)

// holdings is what a process has that a driver could forget to give back.
type holdings struct {
	fds, maps, goroutines int
}

func (e *end) holdings() (h holdings) {
	fds, _ := os.ReadDir("/proc/self/fd")
	h.fds = len(fds)
	m, _ := os.ReadFile("/proc/self/maps")
	h.maps = countMaps(m)
	h.goroutines = runtime.NumGoroutine()
	return h
}

// countMaps counts the mappings of /proc/self/maps, without those that the runtime and the C library make for threads
// and keep when a thread has ended: private anonymous memory, stack or heap, beside a guard page without access.
func countMaps(maps []byte) (n int) {
	var guards, memory []span
	for line := range bytes.Lines(maps) {
		var m span
		var access string
		if _, err := fmt.Sscanf(string(line), "%x-%x %s", &m.lo, &m.hi, &access); err != nil {
			continue
		}
		n++
		if named := len(bytes.Fields(line)) > 5; named {
			continue
		}
		switch access {
		case "---p":
			guards = append(guards, m)
		case "rw-p":
			memory = append(memory, m)
		}
	}
	return n - beside(guards, memory) - beside(memory, guards)
}

// beside counts the spans that touch one of the others.
func beside(spans, others []span) (n int) {
	for _, s := range spans {
		if slices.ContainsFunc(others, func(o span) bool { return o.hi == s.lo || s.hi == o.lo }) {
			n++
		}
	}
	return n
}

// span is where a mapping begins and ends.
type span struct{ lo, hi uint64 }

// files lists the driver's directories.
func (e *end) files() (all []string) {
	for _, d := range e.cfg.Dirs {
		list, _ := os.ReadDir(d)
		for _, f := range list {
			all = append(all, filepath.Join(d, f.Name()))
		}
	}
	slices.Sort(all)
	return all
}

// unchanged checks that nothing stays after n rounds. Mappings of the runtime come and go, so that only growth with the
// rounds counts.
func (e *end) unchanged(before holdings, n int) {
	e.Helper()
	var now holdings
	same := func() bool {
		now = e.holdings()
		return now.fds <= before.fds && now.goroutines <= before.goroutines && now.maps < before.maps+n
	}
	maxWait := min(2*time.Second, e.cfg.limit)
	if !e.within(maxWait, same) {
		if now.fds > before.fds || now.goroutines > before.goroutines {
			e.Errorf("%v", integrity.Errorf("descriptors or goroutines are not freed"))
		}
		e.Errorf("after %d rounds: %d descriptors, %d goroutines, %d mappings; before: %d, %d, %d",
			n, now.fds, now.goroutines, now.maps, before.fds, before.goroutines, before.maps)
	}
}

// sameFiles checks that no file has come. Peers have files there, too, so that only what stays for a while counts.
func (e *end) sameFiles(before []string) {
	e.Helper()
	var more []string
	e.within(min(time.Second, e.cfg.limit), func() bool {
		more = slices.DeleteFunc(e.files(), func(f string) bool { return slices.Contains(before, f) })
		return len(more) == 0
	})
	if len(more) > 0 {
		e.Errorf("%v", integrity.Errorf("files are left behind: %q", more))
	}
}

// frees checks that rounds leave nothing. The kernel joins neighbouring mappings, and to unmap one in the middle splits
// them: a number that grows once is no leak, one that grows with each span of rounds is.
func (e *end) frees(rounds int, round func()) {
	e.Helper()
	for range 2 { // things that are made once are made then
		round()
	}
	const spans = 4
	for span := range spans {
		before := e.holdings()
		for range rounds {
			round()
		}
		if span == spans-1 || !e.moreMaps(before, rounds) {
			e.unchanged(before, rounds)
			return
		}
	}
}

// moreMaps reports whether there are more mappings after n rounds, also after a while.
func (e *end) moreMaps(before holdings, n int) bool {
	return !e.within(min(time.Second, e.cfg.limit), func() bool { return e.holdings().maps < before.maps+n })
}

func checkCloseFrees(e *end) {
	p := e.peer(roleRounds, nil)
	files := e.files()
	k := 0
	e.frees(e.times(6, 3), func() {
		p.sendNote("round", k)
		ctx, err := e.query().Open(e.cfg.Attributes)
		e.noErr("open", err)
		e.ctx = ctx
		a, b := e.self(), p.connectPeer()
		a.swap(min(5000, e.caps.MaxMessage), 1, 1)
		b.swaps(k)
		p.sync()
		if k%2 == 0 {
			b.leave()
			a.leave()
		}
		e.noErr("close", ctx.Close())
		p.sync() // the peer has closed its context, too
		k++
	})
	p.sendNote("round", -1)
	e.sameFiles(files)
	p.join()
}

// roleRounds opens, connects and closes, until there is no further round.
var roleRounds = role("rounds", func(e *end) {
	for {
		var k int
		if e.parent.recvNote("round", &k); k < 0 {
			return
		}
		ctx, err := e.query().Open(e.cfg.Attributes)
		e.noErr("open", err)
		e.ctx = ctx
		c := e.parent.connectPeer()
		c.swaps(k)
		e.parent.sync()
		e.noErr("close", ctx.Close())
		e.parent.sync()
	}
})

func checkDeathFrees(e *end) {
	e.context()
	e.frees(3, func() { // each round may wait for the dead time
		p, c := e.pair(roleSurvivor, nil)
		for r := range 3 {
			p.sendNote("swap", r+1)
			c.swaps(r + 1)
		}
		p.kill()
		e.wantErr("receive from a peer that was killed", c.probeBroken(), driver.ErrBroken)
		e.noErr("disconnect of a broken instance", c.i.Disconnect())
		p.free()
	})
}

func checkSweep(e *end) {
	before := e.files()
	for range e.times(3, 2) {
		p, c := e.pair(roleSurvivor, nil)
		p.sendNote("swap", 1)
		c.swaps(1)
		p.kill()
		p.free()
		_ = c.i.Disconnect()
		e.noErr("close", e.ctx.Close())
		e.ctx = nil
	}
	e.noErr("close", e.open().Close()) // the next open cleans at the latest
	e.sameFiles(before)
}
