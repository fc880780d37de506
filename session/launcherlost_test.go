//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// crashingListener kills this process when its connections have received so many bytes.
type crashingListener struct {
	net.Listener
	left atomic.Int64
}

func (l *crashingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &crashingConn{c, l}, err
}

type crashingConn struct {
	net.Conn
	l *crashingListener
}

func (c *crashingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.l.left.Add(-int64(n)) <= 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return n, err
}

// launcherRank serves a rendezvous, in a process of its own, until it is killed, or has received as many bytes as
// envMode specifies.
func launcherRank() error {
	secret, err := hex.DecodeString(os.Getenv(launch.EnvSecret))
	if err != nil {
		return err
	}
	ln, err := launch.Listen(context.Background(), "")
	if err != nil {
		return err
	}
	life, err := strconv.ParseInt(os.Getenv(envMode), 10, 64)
	if err != nil {
		return err
	}
	listener := &crashingListener{Listener: ln}
	listener.left.Store(life)
	s := launch.Serve(listener, launcherRanks, secret)
	fmt.Println(s.Addr())
	select {}
}

// launcherRanks is the size of a job whose launcher dies. The last rank is not connected to any other.
const launcherRanks = 4

// joinBytes is about how many bytes the ranks send to the launcher until all have joined.
const joinBytes = 1300

// launcherLostRank joins, connects to all but the last rank, and goes on after the loss of the launcher was reported.
func launcherLostRank() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reported := make(chan *session.Error, 10)
	s, err := session.Join(ctx, session.Config{Rails: []session.Rail{{Driver: "shm"}}, OnError: func(e *session.Error) { reported <- e }})
	if err != nil {
		fmt.Println("not joined")
		return unlessLost(ctx, err)
	}
	if s.Rank() < launcherRanks-1 {
		err = roundTrips(ctx, s)
	}
	if err == nil {
		fmt.Println("joined")
		err = checkLauncherLost(ctx, s, reported)
	}
	if err = unlessLost(ctx, err); err != nil {
		_ = s.Dump(os.Stderr)
	}
	// The others may end at any time.
	if c := s.Close(ctx); c != nil {
		err = errors.Join(err, unlessLost(ctx, c))
	}
	return err
}

// unlessLost is nil for the errors that a rank may see when the launcher dies: the launcher is gone, or, because of
// that, another rank.
func unlessLost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("a rank hangs: %w", err)
	}
	for _, e := range []error{launch.ErrLauncher, session.ErrBroken, session.ErrClosed, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, e) {
			fmt.Println("error:", err)
			return nil
		}
	}
	return err
}

