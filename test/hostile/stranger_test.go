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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/rights/rightstest"
	"github.com/bywash/bywash/qnix/softnic"
	"github.com/bywash/bywash/session"
	"github.com/bywash/bywash/session/launch"
	"github.com/bywash/bywash/verbs/connect"
)

// visit is what a stranger is told: a socket, and how to come.
type visit struct {
	Network, Addr string
	Kind          string
	Seed          uint64
}

// A stranger has found a socket and knows no secret. These are its ways.
var strangers = map[string]func(v *visit, rng *rand.Rand, n *atomic.Int64) error{
	"connections": manyConnections, "garbage": garbage, "slow bytes": slowBytes, "descriptors": descriptors,
}

// strangerProgram visits until it is killed.
func strangerProgram(in *json.Decoder, out *json.Encoder) error {
	var v visit
	if err := in.Decode(&v); err != nil {
		return err
	}
	var n atomic.Int64
	go func() {
		for ; ; time.Sleep(20 * time.Millisecond) {
			_ = out.Encode(n.Load())
		}
	}()
	rng := rand.New(rand.NewPCG(v.Seed, 10))
	for {
		if err := strangers[v.Kind](&v, rng, &n); err != nil && n.Load() == 0 {
			return err
		}
	}
}

func (v *visit) dial() (net.Conn, error) {
	c, err := net.DialTimeout(v.Network, v.Addr, time.Second)
	if err != nil {
		time.Sleep(time.Millisecond) // refused: the queue is full
	}
	return c, err
}

// manyConnections opens as many connections as it may have descriptors, says nothing on them, and begins again.
func manyConnections(v *visit, rng *rand.Rand, n *atomic.Int64) error {
	var all []net.Conn
	defer func() {
		for _, c := range all {
			c.Close()
		}
	}()
	for range 500 + rng.IntN(4000) {
		c, err := v.dial()
		if err != nil {
			return err
		}
		n.Add(1)
		all = append(all, c)
	}
	time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
	return nil
}

// garbage sends random bytes, or what the other side has said, changed.
func garbage(v *visit, rng *rand.Rand, n *atomic.Int64) error {
	c, err := v.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	n.Add(1)
	b := make([]byte, 1+rng.IntN(1<<rng.IntN(17)))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	if rng.IntN(2) == 0 { // numbers that may be a kind, a version or a length
		for i := range min(len(b), 64) {
			b[i] = byte(rng.IntN(4))
		}
	}
	for range 1 + rng.IntN(4) {
		_ = c.SetDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := c.Write(b); err != nil {
			return nil
		}
		got := make([]byte, 4096)
		if k, err := c.Read(got); err == nil && k > 0 {
			b = got[:k]
			b[rng.IntN(k)] ^= 1 << rng.IntN(8)
		}
	}
	return nil
}

