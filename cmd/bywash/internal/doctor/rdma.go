//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// The kernel shows its RDMA devices below here, with or without libraries.
const rdmaClass = "sys/class/infiniband"

func rdmaDevices() Finding { return findDevices(os.DirFS("/")) }

func findDevices(root fs.FS) Finding {
	f := Finding{Name: "RDMA devices", Level: OK}
	devices, _ := fs.Glob(root, rdmaClass+"/*")
	_, verbsErr := fs.Stat(root, "sys/class/infiniband_verbs")
	switch {
	case len(devices) == 0 && verbsErr != nil && !loadable(root, "rdma_rxe"):
		f.Level, f.Found = Absent, "none, and no module rdma_rxe for Soft-RoCE was found"
	case len(devices) == 0:
		f.Level, f.Found = Absent, "none"
		f.Remedy = "for Soft-RoCE on a network interface, as root: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev DEV"
	case verbsErr != nil:
		f.Level, f.Found = Blocked, names(devices)+", but user space cannot use them"
		f.Remedy = "as root: modprobe -a ib_uverbs rdma_ucm"
	default:
		f.Found = names(devices)
	}
	return f
}

// loadable reports whether a module lies where modprobe looks for it, or is in
// the kernel.
func loadable(root fs.FS, module string) bool {
	if _, err := fs.Stat(root, "sys/module/"+module); err == nil {
		return true
	}
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return true
	}
	dep, err := fs.ReadFile(root, "lib/modules/"+unix.ByteSliceToString(name.Release[:])+"/modules.dep")
	return err == nil && strings.Contains(string(dep), "/"+module+".ko")
}

func names(paths []string) string {
	list := make([]string, len(paths))
	for k, p := range paths {
		list[k] = path.Base(p)
	}
	return strings.Join(list, ", ")
}

func rdmaPorts() Finding { return findPorts(os.DirFS("/")) }

// findPorts tells which ports are up and have an address that is reached from
// elsewhere.
func findPorts(root fs.FS) Finding {
	f := Finding{Name: "RDMA ports", Level: OK}
	ports, _ := fs.Glob(root, rdmaClass+"/*/ports/*")
	if len(ports) == 0 {
		f.Level, f.Found = Absent, "none"
		return f
	}
	var found, down, local []string
	for _, p := range ports {
		name := fmt.Sprintf("%s port %s", path.Base(path.Dir(path.Dir(p))), path.Base(p))
		state, err := fs.ReadFile(root, p+"/state")
		if err != nil {
			continue
		}
		_, word, _ := strings.Cut(strings.TrimSpace(string(state)), ": ")
		found = append(found, fmt.Sprintf("%s %s", name, strings.ToLower(word)))
		layer, _ := fs.ReadFile(root, p+"/link_layer")
		switch {
		case word != "ACTIVE":
			down = append(down, name)
		case strings.HasPrefix(string(layer), "Ethernet") && !routable(root, p):
			local = append(local, name)
		}
	}
	f.Found = strings.Join(found, ", ")
	switch {
	case len(down) == len(found):
		f.Level, f.Remedy = Blocked, "connect the cable, or bring the network interface up: ip link set DEV up; a port in the state INIT lacks a subnet manager (opensm)"
	case len(local) > 0:
		f.Level = Slow
		f.Remedy = strings.Join(local, ", ") + ": only link-local GIDs, which reach one segment; give the network interface an address"
	}
	return f
}

// routable reports whether a RoCE port has a GID that is not link-local.
func routable(root fs.FS, port string) bool {
	gids, _ := fs.Glob(root, port+"/gids/*")
	for _, g := range gids {
		b, err := fs.ReadFile(root, g)
		s := strings.TrimSpace(string(b))
		if err == nil && strings.Trim(s, "0:") != "" && !strings.HasPrefix(s, "fe80:") {
			return true
		}
	}
	return false
}
