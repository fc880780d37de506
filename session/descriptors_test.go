//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/session"
)

// A process with too few descriptors fails to join, or to connect, with an error that says so and names the remedy;
// it does not begin a connection that its peer would wait for. Both shm and tcp are tried, in a process of their own.
func TestTooFewDescriptors(t *testing.T) {
	c, log := rankCommand(t, t.TempDir(), envRole+"=few descriptors")
	if err := c.Run(); err != nil {
		t.Errorf("%v: %s", err, log)
	}
}

// fewDescriptors is the process. Its limit is raised step by step.
func fewDescriptors(dir string) error {
	for _, d := range []string{"shm", "tcp"} {
		if err := joinWithFew(dir, d); err != nil {
			return fmt.Errorf("%s: join: %w", d, err)
		}
		if err := connectWithFew(d); err != nil {
			return fmt.Errorf("%s: connect: %w", d, err)
		}
	}
	return nil
}

func joinWithFew(dir, driver string) error {
	for more := 0; ; more++ {
		restore := limitFiles(more)
		ctx, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, err := session.Join(ctx, session.Config{Job: &folder{dir, 0, 2}, Rails: []session.Rail{{Driver: driver}}})
		stop()
		restore()
		if errors.Is(err, context.DeadlineExceeded) { // there is no rank 1
			if more < 15 {
				return fmt.Errorf("succeeds with %d descriptors", more)
			}
			return nil
		}
		if err := saysTooFew(err); err != nil {
			return fmt.Errorf("with %d descriptors: %w", more, err)
		}
	}
}

func connectWithFew(driver string) error {
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	secret := make([]byte, 32)
	cfg := session.Config{Rails: []session.Rail{{Driver: driver}}, Secret: secret}
	client, err := session.Join(ctx, cfg)
	if err != nil {
		return err
	}
	server, err := session.Join(ctx, cfg)
	if err != nil {
		return err
	}
	for more := range 10 {
		restore := limitFiles(more)
		_, err := client.Connect(ctx, server.Card())
		restore()
		if err := saysTooFew(err); err != nil {
			return fmt.Errorf("with %d descriptors: %w", more, err)
		}
	}
	accepted := make(chan error, 1)
	go func() { _, err := server.Connect(ctx, client.Card()); accepted <- err }()
	_, err = client.Connect(ctx, server.Card())
	return errors.Join(err, <-accepted, client.Close(ctx), server.Close(ctx))
}

// limitFiles lets this process open so many more files, until the function that it returns is called. Goroutines of
// sessions have some open for a moment: they are not counted. Go's first timer, which opens files, is that of a sleep here.
func limitFiles(more int) (restore func()) {
	var old syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old)
	open := math.MaxInt
	for range 10 {
		time.Sleep(2 * time.Millisecond)
		fds, readErr := os.ReadDir("/proc/self/fd")
		err = errors.Join(err, readErr)
		open = min(open, len(fds)-1)
	}
	few := syscall.Rlimit{Cur: uint64(open + more), Max: old.Max}
	if err == nil {
		err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few)
	}
	if err != nil {
		panic(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
			panic(err)
		}
	}
}

func saysTooFew(err error) error {
	if !errors.Is(err, syscall.EMFILE) || strings.Count(err.Error(), "ulimit -n") != 1 {
		return fmt.Errorf("%v, want an error that names EMFILE and once ulimit -n", err)
	}
	return nil
}
