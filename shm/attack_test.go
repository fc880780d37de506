//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
	"github.com/bywash/bywash/internal/rights"
)

func le32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
func le64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// A refusal in the place of a proof was once taken for one. Without a proof a peer gets neither an accept message nor
// descriptors.
func TestRefusalIsNoProof(t *testing.T) {
	nic := query(t, driver.Small, nil)
	c, err := nic.Open(driver.Attributes{Secret: []byte(ourSecret)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	i := newFakePeer(t)
	if _, err := c.Connect(i.url); err != nil {
		t.Fatal(err)
	}
	i.dial(c)
	if err := send(i.sock, &message{kind: msgReject, code: 0}); err != nil {
		t.Fatal(err)
	}
	var m message
	fds, err := receive(i.sock, &m, maxFDs)
	closeAll(fds)
	if err == nil && m.kind == msgAccept || len(fds) > 0 {
		t.Fatalf("got message %d with %d descriptors without a proof, want the end", m.kind, len(fds))
	}
}

// Descriptors that come with an empty datagram, of a peer before or after authentication, are refused or closed, and
// counted as a bad frame.
func TestEmptyDatagramsLeakNoDescriptors(t *testing.T) {
	eachKernel(t, emptyDatagrams)
}

func emptyDatagrams(t *testing.T) {
	c := open(t, driver.Small, nil)
	i := newFakePeer(t)
	i.connect(c)
	strange := rawDial(t, c)
	defer strange.Close()
	fd := sealedMemory(t, 4096, 0, 0)
	before := held()
	for _, s := range []*net.UnixConn{strange, i.sock} {
		raw, err := s.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(s uintptr) {
			err = unix.Sendmsg(int(s), nil, unix.UnixRights(fd, fd, fd), nil, 0)
		})
		if s == strange && rights.Supported() {
			if err != unix.EPERM {
				t.Errorf("an unauthenticated dialer's descriptors: got %v, want EPERM", err)
			}
			_, err = s.Write([]byte{1})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var sum driver.Counters
	within(t, 5*time.Second, "both are counted", func() bool {
		sum = driver.Counters{}
		c.Counters(&sum)
		return sum.BadFrames >= 2
	})
	releasedAll(t, before)
	unix.Close(fd)
}

// Descriptors that come with a goodbye message are closed.
func TestGoodbyeMessageLeaksNoDescriptors(t *testing.T) {
	c := open(t, driver.Small, nil)
	i := newFakePeer(t)
	inst := i.connect(c)
	fd := sealedMemory(t, 4096, 0, 0)
	before := held()
	if err := send(i.sock, &message{kind: msgGoodbye}, fd, fd); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "goodbye", func() bool { return connOf(inst).State() == kit.StatePeerClosed })
	releasedAll(t, before)
	unix.Close(fd)
}

// The peer takes its arena back while we copy into it. The memory stays mapped until the copy ends.
func TestArenaTakenBackInMidTransfer(t *testing.T) {
	c := open(t, driver.Large, nil)
	i := newFakePeer(t)
	inst := i.connect(c)
	const size = 4 * maxPiece
	mem := i.showMemory(77, size)
	p := driver.Packet{IOV: [][]byte{random(size)}, RdvData: i.rdv(3, endLine{ticket: 5, addr: 4096, length: size, arena: 77})}
	if err := inst.SendPost(&p); err != nil {
		t.Fatal(err)
	}
	await(t, func() (bool, error) {
		_, err := inst.SendPoll(&p) // one piece
		return get64(mem, 0) != 0, err
	})
	before := held() // with the arena mapped
	if err := send(i.sock, &message{kind: msgForget, arena: 77}); err != nil {
		t.Fatal(err)
	}
	await(t, func() (bool, error) {
		return len(connOf(inst).imports.all()) == 0, nil
	})
	if err := await(t, func() (bool, error) { return inst.SendPoll(&p) }); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "the arena is unmapped", func() bool { return held().maps < before.maps })
}

// Arenas that a peer shows are bounded in number and in size.
func TestShownArenasAreBounded(t *testing.T) {
	fd := sealedMemory(t, 4096, 0, sizeSeals)
	defer unix.Close(fd)
	t.Run("number", func(t *testing.T) {
		i := newFakePeer(t)
		inst := i.connect(open(t, driver.Large, nil))
		for id := range uint64(maxArenas + 1) {
			i.show(id+1, 4096, fd)
		}
		within(t, 5*time.Second, "broken", func() bool { return connOf(inst).State() == kit.StateBroken })
	})
	t.Run("twice the same", func(t *testing.T) {
		i := newFakePeer(t)
		inst := i.connect(open(t, driver.Large, nil))
		i.show(9, 4096, fd)
		i.show(9, 4096, fd)
		within(t, 5*time.Second, "broken", func() bool { return connOf(inst).State() == kit.StateBroken })
	})
	t.Run("no memory", func(t *testing.T) { // the close of a file may block
		i := newFakePeer(t)
		inst := i.connect(open(t, driver.Large, nil))
		null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(null)
		i.show(1, 0, null)
		within(t, 5*time.Second, "broken", func() bool { return connOf(inst).State() == kit.StateBroken })
	})
	t.Run("address space", func(t *testing.T) {
		i := newFakePeer(t)
		inst := i.connect(open(t, driver.Large, nil))
		const size = maxImported / 4
		huge := sealedMemory(t, size, 0, sizeSeals)
		defer unix.Close(huge)
		for id := range uint64(8) {
			i.show(id+1, size, huge)
		}
		await(t, func() (bool, error) { return len(connOf(inst).imports.all()) == 8, nil })
		if got := importedBytes.Load(); got > maxImported {
			t.Errorf("got %d bytes mapped of the peer, want at most %d", got, int64(maxImported))
		}
		if err := inst.Disconnect(); err != nil {
			t.Fatal(err)
		}
		if got := importedBytes.Load(); got > maxImported/2 {
			t.Errorf("got %d bytes mapped after disconnect", got)
		}
	})
}

// Only sealed memory of the announced size is mapped: a peer cannot cause a fault by shrinking it, or with files,
// sockets or huge pages.
func TestMemoryOfTheWrongKindIsRefused(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fd    func() int
		size  int64
		right bool
	}{
		{"sealed", func() int { return sealedMemory(t, 4096, 0, sizeSeals) }, 4096, true},
		{"not sealed", func() int { return sealedMemory(t, 4096, 0, 0) }, 4096, false},
		{"only half sealed", func() int { return sealedMemory(t, 4096, 0, unix.F_SEAL_GROW) }, 4096, false},
		{"too small", func() int { return sealedMemory(t, 4095, 0, sizeSeals) }, 4096, false},
		{"too large", func() int { return sealedMemory(t, 8192, 0, sizeSeals) }, 4096, false},
		{"huge pages", func() int { return sealedMemory(t, 2<<20, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB, sizeSeals) }, 2 << 20, false},
		{"a socket", func() int {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(p[1])
			return p[0]
		}, 0, false},
		{"a file", func() int {
			fd, err := unix.Open("/proc/self/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			return fd
		}, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fd := tt.fd()
			defer unix.Close(fd)
			if err := checkSealed(fd, tt.size); (err == nil) != tt.right {
				t.Errorf("got %v, want accepted %v", err, tt.right)
			}
		})
	}
}

