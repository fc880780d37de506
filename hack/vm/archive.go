//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// keyring has the keys of Debian's archives; Ubuntu has a package of it, too.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

var errNoArchive = errors.New("no Debian archive")

// An archive is one suite of a Debian archive, with apt's lists in a directory of its own, so that the package sources
// of this machine do not change. apt verifies the signatures and hashes of all packages from it.
type archive struct {
	dir   string
	suite string
}

// openArchive fetches the package lists of a suite from the first mirror that has it.
func openArchive(ctx context.Context, dir, suite, mirror string) (*archive, error) {
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("fetch a kernel from Debian's archive: this machine has no %s", tool)
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		return nil, fmt.Errorf("verify Debian's kernels: %w: apt-get install debian-archive-keyring", err)
	}
	a := &archive{dir: filepath.Join(dir, "apt-"+suite), suite: suite}
	for _, sub := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(a.path("apt.conf"), []byte(a.config()), 0o644); err != nil {
		return nil, err
	}
	mirrors := []string{mirror}
	if mirror == "" {
		mirrors = hostMirrors(ctx)
	}
	var failed []error
	for _, m := range mirrors {
		err := a.update(ctx, m)
		if err == nil {
			return a, nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", m, err))
	}
	if len(mirrors) == 0 {
		failed = []error{errors.New("this machine's apt sources have none")}
	}
	return nil, fmt.Errorf("%w with %s: name one with -mirror URL or BYWASH_MIRROR: %w",
		errNoArchive, suite, errors.Join(failed...))
}

func (a *archive) path(name string) string { return filepath.Join(a.dir, name) }

// config keeps the machine's settings for proxies and the like, and leaves out its hooks.
func (a *archive) config() string {
	return fmt.Sprintf(`Dir::Etc::SourceList "%[1]s/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "%[1]s";
Dir::State::Lists "%[1]s/lists";
Dir::State::Status "/dev/null";
Dir::Cache "%[1]s";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::AllowReleaseInfoChange "true";
Acquire::Retries "3";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
`, a.dir)
}

func (a *archive) update(ctx context.Context, mirror string) error {
	source := fmt.Sprintf("deb [arch=amd64 target=Packages signed-by=%s] %s %s main\n", keyring, mirror, a.suite)
	if err := os.WriteFile(a.path("sources.list"), []byte(source), 0o644); err != nil {
		return err
	}
	_, err := a.run(ctx, "", "apt-get", "-q", "-o", "APT::Update::Error-Mode=any", "update")
	return err
}

// run returns the standard output of the command. Its error has apt's complaints.
func (a *archive) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, append([]string{"-c", a.path("apt.conf")}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if said := complaints(stderr.String()); said != "" {
			err = errors.New(said)
		}
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return stdout.String(), nil
}

var aptError = regexp.MustCompile(`(?m)^(?:E|Err|W): *(.*)$`)

// complaints returns apt's errors in one line.
func complaints(output string) string {
	var said []string
	for _, match := range aptError.FindAllStringSubmatch(output, -1) {
		if !slices.Contains(said, match[1]) {
			said = append(said, match[1])
		}
	}
	return strings.Join(said, "; ")
}

// A record has the fields of one version of a package, as apt-cache shows them.
type record map[string]string

// show returns the newest version of a package in the suite.
func (a *archive) show(ctx context.Context, name string) (record, error) {
	text, err := a.run(ctx, "", "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return nil, err
	}
	return parseRecord(text), nil
}

// parseRecord reads the first paragraph, without continuation lines.
func parseRecord(text string) record {
	r := record{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" {
			break
		}
		if key, value, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, " ") {
			r[key] = strings.TrimSpace(value)
		}
	}
	return r
}

// download fetches a package into dir and returns its file.
func (a *archive) download(ctx context.Context, r record, dir string) (string, error) {
	stop := showProgress("fetching "+r["Package"], dir, r["Size"])
	_, err := a.run(ctx, dir, "apt-get", "-q", "download", r["Package"]+"="+r["Version"])
	stop()
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(dir, r["Package"]+"_*.deb"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("apt-get download %s left %d files", r["Package"], len(files))
	}
	return files[0], nil
}

// showProgress prints every two seconds how much of size bytes is in dir.
func showProgress(what, dir, size string) (stop func()) {
	var total int64
	fmt.Sscan(size, &total)
	done := make(chan struct{})
	say("%s (%d MB)", what, total/1e6)
	go func() {
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				say("%s: %d of %d MB", what, bytesIn(dir)/1e6, total/1e6)
			}
		}
	}()
	return func() { close(done) }
}

func bytesIn(dir string) (total int64) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
	}
	return total
}

// hostMirrors returns the Debian archives among this machine's apt sources. It recognises them by their names, because
// other repositories need not be asked for Debian's suites.
func hostMirrors(ctx context.Context) []string {
	cmd := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
	out, _ := cmd.Output()
	var mirrors []string
	for uri := range strings.Lines(string(out)) {
		uri = strings.TrimRight(strings.TrimSpace(uri), "/")
		if debianArchive.MatchString(uri) && !slices.Contains(mirrors, uri) {
			mirrors = append(mirrors, uri)
		}
	}
	return mirrors
}

// The second is a list of mirrors, as cloud images have it.
var debianArchive = regexp.MustCompile(`/debian$|/debian\.list$`)