// slowBytes has two hundred connections that say one byte now and then.
func slowBytes(v *visit, rng *rand.Rand, n *atomic.Int64) error {
	var wg sync.WaitGroup
	for range 200 {
		pause, first := time.Duration(1+rng.IntN(100))*time.Millisecond, byte(rng.IntN(8))
		wg.Go(func() {
			c, err := v.dial()
			if err != nil {
				return
			}
			defer c.Close()
			for n.Add(1); ; time.Sleep(pause) {
				_ = c.SetWriteDeadline(time.Now().Add(time.Second))
				if _, err := c.Write([]byte{first}); err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return nil
}

// descriptors passes descriptors of all sorts, as many as a message may have: among them sockets whose close blocks. Linux
// 6.16 and later refuse them for the victim.
func descriptors(v *visit, rng *rand.Rand, n *atomic.Int64) error {
	sorts, free := sortsOfDescriptors()
	defer free()
	for range 50 {
		// Only who closes last lingers: these are given to the victim alone.
		if fd, err := lingering(); err == nil {
			passed := false
			if c, err := v.dial(); err == nil {
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
		c, err := v.dial()
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
	add(unix.MemfdCreate("stranger", unix.MFD_CLOEXEC))
	add(unix.MemfdCreate("stranger", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
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

// linger is longer than anybody has patience.
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
	time.AfterFunc(2*patience, func() { other.Close() })
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

// house is what a stranger comes to.
type house struct {
	network, addr string
	goesOn        func(what string) // those who belong here are served
	strangers     int               // connections that are kept before they have proved anything
	close         func() error      // in time, while the stranger is still there
	as            []func(*program)  // what the stranger is, if not a process of this user
}

// houses are all sockets of ours.
var houses = []struct {
	name string
	open func(t *testing.T, rng *rand.Rand) *house
	unix bool
}{
	{"shm", shmHouse, true},
	{"softnic", softnicHouse, true},
	{"verbs oob", oobHouse, false},
	{"launch", launchHouse, false},
}

// A stranger who knows no secret, at each of our sockets, in each way: whoever belongs there is served meanwhile, what is
// kept for the stranger is bounded, closing does not wait for it, and nothing is left.
func TestStranger(t *testing.T) {
	for _, h := range houses {
		for _, kind := range []string{"connections", "garbage", "slow bytes", "descriptors"} {
			if kind == "descriptors" && !h.unix {
				continue
			}
			attack := func(t *testing.T) {
				rng := seed(t)
				before := settled()
				x := h.open(t, rng)
				open := settled()
				p := start(t, "stranger", visit{x.network, x.addr, kind, rng.Uint64()}, x.as...)
				x.attacked(t, p, before, open)
			}
			t.Run(h.name+"/"+kind, func(t *testing.T) {
				if kind == "descriptors" {
					rightstest.EachKernel(t, attack)
				} else {
					attack(t)
				}
			})
		}
	}
}

func (x *house) attacked(t *testing.T, p *program, before, open holdings) {
	each := duration(t)
	if each <= brief {
		each /= 3
	}
	var visits int64
	for visits == 0 {
		p.hear(&visits)
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		for p.out.Decode(&visits) == nil {
		}
	}()
	most := peak(func() {
		time.Sleep(each)
		x.goesOn("beside the stranger")
	})
	// Each goroutine that closes a stranger's socket has a thread meanwhile, which Go keeps.
	most.within(t, open, holdings{fds: 2*x.strangers + 400, goroutines: x.strangers + 100, threads: x.strangers + 100, heap: 64, maps: 16})
	begin := time.Now()
	done := make(chan error, 1)
	go func() { done <- x.close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("close: %v", err)
		}
	case <-time.After(patience):
		t.Errorf("close takes more than %v while a stranger is there", patience)
	}
	took := time.Since(begin)
	_ = p.cmd.Process.Kill()
	<-said
	p.kill()
	t.Logf("%d visits; at most %+v, before them %+v; close took %v", visits, most, open, took)
	leftBy(t, "after the stranger", before)
}

func shmHouse(t *testing.T, rng *rand.Rand) *house {
	dir := t.TempDir()
	rails := []session.Rail{{Driver: "shm", Options: map[string]string{"dir": dir}}}
	v := newVictim(t, rails, rng, nil)
	all, err := filepath.Glob(dir + "/*.shm")
	if err != nil || len(all) == 0 {
		t.Fatalf("no socket in %s: %v", dir, err)
	}
	return &house{"unixpacket", v.socket(all), v.goesOn, 1024, v.endSession, nil}
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
	v.peer.kill()
	ctx, cancel := context.WithTimeout(context.Background(), patience/3)
	defer cancel()
	return v.s.Close(ctx)
}

func softnicHouse(t *testing.T, rng *rand.Rand) *house {
	if err := softnic.Supported(); err != nil {
		t.Skip(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: the stranger is another user, who is admitted")
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
	p := start(t, "neighbour", suite{Path: path, Seed: rng.Uint64()})
	n := newNeighbour(t, p)
	n.goesOn("at first")
	return &house{"unixpacket", path, n.goesOn, 1024 + 64, func() error { p.kill(); return s.Close() }, []func(*program){asNobody}}
}

// anyQP is a queue pair without a device.
type anyQP uint32

func (q anyQP) Num() uint32            { return uint32(q) }
func (anyQP) Init(*connect.Path) error { return nil }
func (anyQP) RTR(*connect.Path) error  { return nil }
func (anyQP) RTS(*connect.Path) error  { return nil }

func oobHouse(t *testing.T, rng *rand.Rand) *house {
	type host struct {
		set  *connect.Set
		mods *connect.Modules
		inc  uint64
	}
	open := func() (h host) {
		h.inc = rng.Uint64()>>1 | 1
		var err error
		h.set, err = connect.Open(connect.Config{Incarnation: h.inc, Secret: []byte("sixteen bytes or more"), Include: []string{"oob"}})
		if err == nil {
			h.mods, err = h.set.Query(loopbackPort())
		}
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	a, b := open(), open()
	meet := func(what string) {
		var e [2]connect.Endpoint
		for k, x := range [2][2]host{{a, b}, {b, a}} {
			var err error
			e[k], err = x[0].mods.NewEndpoint(&connect.EndpointConfig{PeerIncarnation: x[1].inc, PeerCard: x[1].mods.Card(), QPs: []connect.QP{anyQP(1)}})
			if err == nil {
				err = e[k].Start()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		await(t, "two endpoints connect "+what, func() bool {
			for _, x := range e {
				if x.State() > connect.Ready {
					t.Fatalf("connecting %s: %v", what, x.Err())
				}
			}
			return e[0].State() == connect.Ready && e[1].State() == connect.Ready
		})
		for _, x := range e {
			x.Finalize()
			<-x.Done()
		}
	}
	meet("at first")
	return &house{"tcp", oobAddress(t, a.mods.Card()), meet, 2 * 256 * 2, func() error {
		return errors.Join(a.mods.Close(), b.mods.Close(), a.set.Close(), b.set.Close())
	}, nil}
}

func launchHouse(t *testing.T, rng *rand.Rand) *house {
	ln, err := launch.Listen(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	const ranks = 2
	secret := launch.NewSecret()
	s := launch.Serve(ln, ranks, secret)
	gone := make(chan error, ranks)
	return &house{"tcp", s.Addr(), func(what string) {
		for r := range ranks {
			p := start(t, "listener", nil, envOf(launch.RankEnv(s.Addr(), r, ranks, secret)))
			go func() { gone <- p.leave() }()
		}
		for range ranks {
			select {
			case err := <-gone:
				if err != nil {
					t.Errorf("a rank that joined %s: %v", what, err)
				}
			case <-time.After(patience):
				t.Fatalf("ranks have not joined within %v %s", patience, what)
			}
		}
	}, 2 * 256, func() error { s.Close(); return nil }, nil}
}

// listenerProgram is a rank: it joins, and finds the card of the other.
func listenerProgram(in *json.Decoder, _ *json.Encoder) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
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
