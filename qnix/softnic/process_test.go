//go:build linux && !(386 || arm || mips || mipsle)

package softnic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/nic"
)

func init() {
	roles["sender"] = senderRole
	roles["ensure"] = ensureRole
}

// senderRole sends long messages to "main" from memory of its own, without end.
func senderRole(in *json.Decoder) error {
	var path string
	if err := in.Decode(&path); err != nil {
		return err
	}
	n, err := nic.Open(path)
	if err != nil {
		return err
	}
	p, err := n.Register(ctx, nic.Config{Name: "sender"})
	if err != nil {
		return err
	}
	t := &roleTB{}
	mem := anonymous(t, 16<<20)
	h, err := p.Translate(mem, nic.Read)
	if err != nil {
		return err
	}
	reply(os.Getpid())
	out := nic.Message{Peer: name("main"), Len: len(mem), Flags: nic.Doorbell, Descriptors: []nic.Descriptor{{Handle: h, Len: uint32(len(mem))}}}
	for {
		if err := p.Post(nic.Send, 0, &out); err != nil {
			return err
		}
		if err := p.Kick(); err != nil {
			return err
		}
		if err := awaitSend(p); err != nil {
			return err
		}
	}
}

// awaitSend waits until the send of context 0 is done.
func awaitSend(p *nic.Process) error {
	for {
		seen := p.RingTail()
		s, _ := p.SendDoorbell(0)
		switch {
		case s == nic.Done:
			return nil
		case s.Rung():
			return fmt.Errorf("send: state %v", s)
		}
		if err := p.Wait(seen, -1); err != nil {
			return err
		}
	}
}

// A process that has posted to, or waits for, a killed process learns of its death.
func TestKilledProcessIsGone(t *testing.T) {
	s := serve(t, Config{})
	p := join(t, s.Sockets()[0], nic.Config{Name: "main"})
	mem := anonymous(t, 16<<20)
	h, err := p.Translate(mem, nic.Write)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 10 {
		c := startChild(t, "sender")
		c.write(s.Sockets()[0])
		var pid int
		c.read(&pid)
		long := nic.Message{Peer: name("sender"), Len: len(mem), Flags: nic.Doorbell, Descriptors: []nic.Descriptor{{Handle: h, Len: uint32(len(mem))}}}
		// The first comes whole; in the middle of the second, or near it, the sender dies.
		kick(t, p, p.Post(nic.Receive, 0, &long))
		if st, n := received(t, p, 0); st != nic.Done || n != len(mem) {
			t.Fatalf("%v, %d bytes", st, n)
		}
		moment := bytesReceived(t, p) + uint64(round*len(mem)/10) // before the second can have begun
		kick(t, p, p.Post(nic.Receive, 0, &long))
		kick(t, p, p.ReceiveShort(1, name("sender"), 9, 8)) // nothing comes
		until(t, "the second is under way", func() bool { return bytesReceived(t, p) >= moment })
		c.kill()
		// Unknown, if the NIC learnt of the death before it read the command.
		if st, _ := received(t, p, 1); st != nic.Gone && st != nic.Unknown {
			t.Errorf("a receive from the dead: %v, want gone", st)
		}
		if st, _ := received(t, p, 0); st == nic.Truncated || st == nic.Invalid || st == nic.NoMemory {
			t.Errorf("a message of the dead: %v", st)
		}
		kick(t, p, p.SendShort(0, name("sender"), 1, 8))
		if st, _ := sent(t, p, 0); st != nic.Unknown {
			t.Errorf("a message to the dead: %v, want unknown", st)
		}
	}
	n := open(t, s.Sockets()[0])
	until(t, "one process", func() bool { x, err := n.Statistics(); return err == nil && x.Processes == 1 })
}

func bytesReceived(t *testing.T, p *nic.Process) uint64 {
	t.Helper()
	s, err := p.Statistics()
	if err != nil {
		t.Fatal(err)
	}
	return s.BytesReceived
}

