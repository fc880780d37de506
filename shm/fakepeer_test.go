//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

// fakePeer sends the messages of the set-up protocol by hand: a peer that may do anything.
type fakePeer struct {
	t     testing.TB
	sock  *net.UnixConn
	url   string
	inc   uint64
	hello message
	seg   *segment
}

// lowestInc makes a fake peer the side that dials.
const lowestInc = 1

// newFakePeer returns a peer whose url contexts can connect to, for as long as
// they only watch it.
// ourSecret is what contexts of tests prove to each other.
const ourSecret = "ours, and long enough"

func testKey(t testing.TB, secret string) *kit.Key {
	t.Helper()
	k, err := kit.NewKey([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newFakePeer(t testing.TB) *fakePeer {
	t.Helper()
	path := filepath.Join(t.TempDir(), fmt.Sprintf("%016x%s", lowestInc, socketSuffix))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	i := &fakePeer{t: t, inc: lowestInc}
	i.url = driver.URL{Driver: Name, Version: URLVersion, Incarnation: lowestInc, Rest: rest(path)}.String()
	return i
}

// dial runs the fake peer's part of the set-up with a context up to the challenge.
func (i *fakePeer) dial(c driver.Context) (challenge message) {
	i.t.Helper()
	i.sock = rawDial(i.t, c)
	i.t.Cleanup(func() { i.sock.Close() })
	_ = i.sock.SetReadDeadline(time.Now().Add(10 * time.Second))
	i.hello = message{kind: msgHello, flags: core(c).flags(), from: i.inc, to: core(c).Incarnation}
	if err := send(i.sock, &i.hello); err != nil {
		i.t.Fatal(err)
	}
	if _, err := expect(i.sock, &challenge, msgChallenge, 0); err != nil {
		i.t.Fatal(err)
	}
	return challenge
}

// sealedMemory makes sealed memory.
func sealedMemory(t testing.TB, size int64, flags, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("fake peer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		t.Skipf("memfd_create with flags %#x: %v", flags, err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// connect establishes a connection between a context of the test and the
// fake peer, and returns the context's end.
func (i *fakePeer) connect(c driver.Context) driver.Instance {
	i.t.Helper()
	inst, err := c.Connect(i.url)
	if err != nil {
		i.t.Fatal(err)
	}
	i.accepted(c)
	if err := i.confirm(); err != nil {
		i.t.Fatal(err)
	}
	if err := inst.ConnectWait(i.t.Context()); err != nil {
		i.t.Fatal(err)
	}
	return inst
}

// confirm sends the message that establishes the connection.
func (i *fakePeer) confirm() error {
	i.t.Helper()
	fds := []int{sealedMemory(i.t, wakePageBytes, 0, sizeSeals), sealedMemory(i.t, regionTableBytes, 0, sizeSeals)}
	defer closeAll(fds)
	return send(i.sock, &message{kind: msgConfirm}, fds...)
}

// accepted runs the dialer's part until the fake peer has the segment, all but the confirmation.
func (i *fakePeer) accepted(c driver.Context) {
	i.t.Helper()
	challenge := i.dial(c)
	proof := message{kind: msgProof, mac: core(c).key.MAC(dialerProof, proven(&i.hello, &challenge)...)}
	if err := send(i.sock, &proof); err != nil {
		i.t.Fatal(err)
	}
	var accept message
	fds, err := expect(i.sock, &accept, msgAccept, 3)
	if err != nil {
		i.t.Fatal(err)
	}
	if i.seg, err = mapSegment(fds[0], core(c).Props.Track == driver.Large); err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(i.seg.unmap)
	closeAll(fds[1:])
}

// show shows an arena, as any number, of any size.
func (i *fakePeer) show(id, size uint64, fd int) {
	i.t.Helper()
	if err := send(i.sock, &message{kind: msgArena, arena: id, size: size}, fd); err != nil {
		i.t.Fatal(err)
	}
}

// showMemory shows memory of the right kind, and returns it.
func (i *fakePeer) showMemory(id uint64, size int) []byte {
	i.t.Helper()
	fd := sealedMemory(i.t, int64(size), 0, sizeSeals)
	defer unix.Close(fd)
	i.show(id, uint64(size), fd)
	p, err := mapShared(fd, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { _ = unix.MunmapPtr(p, uintptr(size)) })
	return unsafe.Slice((*byte)(p), size)
}

// rdv fills the fake peer's line of a transfer that it will receive, and returns
// rdv data for it. The fake peer is side 1: its peer sends in direction 0.
func (i *fakePeer) rdv(slot int, line endLine) []byte {
	t := &i.seg.table[0][slot]
	addr, length, arena, offset := line.addr, line.length, line.arena, line.offset
	store64(&t.recv.addr, addr)
	store64(&t.recv.length, length)
	store64(&t.recv.arena, arena)
	store64(&t.recv.offset, offset)
	store32(&t.recv.reach, line.reach)
	store64(&t.claim, line.ticket<<claimTag)
	store64(&t.recv.ticket, line.ticket)
	var x transfer
	x.ticket = line.ticket
	x.putRdv(slot)
	return x.rdv[:]
}

// putRdv writes rdv data as RecvPost does.
func (x *transfer) putRdv(slot int) {
	copy(x.rdv[:], fmt.Appendf(nil, "%s%s%s", le32(uint32(slot)), le32(rdvSum(uint32(slot), x.ticket)), le64(x.ticket)))
}
