//go:build linux && !(386 || arm || mips || mipsle)

package xsk_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/internal/lab/veth"
)

func TestRebindingAtOnceAfterClose(t *testing.T) {
	needLab(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			p := lab(t, veth.Config{})
			cfg := xsk.Config{Attach: mode.attach, Memory: xsk.UMEMConfig{Chunks: 64}}
			// The kernel gives a queue back in a work item, which a busy machine may run after more than a second.
			cfg.Socket.BindTimeout = time.Minute
			a := open(t, &p.Ends[0], cfg)
			free := halves(t, a)
			head := header(&p.Ends[0], &p.Ends[1])
			for i := range 20 {
				b, err := tryOpen(&p.Ends[1], cfg)
				if err != nil {
					t.Fatalf("round %d: %v", i, err)
				}
				halves(t, b)
				transmit(t, a.Sockets[0], head, free[:1], i, 64)
				checkFrame(t, b.UMEM.Data(receive(t, b.Sockets[0], 1)[0]), head, i, 64)
				complete(t, a.Sockets[0], 1)
				// Frames are on their way when it is closed.
				transmit(t, a.Sockets[0], head, free[:24], i, 64)
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				complete(t, a.Sockets[0], 24)
				if id := attached(t, &p.Ends[1]); id != 0 {
					t.Fatalf("program %d is still attached", id)
				}
			}
		})
	}
}

// resources counts what this process holds.
func resources(t testing.TB) (fds, maps int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	// Go's own mappings grow with its heap; the rings' are of a socket.
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(all), bytes.Count(b, []byte("socket:["))
}

func TestNothingLeaks(t *testing.T) {
	p := lab(t, veth.Config{Queues: 2})
	cycle := func() {
		d, err := tryOpen(&p.Ends[0], xsk.Config{Memory: xsk.UMEMConfig{Chunks: 64}})
		if err != nil {
			t.Fatal(err)
		}
		if _, maps := resources(t); maps < 8 {
			t.Fatalf("got %d mappings of rings, want 8 or more: are they counted?", maps)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		// Failures, at each step further in.
		for _, cfg := range []xsk.Config{
			{Match: xsk.Match{EtherType: 1}},
			{Queues: []int{0, 5}},
			{Memory: xsk.UMEMConfig{ChunkSize: 1}},
			{Socket: xsk.SocketConfig{Rx: 3}},
			{Socket: xsk.SocketConfig{TxBudget: 1 << 20}},
			{Socket: xsk.SocketConfig{Copying: xsk.CopyNever}},
		} {
			if d, err := tryOpen(&p.Ends[0], cfg); err == nil {
				d.Close()
				t.Fatalf("%+v: opened", cfg)
			}
		}
		if id := attached(t, &p.Ends[0]); id != 0 {
			t.Fatalf("program %d is attached", id)
		}
	}
	cycle() // resources that are opened once stay
	fds, maps := resources(t)
	for range 5 {
		cycle()
	}
	if f, m := resources(t); f != fds || m != maps {
		t.Errorf("got %d descriptors and %d mappings, want %d and %d", f, m, fds, maps)
	}
}

func TestErrorsNameWhatIsWrong(t *testing.T) {
	p := lab(t, veth.Config{Queues: 2})
	tests := []struct {
		name   string
		cfg    xsk.Config
		is     error
		output string
	}{
		{"queue beyond", xsk.Config{Queues: []int{2}}, nil, "too few queues"},
		{"negative queue", xsk.Config{Queues: []int{-1}}, nil, "too few queues"},
		{"queue twice", xsk.Config{Queues: []int{0, 0}}, nil, "twice"},
		{"no queue", xsk.Config{Queues: []int{}}, nil, "no receive queue"},
		{"no zero-copy", xsk.Config{Socket: xsk.SocketConfig{Copying: xsk.CopyNever}}, errors.ErrUnsupported, "zero-copy"},
		{"no power of two", xsk.Config{Socket: xsk.SocketConfig{Tx: 100}}, nil, "power of two"},
		{"no ring", xsk.Config{Socket: xsk.SocketConfig{Rx: -1, Tx: -1}}, nil, "neither"},
		{"small budget", xsk.Config{Socket: xsk.SocketConfig{TxBudget: 1}}, nil, "budget"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := tryOpen(&p.Ends[0], tt.cfg)
			if err == nil {
				d.Close()
				t.Fatal("opened")
			}
			if tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.output) {
				t.Errorf("got %v, want it to match %v and contain %q", err, tt.is, tt.output)
			}
		})
	}
	gone := p.Ends[0]
	gone.Device = "nosuchdev"
	if _, err := tryOpen(&gone, xsk.Config{}); err == nil || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("got %v, want it to contain that there is no such device", err)
	}
}

