//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// A kernel is an image and its modules in the cache.
type kernel struct {
	dir     string
	release string // as uname -r says it
	image   string
}

func (k *kernel) modules() string { return filepath.Join(k.dir, "lib/modules", k.release) }

// suites have the kernels that can be asked for.
var suites = map[string]string{"6.1": "bookworm", "6.12": "bookworm-backports"}

// cacheDir makes and returns the directory of everything that is kept between runs.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for kernels: %w", err)
	}
	dir := filepath.Join(base, "bywash", "vm")
	return dir, os.MkdirAll(dir, 0o755)
}

// lockCache makes this run the only one that changes the cache.
func lockCache(ctx context.Context, cache string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for waited := false; ; waited = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if !waited {
			say("waiting for another run that prepares a kernel")
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// stockKernel returns Debian's own kernel, which it downloads if necessary.
func stockKernel(ctx context.Context, cache, version, mirror string) (*kernel, error) {
	return cachedKernel(ctx, cache, filepath.Join(cache, "kernel-"+version), func(work string) error {
		if err := fetchKernel(ctx, cache, version, mirror, work); err != nil {
			return fmt.Errorf("fetch kernel %s: %w", version, err)
		}
		return nil
	})
}

// cachedKernel returns the kernel in dir. If there is none, one run makes it, as root in a directory that it gets.
func cachedKernel(ctx context.Context, cache, dir string, build func(work string) error) (*kernel, error) {
	if k, err := openKernel(dir); err == nil {
		return k, nil
	}
	unlock, err := lockCache(ctx, cache)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if k, err := openKernel(dir); err == nil {
		return k, nil
	}
	work, err := workDir(cache)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if err := build(work); err != nil {
		return nil, err
	}
	return moveKernel(filepath.Join(work, "root"), dir)
}

// workDir returns an empty directory in the cache for the holder of the lock.
func workDir(cache string) (string, error) {
	dir := filepath.Join(cache, "work")
	// A run that was killed may have left one.
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.Mkdir(dir, 0o755)
}

// moveKernel puts a complete kernel where it is looked for.
func moveKernel(from, to string) (*kernel, error) {
	if err := os.RemoveAll(to); err != nil {
		return nil, err
	}
	if err := os.Rename(from, to); err != nil {
		return nil, err
	}
	return openKernel(to)
}

func openKernel(dir string) (*kernel, error) {
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return nil, err
	}
	k := &kernel{dir: dir, release: strings.TrimSpace(string(release)), image: filepath.Join(dir, "vmlinux")}
	if _, err := os.Stat(k.image); err != nil {
		k.image = filepath.Join(dir, "vmlinuz")
	}
	return k, nil
}

var imagePackage = regexp.MustCompile(`linux-image-(\d\S*)`)

// fetchKernel makes work/root: vmlinuz, lib/modules, and last the release.
func fetchKernel(ctx context.Context, cache, version, mirror, work string) error {
	say("looking for the newest kernel of %s", suites[version])
	a, err := openArchive(ctx, cache, suites[version], mirror)
	if err != nil {
		return err
	}
	newest, err := a.show(ctx, "linux-image-amd64")
	if err != nil {
		return err
	}
	match := imagePackage.FindStringSubmatch(newest["Depends"])
	if match == nil {
		return fmt.Errorf("linux-image-amd64 depends on no image but %q", newest["Depends"])
	}
	release := match[1]
	newest, err = a.show(ctx, match[0])
	if err != nil {
		return err
	}
	deb, err := a.download(ctx, newest, work)
	if err != nil {
		return err
	}
	root := filepath.Join(work, "root")
	if err := command(ctx, "dpkg", "-x", deb, root); err != nil {
		return err
	}
	// The package has no list of what needs what: it is made when the package is installed.
	if err := command(ctx, "depmod", "-b", root, release); err != nil {
		return err
	}
	image := filepath.Join(root, "vmlinuz")
	if err := os.Rename(filepath.Join(root, "boot", "vmlinuz-"+release), image); err != nil {
		return err
	}
	unpackImage(ctx, image, filepath.Join(root, "vmlinux"))
	return os.WriteFile(filepath.Join(root, "release"), []byte(release+"\n"), 0o644)
}

// command runs a program for its effect. The program's output is in the error.
func command(ctx context.Context, name string, args ...string) error {
	path, err := findTool(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, lastLines(string(out), 5))
	}
	return nil
}

// packages have the programs that are not on every machine.
var packages = map[string]string{
	"depmod": "kmod", "xz": "xz-utils", "busybox": "busybox-static", "qemu-system-x86_64": "qemu-system-x86",
	"rdma": "iproute2", "tc": "iproute2", "ibv_rc_pingpong": "ibverbs-utils",
	"make": "make", "gcc": "gcc", "flex": "flex", "bison": "bison", "bc": "bc", "perl": "perl", "tar": "tar", "gzip": "gzip",
}

// findTool also looks where a user's PATH does not.
func findTool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	if p := packages[name]; p != "" {
		return "", fmt.Errorf("there is no %s: apt-get install %s (or make deps)", name, p)
	}
	return "", fmt.Errorf("there is no %s", name)
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// moduleFile returns the contents of a module, given its path below the modules' directory. Compressed ones are
// unpacked once.
func (k *kernel) moduleFile(ctx context.Context, file string) ([]byte, error) {
	path := filepath.Join(k.modules(), file)
	plain, compressed := strings.CutSuffix(path, ".xz")
	if !compressed {
		return os.ReadFile(path)
	}
	if data, err := os.ReadFile(plain); err == nil {
		return data, nil
	}
	xz, err := findTool("xz")
	if err != nil {
		return nil, err
	}
	data, err := exec.CommandContext(ctx, xz, "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", path, err)
	}
	return data, writeFileAtomic(plain, data)
}

// writeFileAtomic leaves all or nothing, also when others write the same file.
func writeFileAtomic(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return err
	}
	return os.Rename(f.Name(), path)
}

func (k *kernel) index() (*moduleIndex, error) {
	var text [3]string
	for i, name := range []string{"modules.dep", "modules.builtin", "modules.softdep"} {
		data, err := os.ReadFile(filepath.Join(k.modules(), name))
		if err != nil {
			return nil, err
		}
		text[i] = string(data)
	}
	return parseModules(text[0], text[1], text[2]), nil
}
