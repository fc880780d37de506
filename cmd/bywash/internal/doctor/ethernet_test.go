//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"strings"
	"testing"
	"testing/fstest"
)

// ether is what a kernel shows of one Ethernet device.
func ether(state, mtu string, queues, cpus int) fstest.MapFS {
	const dev = "sys/class/net/eth0/"
	m := fstest.MapFS{
		dev + "type": file("1"), dev + "address": file("02:00:00:00:00:01"), dev + "operstate": file(state), dev + "mtu": file(mtu),
		"sys/class/net/lo/type": file("772"), "sys/class/net/lo/address": file("00:00:00:00:00:00"),
	}
	for k := range queues {
		m[dev+"queues/rx-"+string(rune('0'+k))+"/rps_cpus"] = file("0")
	}
	for k := range cpus {
		m["sys/devices/system/cpu/cpu"+string(rune('0'+k))+"/online"] = file("1")
	}
	return m
}

func TestEthernetFindingsNameTheRemedy(t *testing.T) {
	for _, x := range []struct {
		name   string
		root   fstest.MapFS
		want   Level
		remedy string
	}{
		{"good", ether("up", "1500", 2, 4), OK, ""},
		{"none", fstest.MapFS{}, Absent, ""},
		{"down", ether("down", "1500", 1, 4), Slow, "ip link set eth0 up"},
		{"more queues than CPUs", ether("up", "1500", 8, 2), Slow, "ethtool -L eth0 combined 2"},
		{"long frames", ether("up", "9000", 1, 2), OK, "3506"},
	} {
		f := findEther(x.root)
		if f.Level != x.want || (f.Remedy == "") != (x.remedy == "") || !strings.Contains(f.Remedy, x.remedy) {
			t.Errorf("%s: %v", x.name, f)
		}
	}
	if f := findEther(ether("up", "1500", 1, 2)); !strings.HasSuffix(f.Found, ", 1 queue") {
		t.Errorf("of one queue: %v", f)
	}
	if f := jit(fstest.MapFS{"proc/sys/net/core/bpf_jit_enable": file("0")}, Finding{Level: OK}); f.Level != Slow || f.Remedy == "" {
		t.Errorf("interpreted: %v", f)
	}
}