func TestKilledSoftnicIsGoneAtOnce(t *testing.T) {
	needNIC(t)
	c, paths, _ := softnicProcess(t, Config{})
	p := join(t, paths[0], nic.Config{Name: "p"})
	kick(t, p, p.ReceiveShort(0, name("p"), 1, 8))
	gone := make(chan error)
	go func() {
		for {
			if err := p.Wait(p.RingTail(), -1); err != nil {
				gone <- err
				return
			}
		}
	}()
	c.kill()
	if err := <-gone; !errors.Is(err, nic.ErrGone) {
		t.Errorf("%v, want ErrGone", err)
	}
	if err := p.SendShort(0, name("p"), 1, 1); !errors.Is(err, nic.ErrGone) {
		t.Errorf("post: %v, want ErrGone", err)
	}
	// Its socket is left; another one takes its place.
	if _, err := nic.Open(paths[0]); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("open: %v, want ECONNREFUSED", err)
	}
	serve(t, Config{Sockets: paths})
	join(t, paths[0], nic.Config{Name: "p"})
}

func TestStoppedSoftnicLosesNothing(t *testing.T) {
	needNIC(t)
	c, paths, _ := softnicProcess(t, Config{})
	a, b := join(t, paths[0], nic.Config{Name: "a"}), join(t, paths[0], nic.Config{Name: "b"})
	for i := range 20 {
		c.signal(unix.SIGSTOP)
		copy(a.SendRegion(0), fmt.Sprint("round ", i))
		kick(t, a, a.SendShort(0, name("b"), 1, 64))
		kick(t, b, b.ReceiveShort(0, name("a"), 1, 64))
		c.signal(unix.SIGCONT)
		if s, n := received(t, b, 0); s != nic.Done || n != 64 || !bytes.HasPrefix(b.ReceiveRegion(0), []byte(fmt.Sprint("round ", i))) {
			t.Fatalf("%v, %d bytes", s, n)
		}
		sent(t, a, 0)
	}
}

func TestRegistrationsThatFailLeaveNothing(t *testing.T) {
	s := serve(t, Config{MaxPerUser: 3})
	path := s.Sockets()[0]
	first := join(t, path, nic.Config{Name: "first"})
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	for round := range 5 {
		for what, x := range map[string]struct {
			ctx  context.Context
			c    nic.Config
			want error
		}{
			"taken name":   {ctx, nic.Config{Name: "first"}, unix.EADDRINUSE},
			"lonely group": {short, nic.Config{Name: "lonely", Group: "g", GroupSize: 2}, context.DeadlineExceeded},
		} {
			n := open(t, path)
			if _, err := n.Register(x.ctx, x.c); !errors.Is(err, x.want) && !(x.want == context.DeadlineExceeded && errors.Is(err, unix.ETIMEDOUT)) {
				t.Errorf("%s: %v, want %v", what, err, x.want)
			}
			// The handle is as good as before.
			p, err := n.Register(ctx, nic.Config{Name: fmt.Sprint("again", round)})
			if err != nil {
				t.Errorf("after %s: %v", what, err)
			} else if err := p.Deregister(); err != nil {
				t.Error(err)
			}
			n.Close()
		}
	}
	second, third := join(t, path, nic.Config{Name: "second"}), join(t, path, nic.Config{Name: "third"})
	if _, err := open(t, path).Register(ctx, nic.Config{Name: "fourth"}); !errors.Is(err, unix.EUSERS) {
		t.Errorf("one too many: %v, want EUSERS", err)
	}
	_, _, _ = first, second, third
	if err := third.Deregister(); err != nil {
		t.Error(err)
	}
	if _, err := open(t, path).Register(ctx, nic.Config{Name: "fourth"}); err != nil {
		t.Error(err)
	}
}

