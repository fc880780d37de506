//go:build linux

package report

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/bywash/bywash/cmd/bywash/internal/perf/bench"
)

// ErrNotDrawn means that none of the tests is drawn over size.
var ErrNotDrawn = errors.New("nothing to draw over size: measure lat, bw or another test with sizes")

// plotReporter draws latency and bandwidth over size, all drivers in one
// picture.
type plotReporter struct {
	name    string
	caption []string
	results []*Result
	missing []Missing
}

// NewPlot returns a Reporter whose Close draws the picture, if there are results. It fails if the picture's directory
// cannot be written.
func NewPlot(name, head string) (Reporter, error) {
	p := &plotReporter{name: name, caption: strings.Split(head, "\n")}
	f, err := p.create()
	if err == nil {
		err = errors.Join(f.Close(), os.Remove(f.Name()))
	}
	if err != nil {
		return nil, fmt.Errorf("plot: %w", err)
	}
	return p, nil
}

// create creates the file that Close renames: an earlier picture stays until this one is drawn.
func (p *plotReporter) create() (*os.File, error) {
	return os.CreateTemp(filepath.Dir(p.name), ".bywash-*")
}

func (p *plotReporter) Result(r *Result) error  { p.results = append(p.results, r); return nil }
func (p *plotReporter) Missing(m Missing) error { p.missing = append(p.missing, m); return nil }

func (p *plotReporter) Close() error {
	if len(p.results) == 0 {
		return nil
	}
	var svg bytes.Buffer
	err := drawSVG(&svg, p.caption, p.results)
	if err == nil {
		err = p.write(svg.Bytes())
	}
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

func (p *plotReporter) write(svg []byte) error {
	f, err := p.create()
	if err != nil {
		return err
	}
	if filepath.Ext(p.name) == ".html" {
		err = writeHTML(f, string(svg), p)
	} else {
		_, err = f.Write(svg)
	}
	mask := unix.Umask(0o077) // for a moment: it can only be read by setting it
	unix.Umask(mask)
	if err = errors.Join(err, f.Chmod(0o666&^os.FileMode(mask)), f.Close()); err == nil {
		err = os.Rename(f.Name(), p.name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Drawn reports whether the results of a test with messages of that size are drawn over size: size 0 has no place on a
// logarithmic axis, and rates are not in MB/s.
func Drawn(t bench.Test, size int) bool {
	i := bench.InfoOf(t)
	return i != nil && !i.Messages && i.Fixed >= 0 && size > 0
}

// palette is Okabe and Ito's, which colour-blind people can distinguish.
var palette = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0x56, 0xb4, 0xe9, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x44, 0x44, 0x44, 0xff},
}

// series is a line of the picture: a test of a driver.
type series struct {
	driver, test string
	points       plotter.XYs
}

func seriesOf(rs []*Result, latency bool) []series {
	var out []series
	for _, r := range rs {
		t := bench.Test(r.Test)
		v, _ := r.Main()
		if !Drawn(t, r.Size) || bench.InfoOf(t).Latency != latency || v == 0 {
			continue
		}
		k := slices.IndexFunc(out, func(s series) bool { return s.driver == r.Driver && s.test == r.Test })
		if k < 0 {
			out = append(out, series{driver: r.Driver, test: r.Test})
			k = len(out) - 1
		}
		out[k].points = append(out[k].points, plotter.XY{X: float64(r.Size), Y: v})
	}
	for _, s := range out {
		slices.SortFunc(s.points, func(a, b plotter.XY) int { return int(a.X - b.X) })
	}
	return out
}

const (
	plotWidth  = 13 * vg.Inch
	plotHeight = 6.6 * vg.Inch
)

func drawSVG(w io.Writer, caption []string, rs []*Result) error {
	var panels []*plot.Plot
	drivers := driversOf(rs)
	if s := seriesOf(rs, true); len(s) > 0 {
		const y = "time (ping-pong: half a round trip)"
		panels = append(panels, panel("Latency (median; lower is better)", y, s, drivers, formatMicro))
	}
	if s := seriesOf(rs, false); len(s) > 0 {
		panels = append(panels, panel("Bandwidth (higher is better)", "bandwidth", s, drivers, formatMB))
	}
	if len(panels) == 0 {
		return ErrNotDrawn
	}
	canvas := vgsvg.New(plotWidth, plotHeight)
	dc := draw.New(canvas)
	dc.SetColor(color.White)
	dc.Fill(dc.Rectangle.Path())
	style := panels[0].Title.TextStyle
	style.YAlign = draw.YTop
	style.XAlign = draw.XLeft
	style.Font.Size = vg.Points(15)
	dc.FillText(style, vg.Point{X: dc.Min.X + 16, Y: dc.Max.Y - 12}, "bywash perf: "+strings.Join(drivers, ", "))
	style.Font.Size = vg.Points(9)
	style.Color = color.Gray{0x55}
	for i, l := range caption {
		dc.FillText(style, vg.Point{X: dc.Min.X + 16, Y: dc.Max.Y - 34 - vg.Length(i)*13}, l)
	}
	top := vg.Length(42 + 13*len(caption))
	area := draw.Crop(dc, 12, -16, 12, -top)
	tiles := draw.Tiles{Cols: len(panels), Rows: 1, PadX: 28}
	for i, p := range panels {
		p.Draw(tiles.At(area, i, 0))
	}
	_, err := canvas.WriteTo(w)
	return err
}

func panel(title, y string, all []series, drivers []string, format func(float64) string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.TextStyle.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: 12}
	p.X.Label.Text = "message size"
	p.Y.Label.Text = y
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Scale = plot.LogScale{}
		a.Label.TextStyle.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: 11}
		a.Tick.Label.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: 9}
		a.Padding = 4
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe4}, color.Gray{0xe4}
	p.Add(grid)
	several := false
	for _, s := range all {
		several = several || s.test != all[0].test
	}
	xmin, xmax, ymin, ymax := math.Inf(1), 0.0, math.Inf(1), 0.0
	dashes := map[string]int{}
	for _, s := range all {
		if _, ok := dashes[s.test]; !ok {
			dashes[s.test] = len(dashes)
		}
		addSeries(p, s, slices.Index(drivers, s.driver), dashes[s.test], several)
		for _, q := range s.points {
			xmin, xmax, ymin, ymax = min(xmin, q.X), max(xmax, q.X), min(ymin, q.Y), max(ymax, q.Y)
		}
	}
	if xmin == xmax {
		xmin, xmax = xmin/2, xmax*2
	}
	p.X.Min, p.X.Max = xmin, xmax
	// Room above the lines for the legend.
	room := math.Pow(ymax/ymin*2, 0.06*float64(len(all)))
	p.Y.Min, p.Y.Max = ymin/1.5, ymax*1.3*room
	p.X.Tick.Marker = sizeTicks{}
	p.Y.Tick.Marker = decadeTicks{format}
	p.Legend.Top = true
	p.Legend.Left = true
	p.Legend.TextStyle.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: 10}
	p.Legend.ThumbnailWidth = 28
	p.Legend.Padding = 3
	p.Legend.XOffs = 6
	return p
}

