//go:build linux

// Command vm boots virtual machines with a stock Debian kernel and Soft-RoCE and runs a command in them: see
// "vm -help".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "vm: "+format+"\n", args...) }

func main() {
	// QEMU dies with the thread that started it, so that thread must be this one, which lives as long as the process.
	runtime.LockOSThread()
	o, err := parseOptions(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		say("%v (see vm -help)", err)
		os.Exit(statusUsage)
	}
	status, err := vm(o)
	if err != nil {
		say("%v", err)
	}
	os.Exit(status)
}

// skipped says what go test takes for a test that was skipped.
func skipped(to io.Writer, command []string, why error) {
	mark := ""
	if slices.Contains(command, "-test.v=test2json") {
		mark = "\x16" // begins what is not the test's own output
	}
	const name = "VirtualMachine"
	_, file, line, _ := runtime.Caller(0) // as t.Skip says it
	fmt.Fprintf(to, "%s=== RUN   %s\n", mark, name)
	fmt.Fprintf(to, "    %s:%d: no virtual machine here: %s\n", filepath.Base(file), line, strings.ReplaceAll(why.Error(), "\n", "; "))
	fmt.Fprintf(to, "%s--- SKIP: %s (0.00s)\n%sPASS\n", mark, name, mark)
}

func vm(o *options) (int, error) {
	if o.out != "" {
		if err := os.MkdirAll(o.out, 0o755); err != nil {
			return statusBroken, fmt.Errorf("-out: %w", err)
		}
	}
	h, err := prepare(o)
	switch {
	case err == nil && o.headers:
		fmt.Println(h.headers)
		return 0, nil
	case err != nil && o.skip:
		skipped(os.Stdout, o.command, err)
		return 0, nil
	case err != nil:
		return statusBroken, err
	}
	modules := append([]string{}, baseModules...)
	if o.siw {
		modules = append(append(modules, siwModules...), h.siw)
	} else {
		modules = append(modules, rxeModules...)
	}
	if o.netem != "" {
		modules = append(modules, "sch_netem")
	}
	return runCommand(context.Background(), o, h, append(modules, o.modules...))
}

// prepare finds or makes what the machines need. A signal ends it.
func prepare(o *options) (*hardware, error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("the guest runs this machine's programs on an amd64 kernel: not on %s", runtime.GOARCH)
	}
	if _, err := findTool("qemu-system-x86_64"); err != nil {
		return nil, err
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	h := &hardware{memory: o.memory, cpus: o.cpus, mtu: o.mtu, out: o.out, shell: o.shell, verbose: o.verbose}
	find := stockKernel
	if o.debug {
		find = debugKernel
	}
	if h.kernel, err = find(ctx, cache, o.kernel, o.mirror); err != nil {
		return nil, err
	}
	if o.headers {
		h.headers, err = headers(ctx, cache, h.kernel, o)
		return h, err
	}
	if o.siw {
		if h.siw, err = siwModule(ctx, cache, h.kernel, o); err != nil {
			return nil, err
		}
	}
	h.accel = o.accel
	if h.accel == "auto" {
		if h.accel, err = chooseAccel(ctx, cache, h.kernel); err != nil {
			return nil, err
		}
	}
	return h, nil
}
