//go:build linux && !(386 || arm || mips || mipsle)

package shm

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/driver"
)

// setupFuzz is what FuzzSetupSocket talks to, over and over.
type setupFuzz struct {
	c, genuine driver.Context
	listener   *net.UnixListener // of a fake peer that is dialed
	highURL    string
	low        *fakePeer
	fds        []int // of right and wrong kinds
	before     holdings
	rounds     int
}

func openSetupFuzz(t testing.TB) *setupFuzz {
	opts := map[string]string{"dir": t.TempDir()}
	s := &setupFuzz{c: open(t, driver.Large, opts), genuine: open(t, driver.Large, opts), low: newFakePeer(t)}
	path := filepath.Join(t.TempDir(), "ffffffffffffffff"+socketSuffix)
	var err error
	if s.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.listener.Close() })
	s.highURL = driver.URL{Driver: Name, Version: URLVersion, Incarnation: ^uint64(0), Rest: rest(path)}.String()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.fds = []int{
		sealedMemory(t, segmentFileSize(true), 0, sizeSeals), sealedMemory(t, wakePageBytes, 0, sizeSeals), sealedMemory(t, regionTableBytes, 0, sizeSeals),
		sealedMemory(t, wakePageBytes, 0, 0), sealedMemory(t, wakePageBytes, 0, sizeSeals|unix.F_SEAL_WRITE), sealedMemory(t, 1<<30, 0, sizeSeals), pair[0], null,
	}
	t.Cleanup(func() { closeAll(append(s.fds, pair[1])) })
	return s
}

// A script is datagrams: four bytes each that select how it is made, and a body.
//
//	0  what it is: bytes as they are, or a message of a kind, well-formed
//	1  length of the body (0…63 ×4), or a field's value
//	2  how many descriptors
//	3  which
const datagramHead = 4

// play sends the datagrams of a script; it answers challenge as a peer does that
// has the secret.
func (s *setupFuzz) play(t *testing.T, sock *net.UnixConn, script []byte, hello, challenge *message, dialer bool) {
	for len(script) >= datagramHead {
		h := script[:datagramHead]
		script = script[datagramHead:]
		var fds []int
		for k := range int(h[2] % 6) {
			fds = append(fds, s.fds[(int(h[3])+k)%len(s.fds)])
		}
		m := message{kind: messageKind(h[0] % 16), code: uint32(h[1]), flags: uint32(h[1]), arena: uint64(h[1]), size: 4096 << (h[1] % 40)}
		switch {
		case h[0] >= 128 || m.kind == 0 || int(m.kind) >= len(bodyBytes): // bytes as they are
			n := min(len(script), int(h[1]))
			s.raw(sock, script[:n], fds)
			script = script[n:]
			continue
		case m.kind == msgHello:
			m = *hello
			m.flags ^= uint32(h[1]) >> 4
		case m.kind == msgChallenge && !dialer:
			m = *challenge
			m.flags = uint32(h[1])
			m.mac = core(s.c).key.MAC(listenerProof, proven(hello, &m)...)
			*challenge = m
		case m.kind == msgProof && dialer:
			_ = sock.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if got, err := expect(sock, challenge, msgChallenge, 0); err == nil {
				closeAll(got)
			}
			m.mac = core(s.c).key.MAC(dialerProof, proven(hello, challenge)...)
		}
		s.raw(sock, m.append(nil), fds)
	}
}

func (s *setupFuzz) raw(sock *net.UnixConn, b []byte, fds []int) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) })
}

// dialedBy plays the script to a listening context.
func (s *setupFuzz) dialedBy(t *testing.T, script []byte) {
	n, err := s.c.Connect(s.low.url)
	if err != nil {
		t.Fatal(err)
	}
	sock := rawDial(t, s.c)
	hello := message{kind: msgHello, flags: core(s.c).flags(), from: lowestInc, to: core(s.c).Incarnation}
	s.play(t, sock, script, &hello, &message{}, true)
	sock.Close()
	ends(t, 10*time.Second, "disconnect", func() { contractError(t, n.Disconnect()) })
}

