//go:build linux && !(386 || arm || mips || mipsle)

package softnic

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/nic"
)

var testKey = &Key{1, 2, 3}

// cluster is two softnics on loopback that know each other.
func cluster(t testing.TB, c Config) (a, b *Server) {
	t.Helper()
	c.Key, c.Listen = testKey, "127.0.0.1:0"
	a = serve(t, c)
	c.First, c.Peers = 10, []string{a.Addr().String()}
	b = serve(t, c)
	meet(t, a, b)
	return a, b
}

func meet(t testing.TB, all ...*Server) {
	t.Helper()
	for _, s := range all {
		until(t, "all NICs know each other", func() bool { return s.Counters().Cluster == len(all)*len(s.nics) })
	}
}

func TestWireCarriesMessages(t *testing.T) {
	x, y := cluster(t, Config{NICs: 2})
	a, b := join(t, x.Sockets()[1], nic.Config{Name: "a"}), join(t, y.Sockets()[0], nic.Config{Name: "b"})
	const size = 3<<20 + 77
	from, to := anonymous(t, size), anonymous(t, size)
	h1, err1 := a.Translate(from, nic.Read)
	h2, err2 := b.Translate(to, nic.Write)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	for round := range uint64(3) {
		fill(from, round)
		kick(t, b, b.Post(nic.Receive, 0, &nic.Message{Peer: name("a"), Len: size, Flags: nic.Doorbell, Descriptors: []nic.Descriptor{{Handle: h2, Len: size}}}))
		kick(t, a, a.Post(nic.Send, 0, &nic.Message{Peer: name("b"), Len: size, Flags: nic.Doorbell, Descriptors: []nic.Descriptor{{Handle: h1, Len: size}}}))
		if s, n := received(t, b, 0); s != nic.Done || n != size || !bytes.Equal(from, to) {
			t.Fatalf("%v, %d bytes, equal %v", s, n, bytes.Equal(from, to))
		}
		if s, n := sent(t, a, 0); s != nic.Done || n != size {
			t.Fatalf("sent %v, %d bytes", s, n)
		}
		for i := range 50 {
			kick(t, a, a.ReceiveShort(0, name("b"), 5, 8))
			kick(t, b, b.SendShort(0, name("a"), 5, 8))
			if s, _ := received(t, a, 0); s != nic.Done {
				t.Fatalf("short message %d: %v", i, s)
			}
			sent(t, b, 0)
		}
	}
	// Names are unique in the whole cluster.
	if _, err := open(t, x.Sockets()[0]).Register(ctx, nic.Config{Name: "b"}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a name that is taken elsewhere: %v, want EADDRINUSE", err)
	}
}

// Links to other hosts exist for all packet sizes that a NIC may have.
func TestLongestPacketsCrossTheWire(t *testing.T) {
	x, y := cluster(t, Config{PacketSize: 65536})
	a, b := join(t, x.Sockets()[0], nic.Config{Name: "a"}), join(t, y.Sockets()[0], nic.Config{Name: "b"})
	awaitFrom(t, a, "b")
	const size = 65536
	from, to := anonymous(t, size), anonymous(t, size)
	fill(from, 1)
	h1, err1 := b.Translate(from, nic.Read)
	h2, err2 := a.Translate(to, nic.Write)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	kick(t, a, a.Post(nic.Receive, 2, &nic.Message{Peer: name("b"), Tag: 2, Len: size, Flags: nic.Doorbell, Descriptors: []nic.Descriptor{{Handle: h2, Len: size}}}))
	kick(t, b, b.Post(nic.Send, 0, &nic.Message{Peer: name("a"), Tag: 2, Len: size, Flags: nic.Doorbell, Descriptors: []nic.Descriptor{{Handle: h1, Len: size}}}))
	if s, n := received(t, a, 2); s != nic.Done || n != size || !bytes.Equal(from, to) {
		t.Errorf("%v, %d bytes, equal %v", s, n, bytes.Equal(from, to))
	}
}

