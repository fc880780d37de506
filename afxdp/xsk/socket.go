//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// defaultRing is the size of a ring, unless another one is asked for.
const defaultRing = 2048

// A Socket is an AF_XDP socket on one queue of a device. A [Program] directs frames to it.
//
// Fill, Receive, FillFree, RxPending and WakeRx must be called by one goroutine at a time, the receiver. Transmit,
// Complete, TxFree and Kick must be called by one goroutine at a time, the sender, which may be the same. All other
// methods may be called from any goroutine. No method allocates, and only Wait blocks.
type Socket struct {
	umem *UMEM
	fd   int
	cfg  SocketConfig
	zc   bool

	publishes bool // the kernel publishes at once what it has sent: see idleCalls

	fill queue[uint64]
	rx   queue[Desc]
	_    [64]byte // the two sides may run on two cores
	tx   queue[Desc]
	comp queue[uint64]
	_    [64]byte

	filled atomic.Bool // since the last call of WakeRx; in zero-copy mode only
	wait   waiter

	closing sync.Once
	closed  atomic.Bool
	err     error // of Close
}

// NewSocket opens a socket and binds it. It needs CAP_NET_RAW; see also [SocketConfig.BindTimeout]. It fails with an
// error that matches errors.ErrUnsupported if device or kernel lack a feature, and with ErrQueueBusy if another socket
// has the queue.
func NewSocket(umem *UMEM, cfg SocketConfig) (*Socket, error) {
	s := &Socket{umem: umem, cfg: cfg, fd: -1}
	s.fill.ring, s.rx.ring, s.tx.ring, s.comp.ring = noRing(), noRing(), noRing(), noRing()
	s.wait.init()
	if err := s.open(); err != nil {
		err = fmt.Errorf("xsk: open %s queue %d: %w", cfg.Device, cfg.Queue, err)
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Socket) open() error {
	if err := s.cfg.complete(); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch err {
	case nil:
	case unix.EAFNOSUPPORT:
		return unsupported("AF_XDP", "4.18 with CONFIG_XDP_SOCKETS", err)
	case unix.EPERM, unix.EACCES:
		return fmt.Errorf("create the socket: needs CAP_NET_RAW: %w", err)
	default:
		return fmt.Errorf("create the socket: %w", err)
	}
	s.fd = fd
	if err := s.wait.open(fd, s.cfg.Device); err != nil {
		return err
	}
	if err := s.options(); err != nil {
		return err
	}
	if err := s.umem.join(s, s.bind); err != nil {
		return err
	}
	s.publishes = Probe(FeatureTxBudget) == nil
	s.zc, err = zeroCopy(fd)
	return err
}

func (cfg *SocketConfig) complete() error {
	for _, r := range []struct {
		name     string
		size     *int
		optional bool
	}{
		{"receive", &cfg.Rx, true}, {"transmit", &cfg.Tx, true}, {"fill", &cfg.Fill, false},
		{"completion", &cfg.Completion, false},
	} {
		if *r.size == 0 {
			*r.size = defaultRing
		}
		if r.optional && *r.size < 0 {
			continue
		}
		if *r.size < 0 || bits.OnesCount(uint(*r.size)) != 1 || *r.size > 1<<30 {
			return fmt.Errorf("a %s ring of %d entries: must be a power of two", r.name, *r.size)
		}
	}
	if cfg.Rx < 0 && cfg.Tx < 0 {
		return errors.New("neither a receive nor a transmit ring is asked for")
	}
	if cfg.BindTimeout == 0 {
		cfg.BindTimeout = 3 * time.Second
	}
	return nil
}

// options sets the options that must be set before binding, and maps the rings, which the kernel refuses after binding.
func (s *Socket) options() error {
	if p := s.cfg.BusyPoll; p.Time > 0 {
		if p.Budget == 0 {
			p.Budget = 64
		}
		for _, o := range []struct{ option, value int }{
			{unix.SO_PREFER_BUSY_POLL, 1},
			{unix.SO_BUSY_POLL, int(max(p.Time.Microseconds(), 1))},
			{unix.SO_BUSY_POLL_BUDGET, p.Budget},
		} {
			if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, o.option, o.value); err != nil {
				if err == unix.ENOPROTOOPT {
					return unsupported("preferred busy-poll", "5.11", err)
				}
				return fmt.Errorf("set busy-poll of %v, budget %d (needs CAP_NET_ADMIN): %w", p.Time, p.Budget, err)
			}
		}
	}
	for _, r := range []struct{ option, size int }{
		{unix.XDP_UMEM_FILL_RING, s.cfg.Fill}, {unix.XDP_UMEM_COMPLETION_RING, s.cfg.Completion},
		{unix.XDP_RX_RING, s.cfg.Rx}, {unix.XDP_TX_RING, s.cfg.Tx},
	} {
		if r.size < 0 {
			continue
		}
		if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, r.option, r.size); err != nil {
			return fmt.Errorf("make a ring of %d entries: %w", r.size, err)
		}
	}
	if err := s.txBudget(); err != nil {
		return err
	}
	return s.mapRings()
}

