//go:build linux

package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

// tableReporter collects results and prints them side by side at the end.
type tableReporter struct {
	w       io.Writer
	head    string
	results []*Result
	missing []Missing
}

// NewTable returns a Reporter that writes tables for people to w when the run is over.
func NewTable(w io.Writer, head string) Reporter { return &tableReporter{w: w, head: head} }

func (t *tableReporter) Result(r *Result) error  { t.results = append(t.results, r); return nil }
func (t *tableReporter) Missing(m Missing) error { t.missing = append(t.missing, m); return nil }

// cellKey is a place in a table.
type cellKey struct {
	driver string
	size   int
}

func (t *tableReporter) Close() error {
	if len(t.results)+len(t.missing) == 0 {
		return nil
	}
	var b strings.Builder
	if t.head != "" {
		fmt.Fprintf(&b, "%s; * is the best of a line\n", t.head)
	}
	for i := range bench.Tests {
		var rs []*Result
		for _, r := range t.results {
			if r.Test == string(bench.Tests[i].Test) {
				rs = append(rs, r)
			}
		}
		if len(rs) > 0 {
			writeTest(&b, &bench.Tests[i], rs)
		}
	}
	t.notes(&b)
	_, err := io.WriteString(t.w, b.String())
	return err
}

// notes writes what carried the data and what was not measured.
func (t *tableReporter) notes(b *strings.Builder) {
	if len(t.results) > 0 {
		b.WriteString("\ncarried by\n")
		tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		for _, d := range driversOf(t.results) {
			fmt.Fprintf(tw, "  %s\t%s\n", d, paths(t.results, d))
		}
		tw.Flush()
	}
	var whole []string
	some := map[string][]string{}
	var order []string
	for _, m := range t.missing {
		if m.Test == "" {
			whole = append(whole, m.String())
			continue
		}
		key := m.reason()
		if some[key] == nil {
			order = append(order, key)
		}
		if !slices.Contains(some[key], string(m.Test)) {
			some[key] = append(some[key], string(m.Test))
		}
	}
	if len(whole)+len(order) > 0 {
		b.WriteString("\nnot measured\n")
	}
	for _, s := range whole {
		fmt.Fprintf(b, "  %s\n", s)
	}
	for _, k := range order {
		fmt.Fprintf(b, "  %s (%s)\n", k, strings.Join(some[k], ", "))
	}
}

func paths(rs []*Result, drv string) string {
	var names []string
	sizes := map[string][]int{}
	for _, r := range rs {
		if r.Driver != drv {
			continue
		}
		if sizes[r.Path] == nil {
			names = append(names, r.Path)
		}
		sizes[r.Path] = append(sizes[r.Path], r.Size)
	}
	if len(names) == 1 {
		return names[0]
	}
	for i, n := range names {
		slices.Sort(sizes[n])
		var where []string
		for _, s := range slices.Compact(sizes[n]) {
			where = append(where, bench.FormatSize(s))
		}
		names[i] = fmt.Sprintf("%s (%s)", n, strings.Join(where, ", "))
	}
	return strings.Join(names, ", ")
}

func driversOf(rs []*Result) []string {
	var out []string
	for _, r := range rs {
		if !slices.Contains(out, r.Driver) {
			out = append(out, r.Driver)
		}
	}
	return out
}

func sizesOf(rs []*Result) []int {
	var out []int
	for _, r := range rs {
		if !slices.Contains(out, r.Size) {
			out = append(out, r.Size)
		}
	}
	slices.Sort(out)
	return out
}

