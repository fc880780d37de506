//go:build linux

package main

import (
	"bytes"
	"context"
	"debug/elf"
	_ "embed"
	"fmt"
	"os"
	"strconv"
	"strings"
)

//go:embed init.sh
var initScript []byte

// applets are busybox's commands that init.sh uses.
var applets = []string{
	"sh", "cat", "chroot", "cp", "grep", "hostname", "insmod", "ip", "kill", "ln", "mkdir", "mkfifo", "mount", "nc", "setsid",
	"sleep", "sync", "awk",
}

// A guest is the configuration of one machine's boot.
type guest struct {
	rank   int
	config map[string]string // variables of init.sh
	script string            // of the command
}

// initrd makes the guest's first root file system.
func initrd(ctx context.Context, k *kernel, modules []string, g guest) ([]byte, error) {
	busybox, err := readBusybox()
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	c := &cpioWriter{w: &buf}
	for _, dir := range []string{"bin", "dev", "proc", "sys", "run", "vm", "vm/modules"} {
		c.dir(dir)
	}
	c.file("bin/busybox", 0o755, busybox)
	for _, applet := range applets {
		c.symlink("bin/"+applet, "busybox")
	}
	c.file("init", 0o755, initScript)
	c.file("vm/config", 0o644, []byte(shellConfig(g.config)))
	c.file("vm/command", 0o755, []byte(g.script))
	if err := addModules(ctx, c, k, modules); err != nil {
		return nil, err
	}
	return buf.Bytes(), c.close()
}

// addModules writes the modules, those they need, and the order to load them in.
func addModules(ctx context.Context, c *cpioWriter, k *kernel, names []string) error {
	index, err := k.index()
	if err != nil {
		return err
	}
	var known, own []string
	for _, name := range names {
		if strings.ContainsRune(name, '/') {
			own = append(own, name)
		} else {
			known = append(known, name)
		}
	}
	order, err := index.order(known)
	if err != nil {
		return fmt.Errorf("kernel %s: %w", k.release, err)
	}
	var list strings.Builder
	add := func(file string, data []byte, err error) error {
		name := moduleName(file) + ".ko"
		fmt.Fprintln(&list, name)
		c.file("vm/modules/"+name, 0o644, data)
		return err
	}
	for _, file := range order {
		data, err := k.moduleFile(ctx, file)
		if err := add(file, data, err); err != nil {
			return err
		}
	}
	for _, file := range own {
		data, err := os.ReadFile(file)
		if err := add(file, data, err); err != nil {
			return err
		}
	}
	c.file("vm/modules/list", 0o644, []byte(list.String()))
	return nil
}

func shellConfig(variables map[string]string) string {
	var b strings.Builder
	for name, value := range variables {
		fmt.Fprintf(&b, "%s=%s\n", name, quote(value))
	}
	return b.String()
}

// readBusybox reads busybox, which must be static: the guest has no libraries when it starts.
func readBusybox() ([]byte, error) {
	path, err := findTool("busybox")
	if err != nil {
		return nil, err
	}
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for _, segment := range f.Progs {
		if segment.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s needs libraries: apt-get install busybox-static", path)
		}
	}
	return os.ReadFile(path)
}

// guestOf returns the configuration for the machine of a rank.
func guestOf(o *options, rank int) (guest, error) {
	dir, err := os.Getwd()
	if err != nil {
		return guest{}, err
	}
	addr := func(rank int) string { return "192.0.2." + strconv.Itoa(rank+1) }
	config := map[string]string{
		"VM_RANK": strconv.Itoa(rank), "VM_ADDR": addr(rank), "VM_MTU": strconv.Itoa(o.mtu), "VM_NETEM": o.netem,
		"VM_OUT": o.out, "VM_PROBE": "", "VM_TTY": "", "VM_LEAKS": "", "VM_RDMA": "rxe",
	}
	if o.siw {
		config["VM_RDMA"] = "siw"
	}
	if o.debug {
		config["VM_LEAKS"] = "1"
	}
	env := []string{"VM_RANK=" + config["VM_RANK"], "VM_ADDR=" + config["VM_ADDR"]}
	if o.two {
		env = append(env, "VM_PEER="+addr(1-rank))
	}
	if o.out != "" {
		env = append(env, "VM_OUT="+o.out)
	}
	command := o.command
	if o.shell {
		config["VM_TTY"] = "1"
		command = []string{"/bin/bash", "--norc"}
		env = append(env, `PS1=vm:\w# `, "TERM="+os.Getenv("TERM"))
	}
	env = append(passedEnv(os.Environ()), append(env, o.env...)...)
	return guest{rank: rank, config: config, script: commandScript(dir, env, command)}, nil
}

// passedEnv returns the part of this process's environment that the command gets.
func passedEnv(environ []string) []string {
	env := []string{"USER=root"}
	for _, setting := range environ {
		name, _, _ := strings.Cut(setting, "=")
		switch {
		case checkSetting(setting) != nil:
		case strings.HasPrefix(name, "BYWASH_"), strings.HasPrefix(name, "GO"),
			name == "PATH", name == "HOME", name == "LANG", name == "LC_ALL":
			env = append(env, setting)
		}
	}
	return env
}

// commandScript runs in the guest, in the host's files. Its process leads the group that signals go to.
func commandScript(dir string, env, command []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "echo $$ >/run/vm/pid\ncd %s || exit 125\n", quote(dir))
	for _, setting := range env {
		fmt.Fprintf(&b, "export %s\n", quote(setting))
	}
	b.WriteString(`PATH="$PATH:/usr/sbin:/sbin:/usr/bin:/bin"` + "\n")
	fmt.Fprintf(&b, "exec %s\n", quoteAll(command))
	return b.String()
}
