//go:build linux

package softnic

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/nic"
)

// A softnic that is started on demand is another process of this program, or of bywash. Its environment contains
// envStage. Stage "1" starts stage "2", which stays, and ends, so that the starter need not wait for the child's end
// later.
const (
	envStage  = "BYWASH_SOFTNIC_STAGE"
	envConfig = "BYWASH_SOFTNIC_CONFIG"

	resultFD = 3 // descriptor to which it writes the result of its start
)

// idleOnDemand is how long a softnic that was started on demand lives without clients.
const idleOnDemand = 10 * time.Second

// helper reports whether this program calls RunIfStarted.
var helper atomic.Bool

// RunIfStarted lets this program be the softnic that Ensure starts. It must be the first call of main, or of TestMain.
// In a process that Ensure has started it runs the softnic and does not return; in any other it does nothing.
func RunIfStarted() {
	helper.Store(true)
	switch stage := os.Getenv(envStage); stage {
	case "1", "2":
		out := os.NewFile(resultFD, "result")
		unix.CloseOnExec(resultFD)
		err := started(stage, out)
		if err != nil {
			fmt.Fprintln(out, strings.ReplaceAll(err.Error(), "\n", "; "))
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func started(stage string, out *os.File) error {
	if stage == "1" {
		return spawn("2", os.Getenv(envConfig), out, nil)
	}
	var c Config
	if err := json.Unmarshal([]byte(os.Getenv(envConfig)), &c); err != nil {
		return fmt.Errorf("configuration in %s: %w", envConfig, err)
	}
	_ = os.Chdir("/")
	allCPUs()
	s, err := Start(c)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "ok")
	out.Close()
	return s.Wait(context.Background())
}

// allCPUs undoes the CPU affinity of the starter, which may be meant for one thread only.
func allCPUs() {
	var set unix.CPUSet
	for i := range set {
		set[i]-- // all ones
	}
	_ = unix.SchedSetaffinity(0, &set)
}

// Ensure starts a softnic of one NIC at path, the path of a socket, unless one runs there. The softnic is a process of
// its own and ends ten seconds after the last program has closed its NIC. It runs this program if main calls
// RunIfStarted, otherwise the program bywash: that of the environment variable BYWASH_PROGRAM (EnvProgram), or else one
// that lies beside this program or in PATH. Ensure blocks until the NIC answers or ctx ends.
func Ensure(ctx context.Context, path string) error {
	return EnsureConfig(ctx, Config{Sockets: []string{path}, Idle: idleOnDemand})
}

// EnsureConfig is Ensure with a configuration for the softnic that it starts. A softnic that runs at the first socket
// is used as it is.
func EnsureConfig(ctx context.Context, c Config) error {
	if err := c.defaults(); err != nil {
		return fmt.Errorf("softnic: %w", err)
	}
	path := c.Sockets[0]
	for {
		n, err := nic.Open(path)
		if err == nil {
			return n.Close()
		}
		if !nic.Absent(err) {
			return err
		}
		err = start(ctx, &c)
		if err == nil || !strings.Contains(err.Error(), ErrRunning.Error()) {
			return err
		}
		// Another process starts a softnic, or a softnic is about to end.
		select {
		case <-ctx.Done():
			return fmt.Errorf("softnic: %w: %w", err, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func start(ctx context.Context, c *Config) error {
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("softnic: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("softnic: %w", err)
	}
	defer r.Close()
	err = spawn("1", string(b), w, ctx)
	w.Close()
	if err != nil {
		return fmt.Errorf("softnic: start one: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := bufio.NewReader(r).ReadString('\n')
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("softnic: start one: %w", ctx.Err())
	case line == "ok\n":
		return nil
	case err != nil:
		return errors.New("softnic process exited without an error message")
	}
	return errors.New(strings.TrimSuffix(line, "\n"))
}

// program returns the path of the program to start.
func program() (string, error) {
	self, err := os.Executable()
	if err == nil && helper.Load() {
		return self, nil
	}
	if p := os.Getenv(EnvProgram); p != "" {
		return p, nil
	}
	if err == nil {
		if p := filepath.Join(filepath.Dir(self), "bywash"); unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
	}
	p, err := exec.LookPath("bywash")
	if err != nil {
		return "", errors.New("no program bywash in PATH (install it, or call softnic.RunIfStarted first in main)")
	}
	return p, nil
}

// spawn starts a stage. It waits for the first stage, which ends at once.
func spawn(stage, config string, out *os.File, ctx context.Context) error {
	exe, err := program()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe)
	if ctx != nil {
		cmd = exec.CommandContext(ctx, exe)
	}
	environ := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "BYWASH_SECRET=") }) // it outlives the job
	cmd.Env = append(environ, envStage+"="+stage, envConfig+"="+config)
	cmd.ExtraFiles = []*os.File{out}
	if stage == "2" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd.Start()
	}
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return nil // it has reported the reason
		}
		return err
	}
	return nil
}
