//go:build linux && !(386 || arm || mips || mipsle)

package nic

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/internal/abi"
)

// fake is a softnic that the test controls: it behaves correctly in all that the test leaves
// alone. Its NIC never reads a command by itself.
type fake struct {
	t    testing.TB
	path string
	l    *net.UnixListener

	// How the fake NIC misbehaves.
	info      func(*abi.Info)
	layout    func(*abi.MemoryInfo)
	seals     int
	vniShort  bool
	dropFDs   int  // so many descriptors are missing
	silent    bool // answers nothing
	errno     map[uint32]unix.Errno
	raw       []byte // sent as it is instead of each answer
	onRequest func(request uint32)
	cfg       sync.Mutex // of all these

	mu       sync.Mutex
	conns    []*net.UnixConn
	vni, hps []byte
	m        abi.MemoryInfo
	wakeup   int
}

func newFake(t testing.TB) *fake {
	dir, err := os.MkdirTemp("", "nic")
	if err != nil {
		t.Fatal(err)
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	f := &fake{t: t, path: filepath.Join(dir, "s"), wakeup: -1, seals: seals}
	if f.l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: f.path, Net: "unixpacket"}); err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := f.l.AcceptUnix()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns = append(f.conns, c)
			f.mu.Unlock()
			serving.Go(func() { f.serve(c) })
		}
	})
	t.Cleanup(func() {
		f.l.Close()
		f.hangUp()
		serving.Wait()
		f.unmap()
		_ = os.RemoveAll(dir)
	})
	return f
}

func (f *fake) hangUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.Close()
	}
}

func (f *fake) unmap() {
	for _, b := range [][]byte{f.vni, f.hps} {
		if b != nil {
			_ = unix.Munmap(b)
		}
	}
	if f.wakeup >= 0 {
		unix.Close(f.wakeup)
	}
	f.vni, f.hps, f.wakeup = nil, nil, -1
}

func (f *fake) serve(c *net.UnixConn) {
	defer c.Close()
	for {
		b, fds, err := abi.Receive(c, abi.MaxFDs)
		abi.CloseAll(fds)
		if err != nil {
			return
		}
		h, body, err := abi.ParseRequest(b)
		if err != nil {
			f.t.Error("client sent a malformed request")
			return
		}
		if len(body) != abi.RequestSize(h.Request) {
			f.t.Errorf("request %d has %d bytes, want %d", h.Request, len(body), abi.RequestSize(h.Request))
		}
		f.cfg.Lock()
		if f.onRequest != nil {
			f.onRequest(h.Request)
		}
		if !f.silent && h.Request != abi.ReqAbandon {
			f.answer(c, h, body)
		}
		f.cfg.Unlock()
	}
}

// set changes what it does otherwise.
func (f *fake) set(g func(*fake)) {
	f.cfg.Lock()
	defer f.cfg.Unlock()
	g(f)
}

func (f *fake) answer(c *net.UnixConn, h abi.Header, body []byte) {
	a := abi.Answer{ID: h.ID, Errno: int32(f.errno[h.Request])}
	out := append([]byte(nil), abi.Bytes(&a)...)
	var fds []int
	switch {
	case a.Errno != 0:
	case h.Request == abi.ReqInfo:
		i := goodInfo()
		if f.info != nil {
			f.info(&i)
		}
		out = append(out, abi.Bytes(&i)...)
	case h.Request == abi.ReqRegister:
		var r abi.Register
		_ = abi.Decode(&r, body)
		fds = f.register(&r)
		out = append(out, abi.Bytes(&r)...)
		fds = fds[:len(fds)-f.dropFDs]
	case h.Request == abi.ReqTranslate:
		var t abi.Translate
		_ = abi.Decode(&t, body)
		t.Handle = 17
		out = append(out, abi.Bytes(&t)...)
	case h.Request == abi.ReqStatistics:
		out = append(out, abi.Bytes(&abi.Statistics{Commands: 3})...)
	}
	if f.raw != nil && h.Request != abi.ReqInfo {
		out = append(out[:abi.HeaderSize], f.raw...)
	}
	_ = abi.Send(c, out, fds...)
}

func goodInfo() abi.Info {
	return abi.Info{
		ABIVersion: abi.Version, Features: abi.FeatureSoft, NIC: 1, NICs: 1, PacketSize: 16384, MaxMessage: abi.MaxMessage,
		SizeCommand: 64, SizeContext: 64, SizeDescriptor: 16, SizeMemoryInfo: 80, SizeStatus: 192, SizeDoorbell: 8,
	}
}