// dials plays the script to a context that dials.
func (s *setupFuzz) dials(t *testing.T, script []byte) {
	n, err := s.c.Connect(s.highURL)
	if err != nil {
		t.Fatal(err)
	}
	sock, err := s.listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	var hello message
	if _, err := expect(sock, &hello, msgHello, 0); err != nil {
		t.Fatal(err)
	}
	s.play(t, sock, script, &hello, &message{kind: msgChallenge}, false)
	sock.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := n.ConnectWait(ctx); err != nil {
		contractError(t, err)
		oneLine(t, err)
	}
	ends(t, 10*time.Second, "disconnect", func() { contractError(t, n.Disconnect()) })
}

// connects checks that a genuine peer still connects.
func (s *setupFuzz) connects(t *testing.T) {
	a, b := join(t, s.c, s.genuine)
	for _, i := range []driver.Instance{a, b} {
		if err := i.Disconnect(); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever datagrams and descriptors come over a set-up socket, no descriptor, mapping or goroutine is left behind, and
// a genuine peer connects afterwards.
func FuzzSetupSocket(f *testing.F) {
	for _, s := range setupSeeds() {
		f.Add(s)
	}
	s := openSetupFuzz(f)
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 1024 {
			return
		}
		if s.rounds++; s.rounds == 2 { // things that are made once are made by now
			s.before = held()
		}
		s.dialedBy(t, script)
		s.dials(t, script)
		s.connects(t)
		if s.rounds >= 2 && s.rounds%8 == 0 {
			before := s.before
			before.goroutines += 8 // of the test
			releasedAll(t, before)
		}
	})
}

func setupSeeds() [][]byte {
	h := func(kind messageKind, v, fds, which byte) []byte { return []byte{byte(kind), v, fds, which} }
	cat := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	good := cat(h(msgHello, 0, 0, 0), h(msgProof, 0, 0, 0))
	seeds := [][]byte{
		{},
		h(msgHello, 0, 0, 0),
		h(msgHello, 0x10, 0, 0), // another track
		h(msgHello, 0x40, 0, 0), // only watches
		good,
		cat(good, h(msgConfirm, 0, 2, 1)),
		cat(good, h(msgConfirm, 0, 2, 1), h(msgArena, 1, 1, 5), h(msgForget, 1, 0, 0), h(msgGoodbye, 0, 2, 0)),
		cat(good, h(msgConfirm, 0, 2, 3)), // wrong memory
		cat(good, h(msgConfirm, 0, 5, 0)),
		cat(h(msgHello, 0, 0, 0), h(msgProof, 0, 2, 1)), // descriptors too early
		cat(h(msgHello, 0, 0, 0), h(msgReject, 0, 0, 0)),
		cat(h(msgHello, 0, 0, 0), h(msgReject, byte(rejectAuth), 3, 0)),
		cat(good, []byte{200, 0, 3, 0}),                                       // an empty datagram with descriptors
		cat([]byte{200, 8, 0, 0}, []byte{0x68, 0x53, 0x79, 0x42, 9, 0, 1, 0}), // another version
		cat(h(msgChallenge, 0, 0, 0), h(msgAccept, 0, 3, 0)),
		cat(h(msgChallenge, 0, 0, 0), h(msgQueued, 0, 0, 0), h(msgQueued, 0, 0, 0)),
		cat(h(msgChallenge, 0, 0, 0), h(msgQueued, 0, 0, 0), h(msgAccept, 0, 3, 0), h(msgArena, 3, 1, 5), h(msgArena, 3, 1, 5)),
		cat(h(msgChallenge, 0, 0, 0), h(msgAccept, 0, 3, 3)),
		cat(h(msgChallenge, 0, 0, 0), h(msgAccept, 0, 4, 3)),
		cat(h(msgChallenge, 0, 0, 0), h(msgReject, byte(rejectVersion), 1, 0)),
	}
	return seeds
}
