//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestMessagesOfTheGuest(t *testing.T) {
	for _, c := range []struct {
		line string
		want message
		ok   bool
	}{
		{"ready", message{kind: "ready"}, true},
		{"ready\r\n", message{kind: "ready"}, true},
		{"exit 0 0", message{kind: "exit"}, true},
		{"exit 255 12800", message{kind: "exit", status: 255, taint: 12800}, true},
		{"error mount: no such device", message{kind: "error", text: "mount: no such device"}, true},
		{"ready now", message{}, false},
		{"exit", message{}, false},
		{"exit 0", message{}, false},
		{"exit 256 0", message{}, false},
		{"exit -1 0", message{}, false},
		{"exit 1 2 3", message{}, false},
		{"", message{}, false},
		{"hello", message{}, false},
	} {
		got, err := parseMessage(c.line)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("parseMessage(%q) = %+v, %v, want %+v, ok %v", c.line, got, err, c.want, c.ok)
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	f.Add("exit 3 512")
	f.Add("error \x00")
	f.Fuzz(func(t *testing.T, line string) {
		m, err := parseMessage(line)
		if err == nil && (m.kind == "" || m.status < 0 || m.status > 255) {
			t.Errorf("%q: %+v", line, m)
		}
	})
}

func TestConsoleFaults(t *testing.T) {
	for _, c := range []struct {
		name, console string
		want          []string
	}{
		{"clean", "[    0.000000] Linux version 6.1\r\n[    1.5] rdma_rxe: loaded\r\n", nil},
		{"warning",
			"[    3.25] ------------[ cut here ]------------\r\n[    3.26] WARNING: CPU: 0 PID: 7 at net/core/dev.c:1\r\n",
			[]string{"WARNING: CPU: 0 PID: 7 at net/core/dev.c:1"}},
		{"with a caller", "[    3.1][  T154] BUG: KASAN: slab-use-after-free in rxe_post\n",
			[]string{"BUG: KASAN: slab-use-after-free in rxe_post"}},
		{"lockdep", "[   10.0] WARNING: possible circular locking dependency detected\n",
			[]string{"WARNING: possible circular locking dependency detected"}},
		{"rcu", "[   10.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n",
			[]string{"rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"}},
		{"hung", "[   10.0] INFO: task rxe:12 blocked for more than 120 seconds.\n",
			[]string{"INFO: task rxe:12 blocked for more than 120 seconds."}},
		{"sleeping", "[   10.0] BUG: sleeping function called from invalid context at mm/slab.h:274\n",
			[]string{"BUG: sleeping function called from invalid context at mm/slab.h:274"}},
		{"leak", "[   10.0] kmemleak: 2 new suspected memory leaks\n", []string{"kmemleak: 2 new suspected memory leaks"}},
		{"no end of line", "[   10.0] Kernel panic - not syncing: x", []string{"Kernel panic - not syncing: x"}},
		{"no timestamp", "Oops: 0000 [#1] PREEMPT SMP\n", []string{"Oops: 0000 [#1] PREEMPT SMP"}},
		{"somebody talks about it", "[   10.0] test: a WARNING: appeared\n[   11.0] no kernel BUG at all\n", nil},
		{"two", "[ 1.0] WARNING: a\n[ 1.1] ---[ end trace 0 ]---\n[ 2.0] BUG: b\n", []string{"WARNING: a", "BUG: b"}},
		{"a fault within the report of another", "[ 1.0] WARNING: a\n[ 2.0] BUG: b\n", []string{"WARNING: a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, step := range []int{1, 7, len(c.console)} {
				var s consoleScanner
				for piece := range slices.Chunk([]byte(c.console), step) {
					if n, err := s.Write(piece); n != len(piece) || err != nil {
						t.Fatal(n, err)
					}
				}
				s.finish()
				var got []string
				for _, f := range s.faults {
					got = append(got, f.what)
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("in pieces of %d: %q, want %q", step, got, c.want)
				}
				if s.log.String() != c.console {
					t.Errorf("kept %q", s.log.String())
				}
			}
		})
	}
}

func TestFaultReportIsBounded(t *testing.T) {
	var s consoleScanner
	fmt.Fprintln(&s, "BUG: one")
	for i := range 2 * faultLines {
		fmt.Fprintln(&s, "line", i)
	}
	fmt.Fprintln(&s, "BUG: two")
	if len(s.faults) != 2 || len(s.faults[0].lines) != faultLines {
		t.Fatalf("%d faults, the first of %d lines", len(s.faults), len(s.faults[0].lines))
	}
}