// register lays out a Virtual Network Interface and a host page.
func (f *fake) register(r *abi.Register) []int {
	var at uint32
	place := func(n, each uint32) uint32 {
		p := at
		at = (at + n*each + 63) &^ 63
		return p
	}
	m := abi.MemoryInfo{
		ABIVersion: abi.Version, Commands: r.Commands, Sends: r.Sends, Receives: r.Receives,
		RegionSize: r.RegionSize, PoolEntries: r.PoolEntries, RingEntries: 1,
	}
	for m.RingEntries < r.Sends+r.Receives {
		m.RingEntries *= 2
	}
	m.CommandQueue, m.SendContexts, m.ReceiveContexts = place(r.Commands, 64), place(r.Sends, 64), place(r.Receives, 64)
	m.SendRegions, m.ReceiveRegions = place(r.Sends, r.RegionSize), place(r.Receives, r.RegionSize)
	m.BufferPool = place(r.PoolEntries, 16)
	m.VNISize = (at + 4095) &^ 4095
	at = uint32(unsafe.Sizeof(m))
	at = (at + 63) &^ 63
	m.Status, m.SendDoorbells, m.ReceiveDoorbells, m.DoorbellRing = place(1, 192), place(r.Sends, 8), place(r.Receives, 8), place(m.RingEntries, 4)
	m.HPSSize = (at + 4095) &^ 4095
	r.VNISize, r.HPSSize, r.PID, r.Generation, r.NIC = m.VNISize, m.HPSSize, 4, 9, 1
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unmap()
	f.m = m
	size := m.VNISize
	if f.vniShort {
		size -= 4096
	}
	vniFD, vni := f.memfd(size)
	hpsFD, hps := f.memfd(m.HPSSize)
	f.vni, f.hps = vni, hps
	if f.layout != nil {
		f.layout(&m)
	}
	copy(hps, abi.Bytes(&m))
	var err error
	if f.wakeup, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		f.t.Error(err)
	}
	wakeup, _ := unix.Dup(f.wakeup)
	defer func() { // after they were sent
		f.t.Cleanup(func() { abi.CloseAll([]int{vniFD, hpsFD, wakeup}) })
	}()
	return []int{vniFD, hpsFD, wakeup}
}

func (f *fake) memfd(size uint32) (int, []byte) {
	fd, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, f.seals)
	}
	var b []byte
	if err == nil {
		b, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		f.t.Error(err)
	}
	return fd, b
}

func (f *fake) status() *abi.Status { return &view[abi.Status](f.hps, f.m.Status, 1)[0] }

func (f *fake) commands() []abi.Command {
	return view[abi.Command](f.vni, f.m.CommandQueue, f.m.Commands)
}

// ring rings a doorbell as a NIC does.
func (f *fake) ring(receive bool, i int, d abi.Doorbell) {
	at, entry := f.m.SendDoorbells, uint32(i)
	if receive {
		at, entry = f.m.ReceiveDoorbells, uint32(i)|abi.RingReceive
	}
	atomic.StoreUint64(&view[uint64](f.hps, at, f.m.Sends)[i], join(d))
	f.entry(entry)
}

// entry puts one into the Doorbell Ring and wakes the waiters.
func (f *fake) entry(e uint32) {
	st := f.status()
	tail := atomic.LoadUint32(&st.RingTail)
	atomic.StoreUint32(&view[uint32](f.hps, f.m.DoorbellRing, f.m.RingEntries)[tail&(f.m.RingEntries-1)], e)
	atomic.StoreUint32(&st.RingTail, tail+1)
	if atomic.LoadUint32(&st.Sleepers) != 0 {
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&st.RingTail)), futexWake, 1<<30, 0, 0, 0)
	}
}

func open(t testing.TB, path string) *NIC {
	t.Helper()
	n, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func register(t testing.TB, f *fake, c Config) *Process {
	t.Helper()
	c.Name = "p"
	p, err := open(t, f.path).Register(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock() // for the race detector, which knows nothing of sockets
	defer f.mu.Unlock()
	return p
}

func name(t testing.TB, s string) Name {
	t.Helper()
	n, err := MakeName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func openFDs(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}
