//go:build linux

package veth

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Box is a program in the third namespace that forwards Ethernet frames between the two ends, and does to them what a
// long or bad path does. It needs nothing of the kernel but packet sockets (CONFIG_PACKET). The fields are about each
// of the two directions. The zero value forwards everything at once.
type Box struct {
	// Delay is the one-way delay: how long the box holds each frame, counted from its arrival.
	Delay time.Duration

	// Loss, Duplicate and Reorder are the shares, 0 to 1, of the frames that the box drops at random, sends twice, and
	// sends without Delay, ahead of those that it holds.
	Loss, Duplicate, Reorder float64

	// Rate is how many bytes of frames the box sends a second, 0 for as many as it can. That many depends on the
	// processors, and frames then are late: a measurement of a path gives a rate below it. Queue is how many
	// frames may wait for that, 0 for 1000. What exceeds it is dropped from the tail.
	Rate  uint64
	Queue int

	// Seed determines which frames meet a chance: the same frames in two runs with the same sequence of frames.
	Seed uint64
}

// BoxStats is what a [Box] has done to the frames of one direction. The last three fields tell whether a measurement
// was one of the path or of the box.
type BoxStats struct {
	Forwarded uint64 // frames sent, each duplicate counted
	Lost      uint64 // frames dropped at random
	Dropped   uint64 // frames dropped from the tail of the queue

	Overrun uint64        // frames for which the box had no memory, or that the next device refused
	Late    uint64        // frames that left more than 100 µs after they were due
	MaxLate time.Duration // the largest delay beyond the one that was due
}

const lateAfter = 100 * time.Microsecond

func (b *Box) check(cfg Config) error {
	share := func(v float64) bool { return v >= 0 && v <= 1 } // not NaN
	switch {
	case cfg.Router:
		return errors.New("the third namespace holds a router or a box: give Router or Box, not both")
	case cfg.Offloads:
		return errors.New("a box forwards frames no longer than the MTU: Offloads would make the ends send longer ones")
	case b.Delay < 0 || b.Queue < 0 || !share(b.Loss) || !share(b.Duplicate) || !share(b.Reorder):
		return fmt.Errorf("%+v: no field may be negative, and Loss, Duplicate and Reorder are at most 1", *b)
	}
	return nil
}

// box is the process that forwards, as its parent sees it. It is a process of its own because goroutines that poll
// without pause, as those of measurements do, keep a goroutine that returns from a system call waiting for 10 ms or
// more; also, its use of processors can be told from that of the ends.
type box struct {
	cmd     *exec.Cmd
	sockets [2]*os.File
	counts  *os.File // [2]counters in memory that the process shares
	stop    *os.File // write end of a pipe: the process ends when it is closed

	mu     sync.Mutex
	noRoom [2]uint64 // frames that found the ring full: the kernel forgets its count when it is read
	ended  bool
	last   [2]BoxStats
}

// job is what the process is told.
type job struct {
	Box         Box
	Slot, Slots int // of each ring: bytes for a frame, and their number
}

const (
	boxName   = "bywash-veth-box" // argv[0] of the process
	boxReady  = "ready"
	ringBytes = 16 << 20 // at least, of each ring
)

// startBox starts to forward between the two devices in the middle.
func (p *Pair) startBox(cfg Config) (err error) {
	b := &box{}
	j := job{Box: *cfg.Box}
	if j.Box.Rate == 0 {
		j.Box.Queue = 0
	} else if j.Box.Queue == 0 {
		j.Box.Queue = 1000
	}
	const headers = 128 // the ring's, and those of a frame beyond the MTU
	j.Slot = powerOf2(cfg.MTU + headers)
	j.Slots = powerOf2(max(ringBytes/j.Slot, 2*j.Box.Queue))

	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start the box: %w", err), b.close())
		}
	}()
	for k := range b.sockets {
		err := p.Router[k].Do(func() (err error) {
			b.sockets[k], err = openRing(p.Router[k].Index, j)
			return err
		})
		if err != nil {
			return err
		}
	}
	fd, err := unix.MemfdCreate(boxName, unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("create shared memory: %w", err)
	}
	b.counts = os.NewFile(uintptr(fd), boxName)
	if err := b.counts.Truncate(int64(countersSize)); err != nil {
		return err
	}
	if err := b.start(j); err != nil {
		return err
	}
	p.box, p.undo = b, append(p.undo, b.close)
	return nil
}

