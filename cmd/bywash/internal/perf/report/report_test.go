//go:build linux

package report

import (
	"bytes"
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

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

func FuzzBaseline(f *testing.F) {
	f.Add([]byte(`{"driver":"shm","test":"lat","size":8,"lat_us_p50":0.2}`))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parseBaseline(bytes.NewReader(b)) })
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

func TestBaselineAddsTheChange(t *testing.T) {
	name := filepath.Join(t.TempDir(), "b.json")
	if err := os.WriteFile(name, []byte(`{"driver":"sock-unix","test":"lat","size":8,"lat_us_p50":2,"mem":"heap","wait":"poll"}`+"\n"), 0o600); err != nil {
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
		p, err := NewPlot(name, "head\nline")
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

// failing is a Reporter whose Close fails, as at a full disk.
type failing struct{ Reporter }

func (failing) Close() error { return io.ErrShortWrite }

// The picture is drawn although the table cannot be written; before, and without results, there is no file.
func TestPictureIsDrawnWhateverBecomesOfTheTable(t *testing.T) {
	for _, pictureFirst := range []bool{false, true} {
		name := filepath.Join(t.TempDir(), "p.svg")
		files := func() []string {
			f, _ := filepath.Glob(filepath.Join(filepath.Dir(name), "*"))
			hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(name), ".[!.]*"))
			return append(f, hidden...)
		}
		p, err := NewPlot(name, "head")
		if err != nil {
			t.Fatal(err)
		}
		if f := files(); len(f) > 0 {
			t.Errorf("before the run there are %q", f)
		}
		if err := p.Close(); err != nil || len(files()) > 0 {
			t.Errorf("without results: %v, %q", err, files())
		}
		r := Tee(failing{NewTable(io.Discard, "")}, p)
		if pictureFirst {
			r = Tee(p, failing{NewTable(io.Discard, "")})
		}
		if err := r.Result(&Result{Driver: "shm", Test: "lat", Size: 8, LatP50: figure(1)}); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("Close: %v, want the error of the table", err)
		}
		if f := files(); len(f) != 1 || f[0] != name {
			t.Errorf("after the run there are %q, want %q", f, name)
		}
	}
}

func TestFiguresOfManyRanksAreSums(t *testing.T) {
	for _, tt := range []struct {
		test       bench.Test
		ranks      int
		msgs, perS float64
	}{
		{bench.MultiPair, 8, 4, 4 * 1000 / 2}, // 1000 operations in 2 s
		{bench.AllToAll, 4, 12, 12 * 1e6 / 5}, // 5 µs each
		{bench.WakeLat, 0, 2, 2 * 1e6 / 5},    // a message and its answer
	} {
		c := bench.Case{Test: tt.test, Size: 100, Ranks: tt.ranks}
		if got := c.Messages(); float64(got) != tt.msgs {
			t.Errorf("%s of %d ranks: %d messages an operation, want %v", tt.test, tt.ranks, got, tt.msgs)
		}
		j := &bench.Round{Case: c, N: 1000, Rec: bench.NewRecorder(), Elapsed: 2 * time.Second}
		j.Rec.Add(5*time.Millisecond, 1000)
		r := New(bench.Session, j, "ring", time.Millisecond)
		if *r.MsgPerS != tt.perS || *r.MBPerS != tt.perS*100/1e6 || *r.CPUNsPerByte != *figure(1e6 / (tt.msgs * 1000 * 100)) {
			t.Errorf("%s of %d ranks: %v messages a second, %v MB/s, %v ns a byte", tt.test, tt.ranks, *r.MsgPerS, *r.MBPerS, *r.CPUNsPerByte)
		}
		other := *r
		if other.Ranks++; other.key() == r.key() {
			t.Errorf("%s: a run with another number of ranks is compared", tt.test)
		}
	}
}

func TestCSVHasRanksWhereTheyDiffer(t *testing.T) {
	for _, tt := range []struct {
		ranks bool
		want  string
	}{
		{false, "version,change_percent,bind"},
		{true, "version,ranks,change_percent,bind"},
	} {
		var b bytes.Buffer
		r := NewCSV(&b, io.Discard, tt.ranks, true)
		if err := r.Result(&Result{Ranks: 4}); err != nil {
			t.Fatal(err)
		}
		head, row, _ := strings.Cut(b.String(), "\n")
		if !strings.HasSuffix(head, tt.want) || strings.Count(head, ",") != strings.Count(row, ",") {
			t.Errorf("ranks %v: header %s, row %s, want a header that ends in %s", tt.ranks, head, row, tt.want)
		}
	}
}
