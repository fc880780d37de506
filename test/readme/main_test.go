package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary be the program.
func TestMain(m *testing.M) {
	if os.Getenv("README_TEST_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestPagesShowThesePrograms compares each program with the only block of Go in the page that shows it.
// Package session/launch runs the first program under every launcher.
func TestPagesShowThesePrograms(t *testing.T) {
	for page, program := range map[string]string{"README.md": "job/main.go", "docs/driver.md": "main.go"} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		_, shown, _ := strings.Cut(string(text), "```go\n")
		shown, _, _ = strings.Cut(shown, "```\n")
		want, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		if shown != string(want) {
			t.Errorf("the program in %s differs from test/readme/%s:\n got %s\nwant %s", page, program, shown, want)
		}
	}
}

func TestTwoProcessesExchangeAMessage(t *testing.T) {
	dir := t.TempDir()
	var said [2]bytes.Buffer
	var half [2]*exec.Cmd
	var in [2]*os.File
	var out [2]*os.File
	for i := range half {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		in[i], out[1-i] = r, w
	}
	for i := range half {
		half[i] = exec.CommandContext(t.Context(), "/proc/self/exe")
		half[i].Env = append(os.Environ(), "README_TEST_MAIN=1", "XDG_RUNTIME_DIR="+dir)
		half[i].Stdin, half[i].Stdout, half[i].Stderr = in[i], out[i], io.Writer(&said[i])
		if err := half[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range half {
		in[i].Close()
		out[i].Close()
	}
	late := time.AfterFunc(30*time.Second, func() {
		for _, h := range half {
			_ = h.Process.Kill()
		}
	})
	defer late.Stop()
	for i := range half {
		err := half[i].Wait()
		want := fmt.Sprintf("hello from process %d, by ring\n", half[1-i].Process.Pid)
		if got := said[i].String(); err != nil || got != want {
			t.Errorf("got %q (%v), want %q", got, err, want)
		}
	}
}
