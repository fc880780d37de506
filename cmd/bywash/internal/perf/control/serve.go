//go:build linux

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/internal/descriptors"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// PeerCommand is the hidden command that a local run starts for its other processes.
const PeerCommand = "perf-peer"

// ServeChild is another process of a local run: a rank of the job that its environment names.
func ServeChild(ctx context.Context, version string) error {
	if os.Getenv(launch.EnvRendezvous) == "" {
		return fmt.Errorf("%s is started by bywash perf, not by hand", PeerCommand)
	}
	job, err := launch.Find(ctx)
	if err != nil {
		return err
	}
	t := newTeam(ctx, job)
	// When the lead has gone, this process ends soon, even in the middle of work.
	context.AfterFunc(t.stop.Ctx, func() {
		time.Sleep(2 * time.Second)
		os.Exit(1)
	})
	_ = serve(t, &Config{Version: version}, false) // the lead knows the error
	return nil
}

// Serve is bywash perf --listen: it serves one lead after the other until ctx ends.
func Serve(ctx context.Context, c *Config, addr string, info io.Writer) error {
	secret, err := listenerSecret(c.SecretFile, info)
	if err != nil {
		return err
	}
	l, err := launch.Listen(ctx, addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	ln, ok := l.(*net.TCPListener)
	if !ok {
		return fmt.Errorf("listen: %s is no TCP address", addr)
	}
	fmt.Fprintf(info, "bywash: listening on %s; on the other machine: bywash perf --secret-file F HOST:%d\n",
		l.Addr(), l.Addr().(*net.TCPAddr).Port)
	for ctx.Err() == nil {
		if err := c.serveOne(ctx, ln, secret, info); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// lasting is a listener that outlives the servers of successive jobs.
type lasting struct{ *net.TCPListener }

func (l lasting) Close() error { return l.SetDeadline(time.Unix(1, 0)) }

// serveOne serves the next lead. It returns only errors that would affect every other lead, too.
func (c *Config) serveOne(ctx context.Context, ln *net.TCPListener, secret []byte, info io.Writer) error {
	if err := ln.SetDeadline(time.Time{}); err != nil {
		return err
	}
	server := launch.Serve(lasting{ln}, 2, secret)
	defer server.Close()
	job, err := launch.Join(ctx, server.Addr(), 1, 2, secret)
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded): // strangers take all connections
		fmt.Fprintf(info, "bywash: %v; trying again\n", err)
		return nil
	case err != nil:
		return err
	}
	t := newTeam(ctx, job)
	go func() {
		for {
			select {
			case err := <-server.Refused():
				fmt.Fprintf(info, "bywash: %v%s\n", err, descriptors.Remedy(err))
			case <-t.stop.Ctx.Done():
				return
			}
		}
	}()
	if err := serve(t, c, true); err != nil && ctx.Err() == nil && !errors.Is(err, bench.ErrPeerGone) {
		fmt.Fprintf(info, "bywash: %v\n", err)
	}
	return nil
}

// serve follows a lead until it leaves.
func serve(t *team, c *Config, remote bool) error {
	defer t.close()
	p, local, err := t.exchangeHello(c.Version, nil)
	if err != nil {
		return err
	}
	rank := t.job.Rank()
	if p == nil || p.Check(t.job.Size()) != nil {
		return t.abort(bench.ErrOrder)
	}
	s := &bench.Setup{Plan: p.At(rank), Rank: rank, Local: local, Stop: t.stop, Job: t.job}
	cpu := -1
	if remote {
		// One lead at a time: pinned while it is served.
		cpus, err := choosePair()
		if err != nil {
			return t.abort(err)
		}
		if s.Yield = cpus.shared; !p.Unbound {
			cpu = cpus.follow
		}
		c.override(&s.Plan)
	} else if rank < len(p.CPUs) {
		cpu = p.CPUs[rank]
	}
	if cpu >= 0 {
		undo, err := pin(cpu)
		if err != nil {
			return t.abort(err)
		}
		defer undo()
	}
	e := &end{team: t, setup: s}
	if err := e.measure(e.follow); err != nil {
		return err
	}
	<-t.stop.Ctx.Done() // the lead leaves first
	return nil
}

// override replaces the lead's device and options by those of the listener: an address of one machine is not one of the
// other.
func (c *Config) override(p *bench.Plan) {
	if slices.Contains(c.Drivers, "all") || slices.Contains(c.Drivers, p.Driver) || c.hasRailsOf(p) {
		p.Device = cmp.Or(c.Device, p.Device)
	}
	if slices.Contains(c.Drivers, p.Driver) && !bench.IsBaseline(p.Driver) {
		options := make(map[string]string) // of both, this end's first
		maps.Copy(options, p.Options)
		maps.Copy(options, c.Options)
		p.Options = options
	}
}

// hasRailsOf reports whether a plan is of a session all of whose rails are of these drivers.
func (c *Config) hasRailsOf(p *bench.Plan) bool {
	rails, err := session.ParseRails(p.Options[bench.RailsOption])
	return err == nil && p.Driver == bench.Session && !slices.ContainsFunc(rails, func(r session.Rail) bool {
		return !slices.Contains(c.Drivers, r.Driver) || r.Large != nil && !slices.Contains(c.Drivers, r.Large.Driver)
	})
}
