package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/qnix/softnic"
)

func TestMain(m *testing.M) {
	softnic.RunIfStarted()
	if len(os.Args) > 1 && os.Args[1] == PeerCommand {
		if err := ServeChild(context.Background(), "test"); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestSizesAreParsed(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []int
	}{
		{"", nil}, {"8", []int{8}}, {"0", []int{0}}, {"4K", []int{4096}}, {"1G", []int{1 << 30}},
		{"1:8", []int{1, 2, 4, 8}}, {"3:13", []int{3, 6, 12}}, {"8,1M,8", []int{8, 1 << 20}}, {"64:64", []int{64}},
	} {
		got, err := ParseSizes(c.in)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("ParseSizes(%q) = %v, %v; want %v", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{"x", "-1", "2G", "K", "8:4", "0:8", "1:", ":8", "8,,9", "+8", "99999999999999999999", "1e3", "8 "} {
		if got, err := ParseSizes(in); err == nil {
			t.Errorf("ParseSizes(%q) = %v, want an error", in, got)
		}
	}
}

func FuzzParseSizes(f *testing.F) {
	for _, s := range []string{"8", "1:4M", "1K,2K", "0", ":"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sizes, err := ParseSizes(s)
		for _, n := range sizes {
			if err != nil || n < 0 || n > maxSize {
				t.Fatalf("ParseSizes(%q) = %v, %v", s, sizes, err)
			}
		}
	})
}

func FuzzControlFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{255, 255, 255, 255})
	f.Add([]byte("\x00\x00\x00\x2c{\"kind\":\"run\",\"n\":5,\"case\":{\"test\":\"lat\"}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		body, err := plainFrames{Reader: bytes.NewReader(b), Writer: io.Discard}.Receive()
		if err != nil {
			return
		}
		m, err := parseMessage(body)
		if err == nil && (m.N < 0 || m.N > maxIters || m.Case != nil && m.Case.Size > maxSize) {
			t.Fatalf("parseMessage accepted %+v", m)
		}
	})
}

func FuzzBaseline(f *testing.F) {
	f.Add([]byte(`{"driver":"shm","test":"lat","size":8,"lat_us_p50":0.2}`))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parseBaseline(bytes.NewReader(b)) })
}

func TestFollowerSurvivesAnyOrderOfMessages(t *testing.T) {
	for _, kind := range []string{kindConnect, kindIdle, kindPrepare, kindRun, kindInspect, kindUsage, kindFinish, kindClose, kindOpen, kindPeers, "nonsense", ""} {
		a, b := net.Pipe()
		stop := newStopper(t.Context())
		fw := &follower{ctl: newControl(b, nil, stop), stop: stop, version: "test"}
		done := make(chan error, 1)
		go func() { done <- fw.serve() }()
		lead := newControl(a, nil, newStopper(t.Context()))
		if _, err := lead.call(&message{Kind: kind}); err == nil {
			t.Errorf("%q before anything else: no error", kind)
		}
		a.Close()
		if err := <-done; err != nil {
			t.Errorf("%q: follower ended with %v", kind, err)
		}
	}
}

func TestPercentilesAreOfHalfRoundTrips(t *testing.T) {
	r := newRecorder()
	r.reset(time.Microsecond, true)
	if r.batch != 10 {
		t.Errorf("batch for 1 µs = %d, want 10", r.batch)
	}
	for i := 1; i <= 100; i++ {
		r.add(time.Duration(i)*20*time.Microsecond, 10) // i µs half a round trip
	}
	l := r.latencies()
	for _, c := range []struct {
		name      string
		got, want float64
	}{{"p50", l.p50, 50}, {"p99", l.p99, 99}, {"max", l.max, 100}, {"avg", l.avg, 50.5}} {
		if c.got < c.want*0.999 || c.got > c.want*1.002 {
			t.Errorf("%s = %v µs, want %v", c.name, c.got, c.want)
		}
	}
	for _, c := range []struct {
		op   time.Duration
		want int
	}{{0, 1}, {time.Nanosecond, 64}, {200 * time.Nanosecond, 50}, {6 * time.Microsecond, 1}, {time.Second, 1}} {
		if got := batchFor(c.op); got != c.want {
			t.Errorf("batchFor(%v) = %d, want %d", c.op, got, c.want)
		}
	}
}

