//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/bywash/bywash/internal/lab/terminal"
)

// screen returns the lines that a terminal shows in the end.
func screen(t *testing.T, printed string) string {
	t.Helper()
	lines := []string{""}
	for rest := printed; rest != ""; {
		part, escape, found := strings.Cut(rest, "\x1b[")
		for i, l := range strings.Split(strings.ReplaceAll(part, "\r\n", "\n"), "\n") {
			if i > 0 {
				lines = append(lines, "")
			}
			lines[len(lines)-1] += l
		}
		if !found {
			break
		}
		up := 0
		if _, err := fmt.Sscanf(escape, "%dA\x1b[J", &up); err != nil {
			t.Fatalf("a sequence for the terminal that this test does not know: %q", escape)
		}
		lines = append(lines[:max(0, len(lines)-1-up)], "") // up lines up, and the rest is erased
		_, rest, _ = strings.Cut(escape, "J")
	}
	return strings.Join(lines, "\n")
}

// onTerminal runs a command whose standard error, and output unless it has one, are a terminal.
func onTerminal(t *testing.T, cmd *exec.Cmd) (shown string) {
	t.Helper()
	user, program := terminal.New(t)
	cmd.Stderr = program
	if cmd.Stdout == nil {
		cmd.Stdout = program
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	program.Close()
	printed, _ := io.ReadAll(user) // ends with EIO when no program has the terminal any more
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %q", err, printed)
	}
	return screen(t, string(printed))
}

// The bar of perf erases neither its results nor its messages.
func TestBarErasesNothingElse(t *testing.T) {
	perf := []string{"perf", "-d", "sock-unix", "-t", "lat,put-lat,bw", "-s", "8", "--duration", "450ms"} // the bar is drawn every 400 ms
	for _, format := range []string{"--csv", "--json"} {
		shown := onTerminal(t, bywash(append(perf, format)...))
		var results bytes.Buffer
		cmd := bywash(append(perf, format)...)
		cmd.Stdout = &results
		messages := onTerminal(t, cmd)
		for _, x := range []struct{ where, text string }{{"the terminal", shown}, {"standard error", messages}} {
			if !strings.Contains(x.text, "bywash: sock-unix put-lat 8 B: ") {
				t.Errorf("%s: %s has no message about put-lat:\n%s", format, x.where, x.text)
			}
		}
		if want, got := strings.Count(results.String(), "\n"), strings.Count(shown, "\n")-1; got != want {
			t.Errorf("%s: the terminal shows %d lines of results, want %d:\n%s", format, got, want, shown)
		}
	}
}
