//go:build linux

package veth_test

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/internal/lab/veth"
)

// wire sends and receives numbered frames of a protocol that nobody else uses.
type wire struct {
	t    *testing.T
	pair *veth.Pair
	fds  [2]int // packet sockets of the ends
}

const (
	protocol   = 0x88b5 // for experiments (IEEE 802)
	frameBytes = 100
	answerIn   = 20 * time.Second
)

// newWire makes a pair with a box and without IPv6, whose kernel sends frames of its own.
func newWire(t *testing.T, b veth.Box) *wire {
	t.Helper()
	w := &wire{t: t, pair: newPair(t, veth.Config{Box: &b, NoIPv6: true})}
	for k := range w.fds {
		proto := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
		err := w.pair.Ends[k].Do(func() (err error) {
			w.fds[k], err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(w.fds[k]) })
		at := unix.SockaddrLinklayer{Ifindex: w.pair.Ends[k].Index, Protocol: proto}
		limit := unix.NsecToTimeval(answerIn.Nanoseconds())
		if err := errors.Join(unix.Bind(w.fds[k], &at),
			unix.SetsockoptInt(w.fds[k], unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
			unix.SetsockoptInt(w.fds[k], unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptTimeval(w.fds[k], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// send sends frames 0 to n-1 from an end.
func (w *wire) send(end, n int) {
	w.t.Helper()
	frame := make([]byte, frameBytes)
	copy(frame, w.pair.Ends[1-end].MAC)
	copy(frame[6:], w.pair.Ends[end].MAC)
	binary.BigEndian.PutUint16(frame[12:], protocol)
	for k := range n {
		binary.BigEndian.PutUint32(frame[14:], uint32(k))
		if _, err := unix.Write(w.fds[end], frame); err != nil {
			w.t.Fatal(err)
		}
	}
}

// receive receives n frames at an end and returns their numbers.
func (w *wire) receive(end, n int) (numbers []int) {
	w.t.Helper()
	frame := make([]byte, 2*frameBytes)
	for range n {
		got, err := unix.Read(w.fds[end], frame)
		for err == unix.EINTR { // the socket has a timeout, so the kernel does not begin again after a signal
			got, err = unix.Read(w.fds[end], frame)
		}
		if err != nil || got != frameBytes {
			w.t.Fatalf("after %d frames of %d: got %d bytes, %v, want %d", len(numbers), n, got, err, frameBytes)
		}
		numbers = append(numbers, int(binary.BigEndian.Uint32(frame[14:])))
	}
	return numbers
}

// settled waits until the box has decided about the n frames of an end and sent what it held, and returns its counts.
func (w *wire) settled(end, n int) veth.BoxStats {
	w.t.Helper()
	for limit := time.Now().Add(answerIn); ; runtime.Gosched() {
		s := w.pair.BoxStats()[end]
		if s.Forwarded+s.Lost+s.Dropped+s.Overrun >= uint64(n) {
			return s
		}
		if time.Now().After(limit) {
			w.t.Fatalf("of %d frames, the box has counted only %+v after %v", n, s, answerIn)
		}
	}
}

func TestBoxDelaysEachDirection(t *testing.T) {
	for _, delay := range []time.Duration{0, 20 * time.Microsecond, time.Millisecond, 30 * time.Millisecond} {
		t.Run(delay.String(), func(t *testing.T) {
			w := newWire(t, veth.Box{Delay: delay})
			for range 10 {
				start := time.Now()
				for end := range 2 {
					w.send(end, 1)
					w.receive(1-end, 1)
				}
				if d := time.Since(start); d < 2*delay {
					t.Errorf("there and back in %v, less than twice %v", d, delay)
				}
			}
		})
	}
}

func TestBoxKeepsTheOrder(t *testing.T) {
	const n = 400 // less than the kernel's backlog holds (net.core.netdev_max_backlog)
	for _, delay := range []time.Duration{0, 100 * time.Microsecond, 5 * time.Millisecond} {
		t.Run(delay.String(), func(t *testing.T) {
			w := newWire(t, veth.Box{Delay: delay})
			w.send(0, n)
			w.send(1, n) // while the others are still held
			for end := range 2 {
				if got := w.receive(1-end, n); !slices.IsSorted(got) || got[n-1] != n-1 {
					t.Errorf("from end %d: got frames in order %v", end, got)
				}
				if s := w.pair.BoxStats()[end]; s.Forwarded != n || s.Lost+s.Dropped+s.Overrun != 0 {
					t.Errorf("from end %d: got %+v, want %d frames forwarded and none dropped", end, s, n)
				}
			}
			if w.pair.BoxCPU() <= 0 {
				t.Error("the box has used no processor time")
			}
		})
	}
}

func TestBoxLosesEverything(t *testing.T) {
	const n = 100
	w := newWire(t, veth.Box{Loss: 1})
	w.send(0, n)
	if s := w.settled(0, n); s.Lost != n {
		t.Errorf("got %+v, want all %d frames lost", s, n)
	}
	if _, _, err := unix.Recvfrom(w.fds[1], make([]byte, frameBytes), unix.MSG_DONTWAIT); err != unix.EAGAIN {
		t.Errorf("a frame came through although every frame is lost: %v", err)
	}
}

// What a chance does to the frames depends on the seed alone.
func TestBoxRepeatsItsLosses(t *testing.T) {
	const n = 500
	run := func(b veth.Box) []int {
		w := newWire(t, b)
		w.send(0, n)
		s := w.settled(0, n)
		if s.Lost < n/20 || s.Lost > n/5 {
			t.Errorf("%+v: got %d frames of %d lost", b, s.Lost, n)
		}
		return w.receive(1, int(s.Forwarded))
	}
	one, two := veth.Box{Loss: 0.1, Seed: 1}, veth.Box{Loss: 0.1, Seed: 2}
	first, again, other := run(one), run(one), run(two)
	if !slices.Equal(first, again) {
		t.Errorf("seed 1 lets pass\n%v\nand then\n%v", first, again)
	}
	if slices.Equal(first, other) {
		t.Error("seeds 1 and 2 lose the same frames")
	}
}

func TestBoxSendsTwice(t *testing.T) {
	w := newWire(t, veth.Box{Duplicate: 1})
	w.send(0, 3)
	if got, want := w.receive(1, 6), []int{0, 0, 1, 1, 2, 2}; !slices.Equal(got, want) {
		t.Errorf("got frames %v, want %v", got, want)
	}
}

func TestBoxReorders(t *testing.T) {
	const n = 200
	w := newWire(t, veth.Box{Delay: time.Second, Reorder: 0.5, Seed: 1})
	w.send(0, n)
	got := w.receive(1, n)
	if slices.IsSorted(got) {
		t.Error("the frames came in order")
	}
	slices.Sort(got)
	for k := range got {
		if got[k] != k {
			t.Fatalf("got frames %v, want each once", got)
		}
	}
}

// However slowly the frames come, the first one and as many as the queue holds are never dropped.
func TestBoxQueueDropsItsTail(t *testing.T) {
	const n, queue = 50, 5
	w := newWire(t, veth.Box{Rate: 10 * frameBytes, Queue: queue})
	w.send(0, n)
	s := w.settled(0, n)
	if s.Dropped == 0 || s.Forwarded+s.Dropped != n {
		t.Errorf("got %+v, want some of %d frames dropped from the queue and the others forwarded", s, n)
	}
	got := w.receive(1, int(s.Forwarded))
	if want := []int{0, 1, 2, 3, 4, 5}; len(got) <= queue || !slices.Equal(got[:queue+1], want) {
		t.Errorf("got frames %v, want them to begin with %v", got, want)
	}
}

// Traffic through a box with a rate takes the same time on a fast and on a slow machine.
func TestBoxKeepsItsRate(t *testing.T) {
	const rate, size = 10e6, 2e6
	p := newPair(t, veth.Config{Box: &veth.Box{Rate: rate}})
	a, b := &p.Ends[0], &p.Ends[1]
	var server net.Listener
	var client net.Conn
	if err := b.Do(func() (err error) {
		server, err = net.Listen("tcp", netip.AddrPortFrom(b.IPv4.Addr(), 0).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := a.Do(func() (err error) { client, err = net.Dial("tcp", server.Addr().String()); return err }); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	start := time.Now()
	go func() { client.Write(make([]byte, size)) }()
	c, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.CopyN(io.Discard, c, size); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start).Seconds(); d < size/rate {
		t.Errorf("%v bytes came within %v s at %v bytes a second", size, d, rate)
	}
}

func TestBoxIsRefused(t *testing.T) {
	for name, cfg := range map[string]veth.Config{
		"beside a router":       {Box: &veth.Box{}, Router: true},
		"with offloads":         {Box: &veth.Box{}, Offloads: true},
		"a negative delay":      {Box: &veth.Box{Delay: -1}},
		"a negative queue":      {Box: &veth.Box{Queue: -1}},
		"more than everything":  {Box: &veth.Box{Loss: 1.1}},
		"less than nothing":     {Box: &veth.Box{Duplicate: -0.1}},
		"a share of no meaning": {Box: &veth.Box{Reorder: math.NaN()}},
	} {
		p, err := veth.New(cfg)
		if err == nil {
			p.Close()
		}
		if err == nil || errors.Is(err, os.ErrPermission) {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
	}
}

// Close ends a box also while frames come without pause, and while it holds some.
func TestCloseEndsTheBox(t *testing.T) {
	before := goleak.IgnoreCurrent()
	w := newWire(t, veth.Box{Delay: time.Hour})
	w.send(0, 10)
	var spaces [3]*veth.End
	for k, e := range []veth.End{w.pair.Ends[0], w.pair.Ends[1], w.pair.Router[0]} {
		fd, err := unix.FcntlInt(uintptr(e.Namespace), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		spaces[k] = &veth.End{Namespace: fd}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for frame := make([]byte, frameBytes); ; {
			select {
			case <-stop:
				return
			default:
				_, _ = unix.Write(w.fds[1], frame) // fails when the device is gone
			}
		}
	}()
	err := w.pair.Close()
	close(stop)
	<-stopped
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range spaces {
		if err := s.Do(func() error {
			if left := devices(t); !slices.Equal(left, []string{"lo"}) {
				t.Errorf("got devices %q after Close, want only lo", left)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != unix.ECHILD {
		t.Errorf("a child process is left: %v", err)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	if got := w.pair.BoxStats(); got != w.pair.BoxStats() || w.pair.BoxCPU() != 0 {
		t.Errorf("got %+v, which changes after Close", got)
	}
}