func TestPatternFindsEveryWrongByte(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 64, 1001} {
		b := make([]byte, n)
		fill(b, 7)
		if err := verify(b, 7); err != nil {
			t.Fatal(err)
		}
		for i := range b {
			b[i] ^= 1
			if verify(b, 7) == nil {
				t.Errorf("byte %d of %d is wrong and was not found", i, n)
			}
			b[i] ^= 1
		}
		if n > 0 && verify(b, 8) == nil {
			t.Errorf("message 7 of %d bytes passed for message 8", n)
		}
	}
}

func TestJSONFieldsArePinned(t *testing.T) {
	var b bytes.Buffer
	if err := NewJSON(&b, io.Discard).Result(&Result{}); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&b)
	var got []string
	for depth := 0; ; {
		tok, err := d.Token()
		if err != nil {
			break
		}
		if _, ok := tok.(json.Delim); ok {
			depth++
			continue
		}
		got = append(got, tok.(string))
		if _, err := d.Token(); err != nil {
			t.Fatal(err)
		}
	}
	want := strings.Fields("driver test size iters lat_us_p50 lat_us_p99 lat_us_p999 lat_us_max lat_us_avg mb_per_s msg_per_s cpu_ns_per_byte path mem wait host time version")
	if !slices.Equal(got, want) {
		t.Errorf("fields\n got %v\nwant %v", got, want)
	}
	if !slices.Equal(columns, want) {
		t.Errorf("columns of CSV\n got %v\nwant %v", columns, want)
	}
}

// collector keeps what a run reports.
type collector struct {
	results []*Result
	missing []Missing
	on      func()
}

func (c *collector) Result(r *Result) error {
	c.results = append(c.results, r)
	if c.on != nil {
		c.on()
	}
	return nil
}
func (c *collector) Missing(m Missing) error { c.missing = append(c.missing, m); return nil }
func (c *collector) Close() error            { return nil }

func config(drivers string, tests ...Test) *Config {
	return &Config{Drivers: strings.Split(drivers, ","), Tests: tests, Iters: 200, Warmup: time.Millisecond, Wait: "poll", Mem: "arena", Version: "test"}
}

func TestSocketsAreMeasuredInEveryMode(t *testing.T) {
	for _, wait := range []string{"poll", "block"} {
		for _, validate := range []bool{false, true} {
			if testing.Short() && validate == (wait == "block") {
				continue // each way to wait once, and with validation and without
			}
			c := config("sock-tcp,sock-unix,sock-udp", Lat, BW, Rate, BiBW, Connect)
			c.Sizes, c.Wait, c.Validate = []int{1, 9, 4096, 100000}, wait, validate
			var got collector
			if err := Run(t.Context(), c, &got); err != nil {
				t.Fatalf("wait %s, validate %v: %v", wait, validate, err)
			}
			// sock-udp has neither connect nor bibw with 9 bytes.
			if want := 3*(4*4+1) - 2; len(got.results) != want {
				t.Errorf("wait %s, validate %v: %d results, want %d; missing: %v", wait, validate, len(got.results), want, got.missing)
			}
			for _, r := range got.results {
				if v, _ := r.main(); v <= 0 || r.Iters != 200 || r.Path == "" {
					t.Errorf("result %+v", r)
				}
			}
		}
	}
}

func TestKilledPeerIsAnErrorSoon(t *testing.T) {
	for _, wait := range []string{"poll", "block"} {
		for _, d := range []string{"sock-unix", "sock-tcp", "sock-udp"} {
			if testing.Short() && (d == "sock-tcp") == (wait == "poll") {
				continue // streams and datagrams that poll, and streams that block
			}
			c := config(d, Lat)
			c.Wait, c.Sizes, c.Iters = wait, []int{8}, 1<<30
			c.Self = []string{"/bin/sh", "-c", "exec /proc/" + "$PPID/exe " + PeerCommand + " & p=$!; sleep 0.4; kill -9 $p"}
			start := time.Now()
			err := Run(t.Context(), c, &collector{})
			if err == nil || time.Since(start) > 5*time.Second {
				t.Errorf("%s, wait %s: %v after %v, want an error within 5 s", d, wait, err, time.Since(start))
			}
		}
	}
}

