//go:build linux

package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/session/launch"
)

// gathering is the lead's view of the other ranks.
type gathering struct {
	*team
	server *launch.Server // of a local run
	others []*follower
}

// follower is a process of a local run.
type follower struct {
	cmd  *exec.Cmd
	gone chan struct{}
	err  error // of its end, once gone is closed
}

// gather starts the other ranks, or finds the one on another machine.
func (r *run) gather(size int) (*gathering, error) {
	if r.Remote != "" {
		job, err := r.dial(r.ctx, r.Remote)
		if err != nil {
			return nil, unreachable{err}
		}
		return &gathering{team: newTeam(r.ctx, job)}, nil
	}
	ln, err := launch.Listen(r.ctx, "")
	if err != nil {
		return nil, fmt.Errorf("start the other process: %w", err)
	}
	secret := launch.NewSecret()
	g := &gathering{server: launch.Serve(ln, size, secret)}
	job, err := launch.Join(r.ctx, g.server.Addr(), 0, size, secret)
	if err != nil {
		_ = g.server.Close()
		return nil, fmt.Errorf("start the other process: %w", err)
	}
	g.team = newTeam(r.ctx, job)
	for rank := 1; rank < size; rank++ {
		if err := g.start(r.selfCommand(), rank, size, secret); err != nil {
			g.close()
			return nil, fmt.Errorf("start the other process: %w", err)
		}
	}
	return g, nil
}

// selfCommand returns the command with which a local run starts its other processes.
func (c *Config) selfCommand() []string {
	if len(c.self) > 0 {
		return c.self
	}
	return []string{"/proc/self/exe", PeerCommand}
}

func (g *gathering) start(self []string, rank, size int, secret []byte) error {
	f := &follower{cmd: exec.Command(self[0], self[1:]...), gone: make(chan struct{})}
	f.cmd.Env = append(os.Environ(), launch.RankEnv(g.server.Addr(), rank, size, secret)...)
	f.cmd.Env = append(f.cmd.Env, launch.EnvLauncher+"=embedded")
	f.cmd.Stderr = os.Stderr
	if err := f.cmd.Start(); err != nil {
		return err
	}
	g.others = append(g.others, f)
	go func() {
		if f.err = f.cmd.Wait(); f.err == nil {
			f.err = errors.New("it ended early")
		}
		close(f.gone)
		g.server.Ended(launch.End{Rank: rank, How: launch.Lost})
	}()
	return nil
}

// explain adds to an error how a process has ended.
func (g *gathering) explain(err error) error {
	var r *launch.RankError
	if !errors.Is(err, bench.ErrPeerGone) || !errors.As(err, &r) || r.Rank < 1 || r.Rank > len(g.others) {
		return err
	}
	f := g.others[r.Rank-1]
	select {
	case <-f.gone:
		return fmt.Errorf("%w: %w", err, f.err)
	case <-time.After(time.Second):
		return err
	}
}

// close ends the followers: they leave when the lead has left, and are killed if they do not.
func (g *gathering) close() {
	g.team.close()
	for _, f := range g.others {
		select {
		case <-f.gone:
		case <-time.After(3 * time.Second):
			_ = f.cmd.Process.Kill()
			<-f.gone
		}
	}
	if g.server != nil {
		_ = g.server.Close()
	}
}

// dialTime bounds one attempt to reach a listener.
const dialTime = 10 * time.Second

// A listener that is taken for so long serves another lead, and not the end of this one's last job.
const takenTime = time.Second

// dial joins the job of a listener. While that serves another lead, it waits, and says so once.
func (c *Config) dial(ctx context.Context, addr string) (*launch.Client, error) {
	if c.SecretFile == "" {
		return nil, errors.New("give the listener's secret file: --secret-file F")
	}
	secret, err := readSecret(c.SecretFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: copy the listener's", err)
	}
	if err != nil {
		return nil, err
	}
	for begin, told := time.Now(), false; ; {
		once, cancel := context.WithTimeout(ctx, dialTime)
		job, err := launch.Join(once, addr, 0, 2, secret)
		cancel()
		switch {
		case err == nil:
			return job, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !errors.Is(err, launch.ErrTaken):
			return nil, fmt.Errorf("%s: %w", addr, joinError(err))
		}
		if !told && c.Notes != nil && time.Since(begin) > takenTime {
			told = true
			fmt.Fprintf(c.Notes, "bywash: %s serves another measurement: waiting for its end\n", addr)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

var errSecret = errors.New("the other side has another secret: use the same --secret-file on both")

// joinError adds the remedy to an error of the launch package.
func joinError(err error) error {
	switch {
	case errors.Is(err, launch.ErrAuth):
		return errSecret
	case errors.Is(err, launch.ErrVersion):
		return errors.New("the other side speaks another version of the protocol: use the same release on both")
	case errors.Is(err, handshake.ErrMalformed):
		return errors.New("the other side is not bywash perf")
	}
	return fmt.Errorf("%w (is bywash perf --listen running there?)", err)
}
