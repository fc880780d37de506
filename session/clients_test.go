//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// clientProcess is a process that no launcher has started: it connects to a server whose card comes on its standard
// input, and sends a message. It leaves in order when the input ends.
func clientProcess() error {
	ctx := context.Background()
	s, err := session.Join(ctx, session.Config{}) // BYWASH_SECRET
	if err != nil {
		return err
	}
	fmt.Printf("%x\n", s.Card())
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	card, err := hex.DecodeString(strings.TrimSpace(line))
	if err != nil {
		return err
	}
	g, err := s.Connect(ctx, card)
	if err != nil {
		return err
	}
	if err := g.Send(ctx, 1, []byte("hello")); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, in)
	return s.Close(ctx)
}

// client is such a process, and the server's gate to it.
type client struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	g   *session.Gate
}

func startClient(t *testing.T, s *session.Session, secret []byte) *client {
	t.Helper()
	c := &client{cmd: exec.Command("/proc/self/exe")}
	c.cmd.Env = append(os.Environ(), envDir+"="+t.TempDir(), envRole+"=client", launch.EnvSecret+"="+hex.EncodeToString(secret))
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.in, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.cmd.Process.Kill(); _ = c.cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	card, err := hex.DecodeString(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c.in, "%x\n", s.Card())
	if c.g, err = s.Connect(deadline(t), card); err != nil {
		t.Fatal(err)
	}
	return c
}

// A server whose clients come and go is notified which one has closed its session and which one has died, and removes
// their gates.
func TestServerIsNotifiedOfLostClient(t *testing.T) {
	secret := launch.NewSecret()
	closed, died := make(chan *session.Gate, 8), make(chan *session.Error, 8)
	s, err := session.Join(deadline(t), session.Config{
		Job: launch.Alone(), Secret: secret,
		OnClosed: func(g *session.Gate) { closed <- g },
		OnError:  func(e *session.Error) { died <- e },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(deadline(t))
	var all []*client
	for range 3 {
		c := startClient(t, s, secret)
		all = append(all, c)
		b := make([]byte, 10)
		if n, err := c.g.Recv(deadline(t), 1, b); err != nil || string(b[:n]) != "hello" {
			t.Fatalf("%q, %v", b[:n], err)
		}
	}
	for _, c := range all {
		if !slices.Contains(s.Gates(), c.g) || c.g.Err() != nil {
			t.Errorf("gate %v of %v, error %v", c.g, s.Gates(), c.g.Err())
		}
	}
	leaves, dies, stays := all[0], all[1], all[2]
	_ = leaves.in.Close()
	select {
	case g := <-closed:
		if g != leaves.g {
			t.Error("another client's gate was closed")
		}
	case <-deadline(t).Done():
		t.Fatal("the close of a client was not reported")
	}
	if err := dies.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-died:
		if e.Gate != dies.g || e.Peer != -1 || !errors.Is(e, session.ErrBroken) || e.NonFatal {
			t.Errorf("%v, of gate %p, want that of the client %p", e, e.Gate, dies.g)
		}
	case <-deadline(t).Done():
		t.Fatal("the death of a client was not reported")
	}
	if err := dies.g.Err(); !errors.Is(err, session.ErrBroken) {
		t.Errorf("the error of its gate: %v", err)
	}
	for _, c := range []*client{leaves, dies} {
		if err := c.g.Forget(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "two clients are forgotten", func() bool {
		gates := s.Gates()
		return slices.Contains(gates, stays.g) && !slices.Contains(gates, leaves.g) && !slices.Contains(gates, dies.g)
	})
}

// A card of a session with another secret is refused, and so is a secret that can be guessed.
func TestConfigSecret(t *testing.T) {
	join := func(secret []byte) (*session.Session, error) {
		return session.Join(deadline(t), session.Config{Job: launch.Alone(), Secret: secret})
	}
	a, err := join(launch.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(deadline(t))
	b, err := join(launch.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(deadline(t))
	if _, err := a.Connect(deadline(t), b.Card()); !errors.Is(err, driver.ErrAuth) {
		t.Errorf("connect with another secret: %v", err)
	}
	if s, err := join(bytes.Repeat([]byte{1}, 15)); !errors.Is(err, session.ErrInvalid) {
		t.Errorf("a secret of 15 bytes: %v, %v", s, err)
	}
}

// A client that asks first, before the server has connected to it, has the rank of another session: that makes no gate.
func TestRequestOfAnotherSessionMakesNoGate(t *testing.T) {
	var s [2]*session.Session
	secret := launch.NewSecret()
	for k := range s {
		var err error
		if s[k], err = session.Join(t.Context(), session.Config{Job: launch.Alone(), Secret: secret}); err != nil {
			t.Fatal(err)
		}
		defer s[k].Close(context.Background())
	}
	if err := s[0].DriverRequest(s[1]); err != nil || len(s[0].Gates()) != 0 {
		t.Errorf("%v, gates after a request of another session: %d", err, len(s[0].Gates()))
	}
}