func TestCancelEndsARun(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("Ctrl-C")
	time.AfterFunc(300*time.Millisecond, func() { cancel(cause) })
	c := config("sock-unix", Lat)
	c.Sizes, c.Iters = []int{8}, 1<<30
	start := time.Now()
	if err := Run(ctx, c, &collector{}); !errors.Is(err, cause) || time.Since(start) > 5*time.Second {
		t.Errorf("Run = %v after %v, want %v", err, time.Since(start), cause)
	}
}

func TestBaselineAddsTheChange(t *testing.T) {
	name := filepath.Join(t.TempDir(), "b.json")
	if err := os.WriteFile(name, []byte(`{"driver":"unix","test":"lat","size":8,"lat_us_p50":2,"mem":"heap","wait":"poll"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := ReadBaseline(name)
	if err != nil {
		t.Fatal(err)
	}
	r := &Result{Driver: "sock-unix", Test: "lat", Size: 8, Mem: "heap", Wait: "poll", LatP50: figure(3)}
	if b.Compare(r); r.Change == nil || *r.Change != 50 {
		t.Errorf("change = %v, want 50 %%", r.Change)
	}
	if r := (&Result{Driver: "sock-tcp", Test: "lat", Size: 8, LatP50: figure(3)}); true {
		if b.Compare(r); r.Change != nil {
			t.Errorf("change of another driver = %v", *r.Change)
		}
	}
	for _, bad := range []string{"", "{}", "nonsense", `{"test":"lat"}`} {
		if _, err := parseBaseline(strings.NewReader(bad)); err == nil {
			t.Errorf("baseline %q: no error", bad)
		}
	}
}

func TestPictureIsWellFormedAndNamesEveryDriver(t *testing.T) {
	var rs []*Result
	for _, d := range []string{"shm", "sock-tcp", "sock-unix"} {
		for s := 8; s <= 1<<20; s *= 8 {
			rs = append(rs, &Result{Driver: d, Test: "lat", Size: s, LatP50: figure(float64(s))},
				&Result{Driver: d, Test: "bw", Size: s, MBPerS: figure(float64(s))})
		}
	}
	for _, ext := range []string{".svg", ".html"} {
		name := filepath.Join(t.TempDir(), "p"+ext)
		p, err := NewPlot(name, config("all"))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rs {
			_ = p.Result(r)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{">shm<", ">sock-tcp<", ">sock-unix<", "Latency", "Bandwidth", "message size"} {
			if !bytes.Contains(b, []byte(d)) {
				t.Errorf("%s does not contain %q", ext, d)
			}
		}
		if ext == ".svg" {
			for d := xml.NewDecoder(bytes.NewReader(b)); ; {
				if _, err := d.Token(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("not well-formed: %v", err)
				}
			}
		}
	}
}

func TestHandshake(t *testing.T) {
	for _, c := range []struct {
		name, listener, dialer string
		ok                     bool
	}{{"same secret", "0123456789abcdef", "0123456789abcdef", true}, {"other secret", "0123456789abcdef", "0123456789abcdeX", false}} {
		a, b := net.Pipe()
		errs := make(chan error, 1)
		go func() {
			f, err := authenticate(a, []byte(c.listener), true)
			if err == nil {
				_, err = f.Receive()
			}
			a.Close()
			errs <- err
		}()
		f, derr := authenticate(b, []byte(c.dialer), false)
		if derr == nil {
			derr = f.Send([]byte("a message"))
		}
		b.Close()
		lerr := <-errs
		if (derr == nil) != c.ok || (lerr == nil) != c.ok {
			t.Errorf("%s: dialer %v, listener %v", c.name, derr, lerr)
		}
		if !c.ok && (!errors.Is(derr, errSecret) || !errors.Is(lerr, errSecret)) {
			t.Errorf("%s: dialer %v, listener %v; want %v", c.name, derr, lerr, errSecret)
		}
	}
}

func FuzzHandshake(f *testing.F) {
	f.Add([]byte("ByHs\x01\x01\x00\x00"), true)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), true)
	f.Fuzz(func(t *testing.T, b []byte, listener bool) {
		rw := struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(b), io.Discard}
		_, err := introduce(rw, []byte("0123456789abcdef"), listener)
		if err == nil {
			t.Fatal("admitted without the secret")
		}
	})
}
