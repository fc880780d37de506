// Package tshark lets tests read captures with Wireshark's command line and a dissector in Lua.
package tshark

import (
	"bytes"
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

// nobody is the unprivileged user of every Linux distribution.
const nobody = 65534

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
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if err := os.Chown(home, nobody, nobody); err != nil {
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