// txBudget sets the budget. The ring must exist.
func (s *Socket) txBudget() error {
	if s.cfg.TxBudget != 0 {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, s.cfg.TxBudget); err != nil {
			if err == unix.ENOPROTOOPT {
				return unsupported("a transmit budget", "6.17", err)
			}
			return fmt.Errorf("set the transmit budget to %d (32 to the ring's %d): %w", s.cfg.TxBudget, s.cfg.Tx, err)
		}
	}
	return nil
}

func (s *Socket) mapRings() (err error) {
	var off unix.XDPMmapOffsets
	if err := getsockopt(s.fd, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), unsafe.Sizeof(off)); err != nil {
		return fmt.Errorf("get the layout of the rings (Linux 5.4): %w", err)
	}
	if err = s.fill.mmap(s.fd, unix.XDP_UMEM_PGOFF_FILL_RING, &off.Fr, s.cfg.Fill); err != nil {
		return err
	}
	if err = s.comp.mmap(s.fd, unix.XDP_UMEM_PGOFF_COMPLETION_RING, &off.Cr, s.cfg.Completion); err != nil {
		return err
	}
	if s.cfg.Rx > 0 {
		if err = s.rx.mmap(s.fd, unix.XDP_PGOFF_RX_RING, &off.Rx, s.cfg.Rx); err != nil {
			return err
		}
	}
	if s.cfg.Tx > 0 {
		err = s.tx.mmap(s.fd, unix.XDP_PGOFF_TX_RING, &off.Tx, s.cfg.Tx)
	}
	return err
}

// bind binds to the queue, sharing the UMEM with a first socket if there is one.
func (s *Socket) bind(first *Socket) error {
	dev := s.wait.dev
	addr := unix.SockaddrXDP{Ifindex: uint32(dev.index), QueueID: uint32(s.cfg.Queue)}
	if first != nil {
		addr.Flags, addr.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(first.fd)
	} else {
		if err := s.umem.register(s.fd); err != nil {
			return err
		}
		switch s.cfg.Copying {
		case CopyAlways:
			addr.Flags |= unix.XDP_COPY
		case CopyNever:
			addr.Flags |= unix.XDP_ZEROCOPY
		}
		addr.Flags |= unix.XDP_USE_NEED_WAKEUP
		if s.cfg.MultiBuffer {
			addr.Flags |= unix.XDP_USE_SG
		}
	}
	const pause = 2 * time.Millisecond
	start := time.Now()
	for {
		err := unix.Bind(s.fd, &addr)
		if err == nil {
			return nil
		}
		if err != unix.EBUSY || time.Since(start)+pause > s.cfg.BindTimeout {
			return s.explainBind(first, err)
		}
		time.Sleep(pause)
	}
}

func (s *Socket) explainBind(first *Socket, err error) error {
	dev := s.wait.dev
	queues, _ := dev.queues(s.wait.netlink)
	switch err {
	case unix.EBUSY:
		return fmt.Errorf("bind: %w (tried for %v; use another queue, or end the process that has it: ss --xdp -p)",
			ErrQueueBusy, s.cfg.BindTimeout)
	case unix.EINVAL:
		if n := max(queues.Rx, queues.Tx); n > 0 && s.cfg.Queue >= n {
			return fmt.Errorf("bind: the device has %d queues (ethtool -L %s combined N): %w", n, dev.name, err)
		}
		if s.cfg.MultiBuffer && first == nil {
			return fmt.Errorf("bind: %w", unsupported("multi-buffer", "6.6", err))
		}
	case unix.EOPNOTSUPP:
		return fmt.Errorf("bind: the driver of %s has no zero-copy for this: %w: %w", dev.name, errors.ErrUnsupported, err)
	case unix.EPERM:
		return fmt.Errorf("bind: needs CAP_NET_RAW: %w", err)
	}
	return fmt.Errorf("bind: %w", err)
}

