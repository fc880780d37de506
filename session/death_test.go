//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/internal/rdv"
	"github.com/bywash/bywash/session/launch"
)

// Ranks that are other processes are this test binary again; their cards lie in
// a directory.
const (
	envDir  = "BYWASH_SESSION_TEST_DIR"
	envRank = "BYWASH_SESSION_TEST_RANK"
	envSize = "BYWASH_SESSION_TEST_SIZE"
	envMode = "BYWASH_SESSION_TEST_MODE"
	envRole = "BYWASH_SESSION_TEST_ROLE"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv(launch.EnvDrivers, "shm") // tests take no interface of the machine; those that want others name them
	os.Exit(m.Run())
}

// child is the main function of a child process.
func child(dir string) error {
	number := func(name string) int { n, _ := strconv.Atoi(os.Getenv(name)); return n }
	switch os.Getenv(envRole) {
	case "nic":
		return serveNIC(dir)
	case "launcher":
		return launcherRank()
	case "launcher lost":
		return launcherLostRank()
	case "ending":
		return endingRank()
	case "client":
		return clientProcess()
	case "served":
		return servedRank()
	case "opening":
		return openingRank()
	case "crashing":
		return crashingRank(dir)
	case "stopped":
		return stoppedRank(dir)
	case "few descriptors":
		return fewDescriptors(dir)
	case "flooding":
		return floodingRank(dir)
	}
	rails := []session.Rail{{Driver: "shm"}}
	if b, err := os.ReadFile(filepath.Join(dir, "rails")); err == nil {
		if err := json.Unmarshal(b, &rails); err != nil {
			return err
		}
	}
	ctx := context.Background()
	s, err := session.Join(ctx, session.Config{
		Job: &folder{dir, number(envRank), number(envSize)}, Rails: rails, Mode: modeOf(number(envMode)),
	})
	if err != nil {
		return err
	}
	if os.Getenv(envRole) == "mirror" {
		return mirror(ctx, s, 0)
	}
	return errors.Join(traffic(ctx, s, 0, make([]byte, 1<<20), nil)...) // until it is killed
}

