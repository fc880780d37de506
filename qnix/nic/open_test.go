//go:build linux && !(386 || arm || mips || mipsle)

package nic

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/rights"
	"github.com/bywash/bywash/internal/userdir"
	"github.com/bywash/bywash/qnix/internal/abi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOpenErrorsNameTheRemedy(t *testing.T) {
	dir := t.TempDir()
	plain, stale := filepath.Join(dir, "plain"), filepath.Join(dir, "stale")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: stale, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, x := range []struct {
		path, remedy string
		is           error
	}{
		{"/dev/qnix-none", "modprobe qnix", unix.ENOENT},
		{filepath.Join(dir, "none"), "bywash softnic", unix.ENOENT},
		{stale, "bywash softnic", unix.ECONNREFUSED},
		{plain, "neither a device nor a socket", unix.EINVAL},
	} {
		n, err := Open(x.path)
		if n != nil || !errors.Is(err, x.is) || !strings.Contains(err.Error(), x.remedy) {
			t.Errorf("open %s: %v, want %v with %q", x.path, err, x.is, x.remedy)
		}
	}
	for _, x := range []struct {
		path, remedy string
		err          error
	}{
		{"/dev/qnix0", "usermod -a -G qnix", unix.EACCES},
		{"/dev/qnix0", "insmod", unix.ENXIO},
		{"/run/s", "--allow-uids", unix.EACCES},
		{"/run/s", "ulimit -n", unix.EMFILE},
	} {
		if err := openError(x.path, x.err); !errors.Is(err, x.err) || !strings.Contains(err.Error(), x.remedy) {
			t.Errorf("open %s: %v, want %q", x.path, err, x.remedy)
		}
	}
	for _, e := range []unix.Errno{unix.EADDRINUSE, unix.EUSERS, unix.EAGAIN, unix.ETIMEDOUT, unix.EISCONN, unix.ENOMEM, unix.EPERM, unix.ENOTTY} {
		if err := hostError("x", e); !errors.Is(err, e) || !strings.Contains(err.Error(), "(") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: no remedy in one line", err)
		}
	}
}

func TestOtherVersionIsRefused(t *testing.T) {
	for _, x := range []struct {
		what string
		f    func(*abi.Info)
	}{
		{"newer", func(i *abi.Info) { i.ABIVersion++ }},
		{"older", func(i *abi.Info) { i.ABIVersion-- }},
		{"longer command", func(i *abi.Info) { i.SizeCommand = 128 }},
		{"other doorbell", func(i *abi.Info) { i.SizeDoorbell = 4 }},
	} {
		f := newFake(t)
		f.set(func(f *fake) { f.info = x.f })
		if n, err := Open(f.path); n != nil || !errors.Is(err, ErrVersion) {
			t.Errorf("%s: %v, want ErrVersion", x.what, err)
		}
	}
}

func TestOpenDoesNotHangOnAStoppedNIC(t *testing.T) {
	f := newFake(t)
	f.set(func(f *fake) { f.silent = true })
	if _, err := Open(f.path); !errors.Is(err, unix.EAGAIN) || !strings.Contains(err.Error(), "stopped") {
		t.Fatalf("%v, want EAGAIN", err)
	}
}