// awaitLink waits until the state of the link is want, by events alone.
func awaitLink(t *testing.T, s *xsk.Socket, want xsk.LinkState) {
	t.Helper()
	for s.Link() != want {
		e, err := s.Wait(0, deadline)
		if err != nil {
			t.Fatalf("the link is %s: %v", s.Link(), err)
		}
		if e&xsk.EventLink == 0 && s.Link() != want {
			t.Fatalf("got event %v while the link is %s, want EventLink and it to be %s", e, s.Link(), want)
		}
	}
	// An event reports the same as Link.
	if _, err := s.Wait(0, 0); err != nil {
		t.Fatal(err)
	}
}

func TestLinkDownIsReportedAndRecoveredFrom(t *testing.T) {
	inBothModes(t, veth.Config{}, xsk.Config{}, xsk.Config{}, func(t *testing.T, r *run) {
		a, b := r.a.Sockets[0], r.b.Sockets[0]
		if a.Link() != xsk.LinkUp {
			t.Errorf("the link is %s, want up", a.Link())
		}
		if err := r.lab.Ends[0].SetUp(false); err != nil {
			t.Fatal(err)
		}
		awaitLink(t, a, xsk.LinkDown)
		awaitLink(t, b, xsk.LinkNoCarrier)
		copy(r.a.UMEM.Frame(r.free[0]), r.head)
		a.Transmit([]xsk.Desc{{Addr: r.free[0], Len: 64}})
		if err := a.Kick(); err != xsk.ErrLinkDown {
			t.Errorf("got %v, want ErrLinkDown", err)
		}
		if n := a.TxPending(); n != 1 {
			t.Errorf("%d frames pending, want 1", n)
		}
		if e, err := a.Wait(xsk.EventRx, 20*time.Millisecond); e != 0 || err != nil {
			t.Errorf("down, and reported: got event %v, %v, want a timeout", e, err)
		}
		if err := r.lab.Ends[0].SetUp(true); err != nil {
			t.Fatal(err)
		}
		awaitLink(t, a, xsk.LinkUp)
		awaitLink(t, b, xsk.LinkUp)
		if err := a.Kick(); err != nil {
			t.Fatal(err)
		}
		receive(t, b, 1)
		transmit(t, a, r.head, r.free[1:9], 0, 64)
		for i, d := range receive(t, b, 8) {
			checkFrame(t, r.b.UMEM.Data(d), r.head, i, 64)
		}
	})
}

func TestDeletedDeviceIsReported(t *testing.T) {
	inBothModes(t, veth.Config{}, xsk.Config{}, xsk.Config{}, func(t *testing.T, r *run) {
		s := r.b.Sockets[0]
		waited := make(chan error)
		go func() {
			for {
				if _, err := s.Wait(xsk.EventRx, -1); err != nil {
					waited <- err
					return
				}
			}
		}()
		if err := r.lab.Ends[0].Delete(); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; err != xsk.ErrDeviceGone {
			t.Errorf("wait: got %v, want ErrDeviceGone", err)
		}
		if _, err := s.Wait(xsk.EventRx, -1); err != xsk.ErrDeviceGone {
			t.Errorf("second wait: got %v, want ErrDeviceGone", err)
		}
		s.Transmit([]xsk.Desc{{Addr: r.back[0], Len: 64}})
		if err := s.Kick(); err != xsk.ErrDeviceGone {
			t.Errorf("kick: got %v, want ErrDeviceGone", err)
		}
		if got := s.Link(); got != xsk.LinkGone {
			t.Errorf("the link is %s, want gone", got)
		}
		if err := r.b.Close(); err != nil {
			t.Error("close: ", err)
		}
	})
}

