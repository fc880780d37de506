//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// Peers that must be other processes are this test binary again: envRole makes
// it play one of roles, before TestMain.
const envRole = "BYWASH_SHM_ROLE"

var roles = map[string]func(*json.Decoder) error{
	"connect":  connectRole,
	"leave":    leaveRole,
	"churn":    churnRole,
	"exhaust":  exhaustRole,
	"offer":    offerRole,
	"put":      putRole,
	"exchange": exchangeRole,
}

func init() {
	role := os.Getenv(envRole)
	if role == "" {
		return
	}
	if err := roles[role](json.NewDecoder(os.Stdin)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a process that plays a role. It reads values as JSON from its
// standard input, and answers in lines.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
	log bytes.Buffer
}

func startChild(t *testing.T, role string, attr *syscall.SysProcAttr) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if attr != nil && attr.Credential != nil {
		exe = readable(t, exe)
	}
	c := &child{t: t, cmd: exec.Command(exe)}
	if attr == nil {
		attr = &syscall.SysProcAttr{}
	}
	attr.Pdeathsig = unix.SIGKILL
	c.cmd.SysProcAttr = attr
	c.cmd.Env = append(os.Environ(), envRole+"="+role)
	c.cmd.Stderr = &c.log
	c.cmd.Dir = "/"
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = json.NewDecoder(out)
	if err := c.cmd.Start(); err != nil {
		t.Skipf("cannot start a child with %+v: %v", attr, err)
	}
	t.Cleanup(func() {
		c.in.Close()
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	return c
}

// readable copies the test binary to where every user can execute it.
func readable(t *testing.T, exe string) string {
	t.Helper()
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	to := openDir(t) + "/peer"
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

// openDir makes a directory that every user can enter and write.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "shm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (c *child) write(v any) {
	c.t.Helper()
	if err := json.NewEncoder(c.in).Encode(v); err != nil {
		c.t.Fatalf("write to child: %v\n%s", err, &c.log)
	}
}

func (c *child) read(v any) {
	c.t.Helper()
	if err := c.out.Decode(v); err != nil {
		_ = c.cmd.Wait()
		c.t.Fatalf("child has ended: %v\n%s", err, &c.log)
	}
}

func reply(v any) { _ = json.NewEncoder(os.Stdout).Encode(v) }

// query opens nothing: it finds the NIC, or fails the test.
func query(t testing.TB, track driver.Track, opts map[string]string) driver.NIC {
	t.Helper()
	nic, err := shmDriver{}.Query(driver.Hints{Track: track, Options: opts})
	if err != nil {
		t.Fatal(err)
	}
	return nic
}

// core is the driver's own view of a context, connOf of an instance.
func core(c driver.Context) *hostContext {
	switch c := c.(type) {
	case smallContext:
		return c.hostContext
	case largeContext:
		return c.hostContext
	}
	panic("not a context of this driver")
}

func connOf(i driver.Instance) *conn {
	switch i := i.(type) {
	case *small:
		return i.conn
	case *large:
		return i.conn
	}
	panic("not an instance of this driver")
}

// within polls until f returns true, and fails the test after the limit.
func within(t testing.TB, limit time.Duration, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !f(); {
		if time.Now().After(end) {
			b := make([]byte, 1<<16)
			t.Fatalf("%s: not within %v\n%s", what, limit, b[:runtime.Stack(b, true)])
		}
		pause()
	}
}

// ends fails the test if f does not return in time.
func ends(t testing.TB, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		b := make([]byte, 1<<16)
		t.Fatalf("%s: not within %v\n%s", what, limit, b[:runtime.Stack(b, true)])
	}
}

// oneLine checks that an error has a single line, which contains all wanted texts.
func oneLine(t testing.TB, err error, wants ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("got no error")
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("got an error of several lines: %q", err)
	}
	for _, w := range wants {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got error %q, want it to contain %q", err, w)
		}
	}
}

// holdings counts what can leak.
type holdings struct{ fds, maps, goroutines int }

func held() (h holdings) {
	fds, _ := os.ReadDir("/proc/self/fd")
	maps, _ := os.ReadFile("/proc/self/maps")
	h.fds = len(fds)
	for line := range bytes.Lines(maps) {
		if bytes.Contains(line, []byte("memfd:")) {
			h.maps++
		}
	}
	h.goroutines = runtime.NumGoroutine()
	return h
}

// released checks that nothing is held that was not held before.
func releasedAll(t testing.TB, before holdings) {
	t.Helper()
	var now holdings
	var longest time.Duration
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); pause() {
		start := time.Now()
		now = held()
		longest = max(longest, time.Since(start))
		if now.fds <= before.fds && now.maps <= before.maps && now.goroutines <= before.goroutines {
			return
		}
	}
	b := make([]byte, 1<<16)
	// Once, beside other load, the whole process was blocked for the SO_LINGER time of a socket: counting took 24 s.
	t.Errorf("got %+v, want at most %+v; counting took up to %v\n%s", now, before, longest, b[:runtime.Stack(b, true)])
}

// again maps shared memory a second time, as an attacker has it: it stays when
// the driver unmaps its own.
func again(t testing.TB, p unsafe.Pointer, size int) []byte {
	t.Helper()
	at, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(p), 0, uintptr(size), unix.MREMAP_MAYMOVE, 0, 0)
	if errno != 0 {
		t.Fatalf("mremap: %v", errno)
	}
	b := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), size)
	t.Cleanup(func() { _ = unix.MunmapPtr(unsafe.Pointer(&b[0]), uintptr(size)) })
	return b
}

// rawDial opens a socket to a context without speaking.
func rawDial(t testing.TB, c driver.Context) *net.UnixConn {
	t.Helper()
	s, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: core(c).path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

func itoa(v uint64) string { return fmt.Sprint(v) }
