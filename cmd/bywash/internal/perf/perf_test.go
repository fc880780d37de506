package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/qnix/softnic"
	"github.com/bywash/bywash/session/launch"
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

func FuzzPlan(f *testing.F) {
	f.Add([]byte(`{"driver":"shm","max_size":8}`), []byte(`{"test":"lat","wait":"poll","mem":"heap"}`))
	f.Add([]byte(`{"driver":"shm","peers":4,"places":[{}],"cpus":[0,1,0]}`), []byte(`{"test":"lat","size":-1}`))
	f.Fuzz(func(t *testing.T, b, order []byte) {
		var p plan
		if json.Unmarshal(b, &p) == nil && p.check(2) == nil && (p.MaxSize < 0 || p.MaxSize > maxSize || p.size() != 2) {
			t.Fatalf("accepted %+v", p)
		}
		var c Case
		if json.Unmarshal(order, &c) == nil && c.check() == nil && (c.Size < 0 || c.Size > maxSize || infoOf(c.Test) == nil) {
			t.Fatalf("accepted %+v", c)
		}
	})
}

func FuzzBaseline(f *testing.F) {
	f.Add([]byte(`{"driver":"shm","test":"lat","size":8,"lat_us_p50":0.2}`))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parseBaseline(bytes.NewReader(b)) })
}

// followed is a team of two in this process, whose rank 1 serves with c.
func followed(t *testing.T, c *Config) (lead *team, end chan error) {
	t.Helper()
	ln, err := launch.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	secret := launch.NewSecret()
	server := launch.Serve(ln, 2, secret)
	t.Cleanup(func() { server.Close() })
	teams := make([]*team, 2)
	for rank := range teams {
		job, err := launch.Join(t.Context(), server.Addr(), rank, 2, secret)
		if err != nil {
			t.Fatal(err)
		}
		teams[rank] = newTeam(t.Context(), job)
	}
	t.Cleanup(teams[0].close)
	end = make(chan error, 1)
	go func() { end <- serve(teams[1], c, true) }()
	return teams[0], end
}

// A lead that says something else than a follower expects gets an error, at each step.
func TestFollowerEndsOnNonsense(t *testing.T) {
	greeting, err := json.Marshal(hello{Version: "test", Boot: bootID(), Plan: &plan{Driver: "sock-udp", MaxSize: 8}})
	if err != nil {
		t.Fatal(err)
	}
	good := [][]byte{
		greeting,
		nil,             // opened
		[]byte(`["9"]`), // addresses
		[]byte(`{"test":"lat","size":8,"wait":"block","mem":"heap"}`), // the case
		nil, nil, // prepared, started
		[]byte("1"), // operations
	}
	for at := range good {
		if good[at] == nil {
			continue
		}
		for _, bad := range []string{"nonsense", `{"plan":[]}`, `"x"`, "-1", "99999999999999999"} {
			lead, end := followed(t, &Config{Version: "test"})
			err := error(nil)
			for k := 0; k < at && err == nil; k++ {
				_, err = lead.give(good[k])
			}
			if err != nil {
				t.Fatalf("step %d: %v", at, err)
			}
			_, err = lead.give([]byte(bad))
			for k := 0; k < 3 && err == nil; k++ {
				_, err = lead.give(nil)
			}
			if err == nil {
				t.Errorf("%q instead of %q: no error", bad, good[at])
			}
			lead.close()
			if err := <-end; err == nil {
				t.Errorf("%q instead of %q: the follower ended without an error", bad, good[at])
			}
		}
	}
}

func TestFollowerRefusesPlans(t *testing.T) {
	for _, p := range []plan{
		{MaxSize: -1}, {MaxSize: maxSize + 1}, {Peers: -1}, {Peers: maxPeers + 1}, {Peers: 1}, {Ranks: 3}, {Ranks: -1},
		{Options: map[string]string{"path": strings.Repeat("x", maxOptions)}},
	} {
		if p.check(2) == nil {
			t.Errorf("taken: %.100v", p)
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
