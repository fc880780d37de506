//go:build linux

package readme

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// spdx is the first line of a C file of the kernel module: Linux wants the comment of a header in the old style.
var (
	spdx    = regexp.MustCompile(`^(?:// SPDX-License-Identifier: (.*)|/\* SPDX-License-Identifier: (.*) \*/)$`)
	licence = regexp.MustCompile(`[A-Za-z]+-[\w.-]+`)
)

// TestModuleNamesItsLicences asks the same of the kernel module as Linux does of its sources: each begins with its
// licences, which match MODULE_LICENSE, and LICENSES has the text of each.
func TestModuleNamesItsLicences(t *testing.T) {
	err := filepath.WalkDir("../../kmod", func(path string, d fs.DirEntry, err error) error {
		ext := filepath.Ext(path)
		if err != nil || d.IsDir() || ext != ".c" && ext != ".h" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		first, _, _ := bytes.Cut(text, []byte("\n"))
		names := spdx.FindSubmatch(first)
		if names == nil {
			t.Errorf("%s begins with %q, which names no licence", path, first)
			return nil
		}
		if old := len(names[2]) > 0; old != (ext == ".h") {
			t.Errorf("%s begins with %q: Linux wants // in C files and /* in headers", path, first)
		}
		has := map[string]bool{}
		for _, name := range licence.FindAll(append(names[1], names[2]...), -1) {
			has[string(name)] = true
			if _, err := os.Stat("../../LICENSES/" + string(name) + ".txt"); err != nil {
				t.Errorf("%s: no text of its licence: %v", path, err)
			}
		}
		if !has["GPL-2.0"] || !has["BSD-2-Clause"] {
			t.Errorf("%s begins with %q; the module is under GPL-2.0 or BSD-2-Clause", path, first)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ours, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile("../../LICENSES/BSD-2-Clause.txt"); !bytes.Equal(text, ours) {
		t.Errorf("LICENSES/BSD-2-Clause.txt is not LICENSE (%v)", err)
	}
}
