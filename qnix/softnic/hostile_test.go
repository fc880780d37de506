//go:build linux && !(386 || arm || mips || mipsle)

package softnic

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/qnix/internal/abi"
	"github.com/bywash/bywash/qnix/nic"
)

// rawClient sends the messages of the socket's protocol by hand.
type rawClient struct {
	t    testing.TB
	conn *net.UnixConn
}

func dial(t testing.TB, path string) *rawClient {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &rawClient{t, c}
}

// ask sends a request and gives the answer's errno; -1: the connection has ended.
func (s *rawClient) ask(request uint32, body []byte, fds ...int) (int, []byte, []int) {
	s.t.Helper()
	h := abi.Header{Request: request, ID: 77}
	if err := abi.Send(s.conn, append(abi.Bytes(&h)[:abi.HeaderSize:abi.HeaderSize], body...), fds...); err != nil {
		return -1, nil, nil
	}
	_ = s.conn.SetReadDeadline(time.Now().Add(maxWait))
	b, got, err := abi.Receive(s.conn, abi.MaxFDs)
	if err != nil {
		return -1, nil, nil
	}
	a, rest, err := abi.ParseAnswer(b)
	if err != nil || a.ID != 77 {
		s.t.Fatalf("answer %v, id %d", err, a.ID)
	}
	return int(a.Errno), rest, got
}

