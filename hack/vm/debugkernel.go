//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

//go:embed debug.config
var debugConfig string

// A file of Soft-RoCE is not checked by KASAN: rxe_mr_copy of Linux 6.1 (until 6.3) looks at the next 256 pages of a region
// when it has copied the last byte of the last ones, and KASAN reports only the first fault.
const (
	uncheckedMakefile = "drivers/infiniband/sw/rxe/Makefile"
	unchecked         = "\nKASAN_SANITIZE_rxe_mr.o := n\n"
)

// debugKernel returns a kernel with debugging checks, which it builds from Debian's source if necessary. There is one
// for each configuration; its version is that of the source when it was built.
func debugKernel(ctx context.Context, cache, version, mirror string) (*kernel, error) {
	hash := sha256.Sum256([]byte(version + debugConfig + unchecked))
	dir := filepath.Join(cache, fmt.Sprintf("kernel-%s-debug-%x", version, hash[:6]))
	return cachedKernel(ctx, cache, dir, func(work string) error {
		if err := checkBuildTools(ctx, work); err != nil {
			return err
		}
		if err := buildKernel(ctx, cache, version, mirror, work); err != nil {
			return fmt.Errorf("build the debug kernel: %w", err)
		}
		return nil
	})
}

// checkBuildTools checks before a download for tools that the build needs after it.
func checkBuildTools(ctx context.Context, work string) error {
	for _, tool := range []string{"make", "gcc", "flex", "bison", "bc", "perl", "tar", "xz", "gzip", "depmod"} {
		if _, err := findTool(tool); err != nil {
			return fmt.Errorf("building a kernel: %w", err)
		}
	}
	source := filepath.Join(work, "probe.c")
	if err := os.WriteFile(source, []byte("#include <gelf.h>\n"), 0o644); err != nil {
		return err
	}
	if err := command(ctx, "gcc", "-fsyntax-only", source); err != nil {
		return fmt.Errorf("building a kernel needs libelf's headers: apt-get install libelf-dev: %w", err)
	}
	return nil
}

// buildKernel makes work/root as fetchKernel does.
func buildKernel(ctx context.Context, cache, version, mirror, work string) error {
	a, err := openArchive(ctx, cache, suites[version], mirror)
	if err != nil {
		return err
	}
	name := "linux-source-" + version
	source, err := a.show(ctx, name)
	if err != nil {
		return err
	}
	deb, err := a.download(ctx, source, work)
	if err != nil {
		return err
	}
	tree := filepath.Join(work, name)
	say("unpacking %s", name)
	if err := command(ctx, "dpkg", "-x", deb, filepath.Join(work, "package")); err != nil {
		return err
	}
	if err := command(ctx, "tar", "-C", work, "-xf", filepath.Join(work, "package/usr/src", name+".tar.xz")); err != nil {
		return err
	}
	makefile := filepath.Join(tree, uncheckedMakefile)
	text, err := os.ReadFile(makefile)
	if err != nil {
		return err
	}
	if err := os.WriteFile(makefile, append(text, unchecked...), 0o644); err != nil {
		return err
	}
	if err := configureKernel(ctx, tree, filepath.Join(work, "debug.config")); err != nil {
		return err
	}
	say("building the debug kernel %s: some five minutes on two cores, once", source["Version"])
	if err := makeKernel(ctx, tree, buildLog(tree), "-j", fmt.Sprint(runtime.NumCPU()), "bzImage", "modules"); err != nil {
		return err
	}
	root := filepath.Join(work, "root")
	if err := makeKernel(ctx, tree, buildLog(tree), "INSTALL_MOD_PATH="+root, "modules_install"); err != nil {
		return err
	}
	if err := keepHeaders(ctx, tree, root); err != nil {
		return err
	}
	return installKernel(tree, root)
}

// configureKernel makes .config and checks that it has all requested options: the kernel's tools silently drop an
// option whose dependencies are missing.
func configureKernel(ctx context.Context, tree, fragment string) error {
	if err := os.WriteFile(fragment, []byte(debugConfig), 0o644); err != nil {
		return err
	}
	if err := makeKernel(ctx, tree, buildLog(tree), "tinyconfig"); err != nil {
		return err
	}
	config := filepath.Join(tree, ".config")
	tiny, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	// The last setting of an option counts.
	if err := os.WriteFile(config, append(tiny, debugConfig...), 0o644); err != nil {
		return err
	}
	if err := makeKernel(ctx, tree, buildLog(tree), "olddefconfig"); err != nil {
		return err
	}
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	if missing := missingSettings(debugConfig, string(text)); len(missing) > 0 {
		return fmt.Errorf("this kernel cannot have %s", strings.Join(missing, ", "))
	}
	return nil
}

// missingSettings are the lines of want that a configuration does not have.
func missingSettings(want, config string) []string {
	has := map[string]bool{}
	for line := range strings.Lines(config) {
		has[strings.TrimSpace(line)] = true
	}
	var missing []string
	for line := range strings.Lines(want) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "CONFIG_") && !has[line] {
			missing = append(missing, line)
		}
	}
	return missing
}

// buildLog is beside the tree, which takes no files of others.
func buildLog(tree string) string { return filepath.Join(filepath.Dir(tree), "build.log") }

// makeKernel runs make at low priority, with its output in logFile, and prints a sign of life now and then.
func makeKernel(ctx context.Context, tree, logFile string, args ...string) error {
	path, err := findTool("make")
	if err != nil {
		return err
	}
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	args = append([]string{"-C", tree, "ARCH=x86_64", "LOCALVERSION="}, args...)
	cmd := exec.CommandContext(ctx, "nice", append([]string{"-n", "10", path}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	// The whole group goes when this process or its patience ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		return err
	}
	start, done := time.Now(), make(chan struct{})
	go func() {
		tick := time.NewTicker(30 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				say("building since %v", time.Since(start).Round(time.Second))
			}
		}
	}()
	err = cmd.Wait()
	close(done)
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("make %s: %w:\n%s", strings.Join(args, " "), err, lastLines(string(text), 20))
	}
	return nil
}

// installKernel completes root, which has the modules, with the kernel and its release.
func installKernel(tree, root string) error {
	release, err := os.ReadFile(filepath.Join(tree, "include/config/kernel.release"))
	if err != nil {
		return err
	}
	// They point into the tree.
	for _, link := range []string{"build", "source"} {
		if err := os.Remove(filepath.Join(root, "lib/modules", strings.TrimSpace(string(release)), link)); err != nil {
			return err
		}
	}
	// Not the unpacked kernel: QEMU would enter it where KASAN is not yet set up but expected.
	if err := os.Rename(filepath.Join(tree, "arch/x86/boot/bzImage"), filepath.Join(root, "vmlinuz")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "release"), release, 0o644)
}
