//go:build linux && !(386 || arm || mips || mipsle)

package stat

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bywash/bywash/internal/kit"
)

const envOtherUser = "BYWASH_STAT_OTHER_USER" // an endpoint's name, to be captured from by another user

func TestMain(m *testing.M) {
	if name := os.Getenv(envOtherUser); name != "" {
		got, err := ask(name)
		_, _ = os.Stdout.WriteString(got)
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func serveSelf(t *testing.T) Endpoint {
	t.Helper()
	s, err := Serve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ends, err := Captures()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Backward(ends) {
		if e.PID == os.Getpid() {
			return e
		}
	}
	t.Fatal("this process is not listed")
	return Endpoint{}
}

func newTap(t *testing.T, device string) *kit.Tap {
	tap := &kit.Tap{Driver: "toy", Device: device, LinkType: kit.LinkEthernet}
	kit.AddTap(tap)
	t.Cleanup(func() { kit.RemoveTap(tap) })
	return tap
}

// captured checks that a tap that was announced is captured from: it is before it is announced.
func captured(t *testing.T, tap *kit.Tap) {
	t.Helper()
	if tap.Sinks() == nil {
		t.Fatalf("%s was announced, and is not captured from", tap.Device)
	}
}

func show(tap *kit.Tap, f kit.Frame) {
	for _, s := range tap.Sinks() {
		s.Frame(f)
	}
}

func mustNext(t *testing.T, s *Stream) Record {
	t.Helper()
	for {
		r, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if r.Counts == nil && !r.Ready { // counts come when a second is over
			return r
		}
	}
}

func captureSelf(t *testing.T, r CaptureRequest) *Stream {
	t.Helper()
	s, err := Capture(serveSelf(t), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if r, err := s.Next(); err != nil || !r.Ready {
		t.Fatalf("the first record is %+v, %v; want ready", r, err)
	}
	return s
}

// One capture too many fails with an error that tells so.
func TestCaptureThatIsRefused(t *testing.T) {
	for range maxCaptures {
		captureSelf(t, CaptureRequest{})
	}
	s, err := Capture(serveSelf(t), CaptureRequest{})
	if err == nil {
		defer s.Close()
		_, err = s.Next()
	}
	if !errors.Is(err, ErrRefused) {
		t.Errorf("%v, want ErrRefused", err)
	}
}

// A reader that does not read holds up the memory of so many NICs only.
func TestCaptureHasABoundOfNICs(t *testing.T) {
	x := &capturing{live: maxFeeds - 1}
	first, second := newTap(t, "eth0"), newTap(t, "eth1")
	x.watch(first, true)
	x.watch(second, true)
	if first.Sinks() == nil || second.Sinks() != nil {
		t.Errorf("%d NICs, and %d more: captured from %v and %v", maxFeeds-1, 2, first.Sinks() != nil, second.Sinks() != nil)
	}
	x.watch(first, false)
}

// rest stops a capture and reads on until its end; counts are those of one interface.
func rest(t *testing.T, s *Stream, number uint16) (frames int, counts Counts) {
	t.Helper()
	s.Stop()
	for {
		r, err := s.Next()
		if err == io.EOF {
			return frames, counts
		}
		if err != nil {
			t.Fatal(err)
		}
		if r.Frame != nil {
			frames++
		}
		if r.Counts != nil && r.Number == number {
			counts = *r.Counts
		}
	}
}

func TestCaptureCarriesFramesOfNICsNowAndLater(t *testing.T) {
	eth0 := newTap(t, "eth0")
	s := captureSelf(t, CaptureRequest{})
	if r := mustNext(t, s); r.Interface == nil || *r.Interface != (Interface{"toy", "eth0", 1}) || r.Number != 0 {
		t.Fatalf("first record %+v, want interface eth0", r)
	}
	eth1 := newTap(t, "eth1")
	if r := mustNext(t, s); r.Interface == nil || r.Interface.Device != "eth1" || r.Number != 1 {
		t.Fatalf("second record %+v, want interface eth1", r)
	}
	captured(t, eth0)
	captured(t, eth1)
	show(eth1, kit.Frame{Time: 7, Sent: true, Data: []byte("to")})
	if r := mustNext(t, s); r.Number != 1 || string(r.Frame) != "to" || !r.Sent || r.Time != 7 || r.Length != 2 {
		t.Fatalf("%+v, want what eth1 sent", r)
	}
	show(eth0, kit.Frame{Time: 8, Data: []byte("from there")})
	if r := mustNext(t, s); r.Number != 0 || string(r.Frame) != "from there" || r.Sent {
		t.Fatalf("%+v, want what eth0 received", r)
	}
	show(eth1, kit.Frame{Data: []byte("last")})
	kit.RemoveTap(eth1) // what it has shown still comes
	if r := mustNext(t, s); string(r.Frame) != "last" {
		t.Fatalf("%+v, want the last frame of a NIC that was closed", r)
	}
	if n, c := rest(t, s, 0); n != 0 || c != (Counts{Frames: 1}) {
		t.Errorf("%d frames more, counts of eth0 %+v", n, c)
	}
	if eth0.Sinks() != nil || eth1.Sinks() != nil {
		t.Error("a reader is still attached after the end")
	}
}

func TestCaptureChooses(t *testing.T) {
	newTap(t, "eth0")
	eth1 := newTap(t, "eth1")
	s := captureSelf(t, CaptureRequest{Device: "eth1", Snap: 4})
	if r := mustNext(t, s); r.Interface == nil || r.Interface.Device != "eth1" {
		t.Fatalf("%+v, want eth1", r)
	}
	captured(t, eth1)
	show(eth1, kit.Frame{Data: []byte("long frame")})
	if r := mustNext(t, s); string(r.Frame) != "long" || r.Length != 10 {
		t.Errorf("%+v, want 4 of the 10 bytes", r)
	}
	if n, c := rest(t, s, 0); n != 0 || c.Frames != 1 {
		t.Errorf("%d frames more, counts %+v", n, c)
	}
}

// A reader that does not read costs frames, which are counted, and blocks no sender.
func TestSlowReaderLosesFramesThatAreCounted(t *testing.T) {
	tap := newTap(t, "eth0")
	s := captureSelf(t, CaptureRequest{})
	mustNext(t, s)
	captured(t, tap)
	data := make([]byte, 1500)
	const shown = 50_000 // 75 MB
	for range shown {
		show(tap, kit.Frame{Data: data})
	}
	n, c := rest(t, s, 0)
	if c.Frames != shown || c.Dropped == 0 || uint64(n)+c.Dropped != shown {
		t.Errorf("%d frames came of %d, counts %+v", n, shown, c)
	}
}

// A capturing process that does not read delays neither the data path nor Close.
func TestServeEndsBesideAReaderThatDoesNotRead(t *testing.T) {
	srv, err := Serve()
	if err != nil {
		t.Fatal(err)
	}
	ends, err := Captures()
	if err != nil {
		t.Fatal(err)
	}
	tap := newTap(t, "eth0")
	for _, e := range ends {
		if e.PID == os.Getpid() {
			s, err := Capture(e, CaptureRequest{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			mustNext(t, s)
		}
	}
	captured(t, tap)
	for range 4000 {
		show(tap, kit.Frame{Data: make([]byte, 1500)})
	}
	done := make(chan struct{})
	go func() { _ = srv.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("Close waits for a reader")
	}
	if tap.Sinks() != nil {
		t.Error("a reader is still attached")
	}
}

// Frames leave the ring as they went in, in order, except those that are counted as dropped.
func TestRingKeepsOrderAndCounts(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	f := &feed{snap: 200, ring: make([]byte, 4096)}
	var out []byte
	var shown, dropped uint64
	var want [][]byte
	for range 100_000 {
		if rnd.IntN(3) > 0 {
			b := make([]byte, rnd.IntN(300))
			for k := range b {
				b[k] = byte(shown>>8) ^ byte(shown) + byte(k)
			}
			f.Frame(kit.Frame{Data: b})
			shown++
			if d := f.dropped.Load(); d > dropped {
				dropped = d
			} else {
				want = append(want, b[:min(len(b), 200)])
			}
		} else if x, y := f.unread(); len(x) > 0 && rnd.IntN(8) == 0 {
			out = append(append(out, x...), y...)
			f.consume(len(x) + len(y))
		}
	}
	x, y := f.unread()
	out = append(append(out, x...), y...)
	for k, w := range want {
		size := int(le.Uint32(out))
		if n := int(le.Uint32(out[16:])); n != len(w) || !bytes.Equal(out[frameHeader:][:n], w) {
			t.Fatalf("frame %d: % x, want % x", k, out[frameHeader:][:n], w)
		}
		out = out[size:]
	}
	if len(out) != 0 || f.frames.Load() != shown || dropped == 0 || uint64(len(want))+dropped != shown {
		t.Errorf("%d bytes left, %d frames counted of %d, %d dropped, %d kept",
			len(out), f.frames.Load(), shown, dropped, len(want))
	}
}

func TestCapturingAllocatesNothing(t *testing.T) {
	tap := &kit.Tap{}
	f := &feed{snap: 1 << 16, ring: make([]byte, 1<<16)}
	tap.Attach(f)
	data := make([]byte, 1500)
	if n := testing.AllocsPerRun(1000, func() {
		show(tap, kit.Frame{Data: data})
		f.consume(int(f.tail.Load() - f.head.Load()))
	}); n != 0 {
		t.Errorf("%v allocations a frame, want none", n)
	}
}

func BenchmarkCapturedFrame(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
	}{{"64", 64}, {"1500", 1500}} {
		b.Run(c.name, func(b *testing.B) {
			f := &feed{snap: 1 << 16, ring: make([]byte, ringSize)}
			data := make([]byte, c.size)
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			for b.Loop() {
				f.Frame(kit.Frame{Data: data})
				if f.tail.Load()-f.head.Load() > ringSize/2 {
					f.head.Store(f.tail.Load())
				}
			}
		})
	}
}

// ask captures without checking the process that answers.
func ask(name string) (string, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return "", err
	}
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: name}); err != nil {
		return "", err
	}
	_, _ = syscall.Write(fd, []byte(`{"version":3}`)) // it may have hung up already
	var got []byte
	for !bytes.Contains(got, []byte("eth0")) {
		b := make([]byte, 4096)
		n, err := syscall.Read(fd, b)
		if errors.Is(err, syscall.ECONNRESET) || err == nil && n == 0 {
			break
		}
		if err != nil {
			return "", err
		}
		got = append(got, b[:n]...)
	}
	return string(got), nil
}

// Processes of other users, except root, get neither counters nor frames.
func TestOtherUsersGetNoFrames(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: asks as another user")
	}
	newTap(t, "eth0")
	e := serveSelf(t)
	if got, err := ask(e.name); err != nil || !strings.Contains(got, "eth0") {
		t.Fatalf("the same user got %q, %v; want eth0's announcement", got, err)
	}
	path, err := os.MkdirTemp("", "") // where other users can run it from
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(path)
	exe, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = errors.Join(os.Chmod(path, 0o755), os.WriteFile(path+"/otheruser", exe, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{e.name, strings.Replace(e.name, capturePrefix, prefix, 1)} {
		cmd := exec.Command(path + "/otheruser")
		cmd.Env = append(os.Environ(), envOtherUser+"="+name)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		got, err := cmd.Output()
		if err != nil || len(got) != 0 {
			t.Errorf("%s: another user got %q, %v; want nothing", name, got, err)
		}
	}
}

// A process that stops in the middle of a record does not block processes that ask first.
func TestHalfARecordIsNotBuffered(t *testing.T) {
	f := &feed{tap: &kit.Tap{Driver: "toy", Device: "eth0"}, snap: 100, ring: make([]byte, 4096)}
	intro, err := f.announcement()
	if err != nil {
		t.Fatal(err)
	}
	f.Frame(kit.Frame{Data: []byte("frame")})
	a, _ := f.unread()
	for cut, want := range map[int]bool{0: true, 1: false, len(a) - recordHeader: false, len(a) - 4: false, len(a): false} {
		s := newStream(nil, bytes.NewReader(slices.Concat(intro, a[:len(a)-cut])), 1)
		if r, err := s.Next(); err != nil || r.Interface == nil {
			t.Fatal(r, err)
		}
		if got := s.Buffered(); got != want {
			t.Errorf("without the last %d bytes: Buffered is %v", cut, got)
		}
	}
}

// Malformed records are an error; those that are accepted have no control characters in names.
func FuzzStream(f *testing.F) {
	frame := &feed{tap: &kit.Tap{Driver: "afxdp", Device: "eth0"}, snap: 100, ring: make([]byte, 4096)}
	frame.Frame(kit.Frame{Time: 1, Data: []byte("frame")})
	intro, err := frame.announcement()
	if err != nil {
		f.Fatal(err)
	}
	a, _ := frame.unread()
	f.Add(slices.Concat(intro, a, frame.counts()))
	long, err := (&feed{tap: &kit.Tap{Driver: "afxdp", Device: strings.Repeat("x", maxName+1)}}).announcement()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(long)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newStream(nil, bytes.NewReader(b), 1)
		for {
			r, err := s.Next()
			if err != nil {
				return
			}
			if i := r.Interface; i != nil && strings.ContainsAny(i.Driver+i.Device, "\x1b\n\r\x00") {
				t.Fatalf("control characters in %+v", i)
			}
			if i := r.Interface; i != nil && max(len(i.Driver), len(i.Device)) > maxName {
				t.Fatalf("names of %d and %d bytes", len(i.Driver), len(i.Device))
			}
			if len(r.Frame) > r.Length || !r.Ready && int(r.Number) >= s.known {
				t.Fatalf("%+v", r)
			}
		}
	})
}
