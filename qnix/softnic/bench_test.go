package softnic

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/bywash/bywash/qnix/nic"
)

// The other end of a benchmark is a process of its own, and so is the softnic:
// as in real use.
func init() {
	roles["softnic"] = func(in *json.Decoder) error {
		var c Config
		if err := in.Decode(&c); err != nil {
			return err
		}
		s, err := Start(c)
		if err != nil {
			return err
		}
		addr := ""
		if s.Addr() != nil {
			addr = s.Addr().String()
		}
		say(addr)
		var x int
		_ = in.Decode(&x) // until the test closes its end
		return s.Close()
	}
	roles["echo"] = echoRole
	roles["unix"] = unixRole
	roles["member"] = memberRole
}

// softnicProcess starts one and gives its sockets and wire address.
func softnicProcess(t testing.TB, c Config) (*child, []string, string) {
	t.Helper()
	if len(c.Sockets) == 0 {
		d := dir(t)
		for i := range max(1, c.NICs) {
			c.Sockets = append(c.Sockets, filepath.Join(d, fmt.Sprint(i)))
		}
	}
	x := startChild(t, "softnic")
	x.tell(&c)
	var addr string
	x.hear(&addr)
	return x, c.Sockets, addr
}

type echo struct {
	Path       string
	Size, Last int
	Arena      bool
}

// ends are what both ends of a ping-pong do with context 0.
type ends struct {
	p    *nic.Process
	peer nic.Name
	in   nic.Message
	out  nic.Message
	long bool
}

func (e *ends) post() error {
	if err := e.p.Post(nic.Receive, 0, &e.in); err != nil {
		return err
	}
	return e.p.Kick()
}

func (e *ends) send() error {
	c := nic.SendShort
	if e.long {
		c = nic.Send
	}
	if err := e.p.Post(c, 0, &e.out); err != nil {
		return err
	}
	return e.p.Kick()
}

func (e *ends) wait(doorbell func(int) (nic.State, int)) error {
	for {
		seen := e.p.RingTail()
		s, _ := doorbell(0)
		switch {
		case s == nic.Done:
			return nil
		case s.Rung():
			return fmt.Errorf("state %v", s)
		}
		if err := e.p.Wait(seen, -1); err != nil {
			return err
		}
	}
}

// pingPongEnds registers an end.
func pingPongEnds(n *nic.NIC, me, peer string, size int, region []byte, fd int) (*ends, error) {
	p, err := n.Register(ctx, nic.Config{Name: me})
	if err != nil {
		return nil, err
	}
	e := &ends{p: p, peer: name(peer), long: region != nil}
	e.in = nic.Message{Peer: e.peer, Len: size, Flags: nic.Doorbell | nic.Inline}
	e.out = e.in
	if region != nil {
		var h nic.Handle
		if fd >= 0 {
			h, err = p.TranslateFile(region, fd, 0, nic.Read|nic.Write)
		} else {
			h, err = p.Translate(region, nic.Read|nic.Write)
		}
		if err != nil {
			return nil, err
		}
		d := []nic.Descriptor{{Handle: h, Len: uint32(size)}}
		e.in.Flags, e.out.Flags = nic.Doorbell, nic.Doorbell
		e.in.Descriptors, e.out.Descriptors = d, d
	}
	return e, nil
}

func echoRole(in *json.Decoder) error {
	var x echo
	if err := in.Decode(&x); err != nil {
		return err
	}
	n, err := nic.Open(x.Path)
	if err != nil {
		return err
	}
	defer n.Close()
	var region []byte
	fd := -1
	if x.Size > 1024 {
		t := &roleTB{}
		if x.Arena {
			region, fd = mapping(t, x.Size)
		} else {
			region = anonymous(t, x.Size)
		}
	}
	e, err := pingPongEnds(n, "echo", "main", x.Size, region, fd)
	if err != nil {
		return err
	}
	if err := e.post(); err != nil {
		return err
	}
	say("ready")
	for {
		if err := e.wait(e.p.ReceiveDoorbell); err != nil {
			return err
		}
		if err := e.post(); err != nil {
			return err
		}
		if err := e.send(); err != nil {
			return err
		}
		if err := e.wait(e.p.SendDoorbell); err != nil {
			return err
		}
	}
}

// roleTB lets roles use what tests use.
type roleTB struct{ testing.TB }

func (*roleTB) Helper()        {}
func (*roleTB) Cleanup(func()) {}
func (*roleTB) Fatal(a ...any) { panic(fmt.Sprint(a...)) }

