//go:build linux

// Package examples builds the programs of the folder examples as a user does, in a module of their own outside of the
// repository, and runs those that this machine can run.
package examples

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bywash/bywash/internal/lab/veth"
	"github.com/bywash/bywash/qnix/softnic"
	"github.com/bywash/bywash/session/launch"
	"github.com/bywash/bywash/verbs/ibv"
)

// names are the examples.
var names = []string{"driver", "elastic", "ibv-write", "job", "qnix", "rpc", "xsk-echo"}

// longest is how many lines an example has at most.
const longest = 80

// folder has what is built: the examples in bin, and the program bywash. The tool is not beside them: a session that found
// it there could start a softnic, which would outlive the test.
var folder string

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "examples"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// build builds the tool and then the examples, in a module of their own that replaces bywash by this folder. They download
// nothing, as the tool has the same drivers.
var build = sync.OnceValue(func() error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	module := filepath.Join(folder, "module")
	if err := os.CopyFS(module, os.DirFS(filepath.Join(root, "examples"))); err != nil {
		return err
	}
	// The versions are those of the repository: to choose others, go would have to download.
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(module, name), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	run := func(dir string, environment []string, args ...string) {
		if err != nil {
			return
		}
		c := exec.Command("go", args...)
		c.Dir, c.Env = dir, append(os.Environ(), environment...)
		out, failure := c.CombinedOutput()
		if failure != nil {
			err = fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), failure, out)
		}
	}
	const path = "github.com/bywash/bywash"
	run(root, nil, "build", "-buildvcs=false", "-ldflags=-w", "-o", filepath.Join(folder, "bywash"), "./cmd/bywash")
	run(module, offline, "mod", "edit", "-module", "example.com/examples", "-require", path+"@v0.0.0", "-replace", path+"="+root)
	run(module, offline, "build", "-ldflags=-w", "-o", filepath.Join(folder, "bin")+"/", "./...")
	return err
})

// offline keeps go within the module of the examples.
var offline = []string{"GOFLAGS=-mod=mod -trimpath -buildvcs=false", "GOPROXY=off", "GOWORK=off", "GOTOOLCHAIN=local"}

// example returns the path of an example, and tool that of bywash.
func example(t *testing.T, name string) string {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(folder, "bin", name)
}

func tool(t *testing.T) string {
	t.Helper()
	example(t, "")
	return filepath.Join(folder, "bywash")
}

