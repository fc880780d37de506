//go:build linux

package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/bywash/bywash/internal/descriptors"
	"github.com/bywash/bywash/qnix/softnic"
	"github.com/bywash/bywash/session/launch"
)

// Exit statuses of a job whose program cannot be started, as shells have them.
const (
	codeNotExecutable = 126
	codeNotFound      = 127
)

// Config is a job.
type Config struct {
	Ranks   int
	Program string
	Args    []string
	Explain bool   // sessions tell what they chose
	Drivers string // drivers that sessions use; empty: those that the environment names, or that the ranks need
	Tag     bool   // lines of output begin with the rank
	// KeepGoing lets the other ranks go on when one fails. Abort still ends all of them.
	KeepGoing bool
	Grace     time.Duration // between asking processes to end and killing them
	Guard     []string      // the command that calls Guard
}

// ExitError is a job that did not end well.
type ExitError struct {
	Code int
	why  string
}

func (e *ExitError) Error() string { return e.why }

// exit is the end of a rank's process.
type exit struct {
	rank  int
	state *os.ProcessState
}

// job is a job under way.
type job struct {
	Config
	path   string
	group  *group
	server *launch.Server
	out    outputs
	notes  *notices
	exits  chan exit
	ranks  []*os.Process // nil: has ended
	reaper reaper
	live   int
	fault  *ExitError // the first
	ending time.Time  // when the ranks were asked to end, if kill is set
	kill   <-chan time.Time
}

// Run starts the job's processes and returns when all have ended: nil, when
// each did with status 0, and an ExitError otherwise.
func Run(ctx context.Context, c Config) error {
	path, err := exec.LookPath(c.Program)
	if err != nil {
		code := codeNotExecutable
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			code = codeNotFound
		}
		return &ExitError{code, fmt.Sprintf("start %s: %v", c.Program, unwrap(err))}
	}
	j := &job{Config: c, path: path, exits: make(chan exit, c.Ranks), ranks: make([]*os.Process, c.Ranks)}
	signals := make(chan os.Signal, 16)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGTSTP, syscall.SIGCONT} {
		if !signal.Ignored(s) { // as nohup does
			signal.Notify(signals, s)
		}
	}
	// Ranks, which inherit this, are in a background process group: there access to the terminal would stop them. What
	// the terminal does not allow is an error then, here the end of the input.
	signal.Ignore(syscall.SIGTTIN, syscall.SIGTTOU)
	if err := c.checkDescriptors(); err != nil {
		return err
	}
	secret := launch.NewSecret()
	ln, err := launch.Listen(ctx, "")
	if err != nil {
		return err
	}
	j.server = launch.Serve(ln, c.Ranks, secret)
	defer j.server.Close()
	if j.reaper, err = newReaper(c.Ranks); err != nil {
		return err
	}
	if j.group, err = startGroup(c.Guard); err != nil {
		return err
	}
	stop := make(chan struct{})
	defer close(stop)
	if err := j.startAll(secret, stop); err != nil {
		j.signal(syscall.SIGKILL)
		j.group.end()
		return err
	}
	go j.reaper.run(j.exits)
	j.notes = newNotices(os.Stderr, c.Ranks+16) // each rank ends once
	j.follow(signals)
	j.group.end()        // kills processes that ranks left running
	signal.Stop(signals) // from here on they end this process: whoever reads the output may have stopped
	j.notes.end()
	err = j.out.end()
	if j.fault != nil {
		return j.fault
	}
	return err
}

// checkDescriptors returns an error if this process cannot open the files of the job: a few, and for each rank a
// connection, two descriptors of its process, and two pipes if its output is tagged.
func (c *Config) checkDescriptors() error {
	each := 3
	if c.Tag {
		each = 5
	}
	need := 16 + each*c.Ranks
	if free, limit := descriptors.Free(); free < need {
		return fmt.Errorf("%d ranks need %d open files here, and the limit of %d leaves %d: raise it, ulimit -n %d",
			c.Ranks, need, limit, free, limit-free+need)
	}
	return nil
}