func TestWakeAndCloseEndAWait(t *testing.T) {
	p := lab(t, veth.Config{})
	d := open(t, &p.Ends[0], xsk.Config{})
	s := d.Sockets[0]
	s.Wake()
	s.Wake()
	if e, err := s.Wait(xsk.EventRx, -1); e != xsk.EventWake || err != nil {
		t.Errorf("woken before: got event %v, %v, want EventWake", e, err)
	}
	if e, err := s.Wait(xsk.EventRx, time.Millisecond); e != 0 || err != nil {
		t.Errorf("not woken again: got event %v, %v, want a timeout", e, err)
	}
	const rounds = 1000
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		for range rounds {
			if e, err := s.Wait(xsk.EventRx, -1); e != xsk.EventWake || err != nil {
				t.Errorf("got event %v, %v, want EventWake", e, err)
				return
			}
			woken <- struct{}{}
		}
	}()
	for range rounds {
		s.Wake()
		<-woken
	}
	<-woken
	closed := make(chan error)
	go func() {
		for {
			if _, err := s.Wait(xsk.EventRx, -1); err != nil {
				closed <- err
				return
			}
		}
	}()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != xsk.ErrClosed {
		t.Errorf("got %v, want ErrClosed", err)
	}
	s.Wake()
	if _, err := s.Stats(); err != xsk.ErrClosed {
		t.Errorf("statistics: got %v, want ErrClosed", err)
	}
	if n := s.Fill(make([]uint64, 4)) + s.Transmit(make([]xsk.Desc, 4)) + s.Receive(make([]xsk.Desc, 4)); n != 0 {
		t.Errorf("closed rings took or gave %d entries", n)
	}
	if err := s.Kick(); err != nil {
		t.Errorf("kick: %v", err)
	}
}

// tcp carries data from end 0 to end 1 by the kernel's TCP, in the background.
func tcp(t *testing.T, ends *[2]veth.End, data []byte) (got <-chan []byte) {
	t.Helper()
	var l net.Listener
	var c net.Conn
	err := errors.Join(
		ends[1].Do(func() (err error) { l, err = net.Listen("tcp", ends[1].IPv4.Addr().String()+":0"); return err }),
		ends[0].Do(func() (err error) { c, err = net.Dial("tcp", l.Addr().String()); return err }))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c.Write(data)
		c.Close()
	}()
	all := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(s)
		s.Close()
		all <- b
	}()
	return all
}

func TestTCPPassesBeside(t *testing.T) {
	inBothModes(t, veth.Config{}, xsk.Config{}, xsk.Config{}, func(t *testing.T, r *run) {
		data := bytes.Repeat([]byte("around the kernel, and through it "), 100_000)
		got := tcp(t, &r.lab.Ends, data)
		// Ours compete with TCP for the queue of the device and may be lost;
		// those that arrive are whole and in order.
		const last = 1 << 20
		next, sent := 0, 0
		take := func(descs []xsk.Desc) {
			for _, d := range descs {
				frame := r.b.UMEM.Data(d)
				n := int(binary.BigEndian.Uint32(frame[len(r.head):])) / 1000
				if n < next {
					t.Fatalf("frame %d came after frame %d", n, next-1)
				}
				checkFrame(t, frame, r.head, n, 64)
				next = n + 1
			}
			refill(t, r.b.Sockets[0], descs)
		}
		send := func(n int) {
			transmit(t, r.a.Sockets[0], r.head, r.free[:1], n, 64)
			complete(t, r.a.Sockets[0], 1)
		}
		var descs [64]xsk.Desc
		for busy := true; busy; sent++ {
			select {
			case all := <-got:
				if !bytes.Equal(all, data) {
					t.Error("the bytes of TCP did not arrive")
				}
				busy = false
			default:
				send(sent)
				take(descs[:r.b.Sockets[0].Receive(descs[:])])
			}
		}
		send(last)
		for next <= last {
			take(receive(t, r.b.Sockets[0], 1))
		}
		t.Logf("%d frames beside %d bytes of TCP", sent, len(data))
	})
}

