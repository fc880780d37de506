//go:build linux && !(386 || arm || mips || mipsle)

package softnic

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/nic"
)

// Processes of tests are this test binary again: envRole names what it plays. It
// reads values as JSON from its standard input and answers in lines.
const envRole = "BYWASH_SOFTNIC_ROLE"

var roles = map[string]func(in *json.Decoder) error{}

func TestMain(m *testing.M) {
	RunIfStarted()
	if r := os.Getenv(envRole); r != "" {
		if err := roles[r](json.NewDecoder(os.Stdin)); err != nil {
			fmt.Fprintln(os.Stderr, r+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var ctx = context.Background()

func reply(v any) { _ = json.NewEncoder(os.Stdout).Encode(v) }

type child struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
	log bytes.Buffer
}

func startChild(t testing.TB, role string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(exe)}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	c.cmd.Env = append(os.Environ(), envRole+"="+role)
	c.cmd.Stderr = &c.log
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = json.NewDecoder(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	c.in.Close() // not before: its end asks for an end in order
}

func (c *child) signal(s os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
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

// dir is a short one: paths of sockets are.
func dir(t testing.TB) string {
	t.Helper()
	d, err := os.MkdirTemp("", "sn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(d) })
	return d
}

func serve(t testing.TB, c Config) *Server {
	t.Helper()
	if len(c.Sockets) == 0 {
		d := dir(t)
		for i := range max(1, c.NICs) {
			c.Sockets = append(c.Sockets, filepath.Join(d, fmt.Sprint(i)))
		}
	}
	needNIC(t)
	s, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func needNIC(t testing.TB) {
	t.Helper()
	if err := Supported(); err != nil {
		t.Skip(err)
	}
}

func open(t testing.TB, path string) *nic.NIC {
	t.Helper()
	n, err := nic.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func join(t testing.TB, path string, c nic.Config) *nic.Process {
	t.Helper()
	p, err := open(t, path).Register(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func name(s string) nic.Name {
	n, err := nic.MakeName(s)
	if err != nil {
		panic(err)
	}
	return n
}

// maxWait is how long a test waits for what must happen.
const maxWait = 20 * time.Second

func sent(t testing.TB, p *nic.Process, i int) (nic.State, int) {
	t.Helper()
	return rung(t, p, func() (nic.State, int) { return p.SendDoorbell(i) })
}

func received(t testing.TB, p *nic.Process, i int) (nic.State, int) {
	t.Helper()
	return rung(t, p, func() (nic.State, int) { return p.ReceiveDoorbell(i) })
}

func rung(t testing.TB, p *nic.Process, doorbell func() (nic.State, int)) (nic.State, int) {
	t.Helper()
	for end := time.Now().Add(maxWait); ; {
		seen := p.RingTail()
		if s, n := doorbell(); s.Rung() {
			return s, n
		}
		if time.Now().After(end) {
			t.Fatalf("no doorbell after %v", maxWait)
		}
		if err := p.Wait(seen, time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

func kick(t testing.TB, p *nic.Process, err error) {
	t.Helper()
	if err == nil {
		err = p.Kick()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// until polls for a change that no event reports.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(maxWait); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after %v: %s", maxWait, what)
		}
	}
}

// mapping is memory of a memfd, as arenas are.
func mapping(t testing.TB, size int) ([]byte, int) {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	var b []byte
	if err == nil {
		b, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b); unix.Close(fd) })
	return b, fd
}

func init() {
	roles["softnic"] = func(in *json.Decoder) error {
		var c Config
		if err := in.Decode(&c); err != nil {
			return err
		}
		s, err := Start(c)
		if err != nil {
			return err
		}
		addr := ""
		if s.Addr() != nil {
			addr = s.Addr().String()
		}
		reply(addr)
		var x int
		_ = in.Decode(&x) // until the test closes its end
		return s.Close()
	}
}

// softnicProcess starts a softnic in a process of its own, as in real use, and returns its sockets and wire address.
func softnicProcess(t testing.TB, c Config) (*child, []string, string) {
	t.Helper()
	if len(c.Sockets) == 0 {
		d := dir(t)
		for i := range max(1, c.NICs) {
			c.Sockets = append(c.Sockets, filepath.Join(d, fmt.Sprint(i)))
		}
	}
	x := startChild(t, "softnic")
	x.write(&c)
	var addr string
	x.read(&addr)
	return x, c.Sockets, addr
}

// roleTB lets roles use what tests use.
type roleTB struct{ testing.TB }

func (*roleTB) Helper()        {}
func (*roleTB) Cleanup(func()) {}
func (*roleTB) Fatal(a ...any) { panic(fmt.Sprint(a...)) }
