package baseline

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
	"github.com/bywash/bywash/internal/handshake"
)

// The baselines are system calls on file descriptors, not Go's net package:
// what a good C program would do. With --wait poll they spin on non-blocking
// sockets, with --wait block they sleep in the kernel.

// socket is a bench over the kernel's sockets.
type socket struct {
	s      *bench.Setup
	kind   string
	listen int // stream sockets, the follower's end
	fd     int
	c      bench.Case
	out    []byte
	in     []byte
	peer   string
	rcvbuf int
	star   *star
	token  []byte // tells the other process from strangers on this machine
}

const tokenSize = 16

// Open opens one end of a baseline.
func Open(s *bench.Setup) (bench.Bench, error) {
	if !s.Local {
		return nil, bench.Skipf("%s is the baseline over this machine's loopback: run it without --listen or HOST:PORT",
			s.Driver)
	}
	if s.Device != "" {
		return nil, bench.Skipf("%s has no devices: leave out --dev", s.Driver)
	}
	k := &socket{s: s, kind: s.Driver, listen: -1, fd: -1}
	key, err := handshake.NewKey(s.Job.Secret())
	if err != nil {
		return nil, fmt.Errorf("no secret for the sockets: %w", err)
	}
	token := key.MAC("bywash perf socket token")
	k.token = token[:tokenSize]
	switch {
	case k.kind == bench.SockUDP:
		err = k.openDatagram()
	case !s.Lead:
		err = k.openListener()
	}
	if err != nil {
		_ = k.Close()
		return nil, err
	}
	return k, nil
}

func (k *socket) family() int {
	if k.kind == bench.SockUnix {
		return unix.AF_UNIX
	}
	return unix.AF_INET
}

func (k *socket) openListener() error {
	fd, err := unix.Socket(k.family(), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: socket: %w", k.kind, err)
	}
	k.listen = fd
	// The empty Unix address makes the kernel choose an abstract one.
	var addr unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if k.kind == bench.SockUnix {
		addr = &unix.SockaddrUnix{}
	}
	if err := unix.Bind(fd, addr); err != nil {
		return fmt.Errorf("%s: bind: %w", k.kind, err)
	}
	if err := unix.Listen(fd, 64); err != nil {
		return fmt.Errorf("%s: listen: %w", k.kind, err)
	}
	return nil
}

// links is the address of the listener or datagram socket.
func (k *socket) links() []string {
	fd := k.listen
	if k.kind == bench.SockUDP {
		fd = k.fd
	}
	if fd < 0 {
		return nil
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return nil
	}
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return []string{fmt.Sprint(a.Port)}
	case *unix.SockaddrUnix:
		return []string{a.Name}
	}
	return nil
}

func (k *socket) address(link string) (unix.Sockaddr, error) {
	if k.kind == bench.SockUnix {
		if len(link) < 2 || len(link) > 100 || link[0] != '@' {
			return nil, fmt.Errorf("the other side's socket address %q is malformed", link)
		}
		return &unix.SockaddrUnix{Name: link}, nil
	}
	var port uint16
	if _, err := fmt.Sscanf(link, "%d", &port); err != nil {
		return nil, fmt.Errorf("the other side's port %q is malformed", link)
	}
	return &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}, nil
}

func (k *socket) Connect(give bench.Give) error {
	said, err := bench.MeetLinks(give, k.links())
	if err != nil {
		return err
	}
	links := said[k.s.Partner()]
	if k.kind != bench.SockUDP && !k.s.Lead {
		fd, err := k.accept()
		k.fd = fd
		return err
	}
	if len(links) != 1 {
		return errors.New("the other side gave no socket address")
	}
	k.peer = links[0]
	if k.kind == bench.SockUDP {
		addr, err := k.address(k.peer)
		if err != nil {
			return err
		}
		return unix.Connect(k.fd, addr)
	}
	fd, err := k.dial()
	k.fd = fd
	return err
}

