//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"strings"
	"testing"
	"testing/fstest"
)

func file(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }

// machine is what a kernel shows of one RoCE device.
func machine(state, gid string, verbs bool) fstest.MapFS {
	const port = rdmaClass + "/rxe0/ports/1"
	m := fstest.MapFS{
		port + "/state": file(state), port + "/link_layer": file("Ethernet"),
		port + "/gids/0": file("fe80:0000:0000:0000:5054:00ff:fe12:3401"), port + "/gids/1": file(gid),
	}
	if verbs {
		m["sys/class/infiniband_verbs/abi_version"] = file("6")
	}
	return m
}

func TestRDMAFindingsNameTheRemedy(t *testing.T) {
	const v4, none = "0000:0000:0000:0000:0000:ffff:c000:0201", "0000:0000:0000:0000:0000:0000:0000:0000"
	half := machine("4: ACTIVE", v4, true)
	half[rdmaClass+"/rxe0/ports/2/state"] = file("1: DOWN")
	for _, x := range []struct {
		name           string
		root           fstest.MapFS
		devices, ports Level
		remedy         string // in that of either
	}{
		{"good", machine("4: ACTIVE", v4, true), OK, OK, ""},
		{"no device", fstest.MapFS{}, Absent, Absent, ""},
		{"no device, but a module", fstest.MapFS{"sys/module/rdma_rxe/refcnt": file("0")}, Absent, Absent, "rdma link add"},
		{"no ib_uverbs", machine("4: ACTIVE", v4, false), Blocked, OK, "modprobe -a ib_uverbs"},
		{"port down", machine("1: DOWN", v4, true), OK, Blocked, "ip link set"},
		{"one port of two", half, OK, OK, ""},
		{"only link-local", machine("4: ACTIVE", none, true), OK, Slow, "address"},
	} {
		t.Run(x.name, func(t *testing.T) {
			d, p := findDevices(x.root), findPorts(x.root)
			if d.Level != x.devices || p.Level != x.ports {
				t.Errorf("devices: %v, ports: %v", d, p)
			}
			if both := d.Remedy + p.Remedy; (both == "") != (x.remedy == "") || !strings.Contains(both, x.remedy) {
				t.Errorf("remedy %q, want one with %q", both, x.remedy)
			}
		})
	}
}