func unwrap(err error) error {
	var e *exec.Error
	if errors.As(err, &e) {
		err = e.Err
	}
	var p *os.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return err
}

// startAll starts the ranks from one thread, which stays until stop: the kernel takes its end for the parent's death.
func (j *job) startAll(secret []byte, stop <-chan struct{}) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		var err error
		for rank := 0; rank < j.Ranks && err == nil; rank++ {
			err = j.start(rank, secret)
		}
		started <- err
		<-stop
	}()
	return <-started
}

func (j *job) start(rank int, secret []byte) error {
	cmd := exec.Command(j.path, j.Args...)
	cmd.Args[0] = j.Program
	cmd.Env = append(os.Environ(), launch.RankEnv(j.server.Addr(), rank, j.Ranks, secret)...)
	cmd.Env = append(cmd.Env, launch.EnvLauncher+"=embedded", fmt.Sprintf("%s=%d", launch.EnvLocalRank, rank), fmt.Sprintf("%s=%d", launch.EnvLocalSize, j.Ranks))
	if self, err := os.Executable(); err == nil {
		cmd.Env = append(cmd.Env, softnic.EnvProgram+"="+self)
	}
	if j.Explain {
		cmd.Env = append(cmd.Env, launch.EnvExplain+"=1")
	}
	if j.Drivers != "" {
		cmd.Env = append(cmd.Env, launch.EnvDrivers+"="+j.Drivers)
	}
	pidfd := -1
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: j.group.id(), Pdeathsig: syscall.SIGKILL, PidFD: &pidfd}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	var ours []*os.File
	defer func() {
		for _, f := range ours {
			f.Close()
		}
	}()
	if j.Tag {
		for _, f := range []struct {
			of *io.Writer
			to *os.File
		}{{&cmd.Stdout, os.Stdout}, {&cmd.Stderr, os.Stderr}} {
			w, err := j.out.tag(f.to, rank)
			if err != nil {
				return err
			}
			ours = append(ours, w)
			*f.of = w
		}
	}
	var input *os.File
	if rank == 0 {
		r, w, err := stdin()
		if err != nil {
			return err
		}
		if w != nil {
			ours = append(ours, r)
		}
		cmd.Stdin, input = r, w
	}
	j.server.Started(rank)
	if err := cmd.Start(); err != nil {
		return startError(j.Program, err)
	}
	if input != nil {
		go feed(input)
	}
	j.live++
	j.ranks[rank] = cmd.Process
	return j.reaper.add(rank, cmd, pidfd)
}

// startError is of the program where the kernel refuses to execute it, and of this machine otherwise.
func startError(program string, err error) error {
	var p *os.PathError
	if !errors.As(err, &p) {
		return err
	}
	err = fmt.Errorf("start %s: %w", program, p.Err)
	switch {
	case errors.Is(err, syscall.ENOEXEC), errors.Is(err, os.ErrPermission):
		return &ExitError{codeNotExecutable, err.Error()}
	case errors.Is(err, os.ErrNotExist):
		return &ExitError{codeNotFound, err.Error()}
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("%w (raise the limit of processes: ulimit -u, or pids.max of the cgroup)", err)
	}
	return err
}

// stdin is what rank 0 reads. From a terminal only the launcher may read, whose process group is in the foreground: so
// that goes through a pipe, whose other end is then returned too.
func stdin() (r, w *os.File, err error) {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return os.Stdin, nil, nil
	}
	return os.Pipe()
}

// feed passes the terminal's input on until that ends. In the background, reading fails: feed then waits until the
// launcher is in the foreground again.
func feed(w *os.File) {
	defer w.Close()
	for {
		if _, err := io.Copy(w, os.Stdin); !errors.Is(err, syscall.EIO) || !awaitForeground() {
			return
		}
	}
}

