//go:build linux

package baseline

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/internal/handshake"
	"github.com/bywash/bywash/internal/kit"
)

// socket is a bench over the kernel's sockets.
type socket struct {
	s      *bench.Setup
	kind   string
	path   *path
	listen int // stream sockets, the follower's end
	fd     int
	c      bench.Case
	out    []byte
	in     []byte
	peer   unix.Sockaddr // address to which the lead connects
	rcvbuf int
	star   *star
	token  []byte // proves the other process to this one
}

const tokenSize = 16

// Open opens one end of a baseline. Its sockets are made by Connect, where both ends learn their addresses.
func Open(s *bench.Setup) (bench.Bench, error) {
	if slices.Contains(bench.Copies, s.Driver) {
		return openMemory(s)
	}
	if s.Driver == bench.SockUnix {
		switch {
		case !s.Local || s.Peer != "":
			return nil, bench.Skipf("%s is local: it connects processes of one machine; run it without --listen or HOST:PORT",
				s.Driver)
		case s.Device != "":
			return nil, bench.Skipf("%s has no devices: leave out --dev", s.Driver)
		}
	}
	key, err := handshake.NewKey(s.Job.Secret())
	if err != nil {
		return nil, fmt.Errorf("no secret for the sockets: %w", err)
	}
	token := key.MAC("bywash perf socket token")
	return &socket{s: s, kind: s.Driver, listen: -1, fd: -1, token: token[:tokenSize]}, nil
}

// begin makes the sockets whose addresses are sent to the other end.
func (k *socket) begin() (err error) {
	switch {
	case k.kind == bench.SockUDP:
		err = k.openDatagram()
	case !k.s.Lead:
		if k.listen, err = k.open(true); err == nil {
			err = k.failed("listen", unix.Listen(k.listen, 64))
		}
	}
	return err
}

func (k *socket) failed(op string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %s: %w", k.kind, op, err)
	}
	return err
}

// open makes a socket; bound, it has an address of this end, and a port that the kernel chooses.
func (k *socket) open(bound bool) (fd int, err error) {
	var family int
	var addr unix.Sockaddr
	netns, typ := "", unix.SOCK_STREAM
	switch k.kind {
	case bench.SockUnix:
		family, addr = unix.AF_UNIX, &unix.SockaddrUnix{} // the empty address becomes an abstract one
	case bench.SockUDP:
		typ = unix.SOCK_DGRAM
		fallthrough
	default:
		family, addr = sockaddr(netip.AddrPortFrom(k.path.here, 0))
		netns, bound = k.path.netns, bound || k.path.device != ""
	}
	err = kit.InNamespace(netns, func() error {
		fd, err = unix.Socket(family, typ|unix.SOCK_CLOEXEC, 0)
		return k.failed("socket", err)
	})
	if err != nil {
		return -1, err
	}
	if bound {
		if err := unix.Bind(fd, addr); err != nil {
			unix.Close(fd)
			return -1, k.failed("bind", err)
		}
	}
	return fd, nil
}

// links returns the address of the listener or datagram socket.
func (k *socket) links() []string {
	sa, err := unix.Getsockname(max(k.listen, k.fd))
	if err != nil {
		return nil // the lead's end of a stream has none
	}
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return []string{fmt.Sprint(a.Port)}
	case *unix.SockaddrInet6:
		return []string{fmt.Sprint(a.Port)}
	case *unix.SockaddrUnix:
		return []string{a.Name}
	}
	return nil
}

func (k *socket) address(links []string) (unix.Sockaddr, error) {
	if len(links) != 1 {
		return nil, errors.New("the other side gave no socket address")
	}
	link := links[0]
	if k.kind == bench.SockUnix {
		if len(link) < 2 || len(link) > 100 || link[0] != '@' {
			return nil, fmt.Errorf("the other side's socket address %q is malformed", link)
		}
		return &unix.SockaddrUnix{Name: link}, nil
	}
	port, err := strconv.ParseUint(link, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("the other side's port %q is malformed", link)
	}
	_, sa := sockaddr(netip.AddrPortFrom(k.path.there, uint16(port)))
	return sa, nil
}

