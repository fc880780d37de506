package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// follower does what the lead says.
type follower struct {
	ctl     *control
	stop    *stopper
	version string
	secret  []byte
	local   bool
	yield   bool
	device  string // chosen on this machine, before the lead's
	drivers []string
	options map[string]string // of those drivers, before the lead's, key by key
	unpin   func()

	b     bench
	c     Case
	usage time.Duration

	// idle peers
	peers     []driver.Context
	instances []driver.Instance
	unsettled []driver.Instance
}

// PeerCommand is the hidden command, with the control connection as file
// descriptor 3, that a local run starts for its other process.
const PeerCommand = "perf-peer"

// ServeChild is the other process of a local run.
func ServeChild(ctx context.Context, version string) error {
	f := os.NewFile(3, "control")
	conn, err := net.FileConn(f)
	if err != nil {
		return fmt.Errorf("%s is started by bywash perf, not by hand: %w", PeerCommand, err)
	}
	f.Close()
	stop := newStopper(ctx)
	fw := &follower{ctl: newControl(conn, nil, stop), stop: stop, version: version, local: true}
	return fw.serve()
}

// serve answers until the lead is gone.
func (f *follower) serve() error {
	defer f.cleanup()
	// A lead that is gone ends this process soon, whatever it is doing.
	if f.local {
		context.AfterFunc(f.stop.ctx, func() {
			time.Sleep(2 * time.Second)
			os.Exit(1)
		})
	}
	for {
		m, err := f.ctl.recv()
		if err != nil {
			if errors.Is(err, errPeerGone) {
				return nil
			}
			return err
		}
		answer, err := f.handle(m)
		if answer == nil {
			answer = &message{Kind: kindOK}
		}
		if err != nil {
			answer.Err, answer.Unavailable = err.Error(), unavailable(err)
		}
		if err := f.ctl.send(answer); err != nil {
			if errors.Is(err, errPeerGone) {
				return nil
			}
			return err
		}
	}
}

var errOrder = errors.New("control message out of order")

func (f *follower) handle(m *message) (*message, error) {
	switch m.Kind {
	case kindHello:
		return f.hello(m)
	case kindOpen:
		return f.open(m)
	case kindPeers:
		return f.openPeers(m)
	case kindSettle:
		return nil, f.settlePeers()
	}
	if f.b == nil {
		return nil, errOrder
	}
	switch m.Kind {
	case kindConnect:
		return nil, f.b.connect(m.Links)
	case kindIdle:
		return nil, f.b.idle(m.Links)
	case kindPrepare:
		return f.prepare(m)
	case kindRun:
		return f.run(m)
	case kindInspect:
		return nil, f.b.inspect(m.Seq, int(min(m.N, maxWindow)))
	case kindUsage:
		return &message{Kind: kindUsage, CPUNs: int64(cpuTime() - f.usage)}, nil
	case kindFinish:
		return nil, f.b.finish()
	case kindClose:
		err := f.b.close()
		f.b = nil
		return nil, err
	}
	return nil, errOrder
}

func (f *follower) hello(m *message) (*message, error) {
	answer := hello(f.version)
	if err := checkHello(m, f.version); err != nil {
		return answer, err
	}
	f.yield = m.Yield
	if f.local {
		f.secret = m.Secret
	}
	if m.CPU > 0 && f.local {
		undo, err := pin(m.CPU - 1)
		f.unpin = undo
		return answer, err
	}
	if !f.local {
		f.local = m.Boot != "" && m.Boot == bootID()
	}
	return answer, nil
}

func (f *follower) open(m *message) (*message, error) {
	if m.Open == nil || f.b != nil {
		return nil, errOrder
	}
	s := &setup{openRequest: *m.Open, secret: f.secret, local: f.local, stop: f.stop, yield: f.yield}
	if f.device != "" {
		s.Device = f.device
	}
	if slices.Contains(f.drivers, s.Driver) && !isSocket(s.Driver) {
		s.Options = over(s.Options, f.options)
	}
	b, err := open(s)
	if err != nil {
		return nil, err
	}
	f.b = b
	return &message{Kind: kindOK, Links: b.links()}, nil
}

func (f *follower) prepare(m *message) (*message, error) {
	if m.Case == nil {
		return nil, errOrder
	}
	f.c = *m.Case
	blob, err := f.b.prepare(m.Case)
	if err != nil {
		return nil, errors.Join(err, f.b.finish())
	}
	return &message{Kind: kindOK, Blob: blob}, nil
}

// run answers twice: ready, from where on the lead may send, and ran.
func (f *follower) run(m *message) (*message, error) {
	if len(m.Blob) > 0 {
		if err := f.b.start(m.Blob); err != nil {
			return &message{Kind: kindRan}, err
		}
	}
	quiet()
	if err := f.ctl.send(&message{Kind: kindReady}); err != nil {
		return nil, err
	}
	f.usage = cpuTime()
	j := &job{Case: f.c, n: int(m.N), yield: f.yield, stop: f.stop}
	return &message{Kind: kindRan}, f.b.run(j)
}

// openPeers makes N contexts that connect to the links and then do nothing.
func (f *follower) openPeers(m *message) (*message, error) {
	if m.Open == nil {
		return nil, errOrder
	}
	d, err := driver.Lookup(m.Open.Driver)
	if err != nil {
		return nil, err
	}
	answer := &message{Kind: kindOK}
	for range min(m.N, maxPeers) {
		s := &setup{openRequest: *m.Open, secret: f.secret}
		s.Peers = len(m.Links)
		c, err := openTrack(d, s, driver.Small)
		if err != nil {
			return nil, fmt.Errorf("idle peer %d: %w", len(f.peers), err)
		}
		f.peers = append(f.peers, c)
		answer.Links = append(answer.Links, c.URL())
		for _, u := range m.Links {
			i, err := c.Connect(u)
			if err != nil {
				return nil, fmt.Errorf("idle peer %d: %w", len(f.peers), err)
			}
			f.unsettled = append(f.unsettled, i)
		}
	}
	return answer, nil
}

func (f *follower) settlePeers() error {
	ctx, cancel := context.WithTimeout(f.stop.ctx, connectTimeout)
	defer cancel()
	for _, i := range f.unsettled {
		if err := i.ConnectWait(ctx); err != nil {
			return fmt.Errorf("idle peer: %w", err)
		}
	}
	f.instances = append(f.instances, f.unsettled...)
	f.unsettled = nil
	return nil
}

func (f *follower) cleanup() {
	if f.b != nil {
		_ = f.b.close()
	}
	for _, c := range f.peers {
		_ = c.Close()
	}
	if f.unpin != nil {
		f.unpin()
	}
	f.ctl.conn.Close()
}

func hello(version string) *message {
	host, _ := os.Hostname()
	return &message{Kind: kindHello, Protocol: protocol, Version: version, Host: host, Boot: bootID()}
}

func checkHello(m *message, version string) error {
	if m.Kind != kindHello || m.Protocol != protocol || m.Version != version {
		return fmt.Errorf("the two sides are of different versions (%q, protocol %d, and %q, protocol %d): use the same release on both", version, protocol, m.Version, m.Protocol)
	}
	return nil
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(b)
}

// cpuTime is what this process has used, in user and kernel mode.
func cpuTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// quiet collects garbage now, so that it is not done during a measurement:
// nothing allocates there.
func quiet() {
	runtime.GC()
	debug.SetGCPercent(-1)
}