// awaitForeground returns true when this process group is in the foreground of the terminal, and false if there is no
// terminal any more. The kernel reports neither, so it looks once a second.
func awaitForeground() bool {
	for {
		time.Sleep(time.Second)
		group, err := unix.IoctlGetUint32(int(os.Stdin.Fd()), unix.TIOCGPGRP)
		if err != nil || int(group) == unix.Getpgrp() {
			return err == nil
		}
	}
}

// follow sees the job to its end.
func (j *job) follow(signals <-chan os.Signal) {
	refused := j.server.Refused()
	for j.live > 0 {
		select {
		case err := <-refused:
			if remedy := descriptors.Remedy(err); remedy != "" {
				j.notes.say("a rank cannot join: %v%s", err, remedy)
			}
		case a := <-j.server.Aborted():
			j.aborted(a)
		case e := <-j.exits:
			j.live--
			j.ranks[e.rank] = nil
			select { // a rank that aborted may have ended already
			case a := <-j.server.Aborted():
				j.aborted(a)
			default:
			}
			j.server.Ended(endOf(e))
			if !e.state.Success() {
				j.failed(describe(e))
			}
		case s := <-signals:
			j.forward(s.(syscall.Signal))
		case <-j.kill:
			j.signal(syscall.SIGKILL)
			// The guard is gone with them, and done with its task: they are dying.
		}
	}
}

// signal reaches the group, and the ranks that have left it, as setsid has them do, with the groups that they lead.
func (j *job) signal(s syscall.Signal) {
	j.group.signal(s)
	for _, p := range j.ranks {
		if p == nil {
			continue
		}
		group, err := syscall.Getpgid(p.Pid)
		switch {
		case err != nil || group == j.group.id():
		case group == p.Pid && p.Signal(syscall.Signal(0)) == nil: // not waited for: the number is still its own
			syscall.Kill(-group, s)
		default:
			p.Signal(s)
		}
	}
}

func (j *job) aborted(a *launch.RankError) {
	j.fail(&ExitError{a.Code, a.Error()})
}

// failed is told that a rank has failed.
func (j *job) failed(e *ExitError) {
	if j.KeepGoing && j.kill == nil && j.live > 0 {
		if j.fault == nil {
			j.fault = e
		}
		j.notes.say("%s; the others go on", e.why)
		return
	}
	j.fail(e)
}

// endOf is what the other ranks are told.
func endOf(e exit) launch.End {
	ws := e.state.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return launch.End{Rank: e.rank, How: launch.Killed, Code: int(ws.Signal())}
	}
	return launch.End{Rank: e.rank, How: launch.Exited, Code: ws.ExitStatus()}
}

// fail ends the job for the first fault.
func (j *job) fail(e *ExitError) {
	if j.kill != nil {
		return
	}
	if j.live > 0 {
		e.why += "; ending the others"
	}
	if j.fault == nil {
		j.fault = e
	} else {
		j.notes.say("%s", e.why)
	}
	j.signal(syscall.SIGTERM)
	j.signal(syscall.SIGCONT)
	j.end()
}

// end has the ranks, which were asked to end, killed after the grace.
func (j *job) end() {
	j.ending = time.Now()
	j.kill = time.After(j.Grace)
}

func (j *job) forward(s syscall.Signal) {
	j.signal(s)
	switch s {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		switch {
		case j.kill == nil:
			j.fault = &ExitError{128 + int(s), fmt.Sprintf("%s: ended the ranks", unix.SignalName(s))}
			j.end()
		case Impatient(s, time.Since(j.ending)):
			j.kill = time.After(0)
		}
		j.signal(syscall.SIGCONT)
	case syscall.SIGTSTP:
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
}

func describe(e exit) *ExitError {
	who := fmt.Sprintf("rank %d (process %d)", e.rank, e.state.Pid())
	ws := e.state.Sys().(syscall.WaitStatus)
	if !ws.Signaled() {
		return &ExitError{ws.ExitStatus(), fmt.Sprintf("%s ended with status %d", who, ws.ExitStatus())}
	}
	end := endOf(e).Err()
	why := who + " " + end.Why
	if ws.CoreDump() {
		why += " and dumped core"
	}
	return &ExitError{end.Code, why}
}
