//go:build linux && !(386 || arm || mips || mipsle)

package verbs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/driver/regcache"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/verbs/ibv"
)

// device is the one to test, or a skip.
func device(t testing.TB) string {
	t.Helper()
	name, err := chooseDevice(os.Getenv("BYWASH_RDMA_DEV"))
	switch {
	case isUnavailable(err):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	return name
}

// limit bounds everything that is waited for, under emulation too.
const limit = time.Minute

func within(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !f(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

func openDevice(t testing.TB, track driver.Track, opts map[string]string) *opened {
	t.Helper()
	nic, err := verbsDriver{}.Query(driver.Hints{Device: device(t), Track: track, Options: opts})
	if err != nil {
		t.Fatal(err)
	}
	c, err := nic.Open(driver.Attributes{Secret: []byte("a secret of the test")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if s, ok := c.(smallContext); ok {
		return s.opened
	}
	return c.(*opened)
}

// connectBoth connects two contexts, and returns the error of either connection.
func connectBoth(t testing.TB, a, b *opened) (ia, ib driver.Instance, err error) {
	t.Helper()
	if ia, err = a.Connect(b.URL()); err != nil {
		t.Fatal(err)
	}
	if ib, err = b.Connect(a.URL()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return ia, ib, cmp.Or(ia.ConnectWait(ctx), ib.ConnectWait(ctx))
}

// connected is connectBoth for connections that must come up.
func connected(t testing.TB, a, b *opened) (ia, ib *conn) {
	t.Helper()
	x, y, err := connectBoth(t, a, b)
	if err != nil {
		t.Fatal(err)
	}
	return connOf(x), connOf(y)
}

// inMachine skips a test that changes the RDMA device or its network, which must not happen to those of a host.
func inMachine(t *testing.T) {
	t.Helper()
	if os.Getenv("VM_ADDR") == "" {
		t.Skip("changes the RDMA device or its network: needs a virtual machine of hack/vm")
	}
}

// pair is two contexts of this process, connected.
func pair(t testing.TB, track driver.Track, opts map[string]string) (a, b *conn) {
	t.Helper()
	return connected(t, openDevice(t, track, opts), openDevice(t, track, opts))
}

func connOf(i driver.Instance) *conn {
	if s, ok := i.(*small); ok {
		return &s.conn
	}
	return &i.(*large).conn
}

// move moves src to dst on the large track.
func move(t testing.TB, a, b *conn, src, dst []byte) {
	t.Helper()
	send, recv := postMove(t, a, b, src, dst)
	finished(t, a.api.SendPoll, send)
	finished(t, b.api.RecvPoll, recv)
}

// postMove posts what move waits for.
func postMove(t testing.TB, a, b *conn, src, dst []byte) (send, recv *driver.Packet) {
	t.Helper()
	send, recv = &driver.Packet{IOV: [][]byte{src}}, &driver.Packet{IOV: [][]byte{dst}}
	if err := b.api.RecvPost(recv); err != nil {
		t.Fatal(err)
	}
	send.RdvData = recv.RdvData
	if err := a.api.SendPost(send); err != nil {
		t.Fatal(err)
	}
	return send, recv
}

func finished(t testing.TB, poll func(*driver.Packet) (bool, error), p *driver.Packet) {
	t.Helper()
	within(t, "packet", func() bool {
		done, err := poll(p)
		if err != nil {
			t.Fatal(err)
		}
		return done
	})
}

// counter reads one of the device's own counters; -1 where it has none.
func counter(t testing.TB, name string) int {
	dev, _, _ := strings.Cut(device(t), ":")
	files, _ := filepath.Glob("/sys/class/infiniband/" + dev + "/ports/*/hw_counters/" + name)
	sum := -1
	for _, f := range files {
		b, err := os.ReadFile(f)
		if n, e := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && e == nil {
			sum = max(sum, 0) + n
		}
	}
	return sum
}

func TestReceiverIsAlwaysReady(t *testing.T) {
	a, b := pair(t, driver.Small, map[string]string{"window": "8"})
	before := counter(t, "rcvd_rnr_err")
	if before < 0 {
		t.Skip("this device does not count receiver-not-ready")
	}
	const messages = 5000
	rnd := rand.New(rand.NewPCG(1, 2))
	out, in := driver.Packet{IOV: [][]byte{make([]byte, 64)}}, driver.Packet{IOV: [][]byte{make([]byte, 64)}}
	sent, pending := 0, false
	for got := 0; got < messages; {
		if sent < messages && !pending {
			switch err := a.api.SendPost(&out); err {
			case nil:
				pending = true
				sent++
			case driver.ErrBusy:
			default:
				t.Fatal(err)
			}
		}
		if pending {
			done, err := a.api.SendPoll(&out)
			if err != nil {
				t.Fatal(err)
			}
			pending = !done
		}
		if rnd.IntN(8) > 0 { // the receiver is slow
			continue
		}
		if in.Driver.Phase == driver.Idle {
			if err := b.api.RecvPost(&in); err != nil {
				t.Fatal(err)
			}
		}
		if done, err := b.api.RecvPoll(&in); err != nil {
			t.Fatal(err)
		} else if done {
			got++
		}
	}
	if after := counter(t, "rcvd_rnr_err"); after != before {
		t.Errorf("receiver-not-ready was met %d times in %d messages", after-before, messages)
	}
	if a.Life.Tally.Waited.Load() == 0 {
		t.Error("the sender never ran out of credit: this shows nothing")
	}
}

func TestMessageCostsOneCrossing(t *testing.T) {
	a, b := pair(t, driver.Small, nil)
	out, in := driver.Packet{IOV: [][]byte{make([]byte, 64)}}, driver.Packet{IOV: [][]byte{make([]byte, 64)}}
	crossings := func() uint64 {
		n := uint64(0)
		for _, x := range []*conn{a, b} {
			n += x.ctx.done.crossings.Load() + x.sq.crossings.Load() + x.api.(*small).pool.crossings.Load()
		}
		return n
	}
	bounce := func(x, y *conn) {
		if err := y.api.RecvPost(&in); err != nil {
			t.Fatal(err)
		}
		if err := x.api.SendPost(&out); err != nil {
			t.Fatal(err)
		}
		finished(t, x.api.SendPoll, &out)
		finished(t, y.api.RecvPoll, &in)
	}
	const rounds = 1000
	before := crossings()
	for range rounds {
		bounce(a, b)
		bounce(b, a)
	}
	// A message is sent at one end and received at the other: one crossing each.
	if n := float64(crossings()-before) / (2 * 2 * rounds); n > 1.01 {
		t.Errorf("%.3f crossings a message and end, want at most 1", n)
	}
}

// TestLateWriteFails: the peer keeps rdv data and writes once more after the
// receive has ended.
func TestLateWriteFails(t *testing.T) {
	a, b := pair(t, driver.Large, nil)
	if !b.ctx.windows.Load() {
		t.Skip("this device has no memory windows of type 2")
	}
	arena, err := driver.NewArena(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	dst, src := arena.Alloc(64<<10), arena.Alloc(64<<10)
	for k := range src {
		src[k] = byte(k)
	}
	recv := driver.Packet{IOV: [][]byte{dst}}
	if err := b.api.RecvPost(&recv); err != nil {
		t.Fatal(err)
	}
	kept := bytes.Clone(recv.RdvData)
	send := driver.Packet{IOV: [][]byte{src}, RdvData: kept}
	if err := a.api.SendPost(&send); err != nil {
		t.Fatal(err)
	}
	finished(t, a.api.SendPoll, &send)
	finished(t, b.api.RecvPoll, &recv)
	clear(dst)
	if err := a.api.SendPost(&send); !errors.Is(err, driver.ErrInvalid) {
		t.Fatalf("rdv data used twice: %v, want %v", err, driver.ErrInvalid)
	}
	// A driver that does not check: straight to the device.
	var r rdvData
	if err := r.parse(kept, a.theirs.tag, transferDepth); err != nil {
		t.Fatal(err)
	}
	mr, err := a.ctx.pd.RegMR(src, ibv.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Close()
	wr, _ := a.sq.add(requestControl, true)
	wr.Write(r.piece[0].addr, r.piece[0].rkey)
	wr.AddSGE(mr.Addr(), uint32(len(src)), mr.LKey())
	if err := a.sq.post(); err != nil {
		t.Fatal(err)
	}
	within(t, "end of the connection", func() bool { a.ctx.Drain(); return a.Life.State() == kit.StateBroken })
	if ibv.WCStatus(uint32(a.firstBad.Load())) != ibv.WCRemoteAccess {
		t.Errorf("the late write ended with %v", a.Life.Failure("send"))
	}
	if !bytes.Equal(dst, make([]byte, len(dst))) {
		t.Error("the late write wrote")
	}
}

// TestSameAddressNewPages: registered memory is unmapped, moved or given back, and its addresses then have other pages.
// Writes must go to the new pages.
func TestSameAddressNewPages(t *testing.T) {
	a, b := pair(t, driver.Large, nil)
	const size = 64 << 10
	src := make([]byte, size)
	for _, x := range []struct {
		name   string
		change func(t *testing.T, mem []byte) []byte // returns memory at the same address
	}{
		{"munmap and mmap", func(t *testing.T, mem []byte) []byte {
			if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(address(mem)), size, 0); errno != 0 {
				t.Fatal(errno)
			}
			return remap(t, mem)
		}},
		{"mremap away", func(t *testing.T, mem []byte) []byte {
			room, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err != nil {
				t.Fatal(err)
			}
			to, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(address(mem)), size, size,
				unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, uintptr(address(room)), 0)
			if errno != 0 {
				t.Fatal(errno)
			}
			t.Cleanup(func() { _, _, _ = unix.Syscall(unix.SYS_MUNMAP, to, size, 0) })
			return remap(t, mem)
		}},
		{"MADV_DONTNEED", func(t *testing.T, mem []byte) []byte {
			if err := unix.Madvise(mem, unix.MADV_DONTNEED); err != nil {
				t.Fatal(err)
			}
			return mem
		}},
	} {
		for _, watched := range []bool{false, true} {
			name := x.name + ", transient"
			if watched {
				name = x.name + ", watched"
			}
			t.Run(name, func(t *testing.T) {
				mem := mapAnywhere(t, size)
				if watched {
					d, err := regcache.Watch(mem)
					if err != nil {
						t.Skip(err)
					}
					defer d.Close()
				}
				changed := 0
				for round := 0; changed < 20; round++ {
					for k := range src {
						src[k] = byte(k*7 + round)
					}
					move(t, a, b, src, mem)
					if !bytes.Equal(mem, src) {
						t.Fatalf("round %d: other bytes arrived", round)
					}
					if mem = x.change(t, mem); mem == nil {
						// Another thread was faster: somewhere else.
						if round > 100 {
							t.Fatal("the address is taken again and again")
						}
						mem = mapAnywhere(t, size)
						if watched {
							d, err := regcache.Watch(mem)
							if err != nil {
								t.Fatal(err)
							}
							defer d.Close()
						}
						continue
					}
					changed++
				}
			})
		}
	}
}

func mapAnywhere(t *testing.T, size int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	return mem
}

// remap puts other pages where mem lay; nil if another thread was faster.
func remap(t *testing.T, mem []byte) []byte {
	t.Helper()
	addr := uintptr(address(mem))
	got, _, errno := unix.Syscall6(unix.SYS_MMAP, addr, uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
	switch {
	case errno == unix.EEXIST:
		return nil
	case errno != 0 || got != addr:
		t.Fatalf("mmap at %#x: %#x, %v", addr, got, errno)
	}
	return mem
}

// TestHeapThroughCollections: Go heap memory, declared and not, with the
// collector and the scavenger at work while the device writes.
func TestHeapThroughCollections(t *testing.T) {
	a, b := pair(t, driver.Large, nil)
	src := make([]byte, 256<<10)
	for round := range 30 {
		dst := make([]byte, len(src))
		var d *regcache.Declaration
		if round%2 == 0 {
			var err error
			if d, err = regcache.DeclareHeap(dst); err != nil {
				t.Fatal(err)
			}
		}
		for k := range src {
			src[k] = byte(k*3 + round)
		}
		recv, send := driver.Packet{IOV: [][]byte{dst}}, driver.Packet{IOV: [][]byte{src}}
		if err := b.api.RecvPost(&recv); err != nil {
			t.Fatal(err)
		}
		send.RdvData = recv.RdvData
		if err := a.api.SendPost(&send); err != nil {
			t.Fatal(err)
		}
		garbage := make([][]byte, 64)
		for k := range garbage {
			garbage[k] = make([]byte, 32<<10)
		}
		debug.FreeOSMemory()
		finished(t, a.api.SendPoll, &send)
		finished(t, b.api.RecvPoll, &recv)
		if !bytes.Equal(dst, src) {
			t.Fatalf("round %d: other bytes arrived", round)
		}
		runtime.KeepAlive(garbage)
		if d != nil {
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDeviceFailureBreaksConnections: a fatal event of the device breaks its connections.
func TestDeviceFailureBreaksConnections(t *testing.T) {
	for _, track := range []driver.Track{driver.Small, driver.Large} {
		a, b := pair(t, track, nil)
		in := driver.Packet{IOV: [][]byte{make([]byte, 64)}}
		if err := a.api.RecvPost(&in); err != nil {
			t.Fatal(err)
		}
		a.ctx.deviceGone(errors.New("injected"))
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		err := a.api.(driver.RecvWaiter).RecvWait(ctx, &in)
		cancel()
		if !errors.Is(err, driver.ErrBroken) || !strings.Contains(err.Error(), a.ctx.Props.Device) {
			t.Errorf("%v: got %v, want %v that names the device", track, err, driver.ErrBroken)
		}
		if err := a.ctx.Self().Close(); err != nil {
			t.Error(err)
		}
		within(t, "the peer's error", func() bool { b.ctx.Drain(); return b.Life.State() != kit.StateUp })
	}
}

// A rank's completion queues have an interrupt vector of their own, and messages arrive with relaxed ordering.
func TestVectorsAndRelaxedOrdering(t *testing.T) {
	a, b := pair(t, driver.Large, map[string]string{"relaxed-ordering": "on"})
	src, dst := make([]byte, 512<<10), make([]byte, 512<<10) // not in parts, which need updates
	for k := range src {
		src[k] = byte(k * 7)
	}
	move(t, a, b, src, dst)
	if !bytes.Equal(src, dst) {
		t.Error("another message arrived")
	}
	for rank := range 5 {
		nic, err := verbsDriver{}.Query(driver.Hints{Device: device(t), Track: driver.Large})
		if err != nil {
			t.Fatal(err)
		}
		c, err := nic.Open(driver.Attributes{Secret: []byte("a secret of the test"), SessionSize: 5, Rank: rank})
		if err != nil {
			t.Fatal(err)
		}
		c0 := c.(*opened)
		if n := c0.dev.Query().CompVectors; n < 1 || c0.vector != rank%n {
			t.Errorf("rank %d uses vector %d of %d", rank, c0.vector, n)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The windows of a receive that ends after the peer has closed are freed: its memory is revoked, and its registration can
// go.
func TestWindowsEndWithTheConnection(t *testing.T) {
	a, b := pair(t, driver.Large, nil)
	send, recv := postMove(t, a, b, make([]byte, 64<<10), make([]byte, 64<<10))
	finished(t, a.api.SendPoll, send)
	if err := a.api.Disconnect(); err != nil {
		t.Fatal(err)
	}
	within(t, "the peer's close message", func() bool { b.ctx.Drain(); return b.State() == kit.StatePeerClosed })
	finished(t, b.api.RecvPoll, recv)
	if b.api.(*large).slots[0].windows.mw[0] != nil {
		t.Error("the peer can still write the memory of the receive")
	}
}