// The end of a host, in order or not, is the end of its processes for others.
func TestHostThatEnds(t *testing.T) {
	for _, kill := range []bool{false, true} {
		c := Config{Key: testKey, Listen: "127.0.0.1:0", First: 1, DeadTime: time.Second}
		near := serve(t, c)
		c.First, c.Peers = 2, []string{near.Addr().String()}
		far, paths, _ := softnicProcess(t, c)
		until(t, "both NICs know each other", func() bool { return near.Counters().Cluster == 2 })
		a := join(t, near.Sockets()[0], nic.Config{Name: "a"})
		join(t, paths[0], nic.Config{Name: "b"})
		awaitFrom(t, a, "b")
		// A message that b never takes.
		kick(t, a, a.SendShort(0, name("b"), 2, 8))
		if kill {
			far.kill()
		} else {
			far.in.Close()
		}
		if s, _ := received(t, a, 0); s != nic.Gone {
			t.Errorf("killed %v: %v, want gone", kill, s)
		}
		// It may come back, under its old number.
		far, paths, _ = softnicProcess(t, c)
		until(t, "both NICs know each other again", func() bool { return near.Counters().Cluster == 2 })
		b := join(t, paths[0], nic.Config{Name: "b"})
		awaitFrom(t, a, "b")
		kick(t, b, b.SendShort(0, name("a"), 1, 8))
		if s, _ := received(t, a, 0); s != nic.Done {
			t.Errorf("killed %v: %v after it came back", kill, s)
		}
		far.kill()
	}
}

// awaitFrom posts receive 0 of a, for a message of tag 1 from a process of another host. The NICs of a cluster are
// notified of a new process one after the other.
func awaitFrom(t *testing.T, a *nic.Process, from string) {
	t.Helper()
	until(t, from+" is known", func() bool {
		kick(t, a, a.ReceiveShort(0, name(from), 1, 8))
		// Commands are taken in order: this one's doorbell shows that the first one was.
		kick(t, a, a.ReceiveShort(1, name("nobody"), 1, 8))
		if s, _ := received(t, a, 1); s != nic.Unknown {
			t.Fatalf("a message from an unknown process: %v", s)
		}
		s, _ := a.ReceiveDoorbell(0)
		return s == nic.Pending
	})
}

func TestOtherKeyIsIgnored(t *testing.T) {
	a := serve(t, Config{Key: testKey, Listen: "127.0.0.1:0"})
	b := serve(t, Config{Key: &Key{9}, Listen: "127.0.0.1:0", First: 2, Peers: []string{a.Addr().String()}})
	until(t, "the other one asks who is there", func() bool { return b.Counters().DatagramsSent >= 2 })
	c, err := net.Dial("udp", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	garbage := bytes.Repeat([]byte{7}, 100)
	garbage[4], garbage[5] = 0, 1 // to NIC 1, which counts it after all that came before
	_, _ = c.Write(nil)
	_, _ = c.Write(garbage)
	until(t, "garbage is dropped", func() bool { return a.Counters().Unauthenticated > 0 })
	for _, s := range []*Server{a, b} {
		if n := s.Counters().Cluster; n != 1 {
			t.Errorf("%d NICs in the cluster, want 1", n)
		}
	}
}

func TestKeyFile(t *testing.T) {
	d := dir(t)
	write := func(s string, mode os.FileMode) string {
		p := filepath.Join(d, "key")
		_ = os.Remove(p)
		if err := os.WriteFile(p, []byte(s), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	good := strings.Repeat("0f", 16)
	if k, err := ReadKey(write(good+"\n", 0o600)); err != nil || k[15] != 0x0f {
		t.Errorf("%v %v", k, err)
	}
	for what, x := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"readable by others": {good, 0o644, "chmod 600"},
		"short":              {good[2:], 0o600, "32 hexadecimal"},
		"long":               {good + "00", 0o600, "32 hexadecimal"},
		"not hexadecimal":    {strings.Repeat("xx", 16), 0o600, "32 hexadecimal"},
		"empty":              {"", 0o600, "32 hexadecimal"},
	} {
		if _, err := ReadKey(write(x.text, x.mode)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", what, err, x.want)
		}
	}
}

func TestBadConfigurations(t *testing.T) {
	for what, c := range map[string]Config{
		"many NICs":        {NICs: 1000},
		"number 0":         {First: -1},
		"number too high":  {First: 65535, NICs: 2},
		"sockets":          {NICs: 1, Sockets: []string{"a", "b"}},
		"wire, no key":     {Listen: ":0"},
		"peers, no wire":   {Peers: []string{"a"}},
		"tiny packets":     {PacketSize: 10},
		"uneven packets":   {PacketSize: 1025},
		"unknown host":     {Sockets: []string{filepath.Join(dir(t), "s")}, Listen: "no.such.host.invalid:1", Key: testKey},
		"folder not there": {Sockets: []string{"/nonexistent/a/b"}},
	} {
		s, err := Start(c)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.HasPrefix(err.Error(), "softnic: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := EnsureConfig(context.Background(), Config{NICs: -1}); err == nil {
		t.Error("ensure took a bad configuration")
	}
}
