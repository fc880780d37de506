//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// endingRank joins, does what its mode requires, and ends.
func endingRank() error {
	ctx := context.Background()
	s, err := session.Join(ctx, session.Config{Rails: []session.Rail{{Driver: "shm"}}})
	if err != nil {
		return err
	}
	switch mode := os.Getenv(envMode); mode {
	case "exits":
		os.Exit(3)
	case "killed":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "sends", "sends and exits":
		if err := s.Gate(0).SendMsg(ctx, &session.Out{Tag: 1, Buf: []byte("last words"), Sync: mode == "sends and exits"}); err != nil {
			return err
		}
		if mode == "sends and exits" {
			os.Exit(4)
		}
	case "answers":
		if err := answerCalls(ctx, s); err != nil {
			return err
		}
	}
	return s.Close(ctx)
}

// survivor returns rank 0, in this process, of a job whose other ranks are processes that end as their modes require.
// It starts them, and informs the server how each has ended, as bywash run does.
func survivor(t *testing.T, modes ...string) *session.Session {
	t.Helper()
	return survivorWith(t, session.Config{}, modes...)
}

func survivorWith(t *testing.T, cfg session.Config, modes ...string) *session.Session {
	t.Helper()
	ctx := deadline(t)
	secret, size := launch.NewSecret(), 1+len(modes)
	ln, err := launch.Listen(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	server := launch.Serve(ln, size, secret)
	for i, mode := range modes {
		env := append(launch.RankEnv(server.Addr(), i+1, size, secret), envRole+"=ending", envMode+"="+mode)
		c, log := rankCommand(t, t.TempDir(), env...)
		server.Started(i + 1)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			_ = c.Wait()
			end := launch.End{Rank: i + 1, How: launch.Exited, Code: c.ProcessState.ExitCode()}
			if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
				end.How, end.Code = launch.Killed, int(ws.Signal())
			}
			server.Ended(end)
		}()
		t.Cleanup(func() {
			_ = c.Process.Kill()
			if <-over; t.Failed() {
				t.Logf("rank %d: %v", i+1, log)
			}
		})
	}
	job, err := launch.Join(ctx, server.Addr(), 0, size, secret)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Job, cfg.Rails = job, []session.Rail{{Driver: "shm"}}
	s, err := session.Join(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(deadline(t)), job.Close(), server.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// checkEnd checks the error of an operation with a rank that has ended.
func checkEnd(t *testing.T, what string, err, is error, code int, contains string) {
	t.Helper()
	var rank *launch.RankError
	if !errors.Is(err, is) || !errors.As(err, &rank) || rank.Rank != 1 || rank.Code != code || !strings.Contains(err.Error(), contains) {
		t.Errorf("%s: %v; want %v that names rank 1, code %d, and contains %q", what, err, is, code, contains)
	}
}

// Without a connection only the launcher can report that a rank has ended: pending and later operations with it fail.
func TestOperationsWithAnEndedRankFail(t *testing.T) {
	for _, tt := range []struct {
		mode     string
		is       error
		code     int
		contains string
	}{
		{"exits", session.ErrBroken, 3, "ended with exit status 3"},
		{"killed", session.ErrBroken, 128 + 9, "was killed by SIGKILL"},
		{"closes", session.ErrClosed, 0, "has left the job"},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			s := survivor(t, tt.mode)
			ctx, g := deadline(t), s.Gate(1)
			buf := make([]byte, 16)
			_, err := g.Recv(ctx, 1, buf)
			checkEnd(t, "receive that waits", err, tt.is, tt.code, tt.contains)
			for range 2 {
				_, err = g.Recv(ctx, 1, buf)
				checkEnd(t, "later receive", err, tt.is, tt.code, tt.contains)
				checkEnd(t, "send", g.Send(ctx, 1, buf), tt.is, tt.code, tt.contains)
				_, err = s.Probe(ctx, session.Match{From: g})
				checkEnd(t, "probe", err, tt.is, tt.code, tt.contains)
				g.Disconnect() // makes the gate usable: the rank is still gone
			}
			checkEnd(t, "connect", g.ConnectWait(ctx), tt.is, tt.code, tt.contains)
		})
	}
}