func benchPingPong(b *testing.B, size int, arena bool) {
	_, paths, _ := softnicProcess(b, Config{})
	n := open(b, paths[0])
	var region []byte
	fd := -1
	if size > 1024 {
		if arena {
			region, fd = mapping(b, size)
		} else {
			region = anonymous(b, size)
		}
	}
	e, err := pingPongEnds(n, "main", "echo", size, region, fd)
	if err != nil {
		b.Fatal(err)
	}
	c := startChild(b, "echo")
	c.tell(&echo{Path: paths[0], Size: size, Arena: arena})
	var ready string
	c.hear(&ready)
	b.ReportAllocs()
	for b.Loop() {
		for _, err := range []error{e.post(), e.send(), e.wait(e.p.SendDoorbell), e.wait(e.p.ReceiveDoorbell)} {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	half := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / 2
	b.ReportMetric(half, "ns/half")
	if size > 1024 {
		b.ReportMetric(float64(size)/half*1e3, "MB/s")
	}
}

func BenchmarkHalfRoundTrip8B(b *testing.B) {
	b.Run("softnic", func(b *testing.B) { benchPingPong(b, 8, false) })
	b.Run("unix", benchUnix)
}

func BenchmarkHalfRoundTrip1MiB(b *testing.B) {
	b.Run("memfd", func(b *testing.B) { benchPingPong(b, 1<<20, true) })
	b.Run("private", func(b *testing.B) { benchPingPong(b, 1<<20, false) })
}

func unixRole(in *json.Decoder) error {
	var path string
	if err := in.Decode(&path); err != nil {
		return err
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	buf := make([]byte, 8)
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			return nil
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}

func benchUnix(b *testing.B) {
	path := filepath.Join(dir(b), "u")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	startChild(b, "unix").tell(path)
	c, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 8)
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/half")
}

type member struct {
	Path    string
	Rank, N int
	Size    int // of broadcasts; 0: barriers
	Rounds  int
}

// memberRole does rounds of barriers or broadcasts with others of a group, and
// says how long they took.
func memberRole(in *json.Decoder) error {
	var x member
	if err := in.Decode(&x); err != nil {
		return err
	}
	n, err := nic.Open(x.Path)
	if err != nil {
		return err
	}
	defer n.Close()
	p, err := n.Register(ctx, nic.Config{Name: fmt.Sprint("m", x.Rank), Group: "all", GroupSize: x.N})
	if err != nil {
		return err
	}
	e := &ends{p: p}
	var h nic.Handle
	if x.Size > 0 {
		m, fd := mapping(&roleTB{}, x.Size)
		if h, err = p.TranslateFile(m, fd, 0, nic.Read|nic.Write); err != nil {
			return err
		}
	}
	msg := nic.Message{Peer: name("m0"), Len: x.Size, Flags: nic.Doorbell, Descriptors: []nic.Descriptor{{Handle: h, Len: uint32(x.Size)}}}
	barrier := func() error {
		if err := p.Barrier(0, name("all"), x.N); err != nil {
			return err
		}
		if err := p.Kick(); err != nil {
			return err
		}
		return e.wait(p.SendDoorbell)
	}
	if err := barrier(); err != nil {
		return err
	}
	start := time.Now()
	for range x.Rounds {
		if x.Size > 0 {
			doorbell := p.ReceiveDoorbell
			if x.Rank == 0 {
				doorbell = p.SendDoorbell
				err = p.Broadcast(0, name("all"), &msg, false)
			} else {
				err = p.Post(nic.Receive, 0, &msg)
			}
			if err == nil {
				err = p.Kick()
			}
			if err == nil {
				err = e.wait(doorbell)
			}
		} else {
			err = barrier()
		}
		if err != nil {
			return err
		}
	}
	say(time.Since(start).Nanoseconds())
	return barrier() // nobody leaves before all are done
}

func benchMembers(b *testing.B, size int) {
	const n = 8
	_, paths, _ := softnicProcess(b, Config{})
	var all []*child
	for i := range n {
		c := startChild(b, "member")
		c.tell(&member{Path: paths[0], Rank: i, N: n, Size: size, Rounds: b.N})
		all = append(all, c)
	}
	var ns int64
	for _, c := range all {
		var v int64
		c.hear(&v)
		ns = max(ns, v)
	}
	b.ReportMetric(float64(ns)/float64(b.N), "ns/op")
}

func BenchmarkBarrier8(b *testing.B)          { benchMembers(b, 0) }
func BenchmarkBroadcast64KiBTo8(b *testing.B) { benchMembers(b, 64<<10) }