func TestGroupOfHandles(t *testing.T) {
	const n = 6
	s := serve(t, Config{NICs: 3})
	var ps [n]*nic.Process
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			h, err := nic.Open(s.Sockets()[i%3])
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { h.Close() })
			if ps[i], err = h.Register(ctx, nic.Config{Name: fmt.Sprint("p", i), Group: "g", GroupSize: n}); err != nil {
				t.Error(err)
				return
			}
			if err := ps[i].Join(ctx, name("second"), n); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for range 20 { // barriers
		for _, p := range ps {
			kick(t, p, p.Barrier(0, name("g"), n))
		}
		for i, p := range ps {
			if st, _ := sent(t, p, 0); st != nic.Done {
				t.Fatalf("barrier of %d: %v", i, st)
			}
		}
	}
	// One posts no barrier, and the others wait.
	for _, p := range ps[1:] {
		kick(t, p, p.Barrier(0, name("g"), n))
	}
	// Messages that are posted after them go to that one and back: the NICs have read the barriers.
	for i, p := range ps[1:] {
		me := name(fmt.Sprint("p", i+1))
		kick(t, p, p.ReceiveShort(0, name("p0"), 1, 8))
		kick(t, ps[0], ps[0].ReceiveShort(0, me, 1, 8))
		kick(t, p, p.SendShort(1, name("p0"), 1, 8))
		received(t, ps[0], 0)
		kick(t, ps[0], ps[0].SendShort(0, me, 1, 8))
		received(t, p, 0)
		sent(t, p, 1)
		sent(t, ps[0], 0)
	}
	for i, p := range ps[1:] {
		if st, _ := p.SendDoorbell(0); st != nic.Pending {
			t.Errorf("barrier of %d without the first: %v", i+1, st)
		}
	}
	kick(t, ps[0], ps[0].Barrier(0, name("g"), n))
	for _, p := range ps {
		sent(t, p, 0)
	}
	for short := range 2 {
		for _, p := range ps[1:] {
			kick(t, p, p.ReceiveShort(0, name("p0"), 3, 100))
		}
		copy(ps[0].SendRegion(1), "to all")
		kick(t, ps[0], ps[0].Broadcast(1, name("g"), &nic.Message{Tag: 3, Len: 6, Flags: nic.Doorbell | nic.Inline}, short == 1))
		for i, p := range ps[1:] {
			if st, k := received(t, p, 0); st != nic.Done || string(p.ReceiveRegion(0)[:k]) != "to all" {
				t.Errorf("broadcast to %d: %v, %d bytes", i+1, st, k)
			}
		}
		sent(t, ps[0], 1)
	}
	kick(t, ps[4], ps[4].ReceiveShort(0, name("p1"), 4, 100))
	kick(t, ps[5], ps[5].ReceiveShort(0, name("p1"), 4, 100))
	kick(t, ps[1], ps[1].Multicast(1, []nic.Name{name("p4"), name("p5")}, &nic.Message{Tag: 4, Len: 6, Flags: nic.Doorbell}, true))
	received(t, ps[4], 0)
	received(t, ps[5], 0)
	if st, _ := sent(t, ps[1], 1); st != nic.Done {
		t.Errorf("multicast: %v", st)
	}
	if err := ps[5].Leave(name("second")); err != nil {
		t.Error(err)
	}
}

// A client of a softnic that ends takes its memory back when it sees the end: the NIC is done with it before.
func TestClientsSeeTheEndAfterTheirDeregistration(t *testing.T) {
	s := serve(t, Config{})
	p := join(t, s.Sockets()[0], nic.Config{Name: "a"})
	var c *client
	s.mu.Lock()
	for c = range s.conns {
	}
	s.mu.Unlock()
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	defer release()
	c.pending.Go(func() { <-held }) // the end of its process waits for it
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = s.Close()
	}()
	<-c.over
	raw, err := c.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 0); n != 0 || err != nil {
			t.Errorf("the softnic has hung up before it is done with the client's memory (poll: %d, %v)", n, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	release()
	<-closed
	until(t, "the client sees the end", p.Gone)
}

// Close waits for a deregistration that is under way, and for a registration that it ends.
func TestCloseBesideOtherCalls(t *testing.T) {
	s := serve(t, Config{})
	for k := range 200 {
		n := open(t, s.Sockets()[0])
		var wg sync.WaitGroup
		if k%2 == 0 {
			p, err := n.Register(ctx, nic.Config{Name: "a"})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { _ = p.Deregister() })
		} else {
			wg.Go(func() {
				if p, err := n.Register(ctx, nic.Config{Name: "a"}); err == nil {
					_ = p.Deregister()
				}
			})
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		until(t, "the softnic has noticed", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.conns) == 0
		})
	}
}