// What the kernel shows of a processor belongs to the report before, however long that of another one is.
func TestFaultReportHasEveryProcessor(t *testing.T) {
	var s consoleScanner
	fmt.Fprintln(&s, "NMI backtrace for cpu 0, without a fault")
	fmt.Fprintln(&s, "Kernel panic - not syncing: NMI: Not continuing")
	for cpu := range 3 {
		fmt.Fprintln(&s, "[    1.0] NMI backtrace for cpu", cpu)
		for i := range faultLines + 20 {
			fmt.Fprintln(&s, "line", i)
		}
	}
	if len(s.faults) != 1 || len(s.faults[0].lines) != 1+3*faultLines {
		t.Fatalf("%d faults, the first of %d lines", len(s.faults), len(s.faults[0].lines))
	}
}

func FuzzConsole(f *testing.F) {
	f.Add([]byte("[ 1.0] WARNING: a\r\n[ 1.1] ---[ end trace 0 ]---\n"), 3)
	f.Fuzz(func(t *testing.T, console []byte, step int) {
		var whole, pieces consoleScanner
		whole.Write(console)
		whole.finish()
		for piece := range slices.Chunk(console, max(1, step)) {
			pieces.Write(piece)
		}
		pieces.finish()
		if !reflect.DeepEqual(whole.faults, pieces.faults) {
			t.Errorf("whole %q, in pieces %q", whole.faults, pieces.faults)
		}
	})
}

func TestModulesLoadAfterWhatTheyNeed(t *testing.T) {
	index := parseModules(
		"kernel/rxe.ko.xz: kernel/ib_uverbs.ko.xz kernel/udp-tunnel.ko.xz kernel/ib_core.ko.xz\n"+
			"kernel/ib_uverbs.ko.xz: kernel/ib_core.ko.xz\nkernel/ib_core.ko.xz:\nkernel/udp-tunnel.ko.xz:\n"+
			"kernel/crc32_generic.ko.xz:\n",
		"kernel/drivers/virtio/virtio-pci.ko\n",
		"# a comment\nsoftdep rxe pre: crc32-generic crc_built_in post: ib_umad\n")
	got, err := index.order([]string{"virtio_pci", "rxe", "ib_uverbs", "ib-core"})
	want := []string{
		"kernel/crc32_generic.ko.xz", "kernel/ib_core.ko.xz", "kernel/udp-tunnel.ko.xz", "kernel/ib_uverbs.ko.xz",
		"kernel/rxe.ko.xz",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("order: %q, %v, want %q", got, err, want)
	}
	if _, err := index.order([]string{"nothing"}); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("an unknown module: %v", err)
	}
}

func FuzzParseModules(f *testing.F) {
	f.Add("a.ko: b.ko\nb.ko: a.ko\n", "c.ko\n", "softdep a pre: b\nsoftdep b pre: a\n", "a")
	f.Fuzz(func(t *testing.T, dep, builtin, softdep, name string) {
		order, err := parseModules(dep, builtin, softdep).order([]string{name})
		if err == nil && len(order) != len(slices.Compact(slices.Sorted(slices.Values(order)))) {
			t.Errorf("twice in %q", order)
		}
	})
}

// The kernel's reader is in use whenever a machine boots; cpio is a second opinion, and tells what is in there.
func TestArchiveIsReadByCpio(t *testing.T) {
	cpio, err := exec.LookPath("cpio")
	if err != nil {
		t.Skip("needs cpio: apt-get install cpio")
	}
	var buf bytes.Buffer
	w := &cpioWriter{w: &buf}
	w.dir("bin")
	w.file("bin/odd", 0o755, []byte("12345"))
	w.file("empty", 0o600, nil)
	w.symlink("bin/link", "odd")
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command(cpio, "-i", "--quiet")
	cmd.Dir, cmd.Stdin = dir, &buf
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v: %s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "bin/link")); err != nil || string(got) != "12345" {
		t.Errorf("the file behind the link: %q, %v", got, err)
	}
	for name, want := range map[string]os.FileMode{"bin": os.ModeDir | 0o755, "bin/odd": 0o755, "empty": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", name, info, err, want)
		}
	}
}

func TestCpioWriterReportsItsFirstError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	w := &cpioWriter{w: full}
	w.dir("bin")
	w.dir("sbin")
	if err := w.close(); err == nil {
		t.Error("no error from a full device")
	}
}

