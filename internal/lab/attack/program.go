//go:build linux

package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Environment.
const (
	envRole = "BYWASH_HOSTILE_ROLE" // the name of a program: this process is it, not a test
	envTime = "BYWASH_HOSTILE"      // how long each attack goes on
	envSoak = "BYWASH_SOAK"         // how long all of them go on together
	envSeed = "BYWASH_SEED"         // replays a run
	attacks = 30                    // among which BYWASH_SOAK is divided
)

// MaxWait bounds each step that has no limit of its own.
const MaxWait = 30 * time.Second

// A Main is the main function of a program. It exchanges values with the test as lines of JSON.
type Main func(in *json.Decoder, out *json.Encoder) error

// RunIfStarted runs a program, and does not return, if a test has started this process as one: one of programs, or a
// attacker of this package.
func RunIfStarted(programs map[string]Main) {
	name := os.Getenv(envRole)
	if name == "" {
		return
	}
	all := maps.Clone(attackers)
	maps.Copy(all, programs)
	if err := all[name](json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Brief is how long an attack goes on in make test.
const Brief = 200 * time.Millisecond

// Duration returns how long an attack goes on.
func Duration(t testing.TB) time.Duration {
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
		return Brief / 2
	}
	return Brief
}

// Seed returns the random numbers of an attack, and logs how to replay them.
func Seed(t testing.TB) *rand.Rand {
	t.Helper()
	s, err := strconv.ParseUint(os.Getenv(envSeed), 0, 64)
	if err != nil {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("replay: %s=%d %s=%v", envSeed, s, envTime, Duration(t))
	return rand.New(rand.NewPCG(s, 6))
}

// Program is another process of a test.
type Program struct {
	Cmd   *exec.Cmd
	Begin func(*exec.Cmd) error // starts Cmd; default (*exec.Cmd).Start
	Out   *json.Decoder

	tb   testing.TB
	name string
	in   *json.Encoder
	end  sync.Once
	err  error
}

// Start starts a program and sends it v. The program is killed at the end of the test.
func Start(tb testing.TB, name string, v any, change ...func(*Program)) *Program {
	tb.Helper()
	p := &Program{tb: tb, name: name, Cmd: exec.Command("/proc/self/exe"), Begin: (*exec.Cmd).Start}
	p.Cmd.Env = append(os.Environ(), envRole+"="+name)
	p.Cmd.Stderr = os.Stderr
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := p.Cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := p.Cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	p.in, p.Out = json.NewEncoder(in), json.NewDecoder(out)
	for _, f := range change {
		f(p)
	}
	if err := p.Begin(p.Cmd); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Kill)
	p.send(v)
	return p
}

// send sends v to the program.
func (p *Program) send(v any) {
	p.tb.Helper()
	if err := p.in.Encode(v); err != nil {
		p.tb.Fatalf("%s: %v", p.name, err)
	}
}

// Receive waits for a value from the program and stores it in v.
func (p *Program) Receive(v any) {
	p.tb.Helper()
	stuck := time.AfterFunc(MaxWait, func() { _ = p.Cmd.Process.Kill() })
	defer stuck.Stop()
	if err := p.Out.Decode(v); err != nil {
		p.tb.Fatalf("%s sent nothing within %v, or died: %v", p.name, MaxWait, err)
	}
}

// Kill ends the program, if it has not ended.
func (p *Program) Kill() {
	p.end.Do(func() {
		_ = p.Cmd.Process.Kill()
		p.err = p.Cmd.Wait()
	})
}

// Leave waits until the program has ended by itself.
func (p *Program) Leave() error {
	p.end.Do(func() {
		stuck := time.AfterFunc(MaxWait, func() { _ = p.Cmd.Process.Kill() })
		defer stuck.Stop()
		_, _ = io.Copy(io.Discard, p.Out.Buffered())
		p.err = p.Cmd.Wait()
	})
	return p.err
}

// Soon returns a context that bounds one step.
func Soon(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), MaxWait)
	tb.Cleanup(cancel)
	return ctx
}
