package perf

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// peer is the lead's view of a follower.
type peer struct {
	ctl   *control
	stop  *stopper
	cmd   *exec.Cmd // nil on another machine
	gone  chan struct{}
	host  string
	links []string // of its bench
	local bool     // on this machine

	others []*peer // further ranks, which are told the same; their ends stop this one's stopper
}

// selfCommand is how a local run starts its other process.
func (c *Config) selfCommand() []string {
	if len(c.Self) > 0 {
		return c.Self
	}
	return []string{"/proc/self/exe", PeerCommand}
}

// startChild starts a follower on this machine, pinned to cpu unless that is
// negative.
func (c *Config) startChild(ctx context.Context, cpu int, yield bool, secret []byte) (*peer, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start the other process: socketpair: %w", err)
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer mine.Close()
	defer theirs.Close()
	conn, err := net.FileConn(mine)
	if err != nil {
		return nil, fmt.Errorf("start the other process: %w", err)
	}
	self := c.selfCommand()
	cmd := exec.Command(self[0], self[1:]...)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start the other process: %w", err)
	}
	stop := newStopper(ctx)
	p := &peer{ctl: newControl(conn, nil, stop), stop: stop, cmd: cmd, gone: make(chan struct{}), local: true}
	go func() {
		err := cmd.Wait()
		if err == nil {
			err = errors.New("it ended early")
		}
		stop.stop(fmt.Errorf("%w: %w", errPeerGone, err))
		close(p.gone)
	}()
	m := hello(c.Version)
	m.CPU, m.Yield, m.Secret = cpu+1, yield, secret
	if err := p.greet(m, c.Version); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *peer) greet(m *message, version string) error {
	answer, err := p.ctl.call(m)
	if err != nil {
		return err
	}
	p.host = answer.Host
	return checkHello(answer, version)
}

// close ends the follower: it leaves when its control connection closes, and
// is killed if it does not.
func (p *peer) close() {
	for _, x := range p.others {
		x.close()
	}
	p.ctl.conn.Close()
	if p.cmd == nil {
		return
	}
	select {
	case <-p.gone:
	case <-time.After(3 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.gone
	}
}

func newSessionSecret() ([]byte, error) {
	b := make([]byte, 32)
	_, err := rand.Read(b)
	return b, err
}
