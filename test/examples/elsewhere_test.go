//go:build linux

package examples

import (
	"errors"
	"fmt"
	"go/ast"
	gobuild "go/build"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// elsewhere are systems on which programs compile, but no driver runs.
var elsewhere = [][2]string{{"darwin", "arm64"}, {"windows", "amd64"}, {"linux", "386"}}

// crossed returns the command go for another system, in the module of the examples.
func crossed(t *testing.T, system [2]string, args ...string) *exec.Cmd {
	t.Helper()
	example(t, "")
	c := exec.CommandContext(t.Context(), "go", args...)
	c.Dir = filepath.Join(folder, "module")
	c.Env = slices.Concat(os.Environ(), offline, []string{"CGO_ENABLED=0", "GOOS=" + system[0], "GOARCH=" + system[1]})
	return c
}

// Programs for a 32-bit machine start, and say why they have no driver.
func TestDriversAreUnavailableElsewhere(t *testing.T) {
	dir := t.TempDir()
	if out, err := crossed(t, [2]string{"linux", "386"}, "build", "-o", dir, "./driver", "./job").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, drivers := range map[string][]string{"driver": {"shm"}, "job": {"afxdp", "qnix", "shm", "tcp", "verbs"}} {
		out, err := command(t, filepath.Join(dir, name)).CombinedOutput()
		if errors.Is(err, syscall.ENOEXEC) {
			t.Skip("needs a kernel that runs programs for 32-bit machines: ", err)
		}
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%s ended with %v", name, err)
		}
		for _, driver := range drivers {
			want := driver + " unavailable: it needs Linux on a 64-bit machine, this is linux/386"
			if !strings.Contains(string(out), want) {
				t.Errorf("%s said:\n%s\nwant %q", name, out, want)
			}
		}
	}
}

// A user's program that compiles on Linux compiles elsewhere.
func TestAPIIsTheSameElsewhere(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{.Dir}}", "github.com/bywash/bywash/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		path := strings.TrimPrefix(f[0], "github.com/bywash/bywash/")
		if first, _, _ := strings.Cut(path, "/"); slices.Contains([]string{"cmd", "hack", "test", "examples", "internal"}, first) ||
			strings.Contains(path, "/internal/") {
			continue
		}
		checked++
		here := exported(t, f[1], "linux", "amd64")
		for _, system := range elsewhere {
			there := exported(t, f[1], system[0], system[1])
			for name := range maps.Keys(here) {
				if there[name] != here[name] {
					t.Errorf("%s: %s is %q on linux/amd64 and %q on %s", path, name, here[name], there[name], strings.Join(system[:], "/"))
				}
			}
			for name := range maps.Keys(there) {
				if _, ok := here[name]; !ok {
					t.Errorf("%s: only %s has %s", path, strings.Join(system[:], "/"), name)
				}
			}
		}
	}
	if checked < 10 {
		t.Errorf("%d public packages are found", checked)
	}
}

// exported maps the exported names of a package on a system to their types, as they are written; constants and variables
// to nothing.
func exported(t *testing.T, dir, system, arch string) map[string]string {
	t.Helper()
	c := gobuild.Default
	c.GOOS, c.GOARCH, c.CgoEnabled = system, arch, false
	p, err := c.ImportDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	api := map[string]string{}
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.FileExports(file)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					receiver := types.ExprString(d.Recv.List[0].Type)
					if !ast.IsExported(strings.TrimPrefix(receiver, "*")) {
						continue
					}
					name = receiver + "." + name
				}
				api[name] = signature(d.Type)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						api[s.Name.Name] = "type"
						if st, ok := s.Type.(*ast.StructType); ok {
							for i, typ := range fields(st.Fields) {
								api[fmt.Sprintf("%s field %s", s.Name.Name, i)] = typ
							}
						} else {
							api[s.Name.Name] += " " + types.ExprString(s.Type)
						}
					case *ast.ValueSpec:
						for _, n := range s.Names {
							api[n.Name] = d.Tok.String()
						}
					}
				}
			}
		}
	}
	return api
}

// fields maps names to types.
func fields(list *ast.FieldList) map[string]string {
	all := map[string]string{}
	for _, f := range list.List {
		for _, n := range f.Names {
			all[n.Name] = types.ExprString(f.Type)
			if f.Tag != nil {
				all[n.Name] += " " + f.Tag.Value
			}
		}
	}
	return all
}

// signature returns the types of parameters and results, without their names.
func signature(f *ast.FuncType) string {
	side := func(list *ast.FieldList) string {
		var all []string
		if list != nil {
			for _, p := range list.List {
				for range max(1, len(p.Names)) {
					all = append(all, types.ExprString(p.Type))
				}
			}
		}
		return "(" + strings.Join(all, ", ") + ")"
	}
	return side(f.Params) + " " + side(f.Results)
}
