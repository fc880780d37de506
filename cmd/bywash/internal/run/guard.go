//go:build linux

package run

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// GuardCommand is the hidden command of the process that Guard runs in.
const GuardCommand = "run-guard"

// Guard waits for the end of its standard input, which is the end of the
// launcher, and kills its process group, itself included.
func Guard() error {
	if syscall.Getpgrp() != os.Getpid() {
		return errors.New(GuardCommand + " is started by bywash run, not by hand")
	}
	// Signals for the ranks are sent to the group.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE)
	if _, err := os.Stdout.Write([]byte{1}); err != nil {
		return err
	}
	io.Copy(io.Discard, os.Stdin)
	return syscall.Kill(0, syscall.SIGKILL)
}

// group is the process group of a job, led by its guard.
type group struct {
	guard *exec.Cmd
	life  *os.File // closed, by us or by our end, it lets the guard kill
}

func startGroup(command []string) (*group, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, life, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	ready, w, err := os.Pipe()
	if err != nil {
		life.Close()
		return nil, err
	}
	defer ready.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, w, os.Stderr
	err = cmd.Start()
	w.Close()
	if err != nil {
		life.Close()
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	g := &group{guard: cmd, life: life}
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		g.end()
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	return g, nil
}

// id is the process group's; it stays ours until end, as its leader is not waited for.
func (g *group) id() int { return g.guard.Process.Pid }

func (g *group) signal(s syscall.Signal) { syscall.Kill(-g.id(), s) }

// end kills what is left.
func (g *group) end() {
	g.signal(syscall.SIGKILL)
	g.life.Close()
	g.guard.Wait()
}