func TestHostileAnswersAreRefused(t *testing.T) {
	layout := func(g func(*abi.MemoryInfo)) func(*fake) { return func(f *fake) { f.layout = g } }
	for what, set := range map[string]func(*fake){
		"version":               layout(func(m *abi.MemoryInfo) { m.ABIVersion = 7 }),
		"queue outside":         layout(func(m *abi.MemoryInfo) { m.CommandQueue = m.VNISize }),
		"queue wraps":           layout(func(m *abi.MemoryInfo) { m.CommandQueue = math.MaxUint32 - 63 }),
		"queue not aligned":     layout(func(m *abi.MemoryInfo) { m.CommandQueue++ }),
		"contexts outside":      layout(func(m *abi.MemoryInfo) { m.SendContexts = m.VNISize - 64 }),
		"regions outside":       layout(func(m *abi.MemoryInfo) { m.ReceiveRegions = m.VNISize - 64 }),
		"pool outside":          layout(func(m *abi.MemoryInfo) { m.BufferPool = m.VNISize }),
		"status outside":        layout(func(m *abi.MemoryInfo) { m.Status = m.HPSSize - 64 }),
		"doorbells outside":     layout(func(m *abi.MemoryInfo) { m.SendDoorbells = m.HPSSize - 8 }),
		"ring outside":          layout(func(m *abi.MemoryInfo) { m.DoorbellRing = m.HPSSize - 4 }),
		"ring no power of two":  layout(func(m *abi.MemoryInfo) { m.RingEntries++ }),
		"ring too short":        layout(func(m *abi.MemoryInfo) { m.RingEntries = 1 }),
		"ring of gigabytes":     layout(func(m *abi.MemoryInfo) { m.RingEntries = 1 << 31 }),
		"more commands":         layout(func(m *abi.MemoryInfo) { m.Commands *= 2 }),
		"fewer sends":           layout(func(m *abi.MemoryInfo) { m.Sends-- }),
		"other region size":     layout(func(m *abi.MemoryInfo) { m.RegionSize *= 2 }),
		"memory can shrink":     func(f *fake) { f.seals = unix.F_SEAL_GROW },
		"memory short":          func(f *fake) { f.vniShort = true },
		"a descriptor missing":  func(f *fake) { f.dropFDs = 1 },
		"no descriptors":        func(f *fake) { f.dropFDs = 3 },
		"answer of other size":  func(f *fake) { f.raw = []byte("short") },
		"answer without a body": func(f *fake) { f.raw = []byte{} },
	} {
		t.Run(what, func(t *testing.T) {
			f := newFake(t)
			f.set(set)
			n, err := Open(f.path)
			if err != nil {
				t.Fatal(err)
			}
			p, err := n.Register(context.Background(), Config{Name: "p", PoolEntries: 8})
			if p != nil || !errors.Is(err, ErrUntrusted) && !errors.Is(err, ErrVersion) {
				t.Errorf("%v, want ErrUntrusted", err)
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestClosingLeavesNoDescriptor(t *testing.T) {
	f := newFake(t)
	before := 0
	for i := range 3 { // the first makes what the runtime keeps
		n, err := Open(f.path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := n.Register(context.Background(), Config{Name: "p"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Translate(make([]byte, 10), Read); err != nil {
			t.Error(err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if err := n.Close(); !errors.Is(err, ErrClosed) {
			t.Errorf("second Close: %v, want ErrClosed", err)
		}
		// The fake keeps 2 mappings, and each time 4 descriptors and a connection.
		if got := openFDs(t) - 5*i; i == 0 {
			before = got
		} else if got > before {
			t.Errorf("%d descriptors, were %d", got, before)
		}
	}
}

func TestBadConfigurationIsInvalid(t *testing.T) {
	f := newFake(t)
	n := open(t, f.path)
	for what, c := range map[string]Config{
		"no name":         {},
		"long name":       {Name: strings.Repeat("x", 20)},
		"space":           {Name: "a b"},
		"not ASCII":       {Name: "ä"},
		"commands":        {Name: "p", Commands: 3},
		"many commands":   {Name: "p", Commands: 8192},
		"negative sends":  {Name: "p", Sends: -1},
		"many receives":   {Name: "p", Receives: 4097},
		"region":          {Name: "p", RegionSize: 100},
		"long region":     {Name: "p", RegionSize: 1 << 20},
		"pool":            {Name: "p", PoolEntries: 65537},
		"group, no size":  {Name: "p", Group: "g"},
		"size, no group":  {Name: "p", GroupSize: 3},
		"bad group":       {Name: "p", Group: "g g", GroupSize: 3},
		"huge group size": {Name: "p", Group: "g", GroupSize: math.MaxInt},
	} {
		if _, err := n.Register(context.Background(), c); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
}

func TestOneRegistrationAHandle(t *testing.T) {
	f := newFake(t)
	p := register(t, f, Config{})
	if _, err := p.nic.Register(context.Background(), Config{Name: "q"}); !errors.Is(err, unix.EISCONN) {
		t.Errorf("second registration: %v, want EISCONN", err)
	}
	if n := p.NIC(); n != 1 {
		t.Errorf("NIC %d, want 1", n)
	}
	if err := p.Deregister(); err != nil {
		t.Error(err)
	}
	q, err := p.nic.Register(context.Background(), Config{Name: "q", Sends: 5, Receives: 6, RegionSize: 128})
	if err != nil {
		t.Fatal(err)
	}
	if q.Sends() != 5 || q.Receives() != 6 || len(q.SendRegion(4)) != 128 || cap(q.ReceiveRegion(0)) != 128 {
		t.Error("other contexts than were asked for")
	}
}

// A registration that is cancelled while a NIC does not answer ends soon, and
// takes the connection with it.
func TestCancelledRegistrationEnds(t *testing.T) {
	f := newFake(t)
	n := open(t, f.path)
	ctx, cancel := context.WithCancel(context.Background())
	f.set(func(f *fake) {
		f.silent = true
		f.onRequest = func(r uint32) {
			if r == abi.ReqRegister {
				cancel()
			}
		}
	})
	if _, err := n.Register(ctx, Config{Name: "p"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
	if _, err := n.Register(context.Background(), Config{Name: "p"}); !errors.Is(err, ErrGone) && !errors.Is(err, net.ErrClosed) {
		t.Errorf("afterwards: %v, want ErrGone", err)
	}
}

// A NIC that answers the first request and hangs up at once has answered.
func TestAnswerCountsThoughTheNICHangsUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nic")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	defer func() { l.Close(); <-done }()
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if b, _, err := abi.Receive(c, 0); err == nil {
				if h, _, err := abi.ParseRequest(b); err == nil {
					_ = abi.Send(c, abi.Bytes(&abi.Answer{ID: h.ID, Errno: int32(unix.EUSERS)}))
				}
			}
			c.Close()
		}
	}()
	for k := range 3000 {
		if _, err := Open(path); !errors.Is(err, unix.EUSERS) {
			t.Fatalf("open %d: got %v, want %v", k, err, unix.EUSERS)
		}
	}
}

// A NIC that answers late and hangs up, without reading that the request was given up meanwhile, has answered.
func TestLateAnswerCountsThoughTheNICHangsUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nic")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		b, _, err := abi.Receive(c, 0)
		if err != nil {
			served <- err
			return
		}
		h, _, err := abi.ParseRequest(b)
		raw, e := c.SyscallConn()
		if err = errors.Join(err, e); err == nil {
			err = raw.Read(func(fd uintptr) bool { // until the second request is there, which is left
				n, _, e := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
				return e == nil && n > 0
			})
		}
		served <- errors.Join(err, abi.Send(c, abi.Bytes(&abi.Answer{ID: h.ID, Errno: int32(unix.EUSERS)})))
	}()
	if _, err := Open(path); !errors.Is(err, unix.EUSERS) {
		t.Errorf("open: got %v, want %v", err, unix.EUSERS)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// Another user can make this user's folder in the one for temporary files: a NIC there is not trusted.
func TestOnlyOwnNICsAreTrustedInTheTemporaryFolder(t *testing.T) {
	own := uint32(os.Geteuid())
	for _, tt := range []struct {
		path string
		user uint32
		want error
	}{
		{filepath.Join(userdir.Temporary(), "qnix0.sock"), own, nil},
		{filepath.Join(userdir.Temporary(), "qnix0.sock"), 0, nil},
		{filepath.Join(userdir.Temporary(), "qnix7.sock"), own + 1, errForeign},
		{filepath.Join(userdir.Temporary(), "qnix0.sock"), rights.Nobody, errForeign},
		{filepath.Join(t.TempDir(), "qnix0.sock"), own + 1, nil},
	} {
		if err := checkServer(tt.path, tt.user); err != tt.want {
			t.Errorf("%s of user %d: got %v, want %v", tt.path, tt.user, err, tt.want)
		}
	}
}
