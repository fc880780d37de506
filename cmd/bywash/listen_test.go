//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// listener is a process of bywash perf --listen.
type listener struct {
	cmd          *exec.Cmd
	addr, secret string

	mu   sync.Mutex
	said string
}

func startListener(t *testing.T) *listener {
	t.Helper()
	return startListenerAt(t, (*exec.Cmd).Start, "127.0.0.1:0")
}

// startListenerAt is startListener for an address and further flags; start starts the process.
func startListenerAt(t *testing.T, start func(*exec.Cmd) error, addr string, flags ...string) *listener {
	t.Helper()
	l := &listener{secret: filepath.Join(t.TempDir(), "secret")}
	l.cmd = bywash(append([]string{"perf", "--listen", addr, "--secret-file", l.secret}, flags...)...)
	out, err := l.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := start(l.cmd); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill()
		<-read
		_ = l.cmd.Wait()
	})
	r := bufio.NewReader(out)
	for l.addr == "" {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if _, rest, ok := strings.Cut(line, "listening on "); ok {
			l.addr, _, _ = strings.Cut(rest, ";")
		}
	}
	go func() {
		defer close(read)
		b, _ := io.ReadAll(r)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.said = string(b)
	}()
	return l
}

// lead is a process that measures with the listener, for ever if iterations is "".
func (l *listener) lead(secret, iterations string) *exec.Cmd {
	args := strings.Fields("perf -d shm -t lat -s 8 --wait block --option path=ring --secret-file " + secret)
	if iterations == "" {
		iterations = "1000000000"
	}
	return bywash(append(args, "-n", iterations, l.addr)...)
}

// awaitMeasurement waits until a process of bywash perf over shm has the memory of a measurement.
func awaitMeasurement(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	for range time.Tick(time.Millisecond) {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
		if err != nil || len(maps) == 0 {
			t.Fatalf("bywash perf has ended before its measurement (%v)", err)
		}
		if bytes.Contains(maps, []byte("/memfd:bywash-arena")) {
			return
		}
	}
}

func TestListenerServesLeadsInTurn(t *testing.T) {
	l := startListener(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			code, _, stderr := status(t, l.lead(l.secret, "100"))
			for line := range strings.Lines(stderr) {
				if !strings.Contains(line, "waiting for its end") { // what a lead says after a while
					t.Errorf("lead: stderr %q", line)
				}
			}
			if code != 0 {
				t.Errorf("lead: status %d", code)
			}
		})
	}
	wg.Wait()
}

// The listener serves the next lead after one with a wrong secret and one that was killed.
func TestListenerOutlivesItsLeads(t *testing.T) {
	l := startListener(t)
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("0123456789abcdef0123"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := status(t, l.lead(wrong, "100")); code != 1 || !strings.Contains(stderr, "another secret") {
		t.Errorf("wrong secret: status %d, stderr %q", code, stderr)
	}
	victim := l.lead(l.secret, "")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	awaitMeasurement(t, victim)
	_ = victim.Process.Kill()
	_ = victim.Wait()
	if code, _, stderr := status(t, l.lead(l.secret, "100")); code != 0 {
		t.Errorf("after a lead was killed: status %d, stderr %q", code, stderr)
	}
	_ = l.cmd.Process.Signal(os.Interrupt)
	for range 100 {
		l.mu.Lock()
		said := l.said
		l.mu.Unlock()
		if strings.Contains(said, "wrong secret") {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("the listener said %q, want that it refused a wrong secret", l.said)
}

func TestListenerThatDiesIsAnErrorSoon(t *testing.T) {
	l := startListener(t)
	lead := l.lead(l.secret, "")
	var says bytes.Buffer
	lead.Stderr = &says
	if err := lead.Start(); err != nil {
		t.Fatal(err)
	}
	awaitMeasurement(t, lead)
	begin := time.Now()
	_ = l.cmd.Process.Kill()
	_ = lead.Wait()
	if code := lead.ProcessState.ExitCode(); code != 1 || !strings.Contains(says.String(), "gone") || time.Since(begin) > 5*time.Second {
		t.Errorf("status %d, stderr %q after %v, want 1, that it is gone, within 5 s", code, says.String(), time.Since(begin))
	}
	begin = time.Now()
	code, _, stderr := status(t, l.lead(l.secret, "100"))
	if code != 1 || !strings.Contains(stderr, "--listen running there?") || time.Since(begin) > 5*time.Second {
		t.Errorf("no listener: status %d, stderr %q after %v", code, stderr, time.Since(begin))
	}
}
