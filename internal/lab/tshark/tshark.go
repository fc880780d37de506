//go:build linux

// Package tshark lets tests read captures with Wireshark's command line and a dissector in Lua.
package tshark

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// nobodyUID is the unprivileged user of every Linux distribution.
const nobodyUID = 65534

// find returns tshark's path, or the reason why it cannot be used.
var find = sync.OnceValues(func() (string, error) {
	path, err := exec.LookPath("tshark")
	if err != nil {
		return "", errors.New("needs tshark (package tshark; hack/deps --for test installs it)")
	}
	if about, err := exec.Command(path, "--version").Output(); err != nil || !strings.Contains(string(about), "with Lua") {
		return "", fmt.Errorf("needs a tshark with Lua: %v", err)
	}
	return path, nil
})

// Run returns tshark's output for a capture file with the dissector of a script. It skips the test without a tshark
// that has Lua.
//
// As root, Run starts tshark as another user, who reads copies, because from version 4.4 on tshark loads no scripts for
// root. This also keeps out the settings of the user who runs the test.
func Run(t *testing.T, script, file string, args ...string) string {
	t.Helper()
	path, err := find()
	if err != nil {
		t.Skip(err)
	}
	home, err := os.MkdirTemp("", "tshark")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	for _, name := range []*string{&script, &file} {
		*name = copyInto(t, home, *name)
	}
	cmd := exec.Command(path, append([]string{"-n", "-X", "lua_script:" + script, "-r", file}, args...)...)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyUID, Gid: nobodyUID}}
		if err := os.Chown(home, nobodyUID, nobodyUID); err != nil {
			t.Fatal(err)
		}
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || strings.Contains(stderr.String(), "Lua") || bytes.Contains(out, []byte("Lua Error")) {
		t.Fatalf("tshark %s: %v\n%s%.2000s", strings.Join(args, " "), err, stderr.String(), out)
	}
	return string(out)
}

// Fields returns the values of fields that tshark shows of a capture file: a row a frame. A field that occurs several
// times in a frame has its values with commas, and a boolean is 0 or 1 with every version of tshark.
func Fields(t *testing.T, script, file string, names []string, args ...string) (rows [][]string) {
	t.Helper()
	args = append(args, "-T", "fields", "-E", "occurrence=a", "-E", "aggregator=,")
	for _, n := range names {
		args = append(args, "-e", n)
	}
	for line := range strings.Lines(Run(t, script, file, args...)) {
		row := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		for k, v := range row {
			row[k] = strings.NewReplacer("True", "1", "False", "0").Replace(v) // Wireshark 4.2 and later has words
		}
		rows = append(rows, row)
	}
	return rows
}

// Write returns the name of a capture file with frames of a link type, each cut to snap bytes.
func Write(t *testing.T, linkType uint16, frames [][]byte, snap int) string {
	t.Helper()
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	for _, v := range []uint32{4<<16 | 2, 0, 0, 1 << 17, uint32(linkType)} {
		b = le.AppendUint32(b, v)
	}
	for _, f := range frames {
		kept := f[:min(len(f), snap)]
		for _, v := range []int{1, 2, len(kept), len(f)} {
			b = le.AppendUint32(b, uint32(v))
		}
		b = append(b, kept...)
	}
	file := filepath.Join(t.TempDir(), "x.pcap")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// copyInto makes a copy of a file that every user can read, and returns its name.
func copyInto(t *testing.T, dir, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(name, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}
