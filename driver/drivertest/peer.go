package drivertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// envRole makes the test binary a peer process.
const envRole = "BYWASH_DRIVERTEST_ROLE"

// roles are what peer processes can do, by name.
var roles = map[string]func(*end){}

// role declares one.
func role(name string, f func(*end)) string {
	if roles[name] != nil {
		panic("drivertest: two roles " + name)
	}
	roles[name] = f
	return name
}

// Main is the TestMain of a driver's tests: it runs them, or a peer process
// when the suite has started the test binary as one.
func Main(m *testing.M) {
	if os.Getenv(envRole) != "" {
		runRole()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// setup is the first line that a peer process reads.
type setup struct {
	Config Config
	Limit  time.Duration // longer than that of the test, whose report has more details
	Role   string
	Args   json.RawMessage
	Again  bool // the process waits for another role afterwards
}

func (e *end) setup(name string, argv json.RawMessage) setup {
	return setup{Config: *e.cfg, Limit: 2 * e.cfg.limit, Role: name, Args: argv, Again: e.reuses(name)}
}

// MarshalJSON leaves out what is of this process.
func (c Config) MarshalJSON() ([]byte, error) {
	type plain Config
	c.Launch, c.Signal = nil, nil
	return json.Marshal(struct {
		plain
		Launch, Signal any `json:",omitempty"`
	}{plain: plain(c)})
}

func runRole() {
	in, out := os.Stdin, os.Stdout
	os.Stdout = os.Stderr // no other code must write to the pipe
	d := json.NewDecoder(in)
	var s setup
	if err := d.Decode(&s); err != nil {
		fmt.Fprintln(os.Stderr, "read set-up:", err)
		os.Exit(1)
	}
	l := newLink(nil, "the test", io.MultiReader(d.Buffered(), in), out)
	go func() { // die with the test
		<-l.gone
		os.Exit(1)
	}()
	for l.play(&s) {
		s = setup{}
		if !l.nextRole(&s) {
			return
		}
	}
}

// play plays a role in a peer process and reports whether there may be another one.
func (l *link) play(s *setup) (again bool) {
	s.Config.limit = s.Limit
	e := &end{tb: &childTB{l}, child: true, cfg: &s.Config, argv: s.Args, parent: l}
	l.renew(e)
	e.lookup()
	l.sendNote("hello", os.Getpid())
	roles[s.Role](e)
	if e.ctx != nil { // so that what was disconnected in order shows as that
		_ = e.ctx.Close()
	}
	l.sendNote(tagEnd, nil)
	return s.Again
}

// childTB reports the failure of a peer process to the test.
type childTB struct{ l *link }

func (c *childTB) Helper()                 {}
func (c *childTB) Logf(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (c *childTB) Fatalf(f string, a ...any) {
	c.l.sendNote(tagFail, fmt.Sprintf(f, a...))
	os.Exit(1)
}
func (c *childTB) Errorf(f string, a ...any) { c.Fatalf(f, a...) }

// peer is a process that plays a role.
type peer struct {
	*link
	cmd    *exec.Cmd
	pid    int
	stderr tail
	exited chan struct{}
	status error
	free   func() // ends the process and releases what it takes here

	again   bool // it plays another role afterwards
	resting bool // it plays none now
}

// peer starts a process that plays the role. It ends with the test at the latest.
func (e *end) peer(name string, args any) *peer {
	e.Helper()
	argv, err := json.Marshal(args)
	if err != nil {
		e.Fatalf("encode arguments of %s: %v", name, err)
	}
	p := e.idlePeer(name, argv)
	if p == nil {
		p = e.start(name, argv)
	}
	e.cleanup(func() {
		if !p.resting {
			p.free()
		}
	})
	e.addPeer(p)
	p.recvNote("hello", &p.pid)
	return p
}

// start starts the process of a peer.
func (e *end) start(name string, argv json.RawMessage) *peer {
	e.Helper()
	exe, err := os.Executable()
	if err != nil {
		e.Fatalf("find the test binary: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &peer{cmd: exec.CommandContext(ctx, exe), exited: make(chan struct{}), again: e.reuses(name)}
	p.cmd.Env = append(os.Environ(), envRole+"="+name)
	if raceEnabled { // else each process lingers for a second when it ends
		p.cmd.Env = append(p.cmd.Env, "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	}
	dieWithParent(p.cmd)
	p.cmd.Stderr = &p.stderr
	if e.cfg.Launch != nil {
		e.cfg.Launch(ctx, p.cmd)
	}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		e.Fatalf("start peer: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		e.Fatalf("start peer: %v", err)
	}
	p.cmd.Stdout = w
	if err := p.cmd.Start(); err != nil {
		e.Fatalf("start peer: %v", err)
	}
	w.Close()
	p.link = newLink(e, "peer "+name, r, in)
	go func() {
		p.status = p.cmd.Wait()
		in.Close()
		close(p.exited)
	}()
	p.free = sync.OnceFunc(func() {
		cancel()
		<-p.exited
		<-p.gone
		r.Close()
	})
	first, err := json.Marshal(e.setup(name, argv))
	if err != nil {
		e.Fatalf("encode set-up: %v", err)
	}
	_, _ = in.Write(append(first, '\n'))
	return p
}

// signal sends a signal to the peer process.
func (p *peer) signal(sig syscall.Signal) {
	p.e.Helper()
	var err error
	if p.e.cfg.Signal != nil {
		err = p.e.cfg.Signal(p.cmd, p.pid, sig)
	} else {
		err = p.cmd.Process.Signal(sig)
	}
	if err != nil && !isFinished(err) {
		p.e.Fatalf("send %v to peer: %v", sig, err)
	}
}

func isFinished(err error) bool { return err == os.ErrProcessDone }

// kill kills the peer and waits until it is gone.
func (p *peer) kill() {
	p.e.Helper()
	p.signal(syscall.SIGKILL)
	p.awaitExit()
}

func (p *peer) awaitExit() {
	p.e.Helper()
	select {
	case <-p.exited:
	case <-time.After(p.e.cfg.limit):
		p.e.dumpf("%s does not end", p.name)
	}
}

// join waits until the role has returned and the process has ended, or waits for another role.
func (p *peer) join() {
	p.e.Helper()
	p.recvNote(tagEnd, nil)
	if p.again {
		p.resting = true
		p.e.idle.free = append(p.e.idle.free, p)
		return
	}
	p.awaitExit()
	if p.status != nil {
		p.e.Fatalf("%s: %v\n%s", p.name, p.status, p.stderr.String())
	}
}

// dump makes the peer print its goroutines, and end.
func (p *peer) dump() string {
	select {
	case <-p.exited:
	default:
		_ = p.cmd.Process.Signal(sigCont)
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		select {
		case <-p.exited:
		case <-time.After(2 * time.Second):
		}
	}
	return fmt.Sprintf("--- %s (pid %d)\n%s", p.name, p.pid, p.stderr.String())
}

// tail keeps the last 64 KiB that are written.
type tail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.Write(p)
	if over := t.b.Len() - 64<<10; over > 0 {
		t.b.Next(over)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}
