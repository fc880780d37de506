//go:build linux && !(386 || arm || mips || mipsle)

package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
	"github.com/bywash/bywash/qnix/softnic"
	"github.com/bywash/bywash/session"

	_ "github.com/bywash/bywash/afxdp"
	_ "github.com/bywash/bywash/qnix"
	_ "github.com/bywash/bywash/tcp"
	_ "github.com/bywash/bywash/verbs"
)

// nicProcess starts a QNIX network interface in a process of its own, and waits until it
// serves.
func nicProcess(t *testing.T) (path string, process *exec.Cmd) {
	t.Helper()
	if err := softnic.Supported(); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("needs cgo: ", err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "nic-*") // the socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := exec.Command(exe)
	c.Env = append(os.Environ(), envDir+"="+dir, envRole+"=nic")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log bytes.Buffer
	c.Stderr = &log
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		_ = c.Wait()
		t.Fatalf("no softnic: %v, %s", err, log.String())
	}
	return filepath.Join(dir, "nic"), c
}

func serveNIC(dir string) error {
	s, err := softnic.Start(softnic.Config{Sockets: []string{filepath.Join(dir, "nic")}})
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := os.Stdout.Write([]byte{1}); err != nil {
		return err
	}
	select {}
}

// ways are rails that both ranks of two have, by rank.
var ways = []struct {
	name  string
	rails func(t *testing.T) [2][]session.Rail
}{
	{"shm", func(*testing.T) [2][]session.Rail { return both(session.Rail{Driver: "shm"}) }},
	{"qnix", func(t *testing.T) [2][]session.Rail { return both(qnixRail(t)) }},
	{"tcp", func(*testing.T) [2][]session.Rail { return both(session.Rail{Driver: "tcp"}) }},
	{"afxdp", func(t *testing.T) [2][]session.Rail { return afxdpRails(t) }},
	{"qnix twice", func(t *testing.T) [2][]session.Rail { return both(qnixRail(t), qnixRail(t)) }},
	{"afxdp twice", func(t *testing.T) [2][]session.Rail {
		a, b := afxdpRails(t), afxdpRails(t)
		return [2][]session.Rail{append(a[0], b[0]...), append(a[1], b[1]...)}
	}},
	{"verbs", func(t *testing.T) [2][]session.Rail { return both(verbsRail(t)) }},
	{"shm, long tcp", func(*testing.T) [2][]session.Rail {
		return both(session.Rail{Driver: "shm", Large: &session.Rail{Driver: "tcp", Device: "lo"}})
	}},
	{"verbs twice", func(t *testing.T) [2][]session.Rail { return both(verbsRail(t), verbsRail(t)) }},
	{"the best of several", func(t *testing.T) [2][]session.Rail {
		a := afxdpRails(t)
		q := qnixRail(t)
		return [2][]session.Rail{{a[0][0], q}, {q, a[1][0]}}
	}},
}

func both(r ...session.Rail) [2][]session.Rail { return [2][]session.Rail{r, r} }

func qnixRail(t *testing.T) session.Rail {
	path, _ := nicProcess(t)
	return session.Rail{Driver: "qnix", Device: path}
}

// verbsRail is one of an RDMA device: make test-vm runs these tests where there is one.
func verbsRail(t *testing.T) session.Rail {
	t.Helper()
	r := session.Rail{Driver: "verbs", Device: os.Getenv("BYWASH_RDMA_DEV")}
	d, err := driver.Lookup(r.Driver)
	if err == nil {
		_, err = d.Query(driver.Hints{Device: r.Device})
	}
	if errors.Is(err, driver.ErrUnsupported) && os.Getenv("VM_ADDR") == "" { // machines of hack/vm have one
		t.Skip("needs an RDMA device (make test-vm): ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// afxdpRails are the two ends of a cable between two namespaces.
func afxdpRails(t *testing.T) (rails [2][]session.Rail) { return vethRails(t, veth.Config{}) }

func vethRails(t testing.TB, cfg veth.Config) (rails [2][]session.Rail) {
	t.Helper()
	p, err := veth.New(cfg)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		t.Skip("no veth: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	for i, e := range p.Ends {
		rails[i] = []session.Rail{{Driver: "afxdp", Device: e.Device, Options: map[string]string{
			"netns": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), e.Namespace), "dead-time": "1s",
		}}}
	}
	return rails
}

// joinOver makes two sessions that are connected.
func joinOver(t *testing.T, rails [2][]session.Rail) []*session.Session {
	t.Helper()
	s := joinAll(t, 2, func(rank int, c *session.Config) { c.Rails = rails[rank] })
	ctx := deadline(t)
	if err := s[0].Gate(1).ConnectWait(ctx); err != nil { // the other side need do nothing
		t.Fatal(err)
	}
	return s
}

// All that a session does, it does over every driver, and over several of them.
func TestEveryDriverCarriesASession(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			rails := w.rails(t)
			s := joinOver(t, rails)
			t.Log(s[0].Gate(1).Path())
			if l := rails[0][0].Large; l != nil && !strings.HasSuffix(s[0].Gate(1).Path(), ", long "+l.Driver) {
				t.Errorf("long messages are not carried by %s but by %s", l.Driver, s[0].Gate(1).Path())
			}
			for _, n := range sizes {
				transfer(t, s[0], s[1], n)
				transfer(t, s[1], s[0], n)
			}
			var wg sync.WaitGroup
			for i := range s {
				wg.Go(func() { sendShorts(t, s[i], 1-i, 1000) })
				wg.Go(func() { receiveShorts(t, s[i], 1-i, 1000) })
			}
			wg.Wait()
			activeOver(t, s)
			oneSidedOver(t, s)
			transfer(t, s[0], s[0], 100_000) // oneself
		})
	}
}