// dial connects a stream, shows the token and waits for the other side's byte.
func (k *socket) dial() (fd int, err error) {
	addr, err := k.address(k.peer)
	if err != nil {
		return -1, err
	}
	if fd, err = unix.Socket(k.family(), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("%s: socket: %w", k.kind, err)
	}
	if err := k.introduce(fd, addr); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (k *socket) introduce(fd int, addr unix.Sockaddr) error {
	if err := unix.Connect(fd, addr); err != nil {
		return fmt.Errorf("%s: connect: %w", k.kind, err)
	}
	if err := k.tune(fd); err != nil {
		return err
	}
	if err := k.writeFull(fd, k.token); err != nil {
		return err
	}
	var b [1]byte
	return k.readFull(fd, b[:])
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
			return -1, fmt.Errorf("%s: accept: %w", k.kind, err)
		}
		got := make([]byte, tokenSize)
		if k.tune(fd) == nil && k.readFull(fd, got) == nil && subtle.ConstantTimeCompare(got, k.token) == 1 {
			return fd, k.writeFull(fd, []byte{1})
		}
		unix.Close(fd)
	}
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
	if err != nil {
		return fmt.Errorf("%s: setsockopt: %w", k.kind, err)
	}
	return nil
}

// try is a system call that may say "not now". A spinning process uses a raw
// one: it never sleeps, so the scheduler need not know.
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

// write gives -1 for "not now".
func (k *socket) write(fd int, b []byte) (int, error) { return k.try(unix.SYS_WRITE, fd, b) }

// read gives -1 for "not now".
func (k *socket) read(fd int, b []byte) (int, error) {
	n, err := k.try(unix.SYS_READ, fd, b)
	if n == 0 && err == nil && k.kind != bench.SockUDP && len(b) > 0 {
		return 0, bench.ErrPeerGone
	}
	return n, err
}

func (k *socket) writeFull(fd int, b []byte) error { return k.full(k.write, fd, b) }
func (k *socket) readFull(fd int, b []byte) error  { return k.full(k.read, fd, b) }

// spinner is for waits that sleep in the kernel, 200 ms at most, or spin.
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
	if bench.InfoOf(c.Test).Session {
		return bench.Skipf("%s: %s is a test of -d session", k.kind, c.Test)
	}
	switch {
	case bench.InfoOf(c.Test).OneSided:
		return bench.Skipf("%s has no one-sided access", k.kind)
	case c.Peers > 0:
		return bench.Skipf("--peers is for drivers")
	case (c.Test == bench.Barrier || c.Test == bench.Bcast) && k.kind != bench.SockUnix:
		return bench.Skipf("%s: groups of sockets are measured with sock-unix", k.kind)
	case c.Test == bench.Connect && k.kind == bench.SockUDP:
		return bench.Skipf("sock-udp has no connections")
	case k.kind == bench.SockUDP && c.Test == bench.BiBW && c.Size%maxDatagram == ackSize:
		return bench.Skipf("sock-udp cannot do bibw with messages of %d bytes", c.Size)
	case c.Size == 0 && bench.InfoOf(c.Test).Fixed == 0 && k.kind != bench.SockUDP:
		return bench.Skipf("%s has no empty messages", k.kind)
	}
	return nil
}

func (k *socket) Prepare(c *bench.Case) ([]byte, error) {
	k.c = *c
	// Streams are read in large pieces, whatever the size of the messages.
	k.out = make([]byte, max(c.Size, 8))
	k.in = make([]byte, max(c.Size, 64*bench.KiB))
	if err := unix.SetNonblock(k.fd, !c.Blocking()); err != nil {
		return nil, fmt.Errorf("%s: fcntl: %w", k.kind, err)
	}
	return nil, nil
}

func (k *socket) Start([]byte) error { return nil }

func (k *socket) Inspect(uint64, int) error { return errors.New("nothing to inspect") }

func (k *socket) Finish() error {
	k.star.close()
	k.star = nil
	return nil
}

func (k *socket) Path() string {
	switch k.kind {
	case bench.SockUnix:
		return "unix-stream"
	case bench.SockTCP:
		return "tcp-loopback"
	}
	return "udp-loopback"
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
	for range j.N {
		begin := time.Now()
		var fd int
		var err error
		if j.Lead {
			fd, err = k.dial()
		} else {
			fd, err = k.accept()
		}
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
