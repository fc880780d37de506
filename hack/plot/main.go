// Command plot draws lines from CSV files: FILE.svg from each FILE.csv. The first row has the labels of the axes in its second
// and third column; each further row has the name of a line, x and y. Y is a share, from 0 to 1.
package main

import (
	"encoding/csv"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: go run ./hack/plot FILE.csv…")
	}
	for _, name := range os.Args[1:] {
		if err := draw(name); err != nil {
			log.Fatalf("%s: %v", name, err)
		}
	}
}

func draw(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.FieldsPerRecord = 3
	rows, err := r.ReadAll()
	if err != nil {
		return err
	}
	if len(rows) < 2 {
		return fmt.Errorf("%d rows: want the labels and at least one point", len(rows))
	}
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = rows[0][1], rows[0][2]
	p.Y.Min, p.Y.Max = 0, 1.05
	var lines []any // a name, its points, a name, …
	at := map[string]int{}
	for _, row := range rows[1:] {
		x, err := strconv.ParseFloat(row[1], 64)
		if err != nil {
			return err
		}
		y, err := strconv.ParseFloat(row[2], 64)
		if err != nil {
			return err
		}
		if at[row[0]] == 0 {
			lines = append(lines, row[0], plotter.XYs(nil))
			at[row[0]] = len(lines) - 1
		}
		k := at[row[0]]
		lines[k] = append(lines[k].(plotter.XYs), plotter.XY{X: x, Y: y})
	}
	if err := plotutil.AddLinePoints(p, lines...); err != nil {
		return err
	}
	return p.Save(16*vg.Centimeter, 10*vg.Centimeter, strings.TrimSuffix(name, ".csv")+".svg")
}
