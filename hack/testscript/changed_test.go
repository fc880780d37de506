//go:build linux

package testscript

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// "hack/test changed" tests the packages whose files differ from the commit, written to or new, and what imports them.
func TestChangedPackagesAndTheirImporters(t *testing.T) {
	self, err := os.ReadFile("../test")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "BASE=HEAD", "GOFLAGS=", "HOME="+dir, "GOCACHE="+filepath.Join(dir, ".cache"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	write("hack/test", string(self))
	write("hack/env", "before")
	write("hack/testscript/a.go", "package testscript\n")
	write(".gitignore", ".cache\n")
	write("go.mod", "module tiny\n\ngo 1.26\n")
	write("written/a.go", "package written\n")
	write("imports/a.go", "package imports\n\nimport _ \"tiny/written\"\n")
	write("indirect/a.go", "package indirect\n\nimport _ \"tiny/imports\"\n")
	write("tests/a_test.go", "package tests\n\nimport _ \"tiny/written\"\n")
	write("other/a.go", "package other\n")
	write("data/a.go", "package data\n")
	write("data/testdata/text", "before")
	write("text/README", "before")
	run("git", "init", "-q")
	run("git", "add", ".")
	run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "base")
	write("written/a.go", "package written\n\nconst X = 1\n")
	write("new/a.go", "package new\n")
	write("data/testdata/text", "after")
	write("text/README", "after")
	write("hack/env", "after")

	for group, want := range map[string]string{
		"changed":    "tiny/data tiny/hack/testscript tiny/new tiny/written",
		"dependants": "tiny/imports tiny/indirect tiny/tests",
	} {
		out := run("hack/test", "show", group)
		i := strings.Index(out, "tiny/")
		if i < 0 || strings.Join(strings.Fields(out[i:]), " ") != want {
			t.Errorf("hack/test show %s prints %q, want the packages %s", group, out, want)
		}
	}
}
