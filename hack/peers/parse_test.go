//go:build linux

package main

import (
	"math"
	"os"
	"testing"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Every file in testdata is what the tool printed in a real run; bywash.txt is what bywash perf prints.
func TestFiguresOfRealRuns(t *testing.T) {
	const m = 1 << 20
	for _, c := range []struct {
		file  string
		parse parser
		size  int
		unit  unit
		want  float64
	}{
		{"openmpi_lat_8.txt", parsePairs, 8, nanoseconds, 343.54},
		{"openmpi_bw_8.txt", parsePairs, 8, messages, 9379107},
		{"openmpi_bw_8.txt", parsePairs, 8, megabytes, 75.03},
		{"mpich_bw_1m.txt", parsePairs, m, megabytes, 16395.21},
		{"limits_line.txt", parsePairs, 64, nanoseconds, 180.84},
		{"limits_memcpy.txt", parsePairs, m, megabytes, 63493.47},
		{"ucx_tag_lat_8.txt", parseUCX, 8, nanoseconds, 1e9 / 10321900.0},
		{"ucx_am_lat_4096.txt", parseUCX, 4096, nanoseconds, 1e9 / 5951478.0},
		{"ucx_put_lat_8.txt", parseUCX, 8, nanoseconds, 1e9 / 3967783.0},
		{"ucx_tag_bw_8.txt", parseUCX, 8, messages, 7607473},
		{"ucx_tag_bw_1m.txt", parseUCX, m, megabytes, 15066 * m / 1e6},
		{"ucx_put_bw_1m.txt", parseUCX, m, megabytes, 15456 * m / 1e6},
		{"fi_pingpong_8.txt", parsePingpong, 8, nanoseconds, 8e3 / 16.56},
		{"fi_pingpong_4096.txt", parsePingpong, 4096, nanoseconds, 4096e3 / 3112.84},
		{"bywash.txt", oursFor, 8, nanoseconds, 187},
		{"bywash.txt", oursFor, m, megabytes, 91000.5},
		{"bywash.txt", oursFor, 16, messages, 61e6},
	} {
		got, err := c.parse(read(t, c.file), c.size, c.unit)
		if err != nil || math.Abs(got-c.want) > 1e-9*c.want {
			t.Errorf("%s, %s: got %v, %v, want %v", c.file, unitName(c.unit), got, err, c.want)
		}
	}
}

// UCX counts bandwidth in MiB; ours must come out in units of 10^6 bytes.
func TestUCXBandwidthIsNotMiB(t *testing.T) {
	got, err := parseUCX(read(t, "ucx_tag_bw_1m.txt"), 1<<20, megabytes)
	const mib = 15065.56 // overall_bw in the file
	if want := mib * 1.048576; err != nil || math.Abs(got/want-1) > 1e-3 {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestNoFigureIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		parse parser
		out   string
	}{
		"mpi, nothing":        {parsePairs, ""},
		"mpi, another test":   {parsePairs, "test=bw mb_per_s=1 msg_per_s=1\n"},
		"mpi, zero":           {parsePairs, "half_rtt_ns=0.00\n"},
		"mpi, not a number":   {parsePairs, "half_rtt_ns=nan\n"},
		"ucx, no server":      {parseUCX, read(t, "ucx_no_server.txt")},
		"ucx, header only":    {parseUCX, "iterations,overall_mr\n"},
		"ucx, another column": {parseUCX, "iterations,avg_mr\n5,5\n"},
		"fi, nothing":         {parsePingpong, ""},
		"fi, header only":     {parsePingpong, "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"},
		"fi, short line":      {parsePingpong, "bytes #sent #ack total time MB/sec\n8 1m\n"},
		"ours, nothing":       {oursFor, ""},
		"ours, another size":  {oursFor, `{"driver":"shm","test":"lat","size":64,"lat_us_avg":1}`},
		"ours, no figure":     {oursFor, `{"driver":"shm","test":"bw","size":8,"mb_per_s":1}`},
		"ours, tcp":           {oursFor, `{"driver":"sock-tcp","test":"lat","size":8,"lat_us_avg":1}`},
		"ours, text":          {oursFor, "bywash: no such driver\n"},
	} {
		if got, err := c.parse(c.out, 8, nanoseconds); err == nil {
			t.Errorf("%s: got %v, want an error", name, got)
		}
	}
	if _, err := parsePingpong(read(t, "fi_pingpong_8.txt"), 8, megabytes); err == nil {
		t.Error("fi_pingpong: took a ping-pong for bandwidth")
	}
}

func oursFor(out string, size int, u unit) (float64, error) {
	r, err := parseOurs(out, "shm", size)
	if err != nil {
		return 0, err
	}
	return r.figure(u)
}
