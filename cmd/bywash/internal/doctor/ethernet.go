//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bywash/bywash/afxdp/xsk"
	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/lab/veth"
)

// afXDP reports whether the kernel has AF_XDP, and compiles what runs in it.
func afXDP() Finding {
	f := Finding{Name: "AF_XDP", Level: OK, Found: "the kernel has it"}
	err := xsk.Probe(xsk.FeatureSocket)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		f.Level, f.Found, f.Remedy = Absent, err.Error(), "a kernel from 5.9 on, with CONFIG_XDP_SOCKETS"
		return f
	case errors.Is(err, unix.EPERM):
		f.Found = "unknown: finding out needs CAP_NET_RAW"
	}
	return jit(os.DirFS("/"), f)
}

func jit(root fs.FS, f Finding) Finding {
	b, err := fs.ReadFile(root, "proc/sys/net/core/bpf_jit_enable")
	if err == nil && strings.TrimSpace(string(b)) == "0" {
		f.Level, f.Found = Slow, f.Found+"; BPF programs are interpreted"
		f.Remedy = "as root: sysctl net.core.bpf_jit_enable=1"
	}
	return f
}

func etherDevices() Finding { return findEther(os.DirFS("/")) }

// nativeMTU is the longest that programs in a driver take, if the driver does not know of frames in
// several buffers.
const nativeMTU = 3506

// findEther tells which Ethernet devices there are, and what is in the way of AF_XDP on them.
func findEther(root fs.FS) Finding {
	f := Finding{Name: "Ethernet devices", Level: OK}
	all, _ := fs.Glob(root, "sys/class/net/*")
	var found, down, many, long []string
	cpus, _ := fs.Glob(root, "sys/devices/system/cpu/cpu[0-9]*")
	for _, d := range all {
		read := func(name string) string {
			b, _ := fs.ReadFile(root, d+"/"+name)
			return strings.TrimSpace(string(b))
		}
		if read("type") != "1" || strings.Trim(read("address"), "0:") == "" { // ARPHRD_ETHER
			continue
		}
		name := path.Base(d)
		queues, _ := fs.Glob(root, d+"/queues/rx-*")
		count := "1 queue"
		if len(queues) > 1 {
			count = fmt.Sprintf("%d queues", len(queues))
		}
		found = append(found, fmt.Sprintf("%s %s, MTU %s, %s", name, read("operstate"), read("mtu"), count))
		if read("operstate") == "down" {
			down = append(down, name)
		}
		if len(queues) > max(len(cpus), 1) {
			many = append(many, name)
		}
		if mtu, _ := strconv.Atoi(read("mtu")); mtu > nativeMTU {
			long = append(long, name)
		}
	}
	f.Found = strings.Join(found, "; ")
	switch {
	case len(found) == 0:
		f.Level, f.Found = Absent, "none besides loopback"
	case len(down) == len(found):
		f.Level, f.Remedy = Slow, "ip link set "+down[0]+" up"
	case len(many) > 0:
		f.Level = Slow
		f.Remedy = fmt.Sprintf("%s: more queues than CPUs, and afxdp polls each queue: ethtool -L %s combined %d", strings.Join(many, ", "), many[0], len(cpus))
	case len(long) > 0:
		f.Remedy = fmt.Sprintf("%s: drivers without multi-buffer (bywash info) run XDP programs only up to an MTU of %d (else afxdp's runs in the stack, slower); "+
			"frames longer than a chunk take Linux 6.6", strings.Join(long, ", "), nativeMTU)
	}
	return f
}

// examineEthernet opens the driver on a device that it makes: on one of the machine's it would take over
// a part of its traffic.
func examineEthernet(d driver.Driver) Finding {
	f := Finding{Name: "driver " + d.Name(), Level: OK, Found: "can be opened"}
	if kernel := afXDP(); kernel.Level == Absent {
		f.Level, f.Found = Absent, kernel.Found
		return f
	}
	p, err := veth.New(veth.Config{})
	if err == nil {
		defer p.Close()
		var nic driver.NIC
		netns := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.Ends[0].Namespace)
		if nic, err = d.Query(driver.Hints{Device: p.Ends[0].Device, Options: map[string]string{"netns": netns}}); err == nil {
			var c driver.Context
			if c, err = nic.Open(driver.Attributes{}); err == nil {
				err = c.Close()
			}
		}
	}
	enough, _ := capable(unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_BPF, unix.CAP_IPC_LOCK)
	switch {
	case errors.Is(err, os.ErrPermission) && enough:
		f.Found = "not tried: to make a device for that takes CAP_SYS_ADMIN"
	case errors.Is(err, errors.ErrUnsupported):
		f.Found = "not tried: " + err.Error()
	case errors.Is(err, os.ErrPermission):
		f.Level, f.Found = Blocked, "needs root, or CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK"
		f.Remedy = "run as root, or setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep PROGRAM"
	case err != nil:
		f.Level, f.Found, f.Remedy = Blocked, err.Error(), "docs/afxdp.md"
	}
	return f
}