func (k *socket) Connect(give bench.Give) (err error) {
	if k.kind != bench.SockUnix {
		if k.path, err = findPath(k.s, give); err != nil {
			return err
		}
	}
	if err := k.begin(); err != nil {
		return err
	}
	replies, err := bench.ExchangeLinks(give, k.links())
	if err != nil {
		return err
	}
	if k.kind != bench.SockUDP && !k.s.Lead {
		k.fd, err = k.accept()
		return err
	}
	if k.peer, err = k.address(replies[k.s.Partner()]); err != nil {
		return err
	}
	if k.kind == bench.SockUDP {
		return k.failed("connect", unix.Connect(k.fd, k.peer))
	}
	k.fd, err = k.dial()
	return err
}

// dial connects a stream, shows the token and waits for the other side's byte.
func (k *socket) dial() (int, error) {
	fd, err := k.open(false)
	if err != nil {
		return -1, err
	}
	if err = k.tune(fd); err == nil {
		err = k.failed("connect", k.connect(fd))
	}
	if err == nil {
		err = k.writeFull(fd, k.token)
	}
	var b [1]byte
	if err == nil {
		err = k.readFull(fd, b[:])
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// connectTime is how long the other machine may be silent: a firewall may admit the listener's port alone.
const connectTime = 15 * time.Second

// connect connects a stream whose waits are bounded, so that Ctrl-C ends it.
func (k *socket) connect(fd int) error {
	for end := time.Now().Add(connectTime); ; {
		err := unix.Connect(fd, k.peer)
		switch {
		case err == unix.EISCONN:
			return nil
		case err != unix.EINPROGRESS && err != unix.EALREADY && err != unix.EINTR && err != unix.EAGAIN:
			return err
		case k.s.Stop.Err() != nil:
			return k.s.Stop.Err()
		case time.Now().After(end):
			return unix.ETIMEDOUT
		}
	}
}

// accept takes connections until one shows the token.
func (k *socket) accept() (int, error) {
	for {
		if err := k.s.Stop.Err(); err != nil {
			return -1, err
		}
		pfd := []unix.PollFd{{Fd: int32(k.listen), Events: unix.POLLIN}}
		if n, err := unix.Poll(pfd, 200); n <= 0 {
			if err != nil && err != unix.EINTR {
				return -1, err
			}
			continue
		}
		fd, _, err := unix.Accept4(k.listen, unix.SOCK_CLOEXEC)
		if err != nil {
			if err == unix.EINTR || err == unix.ECONNABORTED {
				continue
			}
			return -1, k.failed("accept", err)
		}
		got := make([]byte, tokenSize)
		if k.tune(fd) == nil && k.readToken(fd, got) == nil && subtle.ConstantTimeCompare(got, k.token) == 1 {
			return fd, k.writeFull(fd, []byte{1})
		}
		unix.Close(fd)
	}
}

// tokenTime is how long a process that has connected may take to show the token: others wait behind it.
const tokenTime = time.Second

// readToken reads all of b, in tokenTime.
func (k *socket) readToken(fd int, b []byte) error {
	for end := time.Now().Add(tokenTime); len(b) > 0; {
		n, err := k.read(fd, b)
		if err != nil {
			return err
		}
		if b = b[max(n, 0):]; len(b) > 0 && time.Now().After(end) {
			return bench.ErrPeerGone
		}
	}
	return nil
}

// tune bounds waits, so that a dead process is noticed, and turns Nagle off.
func (k *socket) tune(fd int) error {
	tv := unix.NsecToTimeval(int64(200 * time.Millisecond))
	err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
	}
	if err == nil && k.kind == bench.SockTCP {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	return k.failed("setsockopt", err)
}

// try makes a system call that may fail with EAGAIN. A spinning process makes it raw: the call never sleeps, so the
// scheduler need not be notified.
func (k *socket) try(trap uintptr, fd int, b []byte) (int, error) {
	var r uintptr
	var e unix.Errno
	if k.c.Blocking() {
		r, _, e = unix.Syscall(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	} else {
		r, _, e = unix.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	}
	switch e {
	case 0:
		return int(r), nil
	case unix.EAGAIN, unix.EINTR, unix.ENOBUFS:
		return -1, nil
	case unix.EPIPE, unix.ECONNRESET, unix.ECONNREFUSED:
		return 0, bench.ErrPeerGone
	}
	return 0, fmt.Errorf("%s: %w", k.kind, e)
}

// write returns -1 for EAGAIN.
func (k *socket) write(fd int, b []byte) (int, error) { return k.try(unix.SYS_WRITE, fd, b) }

// read returns -1 for EAGAIN.
func (k *socket) read(fd int, b []byte) (int, error) {
	n, err := k.try(unix.SYS_READ, fd, b)
	if n == 0 && err == nil && k.kind != bench.SockUDP && len(b) > 0 {
		return 0, bench.ErrPeerGone
	}
	return n, err
}

func (k *socket) writeFull(fd int, b []byte) error { return k.full(k.write, fd, b) }
func (k *socket) readFull(fd int, b []byte) error  { return k.full(k.read, fd, b) }

// spinner returns a Spinner for waits that sleep in the kernel, 200 ms at most, or spin.
func (k *socket) spinner() bench.Spinner {
	return bench.NewSpinner(k.s.Stop, k.s.Yield || k.c.Blocking())
}

// full reads or writes all of b.
func (k *socket) full(call func(int, []byte) (int, error), fd int, b []byte) error {
	sp := k.spinner()
	return sp.Until(func() (bool, error) {
		if len(b) == 0 {
			return true, nil
		}
		n, err := call(fd, b)
		b = b[max(n, 0):]
		return len(b) == 0, err
	})
}

func (k *socket) Check(c *bench.Case) error {
	switch info := bench.InfoOf(c.Test); {
	case info.Session:
		return bench.Skipf("%s: %s is a test of -d session", k.kind, c.Test)
	case info.OneSided:
		return bench.Skipf("%s has no one-sided access", k.kind)
	case c.Peers > 0:
		return bench.Skipf("--peers is for drivers")
	case (c.Test == bench.Barrier || c.Test == bench.Bcast) && k.kind != bench.SockUnix:
		return bench.Skipf("%s: groups of sockets are measured with sock-unix", k.kind)
	case c.Test == bench.Connect && k.kind == bench.SockUDP:
		return bench.Skipf("sock-udp has no connections")
	case k.kind == bench.SockUDP && c.Test == bench.BiBW && c.Size%maxDatagram == ackSize:
		return bench.Skipf("sock-udp cannot do bibw with messages of %d bytes", c.Size)
	case c.Size == 0 && info.Fixed == 0 && k.kind != bench.SockUDP:
		return bench.Skipf("%s has no empty messages", k.kind)
	}
	return nil
}

func (k *socket) Prepare(c *bench.Case) ([]byte, error) {
	k.c = *c
	// Streams are read in large pieces, whatever the size of the messages.
	k.out = make([]byte, max(c.Size, 8))
	k.in = make([]byte, max(c.Size, 64*bench.KiB))
	return nil, k.failed("fcntl", unix.SetNonblock(k.fd, !c.Blocking()))
}

func (k *socket) Start([]byte) error { return nil }

func (k *socket) Inspect(uint64, int) error { return errors.New("nothing to inspect") }

func (k *socket) Finish() error {
	k.star.close()
	k.star = nil
	return nil
}

func (k *socket) Path() string {
	if k.kind == bench.SockUnix {
		return "unix-stream"
	}
	return k.path.name(k.kind)
}

func (k *socket) Close() error {
	_ = k.Finish()
	for _, fd := range []int{k.fd, k.listen} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	k.fd, k.listen = -1, -1
	return nil
}

func (k *socket) Run(j *bench.Round) error {
	switch {
	case j.Test == bench.Connect:
		return k.runConnect(j)
	case j.Test == bench.Barrier || j.Test == bench.Bcast:
		return k.runGroup(j)
	case k.kind == bench.SockUDP && j.Test == bench.Lat:
		return j.PingPong(k.sendDatagrams, k.recvDatagrams)
	case k.kind == bench.SockUDP:
		return k.streamDatagrams(j)
	case j.Test == bench.Lat:
		return j.PingPong(k.sendStream, k.recvStream)
	}
	return k.stream(j)
}

func (k *socket) runConnect(j *bench.Round) error {
	connect := k.accept
	if j.Lead {
		connect = k.dial
	}
	for range j.N {
		begin := time.Now()
		fd, err := connect()
		if err != nil {
			return err
		}
		if j.Lead {
			j.Rec.Add(time.Since(begin), 1)
			// Reset instead of TIME_WAIT, or the ports run out.
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
		_ = unix.Close(fd)
	}
	return nil
}

func (k *socket) message(j *bench.Round, seq uint64) []byte {
	b := k.out[:j.Size]
	if j.Validate {
		bench.Fill(b, seq)
	} else if len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, seq)
	}
	return b
}
