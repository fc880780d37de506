//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// headers returns the folder that modules of the kernel are built against (KDIR, for Kbuild). The headers of a stock
// kernel are downloaded if necessary; a debug kernel has its own.
func headers(ctx context.Context, cache string, k *kernel, o *options) (string, error) {
	if o.debug {
		dir := filepath.Join(k.dir, "build")
		if _, err := os.Stat(dir); err != nil {
			return "", fmt.Errorf("the debug kernel has no headers: delete %s, it is built again: %w", k.dir, err)
		}
		return dir, nil
	}
	dir := filepath.Join(cache, "headers-"+o.kernel)
	if build, err := openHeaders(dir, k); err == nil {
		return build, nil
	}
	unlock, err := lockCache(ctx, cache)
	if err != nil {
		return "", err
	}
	defer unlock()
	if build, err := openHeaders(dir, k); err == nil {
		return build, nil
	}
	work, err := workDir(cache)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := fetchHeaders(ctx, cache, k, o, work, dir); err != nil {
		return "", fmt.Errorf("fetch the headers of kernel %s: %w", k.release, err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.Rename(filepath.Join(work, "root"), dir)); err != nil {
		return "", err
	}
	return openHeaders(dir, k)
}

func buildFolder(dir, release string) string {
	return filepath.Join(dir, "usr/src/linux-headers-"+release)
}

// openHeaders returns an error for headers of another release: a kernel that was downloaded again needs its own.
func openHeaders(dir string, k *kernel) (string, error) {
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return "", err
	}
	if got := strings.TrimSpace(string(release)); got != k.release {
		return "", fmt.Errorf("these are the headers of %s", got)
	}
	return buildFolder(dir, k.release), nil
}

// headerPackages are those of a list of dependencies that hold files of the build.
var headerPackages = regexp.MustCompile(`linux-(?:headers|kbuild)-[^\s,]+`)

// fetchHeaders makes work/root, which will be at dir.
func fetchHeaders(ctx context.Context, cache string, k *kernel, o *options, work, dir string) error {
	a, err := openArchive(ctx, cache, suites[o.kernel], o.mirror)
	if err != nil {
		return err
	}
	main, err := a.show(ctx, "linux-headers-"+k.release)
	if err != nil {
		return fmt.Errorf("%w (is there a newer kernel? delete %s to get it)", err, k.dir)
	}
	root := filepath.Join(work, "root")
	names := append([]string{main["Package"]}, headerPackages.FindAllString(main["Depends"], -1)...)
	for _, name := range names {
		p, err := a.show(ctx, name)
		if err != nil {
			return err
		}
		deb, err := a.download(ctx, p, work)
		if err != nil {
			return err
		}
		if err := command(ctx, "dpkg", "-x", deb, root); err != nil {
			return err
		}
	}
	makefile := filepath.Join(buildFolder(root, k.release), "Makefile")
	text, err := os.ReadFile(makefile)
	if err != nil {
		return err
	}
	// It includes that of the common headers by the path where the package would put them.
	moved := strings.ReplaceAll(string(text), "include /usr/src/", "include "+filepath.Join(dir, "usr/src")+"/")
	if err := os.WriteFile(makefile, []byte(moved), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "release"), []byte(k.release+"\n"), 0o644)
}

// keepHeaders leaves in root/build what modules need of the tree that a kernel was built in.
func keepHeaders(ctx context.Context, tree, root string) error {
	build := filepath.Join(root, "build")
	if err := os.MkdirAll(filepath.Join(build, "arch/x86"), 0o755); err != nil {
		return err
	}
	for _, name := range []string{
		"Makefile", ".config", "Module.symvers", "scripts", "include", "arch/x86/Makefile", "arch/x86/Makefile_32.cpu",
		"arch/x86/include", "tools/objtool", "tools/bpf/resolve_btfids",
	} {
		from := filepath.Join(tree, name)
		if _, err := os.Lstat(from); errors.Is(err, os.ErrNotExist) {
			continue // not every version and configuration has it; a build that needs it says so
		}
		to := filepath.Dir(filepath.Join(build, name))
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		if err := command(ctx, "cp", "-a", from, to); err != nil {
			return err
		}
	}
	return nil
}
