//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Report writes what somebody needs who looks for a fault from elsewhere: the machine, what Examine found, the RDMA
// devices with what they grant, the kernel modules, the libraries, and what drivers writes. It makes queue pairs and
// closes them, sends nothing, and changes nothing. It names network addresses (GIDs), and neither host nor user.
func Report(ctx context.Context, w io.Writer, version string, drivers func(io.Writer) error) error {
	r := &reporter{out: bufio.NewWriter(w), root: os.DirFS("/"), private: withoutUser(os.Getenv)}
	r.system(version)
	r.section("findings")
	for f := range Examine(ctx) {
		r.printf("%s", f)
	}
	r.kernelDevices()
	r.grants() // before the libraries, as it loads them
	r.modules()
	r.libraries()
	r.section("drivers")
	var text strings.Builder
	err := drivers(&text)
	r.printf("%s", text.String())
	return cmp.Or(err, r.out.Flush())
}

// reporter writes sections. The first error of its writer ends up in Flush.
type reporter struct {
	out     *bufio.Writer
	root    fs.FS
	private *strings.Replacer
}

// withoutUser replaces the directories of the user, whose names may contain the user's, by the variables that name them.
func withoutUser(getenv func(string) string) *strings.Replacer {
	var pairs []string
	for _, v := range []string{"XDG_RUNTIME_DIR", "TMPDIR", "HOME"} {
		if dir := strings.TrimRight(getenv(v), "/"); dir != "" {
			pairs = append(pairs, dir, "$"+v)
		}
	}
	if name := getenv("USER"); name != "" {
		pairs = append(pairs, "/"+name+"/", "/$USER/")
	}
	return strings.NewReplacer(pairs...)
}

func (r *reporter) printf(format string, args ...any) {
	_, _ = r.private.WriteString(r.out, fmt.Sprintf(format, args...))
}

func (r *reporter) section(name string) { r.printf("\n== %s ==\n", name) }

// field writes a line if there is a value.
func (r *reporter) field(indent int, name, value string) {
	if value != "" {
		r.printf("%*s%-*s %s\n", indent, "", 24-indent, name, value)
	}
}

// read is the first line of a file, "" if it cannot be read.
func (r *reporter) read(name string) string {
	b, err := fs.ReadFile(r.root, name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return line
}

// value is what follows a key and one of the bytes of sep at the begin of a line of a file.
func (r *reporter) value(file, key, sep string) string {
	b, _ := fs.ReadFile(r.root, file)
	for line := range strings.Lines(string(b)) {
		if name, v, ok := strings.Cut(line, sep); ok && strings.TrimSpace(name) == key {
			return strings.Trim(strings.TrimSpace(v), `"`)
		}
	}
	return ""
}

func (r *reporter) system(version string) {
	var name unix.Utsname
	_ = unix.Uname(&name)
	r.printf("bywash report, format 1\n")
	r.section("system")
	r.field(0, "bywash", fmt.Sprintf("%s, %s %s/%s", version, runtime.Version(), runtime.GOOS, runtime.GOARCH))
	r.field(0, "kernel", unix.ByteSliceToString(name.Release[:])+" "+unix.ByteSliceToString(name.Version[:]))
	r.field(0, "distribution", r.value("etc/os-release", "PRETTY_NAME", "="))
	r.field(0, "processor", r.value("proc/cpuinfo", "model name", ":"))
	r.field(0, "CPUs", fmt.Sprintf("%d for this process, %s of the machine", runtime.NumCPU(), r.read("sys/devices/system/cpu/online")))
	r.field(0, "NUMA nodes", r.read("sys/devices/system/node/online"))
	r.field(0, "memory", r.value("proc/meminfo", "MemTotal", ":"))
	r.field(0, "hypervisor", r.hypervisor())
}

// hypervisor names the product of a virtual machine.
func (r *reporter) hypervisor() string {
	if !strings.Contains(" "+r.value("proc/cpuinfo", "flags", ":")+" ", " hypervisor ") {
		return ""
	}
	vendor, product := r.read("sys/class/dmi/id/sys_vendor"), r.read("sys/class/dmi/id/product_name")
	return strings.TrimSpace("yes " + vendor + " " + product)
}

// modulesOfInterest begin the names of the modules that have to do with RDMA, of the kernel or a vendor.
var modulesOfInterest = []string{
	"ib_", "rdma_", "iw_", "mlx", "irdma", "bnxt", "hns", "qed", "erdma", "mana", "efa", "ionic", "cxgb", "siw", "vmw_pvrdma", "ice",
	"i40", "hfi", "qnix", "nvidia_peermem", "peer_mem",
}

func (r *reporter) modules() {
	r.section("kernel modules")
	b, err := fs.ReadFile(r.root, "proc/modules")
	if errors.Is(err, fs.ErrNotExist) {
		r.printf("this kernel loads no modules\n")
		return
	}
	if err != nil {
		r.printf("%v\n", err)
		return
	}
	var found []string
	for line := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(line, " ")
		if slices.ContainsFunc(modulesOfInterest, func(p string) bool { return strings.HasPrefix(name, p) }) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	for _, name := range found {
		r.printf("%s\n", strings.TrimSpace(fmt.Sprintf("%-24s %s", name, r.read("sys/module/"+name+"/version"))))
	}
	if len(found) == 0 {
		r.printf("none of RDMA\n")
	}
}

// libraries are the shared libraries of RDMA that this process has loaded; their file names hold their versions.
func (r *reporter) libraries() {
	r.section("libraries")
	b, err := fs.ReadFile(r.root, "proc/self/maps")
	if err != nil {
		r.printf("%v\n", err)
		return
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		base := path.Base(f[len(f)-1])
		if len(f) > 5 && (strings.Contains(base, "libibverbs") || strings.Contains(base, "librdmacm") || strings.Contains(base, "-rdmav")) {
			found[f[5]] = true
		}
	}
	if len(found) == 0 {
		r.printf("none of RDMA is loaded\n")
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		file := name
		if target, err := os.Readlink(name); err == nil {
			file += " -> " + target
		}
		r.printf("%s\n", file)
	}
}