// startRank starts a rank of a job in dir as another process, which ends with this one.
func startRank(t *testing.T, dir string, rails []session.Rail, env ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	if rails != nil {
		b, err := json.Marshal(rails)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "rails"), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c, log := rankCommand(t, dir, append([]string{envRank + "=1", envSize + "=2"}, env...)...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c, log
}

// rankCommand returns a command that runs this test binary as a rank, and its output.
func rankCommand(t *testing.T, dir string, env ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(append(os.Environ(), envDir+"="+dir), env...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := new(bytes.Buffer)
	c.Stderr = log
	return c, log
}

// folder is a job of processes that share a directory.
type folder struct {
	dir        string
	rank, size int
}

var _ launch.Job = (*folder)(nil)

func (f *folder) Rank() int         { return f.rank }
func (f *folder) Size() int         { return f.size }
func (f *folder) Name() string      { return "folder" }
func (f *folder) ID() string        { return f.dir }
func (f *folder) Secret() []byte    { return bytes.Repeat([]byte{9}, launch.SecretSize) }
func (f *folder) Abort(int, string) {}
func (f *folder) Close() error      { return nil }
func (f *folder) path(rank int) string {
	return filepath.Join(f.dir, strconv.Itoa(rank))
}
func (f *folder) Publish(_ context.Context, card []byte) error {
	if err := os.WriteFile(f.path(f.rank)+".new", card, 0o600); err != nil {
		return err
	}
	return os.Rename(f.path(f.rank)+".new", f.path(f.rank))
}
func (f *folder) Fence(ctx context.Context) error {
	for i := range f.size {
		for {
			if _, err := os.Stat(f.path(i)); err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("rank %d has no card: %w", i, ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}
func (f *folder) Lookup(_ context.Context, rank int) ([]byte, error) {
	return os.ReadFile(f.path(rank))
}

// modeOf is a forced mode, or none.
func modeOf(n int) *rdv.Mode {
	if n >= int(rdv.Modes) {
		return nil
	}
	m := rdv.Mode(n)
	return &m
}

// inHandler is called by the handler of active messages in traffic.
var inHandler = func() {}

// traffic keeps operations of every kind in progress with a peer until one fails and again does not return true for
// its error.
func traffic(ctx context.Context, s *session.Session, peer int, memory []byte, again func(error) bool) []error {
	g := s.Gate(peer)
	s.Handle(1, func(*session.Gate, *session.Active) { inHandler() })
	region, err := s.Register(memory, allAccess)
	if err != nil {
		return []error{err}
	}
	defer func() {
		for region.Deregister() == session.ErrBusy {
			runtime.Gosched()
		}
	}()
	var wg sync.WaitGroup
	errs := make([]error, 6)
	loop := func(k int, f func() error) {
		wg.Go(func() {
			for errs[k] == nil {
				if errs[k] = f(); errs[k] != nil && again != nil && again(errs[k]) {
					errs[k] = nil
				}
			}
		})
	}
	lengths := []int{8, 300, 8000, 64 << 10, 700_000}
	sent, received := 0, 0
	out, in := make([]byte, 700_000), make([]byte, 700_000)
	loop(0, func() error { sent++; return g.Send(ctx, 1, out[:lengths[sent%5]]) })
	loop(1, func() error { received++; _, err := g.Recv(ctx, 1, in); return err })
	active := 0
	loop(2, func() error {
		active++
		r, err := g.AM(1, nil, out[:[]int{8, 2000, 60_000}[active%3]])
		if r != nil {
			_, err = r.Wait(ctx)
		}
		runtime.Gosched() // the others shall have their turn
		return err
	})
	// The key travels as a message.
	loop(3, func() error {
		if err := g.Send(ctx, 2, region.Key()); err != nil {
			return err
		}
		key := make([]byte, 4096)
		n, err := g.Recv(ctx, 2, key)
		if err != nil {
			return err
		}
		r, err := g.Import(key[:n])
		if err != nil {
			return err
		}
		for {
			if err := g.Put(ctx, r, 64, out[:100_000]); err != nil {
				return err
			}
			if err := g.Get(ctx, r, 64, make([]byte, 100_000)); err != nil {
				return err
			}
			if _, err := g.FetchAdd(ctx, r, 0, 1); err != nil {
				return err
			}
		}
	})
	loop(4, func() error { return g.SendMsg(ctx, &session.Out{Tag: 3, Buf: out[:100], Sync: true}) })
	loop(5, func() error { _, err := g.Recv(ctx, 3, make([]byte, 100)); return err })
	wg.Wait()
	return errs
}

func seed(t *testing.T) uint64 {
	v := uint64(time.Now().UnixNano())
	if e := os.Getenv("BYWASH_SEED"); e != "" {
		var err error
		if v, err = strconv.ParseUint(e, 0, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("BYWASH_SEED=%#x", v)
	return v
}

// A peer is killed at a random moment of traffic in each mode: everything that
// was under way with it fails as broken, at both tracks, and the error callback
// names it.
func TestDeathOfAPeerFailsEverythingOfIt(t *testing.T) {
	deaths := 40
	if testing.Short() {
		deaths = 5
	}
	rng := rand.New(rand.NewPCG(seed(t), 1))
	for i := range deaths {
		mode, after := i%(int(rdv.Modes)+1), time.Duration(rng.IntN(30_000))*time.Microsecond
		ok := t.Run(fmt.Sprintf("%d/mode %d", i, mode), func(t *testing.T) { death(t, mode, after, nil, nil) })
		if !ok {
			t.Fatalf("killed after %v", after)
		}
	}
}

// death kills a peer. Without rails it is one of shm.
func death(t *testing.T, mode int, after time.Duration, mine, theirs []session.Rail) {
	dir := t.TempDir()
	child, log := startRank(t, dir, theirs, envMode+"="+strconv.Itoa(mode))
	if mine == nil {
		mine = []session.Rail{{Driver: "shm"}}
	}
	lost := make(chan *session.Error, 10)
	ctx := deadline(t)
	s, err := session.Join(ctx, session.Config{
		Job: &folder{dir, 0, 2}, Rails: mine, Mode: modeOf(mode),
		OnError: func(e *session.Error) {
			if !e.NonFatal {
				lost <- e
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Gate(1).ConnectWait(ctx); err != nil {
		t.Fatal(err)
	}
	// The moment is one of time: it may be one at which nothing moves.
	time.AfterFunc(after, func() { _ = child.Process.Kill() })
	errs := traffic(ctx, s, 1, make([]byte, 1<<20), nil)
	_ = child.Wait()
	for k, err := range errs {
		if !errors.Is(err, session.ErrBroken) {
			t.Errorf("loop %d ended with %v, want broken (output of the peer: %q)", k, err, log.String())
		}
	}
	select {
	case e := <-lost:
		if e.Peer != 1 {
			t.Errorf("the error names rank %d", e.Peer)
		}
	case <-ctx.Done():
		t.Error("no error was reported")
	}
	if _, err := s.Gate(1).Isend(1, []byte{1}); !errors.Is(err, session.ErrBroken) {
		t.Errorf("send to the crashed rank: %v", err)
	}
	transfer(t, s, s, 1000) // others are still there
	if t.Failed() {
		_ = s.Dump(os.Stderr)
	}
	if err := s.Close(ctx); err != nil {
		t.Error(err)
		_ = s.Dump(os.Stderr)
	}
}