func TestWrongRequestsGetTheirErrno(t *testing.T) {
	s := serve(t, Config{})
	x := dial(t, s.Sockets()[0])
	reg := abi.Register{Name: name("x"), Commands: 8, Sends: 4, Receives: 4, RegionSize: 64}
	size := func(n uintptr) []byte { return make([]byte, n) }
	with := func(f func(*abi.Register)) []byte {
		r := reg
		f(&r)
		return append([]byte(nil), abi.Bytes(&r)...)
	}
	steps := []struct {
		what    string
		request uint32
		body    []byte
		want    unix.Errno
	}{
		{"unknown request", 99, nil, unix.ENOTTY},
		{"wait, which is a futex", abi.ReqWait, size(16), unix.ENOTTY},
		{"long body", abi.ReqInfo, size(8), unix.EINVAL},
		{"short body", abi.ReqRegister, size(8), unix.EINVAL},
		{"translate unregistered", abi.ReqTranslate, size(32), unix.ENOTCONN},
		{"untranslate unregistered", abi.ReqUntranslate, size(8), unix.ENOTCONN},
		{"join unregistered", abi.ReqJoin, size(32), unix.ENOTCONN},
		{"leave unregistered", abi.ReqLeave, size(32), unix.ENOTCONN},
		{"doorbell unregistered", abi.ReqDoorbell, nil, unix.ENOTCONN},
		{"deregister unregistered", abi.ReqDeregister, nil, unix.ENOTCONN},
		{"no name", abi.ReqRegister, with(func(r *abi.Register) { r.Name = [20]byte{} }), unix.EINVAL},
		{"name without an end", abi.ReqRegister, with(func(r *abi.Register) {
			for i := range r.Name {
				r.Name[i] = 'x'
			}
		}), unix.EINVAL},
		{"name with a space", abi.ReqRegister, with(func(r *abi.Register) { r.Name[0] = ' ' }), unix.EINVAL},
		{"commands", abi.ReqRegister, with(func(r *abi.Register) { r.Commands = 3 }), unix.EINVAL},
		{"no commands", abi.ReqRegister, with(func(r *abi.Register) { r.Commands = 0 }), unix.EINVAL},
		{"sends", abi.ReqRegister, with(func(r *abi.Register) { r.Sends = 1 << 31 }), unix.EINVAL},
		{"region", abi.ReqRegister, with(func(r *abi.Register) { r.RegionSize = 1 << 20 }), unix.EINVAL},
		{"pool", abi.ReqRegister, with(func(r *abi.Register) { r.PoolEntries = 1 << 20 }), unix.EINVAL},
		{"good", abi.ReqRegister, with(func(*abi.Register) {}), 0},
		{"twice", abi.ReqRegister, with(func(*abi.Register) {}), unix.EISCONN},
		{"translate nothing", abi.ReqTranslate, size(32), unix.EINVAL},
		{"address 1", abi.ReqTranslate, abi.Bytes(&abi.Translate{Addr: 1, Len: 100, Access: 1, PoolIndex: abi.NoPool}), unix.EFAULT},
		{"address wraps", abi.ReqTranslate, abi.Bytes(&abi.Translate{Addr: 1 << 63, Len: 1 << 63, Access: 1, PoolIndex: abi.NoPool}), unix.EINVAL},
		{"untranslate nothing", abi.ReqUntranslate, size(8), unix.ENOENT},
		{"join, no name", abi.ReqJoin, size(32), unix.EINVAL},
		{"deregister", abi.ReqDeregister, nil, 0},
		{"and again", abi.ReqRegister, with(func(*abi.Register) {}), 0},
	}
	for _, st := range steps {
		got, _, fds := x.ask(st.request, st.body)
		abi.CloseAll(fds)
		if got != int(st.want) {
			t.Errorf("%s: %v, want %v", st.what, unix.Errno(got), st.want)
		}
	}
	// Bytes that are no request end the connection, not the NIC.
	if err := abi.Send(x.conn, []byte{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := abi.Receive(x.conn, abi.MaxFDs); err == nil {
		t.Error("a message that is none was answered")
	}
	join(t, s.Sockets()[0], nic.Config{Name: "x"})
}

// Files that are not sealed memory are not mapped: they could vanish under the NIC.
func TestForeignFilesAreNotMapped(t *testing.T) {
	s := serve(t, Config{})
	p := join(t, s.Sockets()[0], nic.Config{Name: "p"})
	b := anonymous(t, 8192)
	plain, err := os.CreateTemp(dir(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	_ = plain.Truncate(8192)
	open, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(open)
	_ = unix.Ftruncate(open, 8192)
	_, sealed := mapping(t, 4096)
	for what, x := range map[string]struct {
		fd     int
		offset int64
	}{
		"a plain file": {int(plain.Fd()), 0}, "a memfd that can shrink": {open, 0},
		"shorter than announced": {sealed, 0}, "beyond the end": {sealed, 1 << 40}, "a directory": {int(plain.Fd()), 1 << 62},
	} {
		if h, err := p.TranslateFile(b, x.fd, x.offset, nic.Read); err == nil {
			t.Errorf("%s: handle %d", what, h)
		}
	}
	if h, err := p.TranslateFile(b[:4096], sealed, 0, nic.Read); err != nil || h == 0 {
		t.Error(err)
	}
}

// One user's processes do not use up the mappings of the program that is the NIC: its own memory would be the next to
// fail.
func TestMappingsAreShared(t *testing.T) {
	const share = 32768 / 2 // of one user alone: SOFT_MAPS in soft_internal.h
	s := serve(t, Config{MaxTranslations: share + 1})
	first, second := join(t, s.Sockets()[0], nic.Config{Name: "p"}), join(t, s.Sockets()[0], nic.Config{Name: "q"})
	b, fd := mapping(t, 4096)
	for k := range share {
		if _, err := first.TranslateFile(b, fd, 0, nic.Read); err != nil {
			t.Fatalf("mapping %d: %v", k, err)
		}
	}
	for _, p := range []*nic.Process{first, second} {
		if _, err := p.TranslateFile(b, fd, 0, nic.Read); !errors.Is(err, unix.ENOMEM) {
			t.Errorf("one mapping too many: %v, want %v", err, unix.ENOMEM)
		}
	}
	if err := first.Deregister(); err != nil {
		t.Fatal(err)
	}
	if _, err := second.TranslateFile(b, fd, 0, nic.Read); err != nil {
		t.Errorf("after the end of the process that had them: %v", err)
	}
}

// A process that writes anything into its interface, all the time, harms
// no process but itself.
func TestGarbageInTheInterface(t *testing.T) {
	s := serve(t, Config{NICs: 2})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	good, peer := pair(t, s)
	for round := range 5 {
		x := dial(t, s.Sockets()[round%2])
		reg := abi.Register{Name: name(fmt.Sprint("bad", round)), Commands: 16, Sends: 8, Receives: 8, RegionSize: 128, PoolEntries: 16}
		errno, body, fds := x.ask(abi.ReqRegister, abi.Bytes(&reg))
		if errno != 0 {
			t.Fatal(unix.Errno(errno))
		}
		_ = abi.Decode(&reg, body)
		vni, err1 := unix.Mmap(fds[0], 0, int(reg.VNISize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		hps, err2 := unix.Mmap(fds[1], 0, int(reg.HPSSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if unix.Ftruncate(fds[0], 0) == nil || unix.Ftruncate(fds[1], 0) == nil {
			t.Error("the NIC's memory can be taken away")
		}
		for n := range 20000 {
			words := vni
			if n%8 == 0 {
				words = hps
			}
			w := (*uint32)(unsafe.Pointer(&words[4*r.IntN(len(words)/4)]))
			v := r.Uint32()
			if n%2 == 0 {
				v %= 16 // commands, flags, small numbers
			}
			atomic.StoreUint32(w, v)
			// The Command Queue lies at the beginning.
			if n%4 == 0 {
				atomic.StoreUint32((*uint32)(unsafe.Pointer(&vni[64*r.IntN(16)])), uint32(r.IntN(14)))
			}
			if n%64 == 0 {
				_, _ = unix.Write(fds[2], []byte{1, 0, 0, 0, 0, 0, 0, 0})
			}
		}
		kick(t, peer, peer.ReceiveShort(0, name("a"), 1, 8))
		kick(t, good, good.SendShort(0, name("b"), 1, 8))
		if st, _ := received(t, peer, 0); st != nic.Done {
			t.Fatalf("another's message: %v", st)
		}
		sent(t, good, 0)
		_, _ = unix.Munmap(vni), unix.Munmap(hps)
		abi.CloseAll(fds)
		x.conn.Close()
	}
}

// FuzzRequests sends messages, with and without descriptors, as a client does;
// the bytes define how they are cut up.
func FuzzRequests(f *testing.F) {
	reg := abi.Register{Name: name("x"), Commands: 8, Sends: 4, Receives: 4, RegionSize: 64}
	frame := func(request uint32, body []byte) []byte {
		h := abi.Header{Request: request, ID: request}
		b := append(append([]byte(nil), abi.Bytes(&h)...), body...)
		return append([]byte{byte(len(b))}, b...)
	}
	f.Add(frame(abi.ReqRegister, abi.Bytes(&reg)))
	f.Add(append(frame(abi.ReqRegister, abi.Bytes(&reg)), frame(abi.ReqTranslate, abi.Bytes(&abi.Translate{Len: 100, Access: 1, PoolIndex: abi.NoPool}))...))
	f.Add(append(frame(abi.ReqRegister, abi.Bytes(&reg)), frame(abi.ReqJoin, abi.Bytes(&abi.Group{Name: name("g"), Size: 2, TimeoutMs: 1}))...))
	f.Add(append(frame(abi.ReqInfo, nil), frame(abi.ReqAbandon, nil)...))
	f.Add(append(frame(abi.ReqRegister, abi.Bytes(&reg)), frame(abi.ReqDeregister, nil)...))
	s := serve(f, Config{MaxProcesses: 8})
	_, fd := mapping(f, 4096)
	f.Fuzz(func(t *testing.T, b []byte) {
		x := dial(t, s.Sockets()[0])
		defer x.conn.Close()
		for len(b) > 1 {
			n := min(int(b[0]), len(b)-1)
			var fds []int
			if n%3 == 0 {
				fds = []int{fd}
			}
			_ = x.conn.SetWriteDeadline(time.Now().Add(maxWait))
			if abi.Send(x.conn, b[1:1+n], fds...) != nil {
				break
			}
			b = b[1+n:]
		}
		// It still answers others.
		y := dial(t, s.Sockets()[0])
		defer y.conn.Close()
		if errno, _, _ := y.ask(abi.ReqInfo, nil); errno != 0 {
			t.Fatalf("errno %d", errno)
		}
	})
}

func registerByHand(t testing.TB, x *rawClient, who string) (int, []int) {
	t.Helper()
	reg := abi.Register{Name: name(who), Commands: 16, Sends: 8, Receives: 8, RegionSize: 128, PoolEntries: 16}
	errno, _, fds := x.ask(abi.ReqRegister, abi.Bytes(&reg))
	return errno, fds
}