// roundTrips exchanges a message with each rank but the last.
func roundTrips(ctx context.Context, s *session.Session) error {
	var wg sync.WaitGroup
	errs := make([]error, 2*launcherRanks)
	for r := range launcherRanks - 1 {
		if r == s.Rank() {
			continue
		}
		wg.Go(func() { errs[2*r] = s.Gate(r).Send(ctx, 1, make([]byte, 100_000)) })
		wg.Go(func() { _, errs[2*r+1] = s.Gate(r).Recv(ctx, 1, make([]byte, 100_000)) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// checkLauncherLost checks what a rank can do when its launcher dies after it has joined.
func checkLauncherLost(ctx context.Context, s *session.Session, reported chan *session.Error) error {
	last := s.Gate((s.Rank() + 1) % launcherRanks)
	if s.Rank() < launcherRanks-1 {
		last = s.Gate(launcherRanks - 1)
	}
	r, err := last.Irecv(2, make([]byte, 8))
	if err != nil {
		return err
	}
	for lost := false; !lost; {
		select {
		case e := <-reported:
			lost = e.Peer < 0 && e.NonFatal && errors.Is(e, launch.ErrLauncher)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if _, err := r.Wait(ctx); !errors.Is(err, launch.ErrLauncher) {
		return fmt.Errorf("a receive from a rank that cannot come ends with %w", err)
	}
	if err := last.Send(ctx, 2, make([]byte, 8)); !errors.Is(err, launch.ErrLauncher) {
		return fmt.Errorf("a send to a rank that cannot be found ends with %w", err)
	}
	if s.Rank() == launcherRanks-1 {
		return nil
	}
	if err := roundTrips(ctx, s); err != nil {
		return fmt.Errorf("over established connections: %w", err)
	}
	if err := reconnected(ctx, s); err != nil {
		return fmt.Errorf("over another connection: %w", err)
	}
	fmt.Println("went on")
	return nil
}

// reconnected has the first two ranks, which know each other's card, close their connection and make another one.
func reconnected(ctx context.Context, s *session.Session) error {
	switch s.Rank() {
	case 0:
		s.Gate(1).Disconnect()
		for s.Gate(1).Path() != "idle" && ctx.Err() == nil {
			s.Progress()
		}
		return s.Gate(1).SendMsg(ctx, &session.Out{Tag: 3, Buf: make([]byte, 8), Sync: true})
	case 1:
		for {
			if _, err := s.Gate(0).Recv(ctx, 3, make([]byte, 8)); !errors.Is(err, session.ErrClosed) {
				return err
			}
		}
	}
	return nil
}

// process is a child process, with its output.
type process struct {
	*exec.Cmd
	out *bufio.Reader
	log *bytes.Buffer
}

func startProcess(t *testing.T, role string, env []string) *process {
	t.Helper()
	c, log := rankCommand(t, t.TempDir(), append(env, envRole+"="+role)...)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return &process{c, bufio.NewReader(out), log}
}

// line returns the next line of output; empty if the process has ended.
func (p *process) line() string {
	s, _ := p.out.ReadString('\n')
	return strings.TrimSpace(s)
}

// The launcher is killed before, while, or after ranks join. Ranks that have not joined report the cause, and end.
// Ranks that have joined go on with the peers to which they are connected, and get errors for peers that they can no
// longer reach.
func TestRanksOutliveTheirLauncher(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed(t), 6))
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	t.Run("before", func(t *testing.T) {
		launcherDies(t, math.MaxInt64, func(l *process, _ func() []*process) []*process { l.kill(); return nil })
	})
	for i := range rounds {
		life := 1 + rng.Int64N(joinBytes)
		t.Run(fmt.Sprintf("while/%d", i), func(t *testing.T) {
			launcherDies(t, life, func(l *process, start func() []*process) []*process {
				ranks := start()
				for _, r := range ranks {
					t.Logf("after %d bytes: %s", life, r.line())
				}
				l.kill() // if they have sent less
				return ranks
			})
		})
	}
	t.Run("after", func(t *testing.T) {
		launcherDies(t, math.MaxInt64, func(l *process, start func() []*process) []*process {
			ranks := start()
			for i, r := range ranks {
				if got := r.line(); got != "joined" {
					t.Errorf("rank %d prints %q", i, got)
				}
			}
			l.kill()
			for i, r := range ranks[:launcherRanks-1] {
				if got := r.line(); got != "went on" {
					t.Errorf("rank %d prints %q", i, got)
				}
			}
			return ranks
		})
	})
}

func (p *process) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

// launcherDies starts a launcher that dies after so many received bytes. Its ranks are started when kill calls its
// argument, or else when kill has returned nil.
func launcherDies(t *testing.T, life int64, kill func(*process, func() []*process) []*process) {
	secret := launch.NewSecret()
	l := startProcess(t, "launcher", []string{
		launch.EnvSecret + "=" + hex.EncodeToString(secret), envMode + "=" + strconv.FormatInt(life, 10),
	})
	addr := l.line()
	if _, _, err := net.SplitHostPort(addr); err != nil {
		t.Fatalf("the launcher prints %q, %v", addr, l.log)
	}
	start := func() (ranks []*process) {
		for r := range launcherRanks {
			ranks = append(ranks, startProcess(t, "launcher lost", launch.RankEnv(addr, r, launcherRanks, secret)))
		}
		return ranks
	}
	ranks := kill(l, start)
	if ranks == nil {
		ranks = start()
	}
	for i, r := range ranks {
		var output []string
		for s := r.line(); s != ""; s = r.line() {
			output = append(output, s)
		}
		if err := r.Wait(); err != nil {
			t.Errorf("rank %d ends with %v: %v, %v", i, err, output, r.log)
		}
		t.Logf("rank %d: %q", i, output)
	}
}