func activeOver(t *testing.T, s []*session.Session) {
	ctx := deadline(t)
	const n = 200
	var came atomic.Int32
	s[1].Handle(3, func(g *session.Gate, a *session.Active) {
		if int32(a.Data[0]) == came.Load()&255 && g.Rank() == 0 {
			came.Add(1)
		}
	})
	b := make([]byte, 1000)
	for k := range n {
		b[0] = byte(k)
		r, err := s[0].Gate(1).AM(3, nil, b)
		if err == nil && r != nil {
			_, err = r.Wait(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all active messages have come in order", func() bool { s[1].Progress(); return came.Load() == n })
}

func oneSidedOver(t *testing.T, s []*session.Session) {
	ctx := deadline(t)
	region, err := s[1].Register(make([]byte, 1<<20), allAccess)
	if err != nil {
		t.Fatal(err)
	}
	g := s[0].Gate(1)
	r, err := g.Import(region.Key())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 5000, 1 << 20} {
		src, dst := pattern(n, 5), make([]byte, n)
		if err := g.Put(ctx, r, 0, src); err != nil {
			t.Fatalf("put %d: %v", n, err)
		}
		if err := g.Get(ctx, r, 0, dst); err != nil || !bytes.Equal(src, dst) {
			t.Fatalf("get %d: %v, equal %v", n, err, bytes.Equal(src, dst))
		}
	}
	atomics(t, g, r)
	if err := region.Deregister(); err != nil {
		t.Fatal(err)
	}
}

// Ranks die over every driver, with everything under way.
func TestDeathIsNoticedOverEveryDriver(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed(t), 3))
	for _, w := range ways[1 : len(ways)-1] {
		t.Run(w.name, func(t *testing.T) {
			rails := w.rails(t)
			after := time.Duration(rng.IntN(50_000)) * time.Microsecond
			death(t, 99, after, rails[0], rails[1])
		})
	}
}

// mirror is mirrorLanes in a process of its own.
func mirror(ctx context.Context, s *session.Session, peer int) error {
	g := s.Gate(peer)
	if err := g.ConnectWait(ctx); err != nil {
		return err
	}
	return errors.Join(mirrorLanes(ctx, s, peer), s.Close(ctx))
}

// lanes are lengths of messages that are under way at the same time.
var lanes = []int{8, 3000, 100_000, longLane}

// Of two NICs one is killed, at random, in the middle of everything: the ranks, which are
// processes, lose nothing, and nothing comes twice. Later it is the other's turn: then there is
// none left.
func TestRanksSurviveTheDeathOfANIC(t *testing.T) {
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	rng := rand.New(rand.NewPCG(seed(t), 4))
	for i := range rounds {
		first, moment := i%2, rng.Uint64N(32<<20)
		ok := t.Run(fmt.Sprintf("NIC %d", first), func(t *testing.T) { nicDeath(t, first, moment) })
		if !ok {
			t.Fatalf("NIC %d was killed after %d bytes", first, moment)
		}
	}
}

