//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// siwModules are what siw.ko needs: insmod does not find that out for a module that is not in the kernel's index.
var siwModules = []string{"crc32c_generic", "libcrc32c", "ib_core", "iw_cm", "ib_uverbs", "rdma_ucm"}

// siwSource is where a kernel's source has the module.
const siwSource = "drivers/infiniband/sw/siw"

// siwModule returns siw.ko for a stock kernel. Debian's kernels leave the module out, so it is built once from
// the newest source of the same series that the archive has, against the kernel's own headers.
func siwModule(ctx context.Context, cache string, k *kernel, o *options) (string, error) {
	dir := filepath.Join(cache, "siw-"+o.kernel)
	if file, err := openSiw(dir, k); err == nil {
		return file, nil
	}
	// The headers take the lock themselves.
	kdir, err := headers(ctx, cache, k, o)
	if err != nil {
		return "", err
	}
	unlock, err := lockCache(ctx, cache)
	if err != nil {
		return "", err
	}
	defer unlock()
	if file, err := openSiw(dir, k); err == nil {
		return file, nil
	}
	work, err := workDir(cache)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := buildSiw(ctx, cache, k, o, kdir, work); err != nil {
		return "", fmt.Errorf("build siw for kernel %s: %w", k.release, err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.Rename(filepath.Join(work, "root"), dir)); err != nil {
		return "", err
	}
	return openSiw(dir, k)
}

// openSiw returns an error for a module of another release: a kernel that was downloaded again needs its own.
func openSiw(dir string, k *kernel) (string, error) {
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return "", err
	}
	if got := strings.TrimSpace(string(release)); got != k.release {
		return "", fmt.Errorf("this is the module of %s", got)
	}
	return filepath.Join(dir, "siw.ko"), nil
}

// buildSiw makes work/root: siw.ko, and last the release.
func buildSiw(ctx context.Context, cache string, k *kernel, o *options, kdir, work string) error {
	a, err := openArchive(ctx, cache, suites[o.kernel], o.mirror)
	if err != nil {
		return err
	}
	name := "linux-source-" + o.kernel
	source, err := a.show(ctx, name)
	if err != nil {
		return err
	}
	deb, err := a.download(ctx, source, work)
	if err != nil {
		return err
	}
	if err := command(ctx, "dpkg", "-x", deb, filepath.Join(work, "package")); err != nil {
		return err
	}
	say("building siw from %s", name)
	packed := filepath.Join(work, "package/usr/src", name+".tar.xz")
	if err := command(ctx, "tar", "-C", work, "-xf", packed, name+"/"+siwSource); err != nil {
		return err
	}
	tree := filepath.Join(work, name, siwSource)
	// Debian's headers name the compiler of the kernel, which a later Debian need not have.
	args := []string{"M=" + tree, "CONFIG_RDMA_SIW=m", "CC=gcc", "modules"}
	if _, err := findTool("pahole"); err != nil {
		args = append(args, "CONFIG_DEBUG_INFO_BTF_MODULES=") // types for BPF programs: nothing else needs them
	}
	if err := makeKernel(ctx, kdir, filepath.Join(work, "build.log"), args...); err != nil {
		return err
	}
	root := filepath.Join(work, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(tree, "siw.ko"), filepath.Join(root, "siw.ko")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "release"), []byte(k.release+"\n"), 0o644)
}