// bzImage makes an image with a payload, of a boot protocol version.
func bzImage(payload []byte, version uint16) []byte {
	image := make([]byte, 3*512+100)
	image[0x1f1] = 2 // setup sectors
	copy(image[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(image[0x206:], version)
	binary.LittleEndian.PutUint32(image[0x248:], 100)
	binary.LittleEndian.PutUint32(image[0x24c:], uint32(len(payload)))
	return append(image, payload...)
}

func TestKernelIsFoundInItsImage(t *testing.T) {
	const xz, zstd, size = "\xfd7zXZ\x00 the kernel", "\x28\xb5\x2f\xfd the kernel", "\x00\x01\x02\x03"
	for _, c := range []struct {
		name  string
		image []byte
		tool  string
		want  string
	}{
		{"xz", bzImage([]byte(xz+size), 0x20f), "xz", xz},
		{"zstd", bzImage([]byte(zstd+size), 0x20f), "zstd", zstd},
		{"unknown compression", bzImage([]byte("\x1f\x8b the kernel"+size), 0x20f), "", ""},
		{"old protocol", bzImage([]byte(xz+size), 0x207), "", ""},
		{"cut off", bzImage([]byte(xz+size), 0x20f)[:3*512+110], "", ""},
		{"no kernel", bytes.Repeat([]byte{'x'}, 4096), "", ""},
		{"empty", nil, "", ""},
	} {
		payload, tool, err := imagePayload(c.image)
		if string(payload) != c.want || tool != c.tool || (err == nil) != (c.tool != "") {
			t.Errorf("%s: %q, %q, %v, want %q, %q", c.name, payload, tool, err, c.want, c.tool)
		}
	}
}

func FuzzImagePayload(f *testing.F) {
	f.Add(bzImage([]byte("\xfd7zXZ\x00 the kernel and its size"), 0x20f))
	f.Fuzz(func(t *testing.T, image []byte) {
		payload, tool, err := imagePayload(image)
		if (err == nil) != (tool != "") || len(payload) > len(image) {
			t.Errorf("%d bytes, %q, %v", len(payload), tool, err)
		}
	})
}

func TestRecordOfAPackage(t *testing.T) {
	got := parseRecord("Package: linux-image-amd64\nDepends: linux-image-6.1.0-50-amd64 (= 6.1.176-1)\n" +
		"Description: a\n : more\n\nPackage: second\n")
	want := record{"Package": "linux-image-amd64", "Depends": "linux-image-6.1.0-50-amd64 (= 6.1.176-1)", "Description": "a"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add("Package: a\n continued\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		for key, value := range parseRecord(text) {
			if strings.ContainsAny(key+value, "\n") {
				t.Errorf("a line in %q: %q", key, value)
			}
		}
	})
}

func TestComplaintsOfApt(t *testing.T) {
	got := complaints("Reading...\nErr: 1 http://x\nE: Failed to fetch\nE: Failed to fetch\nW: Some index files failed\n")
	if want := "1 http://x; Failed to fetch; Some index files failed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestDebianArchiveIsKnownByItsName(t *testing.T) {
	for uri, want := range map[string]bool{
		"http://mirror.example/debian":             true,
		"mirror+file:/etc/apt/mirrors/debian.list": true,
		"http://mirror.example/debian-security":    false,
		"http://mirror.example/ubuntu":             false,
		"https://debian.example/apt":               false,
	} {
		if got := debianArchive.MatchString(uri); got != want {
			t.Errorf("%s: %v", uri, got)
		}
	}
}

func TestConfigurationIsCheckedForWhatWasDropped(t *testing.T) {
	got := missingSettings("# CONFIG_X=y\nCONFIG_A=y\nCONFIG_B=1\n\nCONFIG_C=y\n",
		"CONFIG_A=y\n# CONFIG_C is not set\nCONFIG_B=12\n")
	if want := []string{"CONFIG_B=1", "CONFIG_C=y"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestShellTakesWordsAsTheyAre(t *testing.T) {
	words := []string{"plain", "", "it's", "a b", "$HOME `id` \\ \"x\"", "line\nline", "-n", "*"}
	script := commandScript("/", []string{"NAME=a 'b' $c"}, append([]string{"printf", "%s|"}, append(words, "end")...))
	// There is no /run/vm here.
	script = strings.Replace(script, "/run/vm/pid", "/dev/null", 1)
	out, err := exec.Command("/bin/sh", "-c", script).Output()
	if want := strings.Join(words, "|") + "|end|"; err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

func TestOnlyPartOfTheEnvironmentPasses(t *testing.T) {
	got := passedEnv([]string{
		"PATH=/bin", "SECRET=x", "BYWASH_SOAK=1h", "BYWASH_BAD-NAME=1", "GODEBUG=x=1", "BASH_FUNC_x%%=() {", "HOME=/root",
	})
	if want := []string{"USER=root", "PATH=/bin", "BYWASH_SOAK=1h", "GODEBUG=x=1", "HOME=/root"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLinesOfTwoMachinesAreMarked(t *testing.T) {
	var buf bytes.Buffer
	var mu sync.Mutex
	to := prefixed(outputs{stdout: &buf, stderr: &buf}, "[1] ", &mu)
	if to.console != nil {
		t.Error("a console out of nothing")
	}
	for _, piece := range []string{"a", "b\nc\n", "", "d\ne"} {
		fmt.Fprint(to.stdout, piece)
	}
	to.stdout.(*prefixWriter).flush()
	to.stdout.(*prefixWriter).flush()
	if got, want := buf.String(), "[1] ab\n[1] c\n[1] d\n[1] e\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