func nicDeath(t *testing.T, first int, moment uint64) {
	var rails []session.Rail
	var nics []*exec.Cmd
	for range 2 {
		path, c := nicProcess(t)
		rails = append(rails, session.Rail{Driver: "qnix", Device: path})
		nics = append(nics, c)
	}
	dir := t.TempDir()
	child, log := startRank(t, dir, rails, envRole+"=mirror")
	ctx := deadline(t)
	lost := make(chan *session.Error, 8)
	s, err := session.Join(ctx, session.Config{Job: &folder{dir, 0, 2}, Rails: rails, OnError: func(e *session.Error) { lost <- e }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			_ = s.Dump(os.Stderr)
			t.Logf("output of the peer: %q", log.String())
		}
		_ = s.Close(ctx)
	}()
	g := s.Gate(1)
	if err := g.ConnectWait(ctx); err != nil {
		t.Fatal(err)
	}
	var killed atomic.Bool
	var wg sync.WaitGroup
	for k, n := range lanes {
		wg.Go(func() { reflected(ctx, t, g, uint64(k), n, &killed) })
	}
	eventually(t, "the moment of the death", func() bool { return received(s) >= moment })
	_ = nics[first].Process.Kill()
	select {
	case e := <-lost:
		if !e.NonFatal || e.Peer != 1 {
			t.Errorf("the loss of a rail is reported as %+v", e)
		}
	case <-ctx.Done():
		t.Error("the loss was not reported")
	}
	killed.Store(true)
	wg.Wait()
	if err := child.Wait(); err != nil {
		t.Errorf("the peer ends with %v: %s", err, log.String())
	}
}

// reflected sends messages on a lane and checks what comes back, for some time after
// the NIC was killed.
func reflected(ctx context.Context, t *testing.T, g *session.Gate, lane uint64, n int, killed *atomic.Bool) {
	src, dst := pattern(n+256, lane), make([]byte, n)
	for k, more := 0, 5; more > 0; k++ {
		if killed.Load() {
			more--
		}
		want := src[k%256 : k%256+n]
		r, err := g.Irecv(lane, dst)
		if err == nil {
			err = g.Send(ctx, lane, want)
		}
		if err == nil {
			_, err = r.Wait(ctx)
		}
		if err != nil || !bytes.Equal(dst, want) {
			t.Errorf("lane %d, message %d: %v, equal %v", lane, k, err, bytes.Equal(dst, want))
			return
		}
	}
	if err := g.Send(ctx, lane, nil); err != nil {
		t.Errorf("lane %d: %v", lane, err)
	}
	if _, err := g.Recv(ctx, lane, dst); err != nil {
		t.Errorf("lane %d: %v", lane, err)
	}
}

// A connect request for an earlier connection has no effect.
func TestLateConnectRequestIsIgnored(t *testing.T) {
	var closed atomic.Int32
	rails := both(qnixRail(t))
	s := joinAll(t, 2, func(rank int, c *session.Config) {
		c.Rails = rails[rank]
		c.OnClosed = func(*session.Gate) { closed.Add(1) }
	})
	transfer(t, s[0], s[1], 100)
	s[0].Gate(1).Disconnect()
	eventually(t, "both ends are closed", func() bool { return closed.Load() == 2 })
	if !s[1].ConnectRequest(s[0], 1) {
		t.Error("a connect request for an earlier connection makes another one")
	}
	if s[1].ConnectRequest(s[0], 2) {
		t.Error("a connect request for the next connection is not answered")
	}
	transfer(t, s[0], s[1], 100)
}

// The ranks' packets on the small track may have different lengths: what goes by messages is cut for the shorter ones.
func TestRanksWithPacketsOfDifferentLengths(t *testing.T) {
	mode, rail := session.ModeNull, qnixRail(t)
	join := func(t *testing.T) []*session.Session {
		return joinAll(t, 2, func(rank int, c *session.Config) {
			r := rail
			r.Options = map[string]string{"buffer": []string{"16000", "4096"}[rank]}
			c.Rails, c.Mode, c.Emulate = []session.Rail{r}, &mode, true
		})
	}
	t.Run("tagged", func(t *testing.T) {
		s := join(t)
		for _, n := range []int{10, 3000, 12000, 200000} {
			transfer(t, s[0], s[1], n)
			transfer(t, s[1], s[0], n)
		}
	})
	t.Run("active", func(t *testing.T) {
		s, ctx := join(t), deadline(t)
		came := make(chan int, 1)
		s[1].Handle(1, func(_ *session.Gate, a *session.Active) { came <- len(a.Data) })
		g := s[0].Gate(1)
		prepared, err := g.Prepare(0, 12000)
		if err != nil {
			t.Fatal(err)
		}
		transfer(t, s[1], s[0], 10)
		r, err := g.AM(1, nil, make([]byte, 12000))
		if err == nil && r != nil {
			_, err = r.Wait(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case n := <-came:
			if n != 12000 {
				t.Errorf("%d bytes came", n)
			}
		case <-ctx.Done():
			t.Fatal("the message has not come")
		}
		if err := prepared.AM(1); !errors.Is(err, driver.ErrTooLong) {
			t.Errorf("a message longer than the peer's packets that was prepared before: %v, want ErrTooLong", err)
		}
		prepared.Free()
		if err := g.Err(); err != nil {
			t.Error(err)
		}
	})
}
