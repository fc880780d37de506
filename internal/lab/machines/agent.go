//go:build linux

package machines

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A connection to the agent begins with a request, one line of JSON.
type request struct {
	Do  string // hold, run or signal
	Env []string
	Pid int
	Sig syscall.Signal
}

const (
	envRelay  = "BYWASH_TEST_RELAY"
	agentPort = "7070"
)

// The agent's frames about a process: kind, length, bytes.
const (
	frameOut    = 'o'
	frameErr    = 'e'
	frameStart  = 's' // its pid
	frameStatus = 'x' // its exit status
)

func frame(w io.Writer, kind byte, b []byte) error {
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(b)))
	_, err := w.Write(append(head, b...))
	return err
}

func number(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// agent runs processes for the other machine.
type agent struct {
	mu    sync.Mutex
	procs map[int]*os.Process
}

// Serve is the part of machine 1: it runs peers until the connection of Hold ends.
func Serve(t *testing.T) {
	l, err := net.Listen("tcp", Here(agentPort))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := &agent{procs: make(map[int]*os.Process)}
	over := make(chan struct{})
	held := time.AfterFunc(time.Minute, func() { l.Close() })
	var all sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		all.Go(func() {
			defer c.Close()
			r := bufio.NewReader(c)
			var q request
			line, err := r.ReadBytes('\n')
			if err == nil {
				err = json.Unmarshal(line, &q)
			}
			switch {
			case err != nil:
				fmt.Fprintln(os.Stderr, "agent: read request:", err)
			case q.Do == "hold":
				held.Stop()
				_, _ = io.Copy(io.Discard, r)
				close(over)
				l.Close()
			case q.Do == "run":
				a.run(c, r, q.Env)
			case q.Do == "signal":
				a.signal(c, q.Pid, q.Sig)
			}
		})
	}
	select {
	case <-over:
	default:
		t.Error("machine 0 has not come within a minute")
	}
	a.mu.Lock()
	for _, p := range a.procs {
		_ = p.Kill()
	}
	a.mu.Unlock()
	all.Wait()
}

// run runs this program as a peer, which is killed when the connection ends.
func (a *agent) run(c net.Conn, r io.Reader, env []string) {
	var mu sync.Mutex // of c
	send := func(kind byte, b []byte) {
		mu.Lock()
		defer mu.Unlock()
		_ = frame(c, kind, b) // the reader notices the end of the connection
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = writer(func(b []byte) { send(frameOut, b) }), writer(func(b []byte) { send(frameErr, b) })
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		send(frameErr, []byte("agent: start peer: "+err.Error()))
		send(frameStatus, number(127))
		return
	}
	a.mu.Lock()
	a.procs[cmd.Process.Pid] = cmd.Process
	a.mu.Unlock()
	send(frameStart, number(cmd.Process.Pid))
	go func() {
		_, _ = io.Copy(in, r)
		_ = cmd.Process.Kill()
	}()
	_ = cmd.Wait()
	a.mu.Lock()
	delete(a.procs, cmd.Process.Pid)
	a.mu.Unlock()
	status := cmd.ProcessState.ExitCode()
	if status < 0 { // by a signal
		status = 128 + int(cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	}
	send(frameStatus, number(status))
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

// signal sends a signal to a peer and answers with the error, or with nothing.
func (a *agent) signal(c net.Conn, pid int, sig syscall.Signal) {
	a.mu.Lock()
	p := a.procs[pid]
	a.mu.Unlock()
	err := os.ErrProcessDone
	if p != nil {
		err = p.Signal(sig)
	}
	if err != nil {
		_, _ = io.WriteString(c, err.Error())
	}
}

// ask begins a conversation with the agent.
func ask(q request) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", There(agentPort), 10*time.Second)
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal(q)
	if err == nil {
		_, err = c.Write(append(line, '\n'))
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Hold is the part of machine 0: it waits for the agent and keeps it until the test has ended.
func Hold(t *testing.T) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		c, err := ask(request{Do: "hold"})
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("the agent in the other machine does not answer: %v", err)
		}
	}
}

// Launch makes the command that starts a peer start it in machine 1, with env beside the BYWASH variables
// of this process. It is for drivertest.Config.Launch.
func Launch(cmd *exec.Cmd, env ...string) {
	cmd.Env = append(append(cmd.Env, envRelay+"=1"), env...)
}

// Signal sends a signal to a peer that calls itself pid: for drivertest.Config.Signal.
func Signal(_ *exec.Cmd, pid int, sig os.Signal) error { return signalPeer(pid, sig) }

// signalPeer sends a signal to a process in machine 1.
func signalPeer(pid int, sig os.Signal) error {
	c, err := ask(request{Do: "signal", Pid: pid, Sig: sig.(syscall.Signal)})
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	why, err := io.ReadAll(c)
	switch {
	case err != nil:
		return err
	case string(why) == os.ErrProcessDone.Error():
		return os.ErrProcessDone
	case len(why) > 0:
		return errors.New(string(why))
	}
	return nil
}

// RunIfRelay must be the first call of TestMain. In a process that Launch has changed, it runs the relay for a peer and
// does not return.
func RunIfRelay() {
	if os.Getenv(envRelay) != "" {
		os.Exit(relay())
	}
}

func relay() int {
	q := request{Do: "run"}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != envRelay && (strings.HasPrefix(name, "BYWASH_") || name == "GORACE") {
			q.Env = append(q.Env, v)
		}
	}
	c, err := ask(q)
	if err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		return 127
	}
	go func() {
		_, _ = io.Copy(c, os.Stdin)
		os.Exit(0) // the agent then ends the peer
	}()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGQUIT, syscall.SIGCONT)
	var head [5]byte
	for {
		if _, err := io.ReadFull(c, head[:]); err != nil {
			fmt.Fprintln(os.Stderr, "relay: the agent is gone:", err)
			return 127
		}
		b := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(c, b); err != nil {
			fmt.Fprintln(os.Stderr, "relay: the agent is gone:", err)
			return 127
		}
		switch head[0] {
		case frameOut:
			_, _ = os.Stdout.Write(b)
		case frameErr:
			_, _ = os.Stderr.Write(b)
		case frameStart:
			go func() {
				for s := range signals {
					_ = signalPeer(int(binary.BigEndian.Uint32(b)), s)
				}
			}()
		case frameStatus:
			return int(binary.BigEndian.Uint32(b))
		}
	}
}