// writeTest prints one test: a row a size, a column a driver.
func writeTest(b *strings.Builder, info *bench.Info, rs []*Result) {
	drivers, sizes := driversOf(rs), sizesOf(rs)
	at := map[cellKey]*Result{}
	change := false
	for _, r := range rs {
		at[cellKey{r.Driver, r.Size}] = r
		change = change || r.Change != nil
	}
	better := "higher is better"
	if info.Latency {
		better = "lower is better"
	}
	fmt.Fprintf(b, "\n%s: %s (%s)\n", info.Test, info.Description(), better)
	ours := slices.ContainsFunc(drivers, func(d string) bool { return !bench.IsBaseline(d) })
	ratio := ours && slices.Contains(drivers, bench.SockUnix)
	rows := [][]string{append([]string{"", ""}, drivers...)}
	if ratio {
		rows[0] = append(rows[0], "× faster than "+bench.SockUnix)
	}
	for _, s := range sizes {
		name := bench.FormatSize(s)
		if info.Fixed < 0 {
			name = ""
		}
		rows = append(rows, mainRow(info, at, drivers, s, name, ratio))
		if info.Latency {
			rows = append(rows, plainRow("p99", drivers, s, at, func(r *Result) string { return formatUS(r.LatP99) }))
			if len(drivers) == 1 {
				rows = append(rows,
					plainRow("p99.9", drivers, s, at, func(r *Result) string { return formatUS(r.LatP999) }),
					plainRow("max", drivers, s, at, func(r *Result) string { return formatUS(r.LatMax) }),
					plainRow("mean", drivers, s, at, func(r *Result) string { return formatUS(r.LatAvg) }))
			}
		}
		if change {
			rows = append(rows, plainRow("change", drivers, s, at, func(r *Result) string {
				if r.Change == nil {
					return ""
				}
				return fmt.Sprintf("%+.1f %%", *r.Change)
			}))
		}
	}
	writeRows(b, rows)
}

func mainRow(info *bench.Info, at map[cellKey]*Result, drivers []string, size int, name string, ratio bool) []string {
	row := []string{name, ""}
	if info.Latency {
		row[1] = "median"
	}
	best, ours := "", ""
	for _, d := range drivers {
		r := at[cellKey{d, size}]
		if r == nil {
			continue
		}
		if best == "" || r.beats(at[cellKey{best, size}]) {
			best = d
		}
		if !bench.IsBaseline(d) && (ours == "" || r.beats(at[cellKey{ours, size}])) {
			ours = d
		}
	}
	for _, d := range drivers {
		r := at[cellKey{d, size}]
		cell := "–"
		if r != nil {
			cell = r.cell(info)
			if d == best && len(drivers) > 1 {
				cell = "* " + cell
			}
		}
		row = append(row, cell)
	}
	if ratio {
		row = append(row, ratioCell(at[cellKey{ours, size}], at[cellKey{bench.SockUnix, size}]))
	}
	return row
}

func ratioCell(ours, unix *Result) string {
	if ours == nil || unix == nil {
		return ""
	}
	a, lower := ours.Main()
	b, _ := unix.Main()
	if a == 0 || b == 0 {
		return ""
	}
	if lower {
		a, b = b, a
	}
	return fmt.Sprintf("%.1f", a/b)
}

func (r *Result) beats(o *Result) bool {
	a, lower := r.Main()
	b, _ := o.Main()
	if lower {
		return a < b
	}
	return a > b
}

func (r *Result) cell(info *bench.Info) string {
	v, _ := r.Main()
	switch {
	case info.Latency:
		return formatUS(&v)
	case info.Messages:
		return fmt.Sprintf("%s M msg/s", threeDigits(v/1e6))
	}
	if v < 100 {
		return threeDigits(v) + " MB/s"
	}
	return fmt.Sprintf("%.0f MB/s", v)
}

func plainRow(name string, drivers []string, size int, at map[cellKey]*Result, f func(*Result) string) []string {
	row := []string{"", name}
	for _, d := range drivers {
		s := ""
		if r := at[cellKey{d, size}]; r != nil {
			s = f(r)
		}
		row = append(row, s)
	}
	return row
}

func formatUS(us *float64) string {
	switch {
	case us == nil:
		return ""
	case *us < 1:
		return fmt.Sprintf("%s ns", threeDigits(*us*1000))
	case *us < 1000:
		return fmt.Sprintf("%s µs", threeDigits(*us))
	}
	return fmt.Sprintf("%s ms", threeDigits(*us/1000))
}

func threeDigits(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// writeRows writes a table with names aligned left and figures aligned right.
func writeRows(b *strings.Builder, rows [][]string) {
	var width []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for _, row := range rows {
		var l strings.Builder
		l.WriteString(" ")
		for i, c := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i < 2 {
				l.WriteString(" " + c + pad)
			} else {
				l.WriteString("   " + pad + c)
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
}
