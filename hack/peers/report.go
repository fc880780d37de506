//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// series is one side's figures of one quantity, one for each run. A run
// without a figure holds 0 and reason says why.
type series struct {
	Name     string    `json:"name"`
	Median   float64   `json:"median"` // 0: never measured
	Runs     []float64 `json:"runs"`
	Reason   string    `json:"reason,omitempty"`
	Path     string    `json:"path,omitempty"` // of Bywash: the path that carried the data
	Commands []string  `json:"commands,omitempty"`
}

func (s *series) add(v float64) { s.Runs = append(s.Runs, v); s.Median = median(s.Runs) }

// row is one line of the table; its JSON is what --json writes.
type row struct {
	Quantity string   `json:"quantity"`
	Test     string   `json:"test"`
	Size     int      `json:"size"`
	Mem      string   `json:"mem"`
	Unit     string   `json:"unit"`
	Better   string   `json:"better"`
	Ours     series   `json:"ours"`
	Peers    []series `json:"peers"`
	Limit    *series  `json:"limit,omitempty"`
	Unsteady int      `json:"unsteady_runs"` // the machine changed while they ran
	Best     string   `json:"best,omitempty"`
	Ratio    float64  `json:"ratio,omitempty"` // ours / best
	Target   *verdict `json:"target,omitempty"`
	Machine  machine  `json:"machine"`

	unit unit
}

type verdict struct {
	Text    string  `json:"text"`
	Reached float64 `json:"reached,omitempty"` // ours / reference, or ours
	Result  string  `json:"result"`            // met, missed or unknown
}

type machine struct {
	CPU      string            `json:"cpu"`
	CPUs     int               `json:"cpus"`
	Pinned   cpus              `json:"pinned"`
	Kernel   string            `json:"kernel"`
	Versions map[string]string `json:"versions"`
	Time     string            `json:"time"`
	Runs     int               `json:"runs"`
}

// newRow compares ours with peers and with what the target refers to.
func newRow(q quantity, v variant, ours series, peers []series, limit *series, unsteady int, m machine) row {
	r := row{
		Quantity: v.name, Test: q.test, Size: q.size, Mem: v.mem, unit: q.unit,
		Unit: unitName(q.unit), Better: "higher",
		Ours: ours, Peers: peers, Limit: limit, Unsteady: unsteady, Machine: m,
	}
	if q.lowerIsBetter() {
		r.Better = "lower"
	}
	var best *series
	for i := range peers {
		p := &peers[i]
		if p.Median == 0 {
			continue
		}
		if best == nil || (p.Median < best.Median) == q.lowerIsBetter() {
			best = p
		}
	}
	if best != nil {
		r.Best = best.Name
		r.Ratio = ratio(ours, *best)
	}
	if v.target != nil {
		r.Target = judge(q, v, ours, peers, limit, best)
	}
	return r
}

func judge(q quantity, v variant, ours series, peers []series, limit, best *series) *verdict {
	t := v.target
	out := &verdict{Text: t.text(q.unit), Result: "unknown"}
	var ref *series
	switch t.ref {
	case refAbsolute:
		out.Reached = ours.Median
	case refBest:
		ref = best
	case limitLine, limitMemcpy:
		ref = limit
	default:
		if i := slices.IndexFunc(peers, func(p series) bool { return p.Name == t.ref }); i >= 0 {
			ref = &peers[i]
		}
	}
	if ref != nil {
		out.Reached = ratio(ours, *ref)
	}
	switch {
	case out.Reached == 0:
	case out.Reached == t.factor, (out.Reached < t.factor) == q.lowerIsBetter():
		out.Result = "met"
	default:
		out.Result = "missed"
	}
	return out
}

// ratio is the median over the runs of a/b. A machine whose speed changes
// between the runs changes both sides of one run alike.
func ratio(a, b series) float64 {
	var r []float64
	for i := range min(len(a.Runs), len(b.Runs)) {
		if a.Runs[i] > 0 && b.Runs[i] > 0 {
			r = append(r, a.Runs[i]/b.Runs[i])
		}
	}
	return median(r)
}