// Fill passes chunks to the kernel to receive frames into and returns how many it took. Any address in a chunk names
// it.
func (s *Socket) Fill(addrs []uint64) int {
	if tracking {
		addrs = addrs[:min(len(addrs), s.FillFree())]
		s.umem.own.addrs(addrs, s.umem.chunkSize, byUser, byFill)
	}
	n := s.fill.put(addrs)
	if s.zc && n > 0 {
		s.filled.Store(true)
	}
	return n
}

// FillFree returns how many chunks Fill can take.
func (s *Socket) FillFree() int { return int(s.fill.free(s.fill.size)) }

// Receive takes the descriptors of received frames, in the order of their arrival, and returns how many there were.
// Their chunks belong to the caller until Fill or Transmit.
func (s *Socket) Receive(descs []Desc) int {
	n := s.rx.get(descs)
	if tracking {
		s.umem.own.descs(descs[:n], s.umem.chunkSize, byFill, byUser)
	}
	return n
}

// RxPending returns how many descriptors Receive would return.
func (s *Socket) RxPending() int { return int(s.rx.pending(s.rx.size)) }

// Transmit queues frames to be sent and returns how many descriptors it took. Their chunks belong to the kernel until
// [Socket.Complete] returns them: one chunk can be in one descriptor at a time. [Socket.Kick] sends the frames.
//
// A descriptor that leaves its chunk or the UMEM is dropped and counted as
// TxInvalid in [Stats]. Recent kernels complete it (seen on 6.18), earlier ones
// never do.
func (s *Socket) Transmit(descs []Desc) int {
	if tracking {
		descs = descs[:min(len(descs), s.TxFree())]
		s.umem.own.descs(descs, s.umem.chunkSize, byUser, byTransmit)
	}
	return s.tx.put(descs)
}

// TxFree returns how many descriptors Transmit can take.
func (s *Socket) TxFree() int { return int(s.tx.free(s.tx.size)) }

// TxPending returns how many descriptors the kernel has not reported as taken. Before Linux 6.17 it may have taken more
// than it reports.
func (s *Socket) TxPending() int { return int(s.tx.size - s.tx.free(s.tx.size)) }

// Complete takes back the chunks of frames that were sent and returns how many there were. It stores the addresses that
// were transmitted.
func (s *Socket) Complete(addrs []uint64) int {
	n := s.comp.get(addrs)
	if tracking {
		s.umem.own.addrs(addrs[:n], s.umem.chunkSize, byTransmit, byUser)
	}
	return n
}

// UMEM returns the memory that the socket's descriptors name.
func (s *Socket) UMEM() *UMEM { return s.umem }

// Queue returns the number of the queue.
func (s *Socket) Queue() int { return s.cfg.Queue }

// ZeroCopy reports whether frames move between device and UMEM without a copy.
func (s *Socket) ZeroCopy() bool { return s.zc }

// FD returns the socket's descriptor, for poll and options. The socket owns it.
func (s *Socket) FD() int { return s.fd }

// Close closes the socket once, wakes a goroutine in Wait, and takes the socket out of the program's map. No goroutine
// may call methods of the rings during Close. Afterwards the rings are empty and take nothing. Further calls of Close
// return the same result.
func (s *Socket) Close() error {
	s.closing.Do(func() {
		s.closed.Store(true)
		errs := []error{s.wait.close()}
		s.umem.leave(s)
		for _, r := range []*ring{&s.fill.ring, &s.rx.ring, &s.tx.ring, &s.comp.ring} {
			errs = append(errs, r.unmap())
		}
		if s.fd >= 0 {
			errs = append(errs, unix.Close(s.fd))
		}
		if err := errors.Join(errs...); err != nil {
			s.err = fmt.Errorf("xsk: close %s queue %d: %w", s.cfg.Device, s.cfg.Queue, err)
		}
	})
	return s.err
}
