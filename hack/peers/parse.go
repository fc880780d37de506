//go:build linux

package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A parser finds the figure of a test, in u, in what a tool printed.
// size is the message size that was asked for.
type parser func(out string, size int, u unit) (float64, error)

// parsePairs reads the key=value line of our own C programs.
func parsePairs(out string, _ int, u unit) (float64, error) {
	key := map[unit]string{nanoseconds: "half_rtt_ns", megabytes: "mb_per_s", messages: "msg_per_s"}[u]
	for _, field := range strings.Fields(out) {
		if v, ok := strings.CutPrefix(field, key+"="); ok {
			return positive(v)
		}
	}
	return 0, fmt.Errorf("no %s= in its output", key)
}

// parseUCX reads ucx_perftest -f -v. Everything comes from the overall
// message rate: it has the most digits, and UCX counts bandwidth in MiB. In
// a latency test the rate is that of halves of round trips.
func parseUCX(out string, size int, u unit) (float64, error) {
	var header []string
	for line := range strings.Lines(out) {
		fields, err := csv.NewReader(strings.NewReader(line)).Read()
		if err != nil {
			continue
		}
		if strings.HasPrefix(line, "iterations,") {
			header = fields
			continue
		}
		if header == nil || len(fields) != len(header) {
			continue
		}
		for i, name := range header {
			if name != "overall_mr" {
				continue
			}
			rate, err := positive(fields[i])
			if err != nil {
				return 0, err
			}
			return fromRate(rate, size, u), nil
		}
	}
	return 0, errors.New("no line of figures in its output")
}

// parsePingpong reads fi_pingpong's table. Its MB/sec (10^6) has more digits
// than its usec/xfer, which is half a round trip rounded to 10 ns.
func parsePingpong(out string, size int, u unit) (float64, error) {
	if u != nanoseconds {
		return 0, errors.New("fi_pingpong measures latency only")
	}
	column := -1
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) > 0 && fields[0] == "bytes" {
			for i, name := range fields {
				if name == "MB/sec" {
					column = i
				}
			}
			continue
		}
		if column >= 0 && column < len(fields) {
			mb, err := positive(fields[column])
			if err != nil {
				return 0, err
			}
			return float64(size) * 1e3 / mb, nil
		}
	}
	return 0, errors.New("no line of figures in its output")
}

// figure is what bywash perf --json says of a quantity: the mean
// latency, because a mean is all that most peers give.
func (r oursJSON) figure(u unit) (float64, error) {
	var v float64
	switch u {
	case nanoseconds:
		v = r.LatAvg * 1e3
	case megabytes:
		v = r.MBPerS
	case messages:
		v = r.MsgPerS
	}
	if v <= 0 {
		return 0, fmt.Errorf("no figure for %s in its JSON", r.Test)
	}
	return v, nil
}

type oursJSON struct {
	Driver  string  `json:"driver"`
	Test    string  `json:"test"`
	Size    int     `json:"size"`
	LatAvg  float64 `json:"lat_us_avg"`
	MBPerS  float64 `json:"mb_per_s"`
	MsgPerS float64 `json:"msg_per_s"`
	Path    string  `json:"path"`
	Version string  `json:"version"`
}

// parseOurs reads bywash perf --json: one object a line.
func parseOurs(out, driver string, size int) (oursJSON, error) {
	for line := range strings.Lines(out) {
		var r oursJSON
		if json.Unmarshal([]byte(line), &r) == nil && r.Driver == driver && r.Size == size {
			return r, nil
		}
	}
	return oursJSON{}, fmt.Errorf("no JSON object of driver %s and this size in its output", driver)
}

func fromRate(rate float64, size int, u unit) float64 {
	switch u {
	case nanoseconds:
		return 1e9 / rate
	case megabytes:
		return rate * float64(size) / 1e6
	default:
		return rate
	}
}

func positive(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0) {
		return 0, fmt.Errorf("%q is not a figure", s)
	}
	return v, nil
}
