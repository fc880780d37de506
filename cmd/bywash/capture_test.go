//go:build linux && !(386 || arm || mips || mipsle)

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/tshark"
	"github.com/bywash/bywash/internal/lab/veth"
	"github.com/bywash/bywash/internal/stat"
)

// dissector is Wireshark's for our packets.
const dissector = "../../hack/wireshark/bywash.lua"

// captureLab is a network namespace in which nobody else's processes answer.
func captureLab(t *testing.T) *veth.End {
	t.Helper()
	p, err := veth.New(veth.Config{})
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("needs root: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	if err := xsk.Probe(xsk.FeatureSocket); errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("the kernel has no AF_XDP: %v", err)
	}
	return &p.Ends[0]
}

// captureUnderWay is a bywash capture that runs.
type captureUnderWay struct {
	cmd    *exec.Cmd
	stderr *bufio.Reader
}

// startCapture starts one, in a place where there is no process to capture from yet.
func startCapture(t *testing.T, e *veth.End, args ...string) *captureUnderWay {
	t.Helper()
	cmd := bywash(append([]string{"capture"}, args...)...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd.Stderr = w
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := e.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); r.Close() })
	c := &captureUnderWay{cmd, bufio.NewReader(r)}
	c.says(t, "waiting for one")
	return c
}

func (c *captureUnderWay) says(t *testing.T, what string) {
	t.Helper()
	if line, err := c.stderr.ReadString('\n'); err != nil || !strings.Contains(line, what) {
		t.Fatalf("capture says %q, %v; want %q", line, err, what)
	}
}

// end is what it says at its end.
func (c *captureUnderWay) end(t *testing.T) (frames, nics, dropped int) {
	t.Helper()
	said, _ := io.ReadAll(c.stderr)
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("capture: %v, %s", err, said)
	}
	if _, err := fmt.Sscanf(string(said), "bywash: %d frames of %d NICs, %d more dropped,", &frames, &nics, &dropped); err != nil {
		t.Fatalf("capture says %q: %v", said, err)
	}
	return frames, nics, dropped
}

// transfer runs transferMain in another process, which begins when it is captured from.
func (c *captureUnderWay) transfer(t *testing.T, e *veth.End) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envTransfer+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	cmd.Stdin = r
	if err := e.Start(cmd); err != nil {
		t.Fatal(err)
	}
	c.says(t, fmt.Sprintf("from process %d\n", cmd.Process.Pid))
	w.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("transfer: %v\n%s", err, out.Bytes())
	}
}

// shown is what tshark shows of fields: a row a frame.
func shown(t *testing.T, file string, fields ...string) (rows [][]string) {
	t.Helper()
	return tshark.Fields(t, dissector, file, fields, "-o", "bywash.checksum:TRUE")
}

// A transfer from its first greeting to its end, as Wireshark shows it. Only its owner can read the file.
func TestCaptureShowsATransfer(t *testing.T) {
	e := captureLab(t)
	file := filepath.Join(t.TempDir(), "x.pcapng")
	if err := os.WriteFile(file, nil, 0o644); err != nil { // an earlier one, which others may read
		t.Fatal(err)
	}
	c := startCapture(t, e, "-o", file)
	c.transfer(t, e)
	if err := c.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	frames, nics, dropped := c.end(t)
	if nics != 4 || frames < 4*transferSmall || dropped != 0 { // each is opened for either track
		t.Errorf("%d frames of %d NICs, %d dropped; want those of four, and none dropped", frames, nics, dropped)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v; want 0600", st.Mode(), err)
	}
	rows := shown(t, file, "frame.interface_name", "frame.packet_flags_direction", "bywash.kind", "bywash.crc.good",
		"bywash.short", "bywash.conn", "bywash.pn", "bywash.flags.placed")
	if len(rows) != frames {
		t.Errorf("tshark shows %d frames, capture says %d", len(rows), frames)
	}
	kinds, placed := map[string]int{}, 0
	sent, arrived := map[string][]string{}, map[string][]string{} // by name of the NIC
	for _, r := range rows {
		if len(r) != 8 || r[3] != "1" || r[4] != "" {
			t.Fatalf("%q, want a packet with a good checksum", r)
		}
		kinds[r[2]]++
		if r[7] == "1" {
			placed++
		}
		if packet := r[5] + " " + r[6]; r[5] != "" {
			to := map[string]map[string][]string{"0x00000002": sent, "2": sent, "0x00000001": arrived, "1": arrived}[r[1]]
			if to == nil {
				t.Fatalf("direction %q", r[1])
			}
			to[r[0]] = append(to[r[0]], packet)
		}
	}
	for _, k := range []string{"1", "2", "3", "6", "7", "8", "9", "10"} {
		if kinds[k] == 0 {
			t.Errorf("no packet of kind %s (%v)", k, kinds)
		}
	}
	if placed < 2*transferLarge/veth1500 {
		t.Errorf("%d placed fragments for %d bytes", placed, transferLarge)
	}
	if len(sent) != 2 || len(arrived) != 2 {
		t.Fatalf("NICs that sent: %d, that received: %d", len(sent), len(arrived))
	}
	for from, packets := range sent {
		for to, got := range arrived {
			if to != from {
				checkArrived(t, packets, got)
			}
		}
	}
}