// A peer must not be able to keep others from mapping the wake-up page. Nor can it write the table of regions.
func TestPeersCannotSeal(t *testing.T) {
	c := core(open(t, driver.Small, nil))
	for name, fd := range map[string]int{"wake-up page": c.pageFD, "regions": c.regions.fd} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_EXEC); err != unix.EPERM {
			t.Errorf("%s: adding a seal got %v, want EPERM", name, err)
		}
	}
	if _, err := unix.Mmap(c.regions.fd, 0, regionTableBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("peers can map the region table to write")
	}
}

// A process attaches to no peer if its own option forbids it, whatever the peer offers.
func TestPeerCannotTurnOnAttach(t *testing.T) {
	c := open(t, driver.Large, map[string]string{"path": "arena"})
	i := newFakePeer(t)
	inst := i.connect(c)
	dst := make([]byte, 100)
	p := driver.Packet{IOV: [][]byte{random(100)}, RdvData: i.rdv(0, endLine{ticket: 5, addr: addressOf(dst), length: 100})}
	if err := inst.SendPost(&p); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if done, err := inst.SendPoll(&p); done {
			t.Fatalf("done with %v", err)
		}
	}
	for _, b := range dst {
		if b != 0 {
			t.Fatal("the option path=arena was overruled by the peer")
		}
	}
	runtime.KeepAlive(dst)
}

