//go:build linux

package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/lab/attack"
	"github.com/bywash/bywash/internal/rights/rightstest"
	"github.com/bywash/bywash/qnix/softnic"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
)

// descriptors passes descriptors of all sorts, as many as a message may have: among them sockets whose close blocks.
// Linux 6.16 and later refuse them for the victim.
func descriptors(v *attack.Socket, rng *rand.Rand, n *atomic.Int64) error {
	sorts, free := sortsOfDescriptors()
	defer free()
	for range 50 {
		// Only who closes last lingers: these are given to the victim alone.
		if fd, err := lingering(); err == nil {
			passed := false
			if c, err := v.Dial(); err == nil {
				defer c.Close()
				_, _, err = c.(*net.UnixConn).WriteMsgUnix([]byte{1}, unix.UnixRights(fd), nil)
				passed = err == nil
				n.Add(1)
			}
			if !passed { // this close would block
				_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
			}
			unix.Close(fd)
		}
		c, err := v.Dial()
		if err != nil {
			return err
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			return errors.New("descriptors need a Unix socket")
		}
		for range 1 + rng.IntN(3) {
			fds := make([]int, 1+rng.IntN(253))
			for i := range fds {
				fds[i] = sorts[rng.IntN(len(sorts))]
			}
			b := make([]byte, rng.IntN(300))
			_ = u.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			_, _, _ = u.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
			n.Add(1)
		}
		c.Close()
	}
	return nil
}

// sortsOfDescriptors opens one of each.
func sortsOfDescriptors() (fds []int, free func()) {
	add := func(fd int, err error) {
		if err == nil {
			fds = append(fds, fd)
		}
	}
	add(unix.MemfdCreate("unauthenticated", unix.MFD_CLOEXEC))
	add(unix.MemfdCreate("unauthenticated", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
	add(unix.Eventfd(0, unix.EFD_CLOEXEC))
	add(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
	add(unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC))
	add(unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	add(unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0))
	add(unix.Open("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0))
	add(unix.PidfdOpen(os.Getpid(), 0))
	var pair [2]int
	if unix.Pipe2(pair[:], unix.O_CLOEXEC) == nil {
		fds = append(fds, pair[0], pair[1])
	}
	if p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
		fds = append(fds, p[0], p[1])
	}
	return fds, func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
}

// linger is longer than anybody has attack.MaxWait.
const linger = 120 // seconds

// lingering is a TCP socket with data that nobody takes: close blocks for its linger time.
func lingering() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return -1, err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return -1, err
	}
	defer c.Close()
	other, err := l.Accept()
	if err != nil {
		return -1, err
	}
	time.AfterFunc(2*attack.MaxWait, func() { other.Close() })
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_, _ = c.Write(make([]byte, 16<<20)) // as much as fits
	_ = c.(*net.TCPConn).SetLinger(linger)
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	err = raw.Control(func(s uintptr) { fd, err = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) })
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: linger})
	_ = unix.SetNonblock(fd, false)
	return fd, err
}

// houses are the sockets that public packages open. The socket of package verbs (oob) is attacked in
// verbs/internal/connect.
var houses = []struct {
	name string
	open func(t *testing.T, rng *rand.Rand) *attack.Target
	unix bool
}{
	{"shm", shmTarget, true},
	{"softnic", softnicTarget, true},
	{"tcp", tcpTarget, false},
	{"launch", launchTarget, false},
}

// A program that does not know the secret attacks each of our sockets, in each way (attack.Unauthenticated documents
// what is asserted).
func TestUnauthenticated(t *testing.T) {
	for _, h := range houses {
		for _, way := range []string{"connections", "garbage", "slow bytes", "descriptors"} {
			if way == "descriptors" && !h.unix {
				continue
			}
			visited := func(t *testing.T) { attack.Unauthenticated(t, way, h.open) }
			t.Run(h.name+"/"+way, func(t *testing.T) {
				if way == "descriptors" {
					rightstest.EachKernel(t, visited)
				} else {
					visited(t)
				}
			})
		}
	}
}

func shmTarget(t *testing.T, rng *rand.Rand) *attack.Target {
	dir := t.TempDir()
	rails := []session.Rail{{Driver: "shm", Options: map[string]string{"dir": dir}}}
	v := newVictim(t, rails, rng, nil)
	all, err := filepath.Glob(dir + "/*.shm")
	if err != nil || len(all) == 0 {
		t.Fatalf("no socket in %s: %v", dir, err)
	}
	return &attack.Target{Network: "unixpacket", Addr: v.socket(all), GoesOn: v.goesOn, Unauthenticated: 1024, Close: v.endSession}
}

