//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bywash/bywash/qnix/nic"
	"github.com/bywash/bywash/qnix/softnic"
)

// Ctrl-C ends it with the status that Ctrl-C has, and leaves no file behind.
func TestSoftnicServesUntilInterrupted(t *testing.T) {
	if err := softnic.Supported(); err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "sn")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	sockets := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	cmd := bywash("softnic", "--socket", sockets[0], "--socket", sockets[1], "--first", "7")
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	lines := bufio.NewScanner(out)
	for i, s := range sockets {
		if !lines.Scan() {
			_ = cmd.Wait()
			t.Fatal(log.String())
		}
		if want := "NIC " + string(rune('7'+i)) + ": " + s; lines.Text() != want {
			t.Errorf("it says %q, want %q", lines.Text(), want)
		}
		n, err := nic.Open(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := n.Info(); got.NIC != 7+i || got.NICs != 2 || !got.Soft {
			t.Errorf("%+v", got)
		}
		n.Close()
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("status %d, want 0: %s", code, log.String())
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
}

func TestSoftnicSaysWhatIsInItsWay(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("a", 32)), 0o644); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"softnic --listen :0 --key-file " + key:           "chmod 600",
		"softnic --listen :0 --key-file /nonexistent":     "urandom",
		"softnic --socket /nonexistent/folder/that/is/no": "/nonexistent/folder",
	} {
		code, _, stderr := status(t, bywash(strings.Fields(args)...))
		if code != exitFailure || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, want) {
			t.Errorf("bywash %s: status %d, %q; want %q", args, code, stderr, want)
		}
	}
}