// Config.OnError is told of a rank that has ended while the only goroutine is asleep in Probe, which is told, too.
func TestEndedRankIsReportedBesideProbe(t *testing.T) {
	reported := make(chan *session.Error, 2)
	s := survivorWith(t, session.Config{OnError: func(e *session.Error) { reported <- e }}, "killed", "answers")
	if _, err := s.Probe(deadline(t), session.Match{From: s.Gate(1)}); !errors.Is(err, session.ErrBroken) {
		t.Errorf("probe: %v, want broken", err)
	}
	select {
	case e := <-reported:
		if e.Peer != 1 {
			t.Errorf("reported: %v, want rank 1", e)
		}
	case <-deadline(t).Done():
		t.Error("not reported")
	}
}

// What a rank has delivered before its end is received; then operations fail.
func TestEndedRankLeavesItsMessages(t *testing.T) {
	for _, tt := range []struct {
		mode     string
		is       error
		code     int
		contains string
	}{
		{"sends", session.ErrClosed, 0, "has left the job"},
		{"sends and exits", session.ErrBroken, 4, "ended with exit status 4"},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			s := survivor(t, tt.mode)
			ctx, g := deadline(t), s.Gate(1)
			buf := make([]byte, 16)
			if n, err := g.Recv(ctx, 1, buf); err != nil || string(buf[:n]) != "last words" {
				t.Fatalf("%q, %v", buf[:n], err)
			}
			// The driver may notice the end first, with a less precise error.
			eventually(t, "the end is named", func() bool {
				_, err := g.Recv(ctx, 1, buf)
				return errors.Is(err, tt.is) && strings.Contains(err.Error(), tt.contains)
			})
			_, err := g.Recv(ctx, 1, buf)
			checkEnd(t, "receive", err, tt.is, tt.code, tt.contains)
		})
	}
}

// A send to a rank that has closed its session fails with ErrClosed, also before the launcher has reported its end.
func TestSendAfterOrderlyEndIsErrClosed(t *testing.T) {
	for range 5 {
		closed, faults := make(chan struct{}), make(chan error, 16)
		s := survivorWith(t, session.Config{
			OnClosed: func(*session.Gate) { close(closed) },
			OnError:  func(e *session.Error) { faults <- e },
		}, "sends")
		ctx, g := deadline(t), s.Gate(1)
		if _, err := g.Recv(ctx, 1, make([]byte, 16)); err != nil {
			t.Fatal(err)
		}
		<-closed
		if err := g.SendMsg(ctx, &session.Out{Tag: 1, Buf: []byte("too late"), Sync: true}); !errors.Is(err, session.ErrClosed) || errors.Is(err, session.ErrBroken) {
			t.Errorf("send: %v, want only %v", err, session.ErrClosed)
		}
		if err := g.Send(ctx, 1, make([]byte, 1<<20)); !errors.Is(err, session.ErrClosed) || errors.Is(err, session.ErrBroken) {
			t.Errorf("later send: %v, want only %v", err, session.ErrClosed)
		}
		select {
		case err := <-faults:
			t.Errorf("OnError: %v", err)
		default:
		}
	}
}

// A receive from any source fails when all other ranks have ended, and not before.
func TestReceiveFromAnyOfEndedRanksFails(t *testing.T) {
	s := survivor(t, "exits", "sends")
	ctx := deadline(t)
	for _, what := range []string{"waits", "comes later"} {
		st, err := s.Recv(ctx, session.Match{Ignore: session.AnyTag}, make([]byte, 16))
		if what == "waits" {
			if err != nil || st.From != s.Gate(2) {
				t.Fatalf("message of the rank that had not ended: %+v, %v", st, err)
			}
			_, err = s.Recv(ctx, session.Match{Ignore: session.AnyTag}, nil)
		}
		checkEnd(t, what, err, session.ErrBroken, 3, "all other ranks have ended")
	}
	_, err := s.Probe(ctx, session.Match{Ignore: session.AnyTag})
	checkEnd(t, "probe", err, session.ErrBroken, 3, "all other ranks have ended")
	// Messages to itself can come: once it is connected to itself, receives from any source wait.
	self := s.Gate(0)
	if err := self.Send(ctx, 5, []byte("me")); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Recv(ctx, session.Tag(5), make([]byte, 16)); err != nil || st.From != self {
		t.Errorf("from itself: %+v, %v", st, err)
	}
}