// checkArrived checks that what arrived was sent, and that nearly all of it arrived: an end may be closed before the
// last packets do.
func checkArrived(t *testing.T, sent, arrived []string) {
	t.Helper()
	slices.Sort(sent)
	for _, p := range arrived {
		if _, ok := slices.BinarySearch(sent, p); !ok {
			t.Fatalf("packet %s arrived and was not sent", p)
		}
	}
	if len(arrived) < len(sent)*9/10 {
		t.Errorf("%d packets were sent, %d arrived", len(sent), len(arrived))
	}
}

func TestCaptureEndsByItself(t *testing.T) {
	e := captureLab(t)
	file := filepath.Join(t.TempDir(), "x.pcapng")
	c := startCapture(t, e, "-o", file, "-c", "40", "--snap", "60")
	c.transfer(t, e)
	if frames, _, _ := c.end(t); frames != 40 {
		t.Errorf("%d frames with -c 40", frames)
	}
	rows := shown(t, file, "frame.len", "frame.cap_len")
	if len(rows) != 40 {
		t.Errorf("tshark shows %d frames of 40", len(rows))
	}
	for _, r := range rows {
		if n, err := strconv.Atoi(r[0]); r[1] != "60" || err != nil || n <= 60 {
			t.Errorf("frame of %s bytes captured as %s, want 60", r[0], r[1])
		}
	}
}

// Any process can make a socket whose name has another one's id: it does not keep a capture from that one.
func TestCapturePassesSocketsWithTheNameOfAnother(t *testing.T) {
	s, err := stat.Serve()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	name := fmt.Sprintf("@bywash-capture-%d-0123456789abcdef", os.Getpid())
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil { // and does not listen
		t.Fatal(err)
	}
	pid := strconv.Itoa(os.Getpid())
	code, _, stderr := status(t, bywash("capture", "-o", filepath.Join(t.TempDir(), "x.pcapng"), "--duration", "100ms", pid))
	if code != 0 || !strings.Contains(stderr, "from process "+pid) {
		t.Errorf("status %d, %q", code, stderr)
	}
}

func TestCaptureWaitsForADuration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.pcapng")
	start := time.Now()
	code, out, stderr := status(t, bywash("capture", "-o", file, "--duration", "50ms", "--dev", "there-is-none"))
	if code != 0 || out != "" || !strings.Contains(stderr, "0 frames of 0 NICs") || time.Since(start) < 50*time.Millisecond {
		t.Errorf("status %d, %q, %q after %v", code, out, stderr, time.Since(start))
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatalf("the file without frames: %v", err)
	}
	if _, _, err := r.ReadPacketData(); err != io.EOF {
		t.Errorf("a frame in the file without frames: %v", err)
	}
}

// An error of the last write is reported although a signal ends the capture.
func TestCaptureReportsAWriteThatFailsAtItsEnd(t *testing.T) {
	cmd := bywash("capture", "-o", "/dev/full", "--dev", "there-is-none")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	r := bufio.NewReader(stderr)
	if _, err := r.ReadString('\n'); err != nil { // it captures, or waits for a process
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	said, _ := io.ReadAll(r)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitFailure || !strings.Contains(string(said), "no space left on device") {
		t.Errorf("status %d, %q; want %d and the error of the write", code, said, exitFailure)
	}
}

// A capture that cannot be made leaves a file from earlier as it is.
func TestCaptureThatFailsKeepsTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.pcapng")
	if err := os.WriteFile(name, []byte("earlier"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(pid, want string) {
		t.Helper()
		code, _, stderr := status(t, bywash("capture", "-o", name, pid))
		if b, err := os.ReadFile(name); code != exitFailure || string(b) != "earlier" || !strings.Contains(stderr, want) {
			t.Errorf("status %d, %q, want %q; the file has %q, %v", code, stderr, want, b, err)
		}
	}
	check("1", "does not answer")
	server, err := stat.Serve()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ends, err := stat.Captures()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ends {
		for range 8 {
			if e.PID != os.Getpid() {
				continue
			}
			s, err := stat.Capture(e, stat.CaptureRequest{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Await(); err != nil {
				t.Fatal(err)
			}
		}
	}
	check(strconv.Itoa(os.Getpid()), "refused")
}

// A named pipe that nobody opens holds up a capture no longer than it lasts.
func TestCaptureEndsThoughNobodyOpensItsPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := bywash("capture", "-o", name, "--dev", "there-is-none", "--duration", "50ms")
	defer time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	if code, _, stderr := status(t, cmd); code != exitFailure || !strings.Contains(stderr, "nobody reads it") {
		t.Errorf("status %d, %q; want %d and why", code, stderr, exitFailure)
	}
}

// A capture into a pipe that nobody reads ends in time, too.
func TestCaptureEndsThoughNobodyReads(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	size, err := unix.FcntlInt(w.Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	cmd := bywash("capture", "-o", "-", "--dev", "there-is-none", "--duration", "50ms")
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitFailure || !strings.Contains(stderr.String(), "took nothing") {
		t.Errorf("status %d, %q; want %d and why", code, stderr.String(), exitFailure)
	}
}