// median of the runs that gave a figure; 0 if none did.
func median(v []float64) float64 {
	s := make([]float64, 0, len(v))
	for _, x := range v {
		if x > 0 {
			s = append(s, x)
		}
	}
	if len(s) == 0 {
		return 0
	}
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

func unitName(u unit) string {
	return map[unit]string{nanoseconds: "ns", megabytes: "MB/s", messages: "msg/s"}[u]
}

// format prints v in the unit of the table: ns, GB/s or M/s.
func format(v float64, u unit) string {
	if v == 0 {
		return "–"
	}
	switch u {
	case megabytes:
		v /= 1e3
	case messages:
		v /= 1e6
	}
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

// summary is ours beside the best peer, the limit and the target.
func summary(rows []row) [][]string {
	out := [][]string{{"quantity", "ours", "best peer", "", "ours/best", "limit", "target", "reached", "result"}}
	for _, r := range rows {
		best := 0.0
		for _, p := range r.Peers {
			if p.Name == r.Best {
				best = p.Median
			}
		}
		line := []string{r.Quantity, format(r.Ours.Median, r.unit), format(best, r.unit), r.Best, times(r.Ratio)}
		if r.Limit != nil {
			line = append(line, format(r.Limit.Median, r.unit))
		} else {
			line = append(line, "")
		}
		switch t := r.Target; {
		case t == nil:
			line = append(line, "", "", "")
		case strings.Contains(t.Text, "×"):
			line = append(line, t.Text, times(t.Reached), t.Result)
		default:
			line = append(line, t.Text, format(t.Reached, r.unit), t.Result)
		}
		out = append(out, line)
	}
	return out
}

func times(v float64) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f ×", v)
}

// figures is every side's median. A blank: the side has no such test.
func figures(rows []row) [][]string {
	var names []string
	for _, r := range rows {
		for _, p := range r.Peers {
			if !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
		}
	}
	out := [][]string{append([]string{"quantity", "ours"}, names...)}
	for _, r := range rows {
		line := make([]string, 2+len(names))
		line[0], line[1] = r.Quantity, format(r.Ours.Median, r.unit)
		for _, p := range r.Peers {
			line[2+slices.Index(names, p.Name)] = format(p.Median, r.unit)
		}
		out = append(out, line)
	}
	return out
}

// gaps lists whatever has no figure, a line for each side and reason.
func gaps(rows []row) []string {
	type gap struct{ name, reason string }
	var order []gap
	where := map[gap][]string{}
	total := map[string]int{} // rows a side is in
	for _, r := range rows {
		sides := append([]series{r.Ours}, r.Peers...)
		if r.Limit != nil {
			sides = append(sides, *r.Limit)
		}
		for _, s := range sides {
			total[s.Name]++
			if s.Reason == "" {
				continue
			}
			g := gap{s.Name, s.Reason}
			if where[g] == nil {
				order = append(order, g)
			}
			place := r.Quantity
			if n := count(s.Runs); n > 0 {
				place += fmt.Sprintf(" (%d of %d runs measured)", n, len(s.Runs))
			}
			where[g] = append(where[g], place)
		}
	}
	var out []string
	for _, g := range order {
		places := ", " + strings.Join(where[g], "; ")
		if n := len(where[g]); n > 1 && n == total[g.name] {
			places = ""
		}
		out = append(out, g.name+places+": "+g.reason)
	}
	return append(out, notMeasured...)
}

func doubts(rows []row) []string {
	var out []string
	for _, r := range rows {
		if r.Unsteady > 0 {
			out = append(out, fmt.Sprintf("%s: the cache-line time changed by more than %.0f %% within %d of %d runs",
				r.Quantity, (steadyFactor-1)*100, r.Unsteady, r.Machine.Runs))
		}
	}
	return out
}

func count(runs []float64) int {
	n := 0
	for _, v := range runs {
		if v > 0 {
			n++
		}
	}
	return n
}

// describe is the machine and the versions, a line each.
func describe(m machine) []string {
	names := make([]string, 0, len(m.Versions))
	for n, v := range m.Versions {
		if v != missing {
			names = append(names, n+" "+v)
		}
	}
	slices.Sort(names)
	return []string{
		fmt.Sprintf("%s, %d CPUs, Linux %s; processes on CPU %s and %s; %s", m.CPU, m.CPUs, m.Kernel, m.Pinned.a(), m.Pinned.b(), m.Time),
		strings.Join(names, ", "),
		fmt.Sprintf("Median of runs: %d, with all sides in turn within each; a ratio is the median of the runs' ratios. Latencies are means of a run.", m.Runs),
	}
}

func writeText(w io.Writer, rows []row) {
	for _, l := range describe(rows[0].Machine) {
		fmt.Fprintln(w, l)
	}
	fmt.Fprintln(w)
	writeAligned(w, summary(rows))
	fmt.Fprintln(w)
	writeAligned(w, figures(rows))
	writeList(w, "Not measured:", gaps(rows))
	writeList(w, "Doubtful:", doubts(rows))
}

func writeList(w io.Writer, title string, items []string) {
	if len(items) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n", title)
	for _, i := range items {
		fmt.Fprintln(w, "  "+i)
	}
}

// leftAligned are the columns of words.
var leftAligned = map[string]bool{"quantity": true, "": true, "target": true, "result": true}

func writeAligned(w io.Writer, table [][]string) {
	widths := make([]int, len(table[0]))
	for _, line := range table {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range table {
		var b strings.Builder
		for i, cell := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if leftAligned[table[0][i]] {
				b.WriteString(cell + pad)
			} else {
				b.WriteString(pad + cell)
			}
			b.WriteString("  ")
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

func writeJSON(w io.Writer, rows []row) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for _, r := range rows {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}