// An address of the peer's that is not mapped breaks the connection, not us.
func TestWildAddress(t *testing.T) {
	if !selfAttach() {
		t.Skip("needs process_vm_readv, which this sandbox refuses")
	}
	a, b := pair(t, driver.Large, map[string]string{"path": "cma"})
	if connOf(a).side == 1 {
		a, b = b, a
	}
	r := driver.Packet{IOV: [][]byte{make([]byte, 3*maxPiece)}}
	if err := b.RecvPost(&r); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []uint64{8, 1 << 63, ^uint64(0) - 100} {
		atomic.StoreUint64(&connOf(a).seg.table[0][r.Driver.Slot].recv.addr, addr)
	}
	s := driver.Packet{IOV: [][]byte{random(3 * maxPiece)}, RdvData: r.RdvData}
	if err := a.SendPost(&s); err != nil {
		t.Fatal(err)
	}
	if err := await(t, func() (bool, error) { return a.SendPoll(&s) }); !errors.Is(err, driver.ErrBroken) {
		t.Errorf("got %v, want ErrBroken", err)
	}
	_ = a.Disconnect()
	_ = b.Disconnect()
}

// A claim that never ends stalls the transfer, not Close; the buffer stays with this side
// until the claimant lets go.
func TestClaimThatNeverEnds(t *testing.T) {
	nic := query(t, driver.Large, nil)
	c, err := nic.Open(driver.Attributes{})
	if err != nil {
		t.Fatal(err)
	}
	i := newFakePeer(t)
	inst := i.connect(c)
	ar, err := driver.NewArena(4 * maxPiece)
	if err != nil {
		t.Fatal(err)
	}
	mem := ar.Alloc(4 * maxPiece)
	p := driver.Packet{IOV: [][]byte{mem}, RdvData: i.rdv(0, endLine{ticket: 5, addr: 4096, length: 4 * maxPiece, reach: reachArena})}
	if err := inst.SendPost(&p); err != nil {
		t.Fatal(err)
	}
	claim := &i.seg.table[0][0].claim
	atomic.AddUint64(claim, 1<<claimBits) // a piece from the back
	if err := inst.Disconnect(); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("disconnect with a send pending: got %v, want ErrBusy", err)
	}
	ends(t, 5*time.Second, "close", func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if done, err := inst.SendPoll(&p); done {
		t.Errorf("done (%v) while the peer may be inside the buffer", err)
	}
	if err := ar.Close(); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("close of the arena: got %v, want ErrBusy", err)
	}
	store64(&i.seg.table[0][0].recv.done, 1)
	if err := await(t, func() (bool, error) { return inst.SendPoll(&p) }); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	if err := ar.Close(); err != nil {
		t.Error(err)
	}
}

// A peer that never reads its socket does not block us.
func TestPeerThatDoesNotRead(t *testing.T) {
	c := open(t, driver.Large, nil)
	i := newFakePeer(t)
	n := connOf(i.connect(c))
	ends(t, 5*time.Second, "sends to a full socket", func() {
		for range 100000 {
			if err := send(n.sock, &message{kind: msgForget}); err != nil {
				return
			}
		}
		t.Error("the socket took 100000 messages")
	})
	ends(t, 5*time.Second, "close", func() { _ = c.Close() })
}
