//go:build linux

package veth

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file is what the process of a box runs. A frame goes through it so:
//
//  1. The kernel writes it with the time of its arrival into a slot of the ring of the device that receives it.
//  2. take finds it there, and asks the shaper what happens to it. The slot keeps the frame while it is held: as the
//     delay is constant, the ring is also the queue of what is due next.
//  3. give sends the frames that are due from their slots to the other device, and gives the slots back.
//  4. wait sleeps until the next frame is due; a frame that arrives meanwhile is due later. Only if none is held, wait
//     sleeps until one arrives.

// Counters of one direction, as indices.
const (
	forwarded = iota
	lost
	dropped
	refused
	late
	maxLate
)

// counters fills a cache line, because each direction's thread writes its own.
type counters [8]atomic.Uint64

const countersSize = int(unsafe.Sizeof([2]counters{}))

// Descriptors that the process inherits besides the standard ones.
const (
	stopFD    = 0
	socketsFD = 3 // and 4
	countsFD  = 5
)

// A box is started as this very program under another name, which is found out before main runs.
func init() {
	if len(os.Args) != 2 || os.Args[0] != boxName {
		return
	}
	if err := forward(os.Args[1]); err != nil {
		fmt.Print(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// forward runs both directions until the parent closes its end of the pipe, or dies.
func forward(arg string) error {
	var j job
	if err := json.Unmarshal([]byte(arg), &j); err != nil {
		return err
	}
	shared, err := unix.Mmap(countsFD, 0, countersSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the counters: %w", err)
	}
	counts := (*[2]counters)(unsafe.Pointer(&shared[0]))
	var ways [2]*way
	for k := range ways {
		ring, err := unix.Mmap(socketsFD+k, 0, j.Slot*j.Slots, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map the ring: %w", err)
		}
		ways[k] = &way{
			in: socketsFD + k, out: socketsFD + 1 - k, ring: ring, slot: j.Slot, counts: &counts[k],
			held: make([]verdict, j.Slots), shape: newShaper(j.Box, uint64(k)), begin: time.Now(),
		}
	}
	fmt.Print(boxReady)
	os.Stdout.Close()
	var wg sync.WaitGroup
	for _, w := range ways {
		wg.Go(w.run)
	}
	wg.Wait()
	return nil
}

// A way is one direction.
type way struct {
	in, out int // sockets
	counts  *counters
	shape   *shaper

	ring       []byte
	slot       int
	held       []verdict // by slot
	head, tail uint      // slots from head up to tail are held

	begin time.Time     // of the clock
	last  time.Duration // arrival of the last frame

	messages [batch]message
	iov      [2 * batch]unix.Iovec
}

// batch is small, because the last frame of a batch is late by the time that the others take.
const batch = 16

// message is struct mmsghdr of sys/socket.h.
type message struct {
	header unix.Msghdr
	length uint32
}

func (w *way) run() {
	// Each direction keeps one of the runtime's two processors, and with it its thread: nothing else runs, and no
	// system call gives the processor away. A locked thread would hand it to another one and back at each preemption.
	//
	// A path does not slow down because the ends need the processors: frames go first. Without the permission, and
	// where the lateness counts, the counters tell.
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
	}, 0)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // ns
	for w.wait() {
		w.take()
		w.give()
	}
}

func (w *way) header(n uint) *unix.Tpacket2Hdr {
	return (*unix.Tpacket2Hdr)(unsafe.Pointer(&w.ring[int(n%uint(len(w.held)))*w.slot]))
}

func (w *way) verdict(n uint) *verdict { return &w.held[n%uint(len(w.held))] }

// take passes the frames that have arrived to the shaper.
func (w *way) take() {
	now := time.Now()
	for ; w.tail-w.head < uint(len(w.held)); w.tail++ {
		h := w.header(w.tail)
		if atomic.LoadUint32(&h.Status)&unix.TP_STATUS_USER == 0 {
			break
		}
		// The kernel's time of arrival is that of a clock that can be set. It counts only as an age.
		age := time.Duration(now.UnixNano() - int64(h.Sec)*int64(time.Second) - int64(h.Nsec))
		w.last = max(w.last, now.Sub(w.begin)-max(0, age))
		v := w.shape.admit(w.last, int(h.Len))
		switch {
		case v.copies == 0:
			w.counts[v.reason].Add(1)
		case v.jumps:
			w.send(w.fill(0, h, v.copies))
			v = verdict{}
		}
		*w.verdict(w.tail) = v
	}
}

// give sends what is due.
func (w *way) give() {
	for w.head != w.tail {
		now := time.Since(w.begin)
		n, end := 0, w.head
		for ; end != w.tail && n+2 <= batch && w.verdict(end).due <= now; end++ {
			n = w.fill(n, w.header(end), w.verdict(end).copies)
		}
		if end == w.head {
			return
		}
		w.send(n)
		now = time.Since(w.begin)
		for ; w.head != end; w.head++ {
			if v := w.verdict(w.head); v.copies != 0 {
				if by := now - v.due; by > lateAfter {
					w.counts[late].Add(1)
					w.counts[maxLate].Store(max(w.counts[maxLate].Load(), uint64(by)))
				} else if uint64(by) > w.counts[maxLate].Load() {
					w.counts[maxLate].Store(uint64(by))
				}
			}
			atomic.StoreUint32(&w.header(w.head).Status, unix.TP_STATUS_KERNEL)
		}
	}
}

// fill writes copies messages with the frame at h after the first n, and returns how many there are then.
func (w *way) fill(n int, h *unix.Tpacket2Hdr, copies int) int {
	for range copies {
		v := &w.iov[n]
		v.Base = (*byte)(unsafe.Add(unsafe.Pointer(h), h.Mac))
		v.SetLen(int(h.Snaplen))
		w.messages[n].header.Iov = v
		w.messages[n].header.SetIovlen(1)
		n++
	}
	return n
}

// send sends the first n messages.
func (w *way) send(n int) {
	for k := 0; k < n; {
		sent, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(w.out), uintptr(unsafe.Pointer(&w.messages[k])),
			uintptr(n-k), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			w.counts[forwarded].Add(uint64(sent))
			k += int(sent)
		case unix.EINTR:
		default: // about the first message
			w.counts[refused].Add(1)
			k++
		}
	}
}

// wait reports whether to go on, when there is something to do.
func (w *way) wait() bool {
	fds := [2]unix.PollFd{{Fd: stopFD}, {Fd: int32(w.in), Events: unix.POLLIN}}
	n := len(fds)
	var timeout *unix.Timespec
	if w.head != w.tail {
		// The kernel reports the socket as readable as long as the last frame is in its slot.
		n = 1
		ts := unix.NsecToTimespec(max(0, int64(w.verdict(w.head).due-time.Since(w.begin))))
		timeout = &ts
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), uintptr(n),
		uintptr(unsafe.Pointer(timeout)), 0, 0, 0)
	if errno != 0 {
		return errno == unix.EINTR
	}
	if n == 2 && fds[1].Revents&unix.POLLERR != 0 {
		_, _ = unix.GetsockoptInt(w.in, unix.SOL_SOCKET, unix.SO_ERROR) // once, if the device goes down
	}
	return fds[0].Revents == 0
}
