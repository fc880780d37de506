//go:build linux && !(386 || arm || mips || mipsle)

package drivertest

import "testing"

func TestMappingsOfThreadsDoNotCount(t *testing.T) {
	for _, tt := range []struct {
		name, maps string
		want       int
	}{
		{"nothing", "", 0},
		{"files and devices", "1000-2000 rw-s 00000000 00:05 5 /dev/qnix0\n2000-3000 rw-s 00000000 00:01 7 /memfd:x (deleted)\n", 2},
		{"a thread's stack", "1000-2000 ---p 00000000 00:00 0 \n2000-9000 rw-p 00000000 00:00 0 \n", 0},
		{"a thread's heap", "1000-2000 rw-p 00000000 00:00 0 \n2000-9000 ---p 00000000 00:00 0 \n", 0},
		{"memory of its own", "1000-2000 rw-p 00000000 00:00 0 \n3000-9000 ---p 00000000 00:00 0 \n", 2},
		{"the heap", "1000-2000 rw-p 00000000 00:00 0 [heap]\n2000-9000 r--p 00000000 00:00 0 \n", 2},
	} {
		if got := countMaps([]byte(tt.maps)); got != tt.want {
			t.Errorf("%s: counted %d mappings, want %d", tt.name, got, tt.want)
		}
	}
}