// rxPackets is how many frames a device has received, also those dropped since.
func rxPackets(t *testing.T, e *veth.End) (n int) {
	t.Helper()
	err := e.Do(func() error {
		all, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		_, line, _ := strings.Cut(string(all), e.Device+":")
		_, err = fmt.Sscan(line, new(int), &n)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFramesForAQueueWithoutASocketAreDropped(t *testing.T) {
	p := lab(t, veth.Config{Queues: 2})
	a := open(t, &p.Ends[0], xsk.Config{})
	b := open(t, &p.Ends[1], xsk.Config{Queues: []int{1}})
	free := halves(t, a)
	halves(t, b)
	head := header(&p.Ends[0], &p.Ends[1])
	transmit(t, a.Sockets[0], head, free[:4], 0, 64)
	transmit(t, a.Sockets[1], head, free[4:8], 9, 64)
	for i, d := range receive(t, b.Sockets[0], 4) {
		checkFrame(t, b.UMEM.Data(d), head, 9+i, 64)
	}
	if err := b.Program.Remove(1); err != nil {
		t.Fatal(err)
	}
	before := rxPackets(t, &p.Ends[1])
	transmit(t, a.Sockets[1], head, free[8:12], 0, 64)
	until(t, "the program has seen the frames", func() bool { return rxPackets(t, &p.Ends[1]) >= before+4 })
	if err := b.Program.Add(b.Sockets[0]); err != nil {
		t.Fatal(err)
	}
	transmit(t, a.Sockets[1], head, free[12:16], 20, 64)
	for i, d := range receive(t, b.Sockets[0], 4) {
		checkFrame(t, b.UMEM.Data(d), head, 20+i, 64)
	}
}

func TestDataPathAllocatesNothing(t *testing.T) {
	inBothModes(t, veth.Config{}, xsk.Config{}, xsk.Config{}, func(t *testing.T, r *run) {
		a, b := r.a.Sockets[0], r.b.Sockets[0]
		descs, addrs := make([]xsk.Desc, 32), make([]uint64, 32)
		for i, addr := range r.free[:32] {
			copy(r.a.UMEM.Frame(addr), r.head)
			descs[i] = xsk.Desc{Addr: addr, Len: 64}
		}
		got := testing.AllocsPerRun(100, func() {
			a.Transmit(descs)
			a.Kick()
			for n := 0; n < 32; {
				k := b.Receive(descs[n:])
				for i, d := range descs[n : n+k] {
					addrs[i] = d.Addr
				}
				b.Fill(addrs[:k])
				n += k
				b.Wait(xsk.EventRx, time.Microsecond)
				b.WakeRx()
			}
			for n := 0; n < 32; {
				k := a.Complete(addrs[n:])
				n += k
			}
			for i, addr := range addrs {
				descs[i] = xsk.Desc{Addr: addr, Len: 64}
			}
		})
		if got != 0 {
			t.Errorf("got %v allocations a batch, want 0", got)
		}
	})
}

// Without multi-buffer a native program on veth bounds the MTU.
func TestFallbackToGenericNamesTheReason(t *testing.T) {
	p := lab(t, veth.Config{MTU: 9000})
	d := open(t, &p.Ends[0], xsk.Config{})
	if how, why := d.Program.Attached(); how != xsk.AttachGeneric || why == nil || d.Mode() != "skb-copy" {
		t.Errorf("got %s (mode %s), reason %v, want skb and the reason", how, d.Mode(), why)
	}
	if d, err := tryOpen(&p.Ends[1], xsk.Config{Attach: xsk.AttachNative}); err == nil {
		d.Close()
		t.Error("a native program was attached although the MTU forbids it")
	}
}

// With multi-buffer a native program takes long frames.
func TestMultiBufferIsNativeWithLongFrames(t *testing.T) {
	needLab(t)
	needFeature(t, xsk.FeatureMultiBuffer)
	p := lab(t, veth.Config{MTU: 9000})
	multi := open(t, &p.Ends[1], xsk.Config{Socket: xsk.SocketConfig{MultiBuffer: true}})
	if how, why := multi.Program.Attached(); how != xsk.AttachNative || why != nil {
		t.Errorf("multi-buffer: got %s, reason %v, want native", how, why)
	}
}