// onLoopback has peers of the driver tcp meet there, which need not be all addresses of this machine.
var onLoopback = map[string]string{"address": "127.0.0.1"}

func tcpTarget(t *testing.T, rng *rand.Rand) *attack.Target {
	port := freePort(t)
	options := map[string]string{"address": "127.0.0.1", "port": fmt.Sprintf("%d-%d", port, port+9)}
	v := newVictims(t, []session.Rail{{Driver: "tcp", Options: options}},
		[]session.Rail{{Driver: "tcp", Options: onLoopback}}, rng, nil)
	return &attack.Target{
		Network: "tcp", Addr: fmt.Sprintf("127.0.0.1:%d", port), GoesOn: v.goesOn, Unauthenticated: 256 + 64, Close: v.endSession,
	}
}

// freePort is a port of the loopback addresses that nobody listens at.
func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// socket is the one of this process among those in a directory.
func (v *victim) socket(all []string) string {
	card := string(v.s.Card())
	for _, path := range all {
		if len(path) > 0 && containsPath(card, filepath.Base(path)) {
			return path
		}
	}
	v.tb.Fatalf("none of %v is in the card of this process", all)
	return ""
}

// endSession ends the honest workload and the session.
func (v *victim) endSession() error {
	v.stop()
	<-v.beside
	v.peer.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), attack.MaxWait/3)
	defer cancel()
	return v.s.Close(ctx)
}

func softnicTarget(t *testing.T, rng *rand.Rand) *attack.Target {
	if err := softnic.Supported(); err != nil {
		t.Skip(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: the process is another user, who is admitted")
	}
	dir, err := os.MkdirTemp("", "softnic")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "q.sock")
	s, err := softnic.Start(softnic.Config{Sockets: []string{path}, AllowUIDs: []int{nobody}})
	if err != nil {
		t.Fatal(err)
	}
	p := attack.Start(t, "neighbour", suite{Path: path, Seed: rng.Uint64()})
	n := newNeighbour(t, p)
	n.goesOn("at first")
	return &attack.Target{
		Network: "unixpacket", Addr: path, GoesOn: n.goesOn, Unauthenticated: 1024 + 64,
		Close: func() error { p.Kill(); return s.Close() }, As: []func(*attack.Program){asNobody},
	}
}

func launchTarget(t *testing.T, rng *rand.Rand) *attack.Target {
	ln, err := launch.Listen(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	const ranks = 2
	secret := launch.NewSecret()
	s := launch.Serve(ln, ranks, secret)
	gone := make(chan error, ranks)
	goesOn := func(what string) {
		for r := range ranks {
			p := attack.Start(t, "listener", nil, envOf(launch.RankEnv(s.Addr(), r, ranks, secret)))
			go func() { gone <- p.Leave() }()
		}
		for range ranks {
			select {
			case err := <-gone:
				if err != nil {
					t.Errorf("a rank that joined %s: %v", what, err)
				}
			case <-time.After(attack.MaxWait):
				t.Fatalf("ranks have not joined within %v %s", attack.MaxWait, what)
			}
		}
	}
	return &attack.Target{
		Network: "tcp", Addr: s.Addr(), GoesOn: goesOn, Unauthenticated: 2 * 256,
		Close: func() error { s.Close(); return nil },
	}
}

// listenerProgram is a rank: it joins, and finds the card of the other.
func listenerProgram(in *json.Decoder, _ *json.Encoder) error {
	ctx, cancel := context.WithTimeout(context.Background(), attack.MaxWait)
	defer cancel()
	j, err := launch.Find(ctx)
	if err != nil {
		return err
	}
	if err := j.Publish(ctx, fmt.Appendf(nil, "card %d", j.Rank())); err != nil {
		return err
	}
	if err := j.Fence(ctx); err != nil {
		return err
	}
	b, err := j.Lookup(ctx, 1-j.Rank())
	if err != nil || string(b) != fmt.Sprintf("card %d", 1-j.Rank()) {
		return fmt.Errorf("card %q, %w", b, err)
	}
	_, _ = io.Copy(io.Discard, in.Buffered())
	return j.Close()
}
