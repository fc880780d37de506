//go:build linux

package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/qnix/softnic"
	"github.com/bywash/bywash/session/launch"
)

// Environment.
const (
	envRole  = "BYWASH_HOSTILE_ROLE" // makes this binary a program of its own: one of roles
	envTime  = "BYWASH_HOSTILE"      // how long each attack goes on
	envSoak  = "BYWASH_SOAK"         // how long all of them go on together
	envSeed  = "BYWASH_SEED"         // replays a run
	attacks  = 30                    // among which BYWASH_SOAK is divided
	patience = 30 * time.Second      // for what has no limit of its own
)

// roles are the programs: the honest peer and the attackers.
var roles = map[string]func(in *json.Decoder, out *json.Encoder) error{
	"peer": peerProgram, "scribbler": scribblerProgram, "flooder": flooderProgram, "stranger": strangerProgram,
	"tenant": tenantProgram, "neighbour": neighbourProgram, "listener": listenerProgram,
	"sprayer": sprayerProgram,
}

func TestMain(m *testing.M) {
	softnic.RunIfStarted()
	if name := os.Getenv(envRole); name != "" {
		if err := roles[name](json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv(launch.EnvDrivers, "shm")
	os.Exit(m.Run())
}

// brief is how long an attack goes on in make test.
const brief = 400 * time.Millisecond

// duration is how long an attack goes on.
func duration(t testing.TB) time.Duration {
	t.Helper()
	for name, share := range map[string]time.Duration{envTime: 1, envSoak: attacks} {
		d, err := time.ParseDuration(os.Getenv(name))
		if err == nil {
			return d / share
		}
		if os.Getenv(name) != "" {
			t.Fatalf("%s=%q: want a duration, such as 1m", name, os.Getenv(name))
		}
	}
	if testing.Short() {
		return brief / 2
	}
	return brief
}

// seed draws the random numbers of an attack, and says how to draw them again.
func seed(t testing.TB) *rand.Rand {
	t.Helper()
	s, err := strconv.ParseUint(os.Getenv(envSeed), 0, 64)
	if err != nil {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("replay: %s=%d %s=%v", envSeed, s, envTime, duration(t))
	return rand.New(rand.NewPCG(s, 6))
}

// program is another process of a test.
type program struct {
	tb   testing.TB
	name string
	cmd  *exec.Cmd
	in   *json.Encoder
	out  *json.Decoder
	end  sync.Once
	err  error

	begin func(*exec.Cmd) error
}

// start starts a program; it is told v.
func start(tb testing.TB, name string, v any, change ...func(*program)) *program {
	tb.Helper()
	p := &program{tb: tb, name: name, cmd: exec.Command("/proc/self/exe"), begin: (*exec.Cmd).Start}
	p.cmd.Env = append(os.Environ(), envRole+"="+name)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	p.in, p.out = json.NewEncoder(in), json.NewDecoder(out)
	for _, f := range change {
		f(p)
	}
	if err := p.begin(p.cmd); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.kill)
	p.tell(v)
	return p
}

func (p *program) tell(v any) {
	p.tb.Helper()
	if err := p.in.Encode(v); err != nil {
		p.tb.Fatalf("%s: %v", p.name, err)
	}
}

// hear waits for what the program says.
func (p *program) hear(v any) {
	p.tb.Helper()
	stuck := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer stuck.Stop()
	if err := p.out.Decode(v); err != nil {
		p.tb.Fatalf("%s said nothing within %v, or died: %v", p.name, patience, err)
	}
}

// kill ends the program, if it has not ended.
func (p *program) kill() {
	p.end.Do(func() {
		_ = p.cmd.Process.Kill()
		p.err = p.cmd.Wait()
	})
}

// leave waits until the program has ended by itself.
func (p *program) leave() error {
	p.end.Do(func() {
		stuck := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
		defer stuck.Stop()
		_, _ = io.Copy(io.Discard, p.out.Buffered())
		p.err = p.cmd.Wait()
	})
	return p.err
}

// soon is a context that bounds one step.
func soon(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}
