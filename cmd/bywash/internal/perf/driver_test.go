package perf

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	_ "github.com/bywash/bywash/shm"
)

// liar is shm, except that it spoils the last byte of the 100th message that
// is not one of the engine's own, and that it has nothing but what a driver
// must have.
type liar struct{ driver.Driver }

type liarNIC struct{ driver.NIC }

type liarContext struct{ driver.Context }

type liarInstance struct {
	driver.Instance
	sent int
}

func init() {
	d, err := driver.Lookup("shm")
	if err != nil {
		panic(err)
	}
	driver.Register(liar{d})
}

func (liar) Name() string { return "liar" }

func (l liar) Query(h driver.Hints) (driver.NIC, error) {
	n, err := l.Driver.Query(h)
	if err != nil {
		return nil, err
	}
	return liarNIC{n}, nil
}

func bare(p *driver.Properties) *driver.Properties {
	q := *p
	c := &q.Capabilities
	c.BufferSize, c.BufferSend, c.BufferRecv, c.Probe, c.SendWait, c.RecvWait, c.Prefetch, c.OneSided = 0, false, false, false, false, false, false, nil
	return &q
}

func (n liarNIC) Properties() *driver.Properties { return bare(n.NIC.Properties()) }

func (n liarNIC) Open(a driver.Attributes) (driver.Context, error) {
	c, err := n.NIC.Open(a)
	if err != nil {
		return nil, err
	}
	return liarContext{c}, nil
}

func (c liarContext) Properties() *driver.Properties { return bare(c.Context.Properties()) }

func (c liarContext) Connect(url string) (driver.Instance, error) {
	i, err := c.Context.Connect(url)
	if err != nil {
		return nil, err
	}
	return &liarInstance{Instance: i}, nil
}

func (i *liarInstance) SendPost(p *driver.Packet) error {
	if b, ok := p.Contiguous(); ok && len(b) >= 64 && os.Getenv("LIAR") != "" {
		if i.sent++; i.sent == 100 {
			b[len(b)-1] ^= 0x40
		}
	}
	return i.Instance.SendPost(p)
}

func TestValidateFindsACorruptedMessage(t *testing.T) {
	tests, sizes := []Test{Lat, BW, BiBW}, []int{64, 4096, 1 << 20}
	if testing.Short() {
		tests, sizes = []Test{Lat, BW}, []int{64, 1 << 20}
	}
	for _, test := range tests {
		for _, size := range sizes {
			if testing.Short() && (test == Lat) != (size == 64) {
				continue
			}
			for _, lie := range []string{"", "yes"} {
				t.Setenv("LIAR", lie)
				c := config("liar", test)
				c.Validate, c.Sizes = true, []int{size}
				err := Run(t.Context(), c, &collector{})
				if lie == "" && err != nil {
					t.Errorf("%s %d: %v", test, size, err)
				}
				if lie != "" && (err == nil || !strings.Contains(err.Error(), "validation failed")) {
					t.Errorf("%s %d: a spoilt byte gave %v", test, size, err)
				}
			}
		}
	}
}

func TestEveryTestRunsOnSharedMemory(t *testing.T) {
	modes := []struct {
		wait, mem string
		validate  bool
		peers     int
	}{
		{"block", "heap", true, 0}, {"poll", "arena", true, 0},
		{"poll", "arena", false, 0}, {"poll", "arena", true, 40}, {"poll", "heap", true, 0},
		{"block", "arena", true, 0}, {"block", "heap", false, 0}, {"block", "arena", false, 3},
	}
	if testing.Short() {
		modes = modes[:2]
	}
	for _, mode := range modes {
		tests, err := ParseTests("all")
		if err != nil {
			t.Fatal(err)
		}
		c := config("shm", tests...)
		c.Wait, c.Mem, c.Validate, c.Peers = mode.wait, mode.mem, mode.validate, mode.peers
		c.Sizes = []int{3, 8, 4096, 100000}
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		var got collector
		if err := Run(ctx, c, &got); err != nil {
			t.Errorf("%+v: %v", mode, err)
		}
		cancel()
		for _, m := range got.missing {
			if m.Test != Rate && m.Test != Barrier && m.Test != Bcast && (m.Test != FaddLat && m.Test != CswapLat || mode.mem == "arena") {
				t.Errorf("%+v: %s", mode, m)
			}
		}
		// Two tests have all four sizes but rate, three have one.
		if want := 8*4 - 1 + 3; mode.mem == "arena" && len(got.results) != want {
			t.Errorf("%+v: %d results, want %d", mode, len(got.results), want)
		}
	}
}

// listening serves measurements until the test ends.
func listening(t *testing.T) (addr, secret string) {
	t.Helper()
	secret = filepath.Join(t.TempDir(), "secret")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, &Config{SecretFile: secret, Version: "test"}, addr, io.Discard) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	})
	for range 100 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return addr, secret
}

// Strangers who say nothing, nonsense, or half of what they should keep nobody from measuring: not one who comes later.
func TestStrangersHoldUpNobody(t *testing.T) {
	addr, secret := listening(t)
	for k := range 300 { // more than a rendezvous keeps
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte([]string{"", "GET / HTTP/1.0\r\n", "\x01half a hello"}[k%3])); err != nil {
			t.Fatal(err)
		}
	}
	c := config("shm", Lat)
	c.Sizes, c.Remote, c.SecretFile, c.Wait = []int{8}, addr, secret, "block"
	c.Options = map[string]string{"path": "ring"}
	var got collector
	if err := Run(t.Context(), c, &got); err != nil || len(got.results) != 1 {
		t.Errorf("Run: %v, %d results; %v", err, len(got.results), got.missing)
	}
}

func TestTwoMachinesAuthenticateAndMeasure(t *testing.T) {
	addr, secret := listening(t)
	c := config("shm", Lat)
	c.Sizes, c.Remote, c.SecretFile = []int{8}, addr, secret
	c.Wait = "block" // both ends are in this process: if they spun, each message would wait until the other is preempted
	c.Options = map[string]string{"path": "ring"}
	var got collector
	if err := Run(t.Context(), c, &got); err != nil || len(got.results) != 1 {
		t.Errorf("Run: %v, %d results; %v", err, len(got.results), got.missing)
	}
	c.Version = "other"
	if err := Run(t.Context(), c, &collector{}); err == nil || !strings.Contains(err.Error(), "same release") {
		t.Errorf("another version: %v", err)
	}
	c.Version, c.SecretFile = "test", filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(c.SecretFile, []byte("0123456789abcdef0123"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), c, &collector{}); err == nil || !strings.Contains(err.Error(), "another secret") {
		t.Errorf("another secret: %v", err)
	}
}

func TestAllocationsOnTheDataPath(t *testing.T) {
	b := make([]byte, 4096)
	if n := testing.AllocsPerRun(100, func() { fill(b, 1); _ = verify(b, 1); touchWrite(b, 1); _ = touchRead(b) }); n != 0 {
		t.Errorf("pattern: %v allocations", n)
	}
	r := newRecorder()
	if n := testing.AllocsPerRun(100, func() { r.add(time.Microsecond, 10) }); n != 0 {
		t.Errorf("recorder: %v allocations", n)
	}
}