func addSeries(p *plot.Plot, s series, colour, dash int, several bool) {
	c := palette[max(0, colour)%len(palette)]
	l, pts, err := plotter.NewLinePoints(s.points)
	if err != nil {
		return // a value is not finite: it cannot be drawn
	}
	l.Color, l.Width = c, vg.Points(1.8)
	if dash > 0 {
		l.Dashes = []vg.Length{vg.Points(float64(2 + 3*dash)), vg.Points(3)}
	}
	glyphs := []draw.GlyphDrawer{
		draw.CircleGlyph{}, draw.SquareGlyph{}, draw.PyramidGlyph{}, draw.BoxGlyph{}, draw.RingGlyph{},
	}
	pts.Shape, pts.Color, pts.Radius = glyphs[max(0, colour)%len(glyphs)], c, vg.Points(3)
	p.Add(l, pts)
	name := s.driver
	if several {
		name += " " + s.test
	}
	p.Legend.Add(name, l, pts)
}

// sizeTicks marks powers of two, as many as have room for their names.
type sizeTicks struct{}

func (sizeTicks) Ticks(lo, hi float64) []plot.Tick {
	first, last := int(math.Ceil(math.Log2(lo)-1e-9)), int(math.Floor(math.Log2(hi)+1e-9))
	every := 1 + (last-first)/9
	var out []plot.Tick
	for e := first; e <= last; e++ {
		t := plot.Tick{Value: math.Exp2(float64(e))}
		if (e-first)%every == 0 && e >= 0 && e <= 30 {
			t.Label = bench.FormatSize(1 << e)
		}
		out = append(out, t)
	}
	return out
}

// decadeTicks marks 1, 2 and 5 of each decade.
type decadeTicks struct{ format func(float64) string }

func (d decadeTicks) Ticks(lo, hi float64) []plot.Tick {
	var out []plot.Tick
	steps := []float64{1, 2, 5}
	if math.Log10(hi/lo) > 3.5 {
		steps = steps[:1]
	}
	for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, e)
			if v < lo || v > hi {
				continue
			}
			t := plot.Tick{Value: v}
			if slices.Contains(steps, m) {
				t.Label = d.format(v)
			}
			out = append(out, t)
		}
	}
	return out
}

func short(v float64) string { return fmt.Sprintf("%.4g", v) }

func formatMicro(us float64) string {
	switch {
	case us < 0.999:
		return short(us*1000) + " ns"
	case us < 999:
		return short(us) + " µs"
	}
	return short(us/1000) + " ms"
}

func formatMB(mb float64) string {
	if mb >= 999 {
		return short(mb/1000) + " GB/s"
	}
	return short(mb) + " MB/s"
}

// writeHTML writes the picture with the figures below it.
func writeHTML(w io.Writer, svg string, p *plotReporter) error {
	if i := strings.Index(svg, "<svg"); i > 0 {
		svg = svg[i:] // the XML declaration has no place inside HTML
	}
	var t strings.Builder
	table := &tableReporter{w: &t, results: p.results, missing: p.missing}
	if err := table.Close(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, `<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>bywash perf</title>
<style>body{font-family:sans-serif;margin:1em}svg{max-width:100%%;height:auto}
pre{font-size:90%%;overflow-x:auto}</style></head>
<body>
%s
<p>%s</p>
<pre>%s</pre>
</body>
</html>
`, svg, html.EscapeString(strings.Join(p.caption, " · ")), html.EscapeString(t.String()))
	return err
}
