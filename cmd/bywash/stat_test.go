//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/bywash/bywash/internal/stat"
)

// Watching the counters of processes ends, without an error, when these have ended.
func TestStatWatchEndsWithTheProcess(t *testing.T) {
	s, err := stat.Serve()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cmd := bywash("stat", "-w", "10ms", "--json", strconv.Itoa(os.Getpid()))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	if _, err := out.ReadString('\n'); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil || !strings.Contains(stderr.String(), fmt.Sprintf("process %d has ended\n", os.Getpid())) {
		t.Errorf("%v, %q", err, &stderr)
	}
}
