//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// insideArg marks the process that is init of its own namespaces.
const insideArg = "__inside"

// workDir is a tmpfs inside the tree, with our own programs.
const workDir = "/tmp"

// enter starts this program again as init of new mount, PID, IPC and network namespaces and waits for it. If either
// process ends, even by SIGKILL, every process in the namespaces ends, and the mounts vanish with the last one.
func enter() int {
	// The parent-death signal is about the thread that forked.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", append([]string{insideArg}, os.Args[1:]...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if err := cmd.Start(); err != nil {
		complain("cannot make namespaces: %v: this needs root with CAP_SYS_ADMIN", err)
		return 1
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case s := <-signals:
		cmd.Process.Kill()
		<-done
		complain("stopped by %v; nothing is left running or mounted", s)
		return 128 + int(s.(syscall.Signal))
	case err := <-done:
		var exit *exec.ExitError
		if errors.As(err, &exit) && !exit.Exited() {
			complain("the measuring process died: %v", err)
			return 1
		}
		return cmd.ProcessState.ExitCode()
	}
}

// prepare runs inside: mounts, loopback, then the work directory.
func prepare(tree string) error {
	// The parent decides about signals; init must not pass SIG_IGN on.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)

	at := func(p string) string { return filepath.Join(tree, p) }
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"none", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/dev/shm", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV},
		{tree, tree, "", syscall.MS_BIND},
		{"none", tree, "", syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY},
		{"proc", at("/proc"), "proc", 0},
		{"/sys", at("/sys"), "", syscall.MS_BIND | syscall.MS_REC},
		{"/dev", at("/dev"), "", syscall.MS_BIND | syscall.MS_REC},
		{"tmpfs", at(workDir), "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV},
		{"tmpfs", at("/run"), "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV},
	} {
		if err := syscall.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	for _, name := range []string{"mpi_pingpong.c", "limits.c", "pin"} {
		b, err := programs.ReadFile("c/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(at(filepath.Join(workDir, name)), b, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func loopbackUp() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	var ifreq struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(ifreq.name[:], "lo")
	ifreq.flags = syscall.IFF_UP | syscall.IFF_RUNNING
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&ifreq)))
	if errno != 0 {
		return errno
	}
	return nil
}

// sandbox runs commands, in the tree or beside it.
type sandbox struct {
	tree    string
	timeout time.Duration
}

// inTree runs argv chrooted and returns its standard output.
func (s sandbox) inTree(env []string, argv ...string) (string, error) {
	defer killRest()
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	return run(ctx, here{}, s.command(ctx, env, argv), s.timeout)
}

// onHost runs argv outside the tree, with this process's environment.
func (s sandbox) onHost(argv ...string) (string, error) {
	defer killRest()
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	return run(ctx, here{}, exec.CommandContext(ctx, argv[0], argv[1:]...), s.timeout)
}

// namespace is where a command's network is: a *veth.End, or here.
type namespace interface {
	Start(cmd *exec.Cmd) error
	Do(f func() error) error
}

// here is the sandbox's own network, loopback.
type here struct{}

func (here) Start(cmd *exec.Cmd) error { return cmd.Start() }
func (here) Do(f func() error) error   { return f() }

// pairInTree starts server, waits until it listens on port, and returns the
// output of client.
func (s sandbox) pairInTree(at, from namespace, env, server, client []string, port int) (string, error) {
	defer killRest()
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()

	var log tail
	srv := s.command(ctx, env, server)
	srv.Stdout, srv.Stderr = &log, &log
	if err := at.Start(srv); err != nil {
		return "", err
	}
	gone := make(chan error, 1)
	go func() { gone <- srv.Wait() }()
	for deadline := time.Now().Add(10 * time.Second); !listening(at, port); {
		select {
		case err := <-gone:
			return "", fmt.Errorf("server ended early (%v): %s", err, log.last())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			cancel()
			<-gone
			return "", fmt.Errorf("server does not listen on port %d: %s", port, log.last())
		}
	}
	out, err := run(ctx, from, s.command(ctx, env, client), s.timeout)
	cancel()
	<-gone
	return out, err
}

// command is argv in the tree; programs without a path are in /usr/bin there.
func (s sandbox) command(ctx context.Context, env, argv []string) *exec.Cmd {
	path := argv[0]
	if !filepath.IsAbs(path) {
		path = "/usr/bin/" + path
	}
	cmd := exec.CommandContext(ctx, path, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Dir = workDir
	cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + workDir, "TMPDIR=" + workDir, "LANG=C.UTF-8"}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: s.tree}
	return cmd
}

func run(ctx context.Context, in namespace, cmd *exec.Cmd, timeout time.Duration) (string, error) {
	var out strings.Builder
	var log tail
	cmd.Stdout, cmd.Stderr = &out, &log
	// A launcher's children hold the pipes: nothing would end with it alone.
	cmd.Cancel = func() error { killRest(); return nil }
	cmd.WaitDelay = 2 * time.Second
	err := in.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("not finished after %v: %s", timeout, log.last())
	case err != nil:
		return "", fmt.Errorf("%v: %s", err, log.last())
	}
	return out.String(), nil
}

// killRest ends every other process of the PID namespace, so that nothing
// left by one measurement disturbs the next.
func killRest() {
	if os.Getpid() == 1 {
		syscall.Kill(-1, syscall.SIGKILL)
	}
}

// reap collects what killRest and dead launchers orphaned.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
	}
}

// listening reports whether a network namespace has a TCP listener on port.
func listening(in namespace, port int) (yes bool) {
	err := in.Do(func() error {
		for _, f := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
			b, err := os.ReadFile(f)
			yes = yes || err == nil && hasListener(string(b), port)
		}
		return nil
	})
	return yes && err == nil
}

func hasListener(table string, port int) bool {
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[1], suffix) && f[3] == "0A" {
			return true
		}
	}
	return false
}

// tail keeps the end of its input.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if n := len(t.b) - 64<<10; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(p), nil
}

// last returns the last line that is not empty, as a one-line reason.
func (t *tail) last() string {
	lines := strings.Split(string(t.b), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if l := strings.Trim(lines[i], "-=*+| \t\r"); l != "" {
			return l
		}
	}
	return "it printed nothing"
}