// ensureRole uses a NIC that is started on demand, until it is killed or gets the order to end.
func ensureRole(in *json.Decoder) error {
	var c Config
	if err := in.Decode(&c); err != nil {
		return err
	}
	if err := EnsureConfig(ctx, c); err != nil {
		return err
	}
	n, err := nic.Open(c.Sockets[0])
	if err != nil {
		return err
	}
	defer n.Close()
	reply("ready")
	var x int
	_ = in.Decode(&x)
	return nil
}

// Several programs that start one at a time get one, which outlives them, but
// not for long, and leaves nothing.
func TestStartedOnDemandAndEndsWhenIdle(t *testing.T) {
	needNIC(t)
	d := dir(t)
	path := filepath.Join(d, "s")
	c := Config{Sockets: []string{path}, Idle: 300 * time.Millisecond}
	var users []*child
	for range 4 {
		u := startChild(t, "ensure")
		u.write(&c)
		users = append(users, u)
	}
	for _, u := range users {
		var s string
		u.read(&s)
	}
	pids := softnicsAt(t, path)
	if len(pids) != 1 {
		t.Fatalf("%d softnics, want 1", len(pids))
	}
	if err := EnsureConfig(ctx, c); err != nil {
		t.Fatal(err)
	}
	for _, u := range users {
		u.kill()
	}
	until(t, "the softnic has ended", func() bool { return len(softnicsAt(t, path)) == 0 })
	if left, _ := os.ReadDir(d); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
	c.Idle = 3 * time.Second // enough for what follows
	if err := EnsureConfig(ctx, c); err != nil {
		t.Fatal(err)
	}
	join(t, path, nic.Config{Name: "p"})
}

// softnicsAt finds the processes that were started on demand for a socket.
func softnicsAt(t *testing.T, path string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		b, _ := os.ReadFile(f)
		if bytes.Contains(b, []byte(envStage+"=2")) && bytes.Contains(b, []byte(path)) {
			pids = append(pids, strings.Split(f, "/")[2])
		}
	}
	return pids
}

// A softnic that is ending counts as none: the next one can be started.
func TestSoftnicThatEndsIsAbsent(t *testing.T) {
	s := serve(t, Config{})
	refuseAll := func(closing bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closing = closing
	}
	refuseAll(true)
	_, err := nic.Open(s.Sockets()[0])
	refuseAll(false)
	if !nic.Absent(err) {
		t.Errorf("open while the softnic refuses all: %v does not count as absent", err)
	}
	path := filepath.Join(dir(t), "hangs-up")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hungUp := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.Close()
		}
		hungUp <- err
	}()
	if _, err := nic.Open(path); !nic.Absent(err) {
		t.Errorf("open while the softnic hangs up: %v does not count as absent", err)
	}
	if err := <-hungUp; err != nil {
		t.Error(err)
	}
	if nic.Absent(unix.EACCES) {
		t.Error("a NIC of another user counts as absent")
	}
}

func TestOneSoftnicASocket(t *testing.T) {
	s := serve(t, Config{})
	if _, err := Start(Config{Sockets: s.Sockets()}); !errors.Is(err, ErrRunning) {
		t.Errorf("%v, want ErrRunning", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	serve(t, Config{Sockets: s.Sockets()})
}

func TestIdleSoftnicUsesNoProcessor(t *testing.T) {
	needNIC(t)
	c, paths, _ := softnicProcess(t, Config{NICs: 2})
	a, b := join(t, paths[0], nic.Config{Name: "a"}), join(t, paths[1], nic.Config{Name: "b"})
	kick(t, b, b.ReceiveShort(0, name("a"), 1, 8))
	kick(t, a, a.SendShort(0, name("b"), 1, 8))
	received(t, b, 0)
	before := cpuTime(t, c.cmd.Process.Pid)
	time.Sleep(500 * time.Millisecond)
	if used := cpuTime(t, c.cmd.Process.Pid) - before; used > 50*time.Millisecond {
		t.Errorf("%v of processor time in half a second", used)
	}
}

func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/schedstat", pid)); err != nil {
		t.Skip("needs /proc/PID/schedstat")
	}
	var sum time.Duration
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, f := range tasks {
		var ns int64
		if b, err := os.ReadFile(f); err == nil {
			_, _ = fmt.Sscan(string(b), &ns)
		}
		sum += time.Duration(ns)
	}
	return sum
}