func TestEveryExampleIsShortAndSaysHowItRuns(t *testing.T) {
	var found []string
	err := fs.WalkDir(os.DirFS("../../examples"), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			found = append(found, filepath.Dir(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(found) != fmt.Sprint(names) {
		t.Errorf("the examples are %v, want %v, with one file each", found, names)
	}
	for _, name := range found {
		text, err := os.ReadFile(filepath.Join("../../examples", name, "main.go"))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n > longest {
			t.Errorf("%s has %d lines, at most %d are allowed", name, n, longest)
		}
		comment, _, _ := bytes.Cut(text, []byte("\npackage main\n"))
		if !strings.HasPrefix(strings.ToLower(string(comment)), "// "+name+" ") {
			t.Errorf("%s does not begin with a comment that names it", name)
		}
		if !regexp.MustCompile(`(?m)^//\t.*\./examples/` + name + `\b`).Match(comment) {
			t.Errorf("the comment of %s has no command that runs it", name)
		}
	}
}

// command is an example, or the tool, which ends with the test and has a folder of its own for sockets.
func command(t *testing.T, path string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, path, args...)
	c.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+t.TempDir())
	return c
}

// run runs a command, which must succeed and print these lines, in any order.
func run(t *testing.T, want []string, path string, args ...string) {
	t.Helper()
	out, err := command(t, path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := bytes.Count(out, []byte("\n")); n != len(want) {
		t.Errorf("%d lines, want %d", n, len(want))
	}
	for _, w := range want {
		if !strings.Contains("\n"+string(out), "\n"+w) {
			t.Errorf("no line begins with %q", w)
		}
	}
	if t.Failed() {
		t.Logf("it printed:\n%s", out)
	}
}

func TestJob(t *testing.T) {
	run(t, []string{"rank 0: hello from rank 1 of 2, by shm:", "rank 1: hello from rank 0 of 2, by shm:"},
		tool(t), "run", "-n", "2", "--drivers", "shm", example(t, "job"))
}

func TestRPC(t *testing.T) {
	var want []string
	for rank := range 2 {
		for call, word := range []string{"AROUND", "THE", "KERNEL"} {
			want = append(want, fmt.Sprintf("rank %d: call %d of rank %d: %s\n", rank, call, 1-rank, word))
		}
	}
	run(t, want, tool(t), "run", "-n", "2", "--drivers", "shm", example(t, "rpc"))
}

func TestQNIX(t *testing.T) {
	if err := softnic.Supported(); err != nil {
		t.Skip("needs cgo: ", err)
	}
	run(t, []string{
		"alice registers with NIC 1\n", "bob registers with NIC 1\n",
		"bob received \"around the kernel\"\n", "alice sent 17 bytes\n",
	}, example(t, "qnix"))
}

// Two processes of the example read each other's url.
func TestDriver(t *testing.T) {
	var half [2]*exec.Cmd
	var in, out [2]*os.File
	var said [2]bytes.Buffer
	for i := range half {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		in[i], out[1-i] = r, w
	}
	dir := t.TempDir()
	for i := range half {
		half[i] = command(t, example(t, "driver"))
		half[i].Env = append(half[i].Env, "XDG_RUNTIME_DIR="+dir)
		half[i].Stdin, half[i].Stdout, half[i].Stderr = in[i], out[i], io.Writer(&said[i])
		if err := half[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range half {
		in[i].Close()
		out[i].Close()
	}
	for i := range half {
		err := half[i].Wait()
		want := fmt.Sprintf("hello from process %d, by ring\n", half[1-i].Process.Pid)
		if got := said[i].String(); err != nil || got != want {
			t.Errorf("got %q (%v), want %q", got, err, want)
		}
	}
}

// One client ends, the next one dies; the server serves the third.
func TestElastic(t *testing.T) {
	secret := launch.NewSecret()
	environment := []string{fmt.Sprintf("BYWASH_SECRET=%x", secret), "BYWASH_DRIVERS=shm", "XDG_RUNTIME_DIR=" + t.TempDir()}
	server, said := start(t, environment, "serve", "127.0.0.1:0")
	defer server.Close()
	const begins = "serving at "
	address := strings.TrimPrefix(expect(t, said, begins), begins)
	for _, death := range []string{"closed", "broken", "closed"} {
		client, answers := start(t, environment, "connect", address)
		if _, err := io.WriteString(client, "around the lock\n"); err != nil {
			t.Fatal(err)
		}
		expect(t, answers, "AROUND THE LOCK")
		if death == "broken" {
			_ = client.process.Kill()
		}
		client.Close()
		if end := expect(t, said, "a client is gone: session: "); !strings.Contains(end, "connection "+death) {
			t.Errorf("the server says %q, want %s", end, death)
		}
	}
}

// stdin is the input of a process, which ends with it.
type stdin struct {
	io.WriteCloser
	process *os.Process
}

// start starts the example elastic, and returns its input and its output.
func start(t *testing.T, environment []string, args ...string) (stdin, *bufio.Scanner) {
	t.Helper()
	c := command(t, example(t, "elastic"), args...)
	c.Env, c.Stderr = append(c.Env, environment...), os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return stdin{in, c.Process}, bufio.NewScanner(out)
}

// expect reads the next line, which must begin so, and returns it.
func expect(t *testing.T, in *bufio.Scanner, want string) string {
	t.Helper()
	if !in.Scan() || !strings.HasPrefix(in.Text(), want) {
		t.Fatalf("got %q (%v), want %q", in.Text(), in.Err(), want)
	}
	return in.Text()
}

// Without a device the example says what it lacks, and the remedy.
func TestIbvWrite(t *testing.T) {
	if devices, err := ibv.Devices(); err == nil && len(devices) > 0 && !devices[0].IWARP {
		run(t, []string{devices[0].Name + " wrote \"around the kernel\"\n"}, example(t, "ibv-write"))
		return
	}
	out, err := command(t, example(t, "ibv-write")).CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || bytes.Count(out, []byte("\n")) != 1 ||
		!regexp.MustCompile(`RDMA|verbs`).Match(out) {
		t.Errorf("without a device it ended with %v and said:\n%s", err, out)
	}
}

// The example runs at one end of a cable, the kernel's sockets at the other.
func TestXSKEcho(t *testing.T) {
	out, err := command(t, example(t, "xsk-echo"), "absent0").CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || !bytes.Contains(out, []byte("absent0")) {
		t.Errorf("without its device it ended with %v and said:\n%s", err, out)
	}
	pair, err := veth.New(veth.Config{Queues: 2})
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs root: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer pair.Close()
	echo := command(t, example(t, "xsk-echo"), pair.Ends[0].Device)
	echo.Stderr = os.Stderr
	stdout, err := echo.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Ends[0].Start(echo); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = echo.Process.Kill()
		_ = echo.Wait()
	}()
	expect(t, bufio.NewScanner(stdout), "echoing UDP port 7777 of "+pair.Ends[0].Device)
	for _, to := range []string{pair.Ends[0].IPv4.Addr().String(), "[" + pair.Ends[0].IPv6.Addr().String() + "]"} {
		var c net.Conn
		err := pair.Ends[1].Do(func() (err error) {
			c, err = net.Dial("udp", to+":7777")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for i := range 5000 { // more than there are chunks
			if err := exchange(c, fmt.Sprintf("datagram %d", i)); err != nil {
				t.Fatalf("%s: %v", to, err)
			}
		}
	}
}

// exchange sends a datagram until it has come back, for some seconds: the example says that it echoes before it has filled
// its rings. Others that come are late.
func exchange(c net.Conn, datagram string) (err error) {
	got := make([]byte, 100)
	for range 25 {
		if _, err = io.WriteString(c, datagram); err != nil {
			return err
		}
		if err = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return err
		}
		for err == nil {
			var n int
			if n, err = c.Read(got); err == nil && string(got[:n]) == datagram {
				return nil
			}
		}
	}
	return fmt.Errorf("%q did not come back: %w", datagram, err)
}