func powerOf2(n int) int { return 1 << bits.Len(uint(n-1)) }

// openRing opens a packet socket of a device of the calling thread's namespace, with a ring of frames received.
func openRing(device int, j job) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // protocol 0: nothing comes before bind
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", explain(err))
	}
	f := os.NewFile(uintptr(fd), "packet socket")
	block := max(j.Slot, os.Getpagesize())
	req := unix.TpacketReq{
		Block_size: uint32(block), Block_nr: uint32(j.Slot * j.Slots / block),
		Frame_size: uint32(j.Slot), Frame_nr: uint32(j.Slots),
	}
	set := func(option, value int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option, value); err != nil {
			return fmt.Errorf("set option %d of a packet socket: %w", option, err)
		}
		return nil
	}
	err = errors.Join(
		set(unix.PACKET_VERSION, unix.TPACKET_V2),
		set(unix.PACKET_IGNORE_OUTGOING, 1), // or what this socket's twin sends would come back
		set(unix.PACKET_QDISC_BYPASS, 1),
		unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(device), Type: unix.PACKET_MR_PROMISC}),
		unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req),
		unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: device, Protocol: htons(unix.ETH_P_ALL)}))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func htons(v uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)) }

// start starts the process and waits until it forwards.
func (b *box) start(j job) error {
	arg, err := json.Marshal(j)
	if err != nil {
		return err
	}
	stop, stopWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stop.Close()
	b.stop = stopWrite
	answer, answerWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer answer.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{boxName, string(arg)}
	// One of the runtime's processors for each direction, which nothing takes away (see run). Variables that tell a
	// test's program to play another part are left out.
	cmd.Env = []string{"GOMAXPROCS=2", "GOGC=off", "GODEBUG=asyncpreemptoff=1"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stop, answerWrite, os.Stderr
	cmd.ExtraFiles = []*os.File{b.sockets[0], b.sockets[1], b.counts}
	err = cmd.Start()
	answerWrite.Close()
	if err != nil {
		return err
	}
	b.cmd = cmd
	if said, err := io.ReadAll(answer); err != nil || string(said) != boxReady {
		return fmt.Errorf("the process says %q: %w", said, errors.Join(err, errors.New("it does not forward")))
	}
	return nil
}

// BoxStats returns what the box has done so far: element i is about the frames that Ends[i] sent. Without [Config.Box]
// it is zero. After Close it is what the box had done by then.
func (p *Pair) BoxStats() [2]BoxStats {
	if p.box == nil {
		return [2]BoxStats{}
	}
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	return p.box.stats()
}

func (b *box) stats() [2]BoxStats {
	if b.ended {
		return b.last
	}
	var words [countersSize / 8]uint64
	_ = binary.Read(io.NewSectionReader(b.counts, 0, int64(countersSize)), binary.NativeEndian, &words)
	for k := range b.last {
		fd := int(b.sockets[k].Fd())
		if s, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			b.noRoom[k] += uint64(s.Drops)
		}
		w := words[k*len(words)/2:]
		b.last[k] = BoxStats{
			Forwarded: w[forwarded], Lost: w[lost], Dropped: w[dropped],
			Overrun: w[refused] + b.noRoom[k], Late: w[late], MaxLate: time.Duration(w[maxLate]),
		}
	}
	return b.last
}

// BoxCPU returns the processor time of the box so far. It contains the kernel's receive path of the ends up to their
// sockets, which runs on the thread that sends. Without [Config.Box] and after Close it is 0.
func (p *Pair) BoxCPU() time.Duration {
	if p.box == nil {
		return 0
	}
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if p.box.ended {
		return 0
	}
	const processClock = 2 // CPUCLOCK_SCHED of all threads: clock_getcpuclockid(3)
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^p.box.cmd.Process.Pid)<<3|processClock, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// close ends the process and releases what it used, also after an incomplete start.
func (b *box) close() (err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stop != nil {
		b.stop.Close()
	}
	if b.cmd != nil {
		if err = b.cmd.Wait(); err != nil {
			err = fmt.Errorf("the box: %w", err)
		}
		b.stats()
	}
	b.ended = true
	for _, f := range []*os.File{b.sockets[0], b.sockets[1], b.counts} {
		if f != nil {
			f.Close()
		}
	}
	return err
}
