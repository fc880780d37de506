//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/fstest"
)

// What the kernel shows of a device stands in the report, a line a value; what is empty, or no entry, does not.
func TestReportShowsWhatTheKernelShows(t *testing.T) {
	const port = "sys/class/infiniband/mlx5_0/ports/1/"
	files := map[string]string{
		"sys/class/infiniband/mlx5_0/fw_ver":        "28.41.1000\n",
		"sys/class/infiniband/mlx5_0/device/vendor": "0x15b3\n",
		port + "state":                "4: ACTIVE\n",
		port + "gids/0":               "fe80:0000:0000:0000:0000:0000:0000:0001\n",
		port + "gids/1":               "0000:0000:0000:0000:0000:ffff:c000:0201\n",
		port + "gids/2":               "0000:0000:0000:0000:0000:0000:0000:0000\n",
		port + "gid_attrs/types/1":    "RoCE v2\n",
		port + "gid_attrs/ndevs/1":    "eth2\n",
		port + "pkeys/0":              "0xffff\n",
		port + "pkeys/1":              "0x0000\n",
		"etc/os-release":              "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n",
		"proc/cpuinfo":                "model name\t: Some CPU\nflags\t\t: fpu hypervisor sse\n",
		"sys/class/dmi/id/sys_vendor": "QEMU\n",
		"proc/modules":                "mlx5_ib 1 0 - Live 0x0\next4 1 0 - Live 0x0\n",
		"sys/module/mlx5_ib/version":  "24.10\n",
		"proc/self/maps":              "7f00-7f01 r-xp 00000000 08:01 77 /usr/lib/libmlx5-rdmav34.so\n7f01-7f02 r-xp 0 08:01 7 /usr/lib/libc.so.6\n",
		"sys/class/infiniband/mlx5_0/device/numa_node":     "1\n",
		"sys/class/infiniband/mlx5_0/device/current_link_": "",
	}
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	var b bytes.Buffer
	r := &reporter{out: bufio.NewWriter(&b), root: root, private: withoutUser(func(string) string { return "" })}
	r.system("v9")
	r.kernelDevices()
	r.modules()
	r.libraries()
	if err := r.out.Flush(); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"bywash v9, go", "distribution Debian GNU/Linux 13 (trixie) ", "processor Some CPU ", "hypervisor yes QEMU ",
		"mlx5_0 fw_ver 28.41.1000 device/vendor 0x15b3 device/numa_node 1 port 1 state 4: ACTIVE ",
		"gid 0 fe80:0000:0000:0000:0000:0000:0000:0001 gid 1 0000:0000:0000:0000:0000:ffff:c000:0201 RoCE v2 eth2 pkey 0 0xffff ",
		"== kernel modules == mlx5_ib 24.10 == libraries == /usr/lib/libmlx5-rdmav34.so",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, b.String())
		}
	}
	for _, not := range []string{"gid 2", "pkey 1", "ext4", "libc.so"} {
		if strings.Contains(text, not) {
			t.Errorf("the report has %q:\n%s", not, b.String())
		}
	}
}

// Directories and paths that contain the user's name are written as the variables that name them.
func TestReportDoesNotNameTheUser(t *testing.T) {
	env := map[string]string{"USER": "alice", "HOME": "/home/alice", "TMPDIR": "/scratch/alice/42/"}
	r := withoutUser(func(name string) string { return env[name] })
	got := r.Replace("/scratch/alice/42, /home/alice/lib/libmlx5.so, /opt/alice/lib, /usr/lib")
	if want := "$TMPDIR, $HOME/lib/libmlx5.so, /opt/$USER/lib, /usr/lib"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// What the drivers say of themselves does not name the user either.
func TestReportOfDriversDoesNotNameTheUser(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/jane")
	var b strings.Builder
	err := Report(t.Context(), &b, "test", func(w io.Writer) error {
		_, err := io.WriteString(w, "device /run/jane/bywash/qnix0.sock\n")
		return err
	})
	if err != nil || !strings.HasSuffix(b.String(), "== drivers ==\ndevice $XDG_RUNTIME_DIR/bywash/qnix0.sock\n") {
		t.Errorf("%v, %s", err, b.String())
	}
}

func TestExamineEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for range Examine(ctx) {
		n++
		cancel()
	}
	if n != 1 {
		t.Errorf("%d findings, want those up to the end of the context: 1", n)
	}
}
