package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"
)

// Serve is bywash perf --listen: it serves one lead after the other until ctx
// ends.
func Serve(ctx context.Context, c *Config, addr string, say io.Writer) error {
	secret, err := c.listenerSecret(say)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	fmt.Fprintf(say, "bywash: listening on %s; on the other machine: bywash perf --secret-file F HOST:%d\n", l.Addr(), l.Addr().(*net.TCPAddr).Port)
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d := newDoor(secret, say)
	go func() {
		if err := d.keep(serving, l); ctx.Err() == nil {
			stop(fmt.Errorf("accept: %w", err))
		}
	}()
	for {
		select {
		case g := <-d.admitted:
			if err := c.serveOne(serving, g, secret); err != nil {
				d.note(g.conn, err)
			}
		case <-serving.Done():
			return context.Cause(serving)
		}
	}
}

func (c *Config) listenerSecret(say io.Writer) ([]byte, error) {
	if c.SecretFile != "" {
		secret, err := readSecret(c.SecretFile)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return secret, err
		}
	}
	secret, name, err := makeSecret(c.SecretFile)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(say, "bywash: made the secret file %s; copy it to the other machine: scp %s HOST:\n", name, name)
	return secret, nil
}

func (c *Config) serveOne(ctx context.Context, g guest, secret []byte) error {
	defer g.conn.Close()
	// One at a time, pinned while it lasts.
	cpus, err := choosePair()
	if err != nil {
		return err
	}
	stop := newStopper(ctx)
	f := &follower{ctl: newControl(g.conn, g.frames, stop), stop: stop, version: c.Version, secret: secret,
		device: c.Device, drivers: c.Drivers, options: c.Options}
	if f.unpin, err = pin(cpus.follow); err != nil {
		return err
	}
	f.yield = cpus.shared
	return f.serve()
}

// dial connects to a listener.
func (c *Config) dial(ctx context.Context, addr string) (*peer, []byte, error) {
	if c.SecretFile == "" {
		return nil, nil, errors.New("give the listener's secret file: --secret-file F")
	}
	secret, err := readSecret(c.SecretFile)
	if err != nil {
		return nil, nil, err
	}
	d := net.Dialer{Timeout: 10 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, fmt.Errorf("%w (is bywash perf --listen running there?)", err)
	}
	frames, err := authenticate(conn, secret, false)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("%s: %w", addr, err)
	}
	stop := newStopper(ctx)
	p := &peer{ctl: newControl(conn, frames, stop), stop: stop}
	m := hello(c.Version)
	answer, err := p.ctl.call(m)
	if err == nil {
		err = checkHello(answer, c.Version)
	}
	if err != nil {
		p.close()
		return nil, nil, fmt.Errorf("%s: %w", addr, err)
	}
	p.host = strings.ToValidUTF8(answer.Host, "?")
	p.local = answer.Boot != "" && answer.Boot == m.Boot
	return p, secret, nil
}
