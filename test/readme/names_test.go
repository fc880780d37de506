//go:build linux

package readme

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testDefined = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	testNamed   = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`)
	fenced      = regexp.MustCompile("(?s)```.*?```")
)

// TestPagesNameTestsThatExist looks for each test that a page names, outside of examples, among the tests of the repository.
func TestPagesNameTestsThatExist(t *testing.T) {
	defined := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testDefined.FindAllStringSubmatch(string(text), -1) {
			defined[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range testNamed.FindAllString(fenced.ReplaceAllString(string(text), ""), -1) {
			if !defined[name] {
				t.Errorf("%s names %s, which no package has", filepath.Base(page), name)
			}
		}
	}
}
